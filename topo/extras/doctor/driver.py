"""Checks of the driver: its answers, GPUs that it does not list, its modes, and NVLinks.

A check takes a DoctorView (the topology, and the facts that a probe read of the machine) and yields
a Finding for each problem; the doctor makes those in `CHECKS`. Like GPUs are those of one model.
The topology's notes are lines of the probe, or of a file's reader, on what is unknown or unusual;
as a severity, a note is the mildest.
"""

from collections import Counter
from collections.abc import Iterator

from ...facts import keys
from ...facts.keys import GPU, HOST, NVML, PCI, gpu_subject, pci_subject
from ...notes import Note
from .links import MIN_PEERS, check_link_counts
from .view import Case, Check, DoctorView, Finding, has_two_gpus, join_names

_NVIDIA = "0x10de"
_GPU_CLASSES = ("0x0300", "0x0302")
# Drivers that hold a device for a virtual machine.
_PASSED_THROUGH = ("vfio-pci", "pci-stub", "xen-pciback", "nvgrace_gpu_vfio_pci")


def check_driver(view: DoctorView) -> Iterator[Finding]:
    """Report a driver whose library does not answer.

    The source is the fact `nvml library` or `nvml count`, or a note of the topology. It is an error
    if the versions of library and kernel module differ or NVIDIA GPUs are on PCI (a warning if this
    process only lacks the permission), else a note.
    """
    evidence = tuple(f"{note} (the topology's notes)" for note in view.list_notes("no-driver"))
    for key in (keys.NVML_COUNT, keys.NVML_LIBRARY):
        if view.facts.get_reason(NVML, key) is not None:
            evidence = (view.format_fact(NVML, key),)
    addresses = _list_nvidia_gpus(view)
    if not evidence:
        return
    if "mismatch" in evidence[0].lower():
        yield Finding(
            "error",
            "driver-mismatch",
            (),
            "the driver's library and its kernel module are of different versions, so no GPU is "
            "listed",
            evidence,
            "reboot, or reload the kernel module, after an update of the driver; in a container "
            "use the host's library",
        )
    elif addresses:
        ids = {gpu.bus_id: gpu.id for gpu in view.gpus}
        about = tuple(ids.get(bus_id, bus_id) for bus_id in addresses)
        is_denied = "permission" in evidence[0].lower()
        evidence += tuple(
            view.format_fact(pci_subject(bus_id), keys.PCI_CLASS)
            for bus_id in addresses
            if view.facts.get_text(pci_subject(bus_id), keys.PCI_CLASS)
        )
        yield Finding(
            "warning" if is_denied else "error",
            "no-driver",
            about,
            f"NVML, the driver's library, does not answer{' this process' * is_denied}, though "
            f"{join_names(about)} are NVIDIA GPUs",
            evidence,
            "if this job or container is to use GPUs, give it the devices /dev/nvidiactl and "
            "/dev/nvidia*; else run topo-probe outside of it"
            if is_denied
            else "install and load the NVIDIA driver and the package nvidia-ml-py; nvidia-smi has "
            "to work",
        )
    else:
        yield Finding(
            "note",
            "no-driver",
            (),
            "NVML, the driver's library, does not answer; if this machine has NVIDIA GPUs, they "
            "are not known",
            evidence,
            "install the NVIDIA driver if there are such GPUs",
        )


def check_unlisted_gpus(view: DoctorView) -> Iterator[Finding]:
    """Report NVIDIA GPUs on PCI that a working driver does not list: a warning.

    If the driver lists no GPU at all, it is an error. If they are given away (bound to a driver
    such as vfio-pci for a virtual machine), or this is a container, whose /sys shows GPUs that it
    was not given, it is a note. If the driver counts just as many further GPUs without an address
    (lost, or closed to this process), these are taken to be the same, and none is reported. The
    source is the facts or the topology's notes.
    """
    if view.facts.get_reason(NVML, keys.NVML_LIBRARY) is not None or view.list_notes("no-driver"):
        return
    # If the driver lists none, the probe takes the GPUs from PCI.
    none_listed = view.facts.get_number(NVML, keys.NVML_COUNT) == 0
    addresses = [
        view.facts.get_text(gpu_subject(index), keys.GPU_BUS_ID)
        for index in (() if none_listed else view.facts.list_names(GPU))
    ]
    listed = {*addresses}
    answers = listed or view.facts.get_source(NVML, keys.NVML_COUNT)
    missing = [bus_id for bus_id in _list_nvidia_gpus(view) if answers and bus_id not in listed]
    if len(missing) == addresses.count(None):
        missing = []
    cases: list[Case] = [
        (
            "" if bound == "nvidia" else bound or "",
            (bus_id,),
            [
                view.format_fact(pci_subject(bus_id), key)
                for key in (keys.PCI_CLASS, keys.PCI_DRIVER)
                if view.facts.get_source(pci_subject(bus_id), key)
            ],
        )
        for bus_id in missing
        for bound in [view.facts.get_text(pci_subject(bus_id), keys.PCI_DRIVER)]
    ]
    if not listed - {None}:
        cases += [
            ("", note.about, (f"{note} (the topology's notes)",)) for note in _list_unlisted(view)
        ]
    in_container = view.facts.get_text(HOST, keys.HOST_CONTAINER) not in (None, "no")
    for bound, about, evidence in view.group(cases):
        is_given_away = bound in _PASSED_THROUGH or (in_container and not none_listed)
        yield Finding(
            "note" if is_given_away else "error" if none_listed else "warning",
            "gpu-not-listed",
            about,
            f"{join_names(about)}: on PCI, but "
            + (
                "the driver lists no GPU"
                if none_listed
                else "not among the GPUs that the driver lists"
            )
            + (f": bound to {bound}" if bound else "")
            + (": this container was given others" if in_container and not none_listed else ""),
            (
                *evidence,
                *([view.format_fact(NVML, keys.NVML_COUNT)] if none_listed else []),
                *([view.format_fact(HOST, keys.HOST_CONTAINER)] if in_container else []),
            ),
            f"unbind {bound} and bind NVIDIA's driver, if these GPUs are to be used here"
            if bound
            else "if this is no container that was given fewer GPUs, look for Xid and RmInit "
            "errors in the kernel log",
        )


def _list_unlisted(view: DoctorView) -> list[Note]:
    return [note for note in view.list_notes("gpu-not-listed") if note.detail == "NVIDIA"]


def _list_nvidia_gpus(view: DoctorView) -> list[str]:
    return [
        bus_id
        for bus_id in view.facts.list_names(PCI)
        if view.facts.get_text(pci_subject(bus_id), keys.PCI_VENDOR) == _NVIDIA
        and str(view.facts.get_text(pci_subject(bus_id), keys.PCI_CLASS)).startswith(_GPU_CLASSES)
    ]


def check_lost_gpus(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs that no longer answer the driver (fact `lost`): an error."""
    for _, about, evidence in view.group(
        ("", (ident,), (view.format_fact(gpu_subject(index), keys.GPU_LOST),))
        for index, ident in view.gpu_of.items()
        if view.facts.get_source(gpu_subject(index), keys.GPU_LOST) is not None
    ):
        yield Finding(
            "error",
            "gpu-lost",
            about,
            f"{join_names(about)}: no longer answers the driver; whatever uses it hangs or fails",
            evidence,
            "take its work off the machine, look for Xid errors in the kernel log, then reset the "
            "GPU or reboot",
        )


def check_denied_gpus(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs that this process may not use (fact `denied`): a note.

    NVML counts the GPUs outside a job's cgroup, too. If no other GPU is left, it is a warning.
    """
    denied = [
        index
        for index in view.facts.list_names(GPU)
        if view.facts.get_source(gpu_subject(index), keys.GPU_DENIED) is not None
    ]
    if denied:
        yield Finding(
            "note" if len(denied) < len(view.facts.list_names(GPU)) else "warning",
            "gpu-not-permitted",
            tuple(view.gpu_of[index] for index in denied),
            f"{join_names([view.gpu_of[index] for index in denied])}: not for this process, as in "
            "a job or container that was given other GPUs; nothing is wrong with them for that",
            tuple(view.format_fact(gpu_subject(index), keys.GPU_DENIED) for index in denied),
            "to see the whole machine, run topo-probe outside the job or as root",
        )


def check_confidential_computing(view: DoctorView) -> Iterator[Finding]:
    """Report confidential computing on a machine with several GPUs: a warning.

    GPUs in that mode have no P2P, neither over PCIe nor over NVLink, except in the protected PCIe
    mode of whole machines. It is a note if the driver grants P2P.
    """
    if view.facts.get_text(NVML, keys.NVML_CONFIDENTIAL) != "on" or not has_two_gpus(view):
        return
    granted = any(fact.key == keys.P2P_READ and fact.value == "ok" for fact in view.facts.items)
    yield Finding(
        "note" if granted else "warning",
        "confidential-computing",
        tuple(view.index_of),
        "confidential computing is on"
        + ("" if granted else ", so the GPUs have no P2P and everything goes through host memory"),
        (view.format_fact(NVML, keys.NVML_CONFIDENTIAL),),
        "switch it off if the job does not need it (nvidia-smi conf-compute), or use the protected "
        "PCIe mode where the platform has it",
    )


def check_mig(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs with MIG on (fact `mig`): an error.

    MIG instances have neither P2P nor NVLink for NCCL.
    """
    for _, about, evidence in view.group(
        ("", (ident,), (view.format_fact(gpu_subject(index), keys.GPU_MIG),))
        for ident, index in view.index_of.items()
        if view.has_mig(ident)
    ):
        yield Finding(
            "error",
            "mig-on",
            about,
            f"{join_names(about)}: MIG is on, and its instances have neither P2P nor NVLink for "
            "NCCL",
            evidence,
            "switch it off to train on several GPUs (nvidia-smi -mig 0)",
        )


def check_any_active(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs on boards with NVLink (such as SXM modules) if the driver has no NVLink active.

    That is an error, since all traffic then goes over PCIe. A fabric that has not started yet is
    reported as such.
    """
    about = view.without_nvlink
    if not about or any(view.describe_pending_fabric(ident) for ident in about):
        return
    yield Finding(
        "error",
        "no-active-nvlink",
        about,
        f"{join_names(about)}: no NVLink is active on boards that have it, so everything goes over "
        "PCIe",
        tuple(_format_nvlink(view, ident) for ident in about),
        "check nvidia-smi nvlink -s, the kernel log (Xid, SXid), nvidia-fabricmanager where there "
        "are NVSwitches, and whether the hypervisor passed all GPUs and NVSwitches on; leave "
        "NCCL_P2P_LEVEL until NVLink works",
    )


def check_unknown_nvlinks(view: DoctorView) -> Iterator[Finding]:
    """Warn about GPUs whose NVLinks the driver does not report.

    Other checks judge such GPUs as if they had none. A driver whose library does not answer at all
    is reported by `check_driver`.
    """
    about = view.nvlinks_unknown
    if about and view.facts.get_reason(NVML, keys.NVML_LIBRARY) is None:
        yield Finding(
            "warning",
            "nvlink-unknown",
            about,
            f"{join_names(about)}: whether NVLinks are active is not known, so all is judged and "
            "planned without them",
            tuple(_format_nvlink(view, ident) for ident in about),
            "see nvidia-smi nvlink -s; inside a container or a MIG instance ask on the host",
        )


def _format_nvlink(view: DoctorView, gpu: str) -> str:
    """Return the state of a GPU's first NVLink as evidence, else its number of NVLinks."""
    links = view.list_nvlinks(gpu)
    return (
        view.format_fact(links[0], keys.NVLINK_STATE)
        if links
        else view.format_fact(view.find_subject(gpu), keys.GPU_NVLINK_COUNT)
    )


def check_inactive_links(view: DoctorView) -> Iterator[Finding]:
    """Report a GPU's inactive NVLinks that most GPUs of its model have active.

    "Most" is more than half of at least three GPUs. It is a warning, unless the topology lacks the
    links, too (reported as `fewer-links`).
    """
    short = {ident for finding in check_link_counts(view) for ident in finding.about}
    for group in view.like_gpus:
        judged = [
            gpu.id
            for gpu in group
            if view.index_of.get(gpu.id) in view.nvlink_subjects
            and not view.has_other_cause(gpu.id)
        ]
        if len(judged) < MIN_PEERS:
            continue
        active = Counter(
            _find_number(link) for ident in judged for link in view.list_nvlinks(ident, "active")
        )
        dead_of = {
            ident: [
                view.format_fact(link, keys.NVLINK_STATE)
                for link in view.list_nvlinks(ident, "inactive")
                if 2 * active[_find_number(link)] > len(judged)
            ]
            for ident in judged
            if ident not in short
        }
        for dead_links, about, evidence in view.group(
            (len(dead), (ident,), dead) for ident, dead in dead_of.items() if dead
        ):
            yield Finding(
                "warning",
                "inactive-links",
                about,
                f"{join_names(about)}: {dead_links} inactive NVLink{'s' * (dead_links > 1)}, "
                "active on most like GPUs",
                evidence,
                "look for link errors (nvidia-smi nvlink -e) and at the kernel log; reset the GPU "
                "or reseat its bridge",
            )


def _find_number(nvlink: str) -> str:
    return nvlink.rpartition("/")[2]


# The checks of this file.
CHECKS = (
    Check(
        "driver",
        check_driver,
        lambda view: (
            any(fact.subject == NVML for fact in view.facts.items) or view.list_notes("no-driver")
        ),
        "no answer of the driver",
    ),
    Check(
        "GPUs that the driver does not list",
        check_unlisted_gpus,
        lambda view: (
            (
                view.facts.list_names(PCI)
                and (view.facts.list_names(GPU) or view.facts.get_source(NVML, keys.NVML_COUNT))
            )
            or _list_unlisted(view)
        ),
        "no lists of GPUs to compare",
    ),
    Check(
        "lost GPUs",
        check_lost_gpus,
        lambda view: (
            view.facts.get_source(NVML, keys.NVML_COUNT) or view.knows_of_gpus(keys.GPU_LOST)
        ),
        "no answer of the driver",
    ),
    Check(
        "GPUs that are not permitted",
        check_denied_gpus,
        lambda view: view.facts.get_source(NVML, keys.NVML_COUNT),
        "no answer of the driver",
    ),
    Check(
        "confidential computing",
        check_confidential_computing,
        lambda view: view.facts.get_source(NVML, keys.NVML_CONFIDENTIAL),
        "no mode of confidential computing",
    ),
    Check("MIG", check_mig, lambda view: view.knows_of_gpus(keys.GPU_MIG), "no MIG modes"),
    Check(
        "any active NVLink",
        check_any_active,
        lambda view: view.nvlink_subjects or view.without_nvlink,
        "no states of NVLinks",
    ),
    Check(
        "unknown NVLinks",
        check_unknown_nvlinks,
        lambda view: view.nvlink_subjects or view.nvlinks_unknown,
        "no states of NVLinks",
    ),
    Check(
        "inactive links",
        check_inactive_links,
        lambda view: view.nvlink_subjects,
        "no states of NVLinks",
    ),
)
