"""Checks of the driver: its answers, GPUs that it does not list, MIG, NVLinks and fabrics."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from ..derived.parts import NO_CLUSTER
from ..facts import keys
from ..facts.keys import GPU, NVML, PCI, Key, gpu_subject, pci_subject
from ..notes import Note
from .links import MIN_PEERS, check_link_counts
from .view import Case, Check, DoctorView, Finding, join_names

_NVIDIA = "0x10de"
_GPU_CLASSES = ("0x0300", "0x0302")
_FABRIC: tuple[Key[Any], ...] = (keys.GPU_FABRIC_CLUSTER, keys.GPU_FABRIC_CLIQUE)
_NOT_YET = ("not started", "in progress")


def check_driver(view: DoctorView) -> Iterator[Finding]:
    """Report a driver whose library does not answer.

    The source is the fact `nvml library` or a probe's note. It is an error if the versions of
    library and kernel module differ or NVIDIA GPUs are on PCI, else a note.
    """
    evidence = tuple(f"{note} (the topology's notes)" for note in view.list_notes("no-driver"))
    if view.facts.get_reason(NVML, keys.NVML_LIBRARY) is not None:
        evidence = (view.format_fact(NVML, keys.NVML_LIBRARY),)
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
        evidence += tuple(
            view.format_fact(pci_subject(bus_id), keys.PCI_CLASS)
            for bus_id in addresses
            if view.facts.get_text(pci_subject(bus_id), keys.PCI_CLASS)
        )
        yield Finding(
            "error",
            "no-driver",
            about,
            f"NVML, the driver's library, does not answer, though {join_names(about)} are NVIDIA "
            "GPUs",
            evidence,
            "install and load the NVIDIA driver and the package nvidia-ml-py; nvidia-smi has to "
            "work",
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

    If they are bound to another driver, such as vfio-pci for a virtual machine, it is a note. The
    source is the facts or the probe's notes.
    """
    if view.facts.get_reason(NVML, keys.NVML_LIBRARY) is not None or view.list_notes("no-driver"):
        return
    listed = {
        view.facts.get_text(gpu_subject(index), keys.GPU_BUS_ID)
        for index in view.facts.list_names(GPU)
    }
    answers = listed or view.facts.get_source(NVML, keys.NVML_COUNT)
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
        for bus_id in (_list_nvidia_gpus(view) if answers else ())
        if bus_id not in listed
        for bound in [view.facts.get_text(pci_subject(bus_id), keys.PCI_DRIVER)]
    ]
    if not listed - {None}:
        cases += [
            ("", note.about, (f"{note} (the topology's notes)",)) for note in _list_unlisted(view)
        ]
    for bound, about, evidence in view.group(cases):
        yield Finding(
            "note" if bound else "warning",
            "gpu-not-listed",
            about,
            f"{join_names(about)}: on PCI, but not among the GPUs that the driver lists"
            + (f": bound to {bound}" if bound else ""),
            evidence,
            "if this is no container that was given fewer GPUs, look for Xid and RmInit errors in "
            "the kernel log",
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


def check_mig(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs with MIG on (fact `mig`): an error.

    MIG instances have neither P2P nor NVLink for NCCL.
    """
    for _, about, evidence in view.group(
        ("", (ident,), (view.format_fact(gpu_subject(index), keys.GPU_MIG),))
        for index, ident in view.gpu_of.items()
        if view.facts.get_text(gpu_subject(index), keys.GPU_MIG) == "on"
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


def check_fabric(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs whose fabric (NVSwitch or NVL72) is not started or not completed.

    That is an error, since NVLink does not work there. GPUs of one machine in different clusters
    or cliques are a warning: no NVLink joins them.
    """
    pending: list[Case] = []
    parts: dict[tuple[str, str | None], list[str]] = defaultdict(list)
    evidence_of: list[str] = []
    for index, ident in view.gpu_of.items():
        subject = gpu_subject(index)
        state = view.facts.get_text(subject, keys.GPU_FABRIC_STATE)
        if state in _NOT_YET:
            pending.append((state, (ident,), (view.format_fact(subject, keys.GPU_FABRIC_STATE),)))
        cluster = view.facts.get_text(subject, keys.GPU_FABRIC_CLUSTER) or ""
        if state == "completed" and not NO_CLUSTER.fullmatch(cluster):
            parts[cluster, view.facts.get_text(subject, keys.GPU_FABRIC_CLIQUE)].append(ident)
            evidence_of += [
                view.format_fact(subject, key)
                for key in _FABRIC
                if view.facts.get_source(subject, key)
            ]
    for state, about, evidence in view.group(pending):
        yield Finding(
            "error",
            "fabric-not-completed",
            about,
            f"{join_names(about)}: the fabric's state is {state!r}, so NVLink through the switches "
            "does not work",
            evidence,
            "start nvidia-fabricmanager, or on NVL72 look at the IMEX service and the switch "
            "trays; then reset the GPUs",
        )
    if len(parts) > 1:
        about = tuple(ident for part in parts.values() for ident in part)
        yield Finding(
            "warning",
            "fabric-split",
            about,
            f"the GPUs are in {len(parts)} cliques or clusters that no NVLink joins: "
            + " | ".join(map(join_names, parts.values())),
            tuple(evidence_of),
            "have the fabric manager put them into one partition if one job is to use them all",
        )


def check_any_active(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs on boards with NVLink (such as SXM modules) if the driver has no NVLink active.

    That is an error, since all traffic then goes over PCIe. A fabric that has not started yet is
    reported as such.
    """
    about = view.without_nvlink
    subjects = {ident: view.find_subject(ident) for ident in about}
    if not about or any(
        view.facts.get_text(subject, keys.GPU_FABRIC_STATE) in _NOT_YET
        for subject in subjects.values()
    ):
        return
    yield Finding(
        "error",
        "no-active-nvlink",
        about,
        f"{join_names(about)}: no NVLink is active on boards that have it, so everything goes over "
        "PCIe",
        tuple(
            view.format_fact(links[0], keys.NVLINK_STATE)
            if (links := view.list_nvlinks(ident))
            else view.format_fact(subject, keys.GPU_NVLINK_COUNT)
            for ident, subject in subjects.items()
        ),
        "check nvidia-smi nvlink -s, the kernel log (Xid, SXid), nvidia-fabricmanager where there "
        "are NVSwitches, and whether the hypervisor passed all GPUs and NVSwitches on; leave "
        "NCCL_P2P_LEVEL until NVLink works",
    )


def check_fabric_health(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs whose fabric the driver does not call healthy (fact `fabric_health`): a warning.

    Such a fabric works at a lower rate, or will soon not work.
    """
    for health, about, evidence in view.group(
        (health, (ident,), (view.format_fact(gpu_subject(index), keys.GPU_FABRIC_HEALTH),))
        for index, ident in view.gpu_of.items()
        if (health := view.facts.get_text(gpu_subject(index), keys.GPU_FABRIC_HEALTH))
        not in (None, "healthy")
    ):
        yield Finding(
            "warning",
            "fabric-unhealthy",
            about,
            f"{join_names(about)}: the NVLink fabric is not well: {health}",
            evidence,
            "check nvidia-smi -q (Fabric, Health), the fabric manager's log and the switches for "
            "SXid errors",
        )


def check_inactive_links(view: DoctorView) -> Iterator[Finding]:
    """Report a GPU's inactive NVLinks that most GPUs of its model have active.

    "Most" is more than half of at least three GPUs. It is a warning, unless the topology lacks the
    links, too (reported as `fewer-links`).
    """
    short = {ident for finding in check_link_counts(view) for ident in finding.about}
    for group in view.like_gpus:
        judged = [gpu.id for gpu in group if view.index_of.get(gpu.id) in view.nvlink_subjects]
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
    Check("MIG", check_mig, lambda view: view.knows_of_gpus(keys.GPU_MIG), "no MIG modes"),
    Check(
        "fabric",
        check_fabric,
        lambda view: view.knows_of_gpus(keys.GPU_FABRIC_STATE),
        "no states of a fabric",
    ),
    Check(
        "any active NVLink",
        check_any_active,
        lambda view: view.nvlink_subjects,
        "no states of NVLinks",
    ),
    Check(
        "inactive links",
        check_inactive_links,
        lambda view: view.nvlink_subjects,
        "no states of NVLinks",
    ),
    Check(
        "health of the fabric",
        check_fabric_health,
        lambda view: view.knows_of_gpus(keys.GPU_FABRIC_HEALTH),
        "no health of a fabric",
    ),
)
