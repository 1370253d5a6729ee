"""Checks of peer-to-peer (P2P) access: driver permissions, and obstacles from ACS and the IOMMU.

A check takes a DoctorView (the topology, and the facts that a probe read of the machine) and yields
a Finding for each problem; the doctor makes those in `CHECKS`.
"""

from collections import defaultdict
from collections.abc import Iterator

from ...facts import keys
from ...facts.keys import HOST, P2P, PCI, p2p_subject, parse_pair, pci_subject
from ...facts.view import WIRES
from .view import Check, DoctorView, Finding, join_names

# Terms of NVML and nvidia-smi for pairs of GPUs below a common PCIe switch.
_SHARED = ("internal", "single", "multiple", "PIX", "PXB")

_READ_AND_WRITE = (keys.P2P_READ, keys.P2P_WRITE)
_BY_DESIGN = "gpu not supported"
_REFUSALS = (
    "chipset not supported",
    _BY_DESIGN,
    "topology not supported",
    "disabled by registry key",
    "not supported",
)


def check_p2p(view: DoctorView) -> Iterator[Finding]:
    """Report pairs of GPUs to which the driver refuses P2P reads or writes.

    A refusal is a note if a GPU is a virtual one, or if no NVLink, xGMI or shared PCIe switch
    joins the two. Else it is a warning if this GPU model has no P2P, or if this process may not see
    whether MIG is on, and otherwise an error.
    `check_p2p_directions` reports access that is refused in one direction only. Refusals that
    follow from MIG, confidential computing or a fabric that is not ready are left out.
    """
    unknown = {*view.nvlinks_unknown}
    for (joined, status, is_virtual, untold, is_amd), about, evidence in view.group(
        (
            (
                _find_joint(view, a, b, subject),
                status,
                view.is_virtual_gpu(a) or view.is_virtual_gpu(b),
                _hides_mode(view, a) or _hides_mode(view, b),
                view.find_maker(a) == "AMD",
            ),
            (a, b),
            (view.format_fact(subject, key),),
        )
        for a, b, subject in _list_pairs(view)
        for key in _READ_AND_WRITE
        if (status := view.facts.get_text(subject, key)) in _REFUSALS
        and view.facts.get_text(_reverse(subject), key) != "ok"
    ):
        by_design = status == _BY_DESIGN
        yield Finding(
            "note" if is_virtual or not joined else "warning" if by_design or untold else "error",
            "p2p-refused",
            about,
            f"{join_names(about)}: P2P refused ({status})"
            + (
                ", as between most virtual GPUs (vGPU)"
                if is_virtual
                else f" though they have {joined} between them"
                if joined
                else "; whether NVLink joins them is not known"
                if unknown & {*about}
                else "; the path goes through a CPU"
            )
            + ("; whether MIG is on is not told to this process" if untold else ""),
            evidence,
            "ask for vGPUs of a profile with P2P, which the hypervisor's host has to support"
            if is_virtual
            else "this GPU model has no P2P; expect copies through host memory"
            if by_design
            else "check the IOMMU, ACS and resizable BAR in the BIOS, and that the kernel has "
            "CONFIG_HSA_AMD_P2P"
            if is_amd
            else "check the IOMMU and ACS settings in the BIOS, and the driver's registry keys and "
            "version",
        )


def _hides_mode(view: DoctorView, gpu: str) -> bool:
    reason = view.facts.get_reason(view.find_subject(gpu), keys.GPU_MIG) or ""
    return "permission" in reason.lower()


def check_p2p_directions(view: DoctorView) -> Iterator[Finding]:
    """Report P2P reads or writes that are granted from one GPU to another but refused in return.

    It is an error if NVLink, xGMI or a shared PCIe switch joins the GPUs, else a warning.
    """
    for joined, about, evidence in view.group(
        (
            _find_joint(view, a, b, subject) is not None,
            (a, b),
            [view.format_fact(s, key) for s in (subject, _reverse(subject))],
        )
        for a, b, subject in _list_pairs(view)
        for key in _READ_AND_WRITE
        if view.facts.get_text(subject, key) == "ok"
        and view.facts.get_text(_reverse(subject), key) in _REFUSALS
    ):
        yield Finding(
            "error" if joined else "warning",
            "p2p-one-sided",
            about,
            f"{join_names(about)}: P2P granted in one direction and refused in the other",
            evidence,
            "check the driver's version and virtualisation; treat P2P as refused until both "
            "directions are granted",
        )


def _reverse(subject: str) -> str:
    a, b = parse_pair(subject, P2P) or ("", "")
    return p2p_subject(b, a)


def _list_pairs(view: DoctorView) -> Iterator[tuple[str, str, str]]:
    gpu_of = {index: gpu for gpu, index in view.index_of.items() if not view.has_other_cause(gpu)}
    for subject in dict.fromkeys(fact.subject for fact in view.facts.items):
        a, b = (gpu_of.get(index) for index in parse_pair(subject, P2P) or ("", ""))
        if a is not None and b is not None and a != b:
            yield a, b, subject


def _find_joint(view: DoctorView, a: str, b: str, subject: str) -> str | None:
    """Return the connection that P2P between two GPUs should use, or None if there is none.

    It is "NVLink", "xGMI" or "a PCIe switch".
    """
    near_a, near_b = view.wired.get(a, {}).keys(), view.wired.get(b, {}).keys()
    if (
        b in near_a
        or a in near_b
        or any(view.topology.by_id[x].kind != "gpu" for x in near_a & near_b)
    ):
        kinds = {x.kind for x in view.links_from.get(a, ())} & {*WIRES}
        return "xGMI" if kinds == {"xgmi"} else "NVLink"
    shared = view.facts.get_text(subject, keys.P2P_ANCESTOR) in _SHARED
    return "a PCIe switch" if shared or view.share_switch(a, b) else None


def check_acs(view: DoctorView) -> Iterator[Finding]:
    """Warn about PCIe bridges whose ACS redirect sends P2P traffic through the CPU.

    A bridge is reported if there are GPUs below it, and others below the same switch but not below
    the bridge.
    """
    below: dict[str, set[str]] = defaultdict(set)
    above: dict[str, str] = {}
    for gpu in view.gpus:
        bridges = view.facts.get_texts(pci_subject(gpu.bus_id), keys.PCI_BRIDGES)
        above |= zip(bridges[1:], bridges, strict=False)
        for bridge in bridges:
            below[bridge].add(gpu.id)
    for _, about, evidence in view.group(
        ("", below[bridge], (view.format_fact(pci_subject(bridge), keys.PCI_ACS),))
        for bridge, parent in above.items()
        if "redirect" in view.facts.join_texts(pci_subject(bridge), keys.PCI_ACS)
        and len(below[parent]) > len(below[bridge])
    ):
        yield Finding(
            "warning",
            "acs-redirect",
            about,
            f"{join_names(about)}: ACS redirect on the switch port above sends P2P through the CPU",
            evidence,
            "disable ACS in the BIOS or with setpci on these bridges, unless a hypervisor needs it",
        )


def check_iommu(view: DoctorView) -> Iterator[Finding]:
    """Warn about an IOMMU that translates addresses on bare metal (fact `virtual` is `no`).

    Hosts without two GPUs, or a GPU and a NIC, are skipped: they use neither P2P nor GPUDirect.
    """
    if (
        view.facts.get_text(HOST, keys.HOST_IOMMU) == "translating"
        and view.facts.get_text(HOST, keys.HOST_VIRTUAL) == "no"
        and view.gpus
        and len(view.gpus) + bool(view.nics) > 1
    ):
        yield Finding(
            "warning",
            "iommu-translating",
            (),
            "the IOMMU translates addresses on bare metal, which slows or breaks P2P and GPUDirect",
            (
                view.format_fact(HOST, keys.HOST_IOMMU),
                view.format_fact(HOST, keys.HOST_VIRTUAL),
            ),
            "boot with iommu=pt, or disable the IOMMU in the BIOS",
        )


def _knows_p2p(view: DoctorView) -> bool:
    return any(
        view.facts.get_text(s, key) for _, _, s in _list_pairs(view) for key in _READ_AND_WRITE
    )


# The checks of this file.
CHECKS = (
    Check("P2P", check_p2p, _knows_p2p, "no P2P status"),
    Check("P2P in both directions", check_p2p_directions, _knows_p2p, "no P2P status"),
    Check(
        "ACS",
        check_acs,
        lambda view: any(
            view.facts.get_source(pci_subject(bus_id), keys.PCI_ACS)
            for bus_id in view.facts.list_names(PCI)
        ),
        "no ACS state of bridges",
    ),
    Check(
        "IOMMU",
        check_iommu,
        lambda view: (
            view.facts.get_text(HOST, keys.HOST_IOMMU)
            and view.facts.get_text(HOST, keys.HOST_VIRTUAL)
        ),
        "unknown IOMMU or hypervisor state",
    ),
)
