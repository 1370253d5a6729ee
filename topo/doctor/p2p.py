"""Checks of peer-to-peer access: what the driver grants, and what access control and the IOMMU do
to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ..facts import keys
from ..facts.keys import HOST, PCI, p2p_subject, parse_p2p, pci_subject
from ..facts.view import WIRES
from .finding import Case, Finding, Severity, join_names
from .view import Check, DoctorView

# NVML's and nvidia-smi's words for GPUs that share PCIe switches.
_SHARED = ("internal", "single", "multiple", "PIX", "PXB")

_READ_AND_WRITE = (keys.P2P_READ, keys.P2P_WRITE)
_OK = "ok"
_BY_DESIGN = "gpu not supported"
_REFUSALS = (
    "chipset not supported",
    _BY_DESIGN,
    "topology not supported",
    "disabled by registry key",
    "not supported",
)


def check_p2p(view: DoctorView) -> Iterator[Finding]:
    """Report P2P read or write that the driver refuses: an error between GPUs that share a PCIe
    switch or have NVLink between them (a warning where this GPU model does not do it), and a note
    where the path goes through a CPU. What is refused in one direction only is reported as
    `p2p-one-sided`.
    """
    cases: list[Case] = []
    for a, b, subject in _list_pairs(view):
        for key in _READ_AND_WRITE:
            status = view.facts.get_text(subject, key)
            if status in _REFUSALS and view.facts.get_text(_reverse(subject), key) != _OK:
                cases.append(
                    (
                        (_find_joint(view, a, b, subject), status),
                        (a, b),
                        (view.format_fact(subject, key),),
                    )
                )
    for (joined, status), about, evidence in view.group(cases):
        path = (
            f" though they have {joined} between them"
            if joined
            else "; the path goes through a CPU"
        )
        message = f"{join_names(about)}: P2P refused ({status}){path}"
        severity: Severity = "error"
        advice = (
            "check IOMMU and ACS in the BIOS, at the registry keys of the driver, and at its "
            "version"
        )
        if status == _BY_DESIGN:
            severity, advice = (
                "warning",
                "this GPU model has no P2P; count on copies through host memory",
            )
        yield Finding(
            severity if joined else "note", "p2p-refused", about, message, evidence, advice
        )


def check_p2p_directions(view: DoctorView) -> Iterator[Finding]:
    """Report P2P read or write that is granted from A to B and refused from B to A: an error
    between GPUs that share a PCIe switch or have NVLink between them, else a warning.
    """
    cases: list[Case] = []
    for a, b, subject in _list_pairs(view):
        for key in _READ_AND_WRITE:
            back = _reverse(subject)
            if (
                view.facts.get_text(subject, key) == _OK
                and view.facts.get_text(back, key) in _REFUSALS
            ):
                cases.append(
                    (
                        _find_joint(view, a, b, subject) is not None,
                        (a, b),
                        (view.format_fact(subject, key), view.format_fact(back, key)),
                    )
                )
    for joined, about, evidence in view.group(cases):
        yield Finding(
            "error" if joined else "warning",
            "p2p-one-sided",
            about,
            f"{join_names(about)}: P2P granted in one direction and refused in the other",
            evidence,
            "check the driver's version and virtualisation; take P2P as refused until both "
            "directions have it",
        )


def _reverse(subject: str) -> str:
    a, b = parse_p2p(subject) or ("", "")
    return p2p_subject(b, a)


def _list_pairs(view: DoctorView) -> Iterator[tuple[str, str, str]]:
    for subject in dict.fromkeys(fact.subject for fact in view.facts.items):
        a, b = parse_p2p(subject) or ("", "")
        if a != b:
            yield view.gpu_of.get(a, f"gpu{a}"), view.gpu_of.get(b, f"gpu{b}"), subject


def _find_joint(view: DoctorView, a: str, b: str, subject: str) -> str | None:
    """Return what joins two GPUs that P2P should use (NVLink, xGMI, a PCIe switch), None where
    there is nothing.
    """
    near = view.wired.get(a, {}).keys(), view.wired.get(b, {}).keys()
    switches = (x for x in near[0] & near[1] if view.topology.by_id[x].kind != "gpu")
    if b in near[0] or a in near[1] or any(switches):
        return (
            "xGMI"
            if ({x.kind for x in view.links_from.get(a, ())} & set(WIRES)) == {"xgmi"}
            else "NVLink"
        )
    shared = view.islands.get(a, frozenset()) & view.islands.get(b, frozenset())
    return (
        "a PCIe switch"
        if shared or view.facts.get_text(subject, keys.P2P_ANCESTOR) in _SHARED
        else None
    )


def check_acs(view: DoctorView) -> Iterator[Finding]:
    """Report PCIe bridges with ACS redirect on that have GPUs below them and others beside them
    below the same switch: a warning, what these GPUs send each other goes through the CPU.
    """
    below: dict[str, set[str]] = defaultdict(set)
    above: dict[str, str] = {}
    for gpu in view.gpus:
        bridges = view.facts.get_texts(pci_subject(gpu.bus_id), keys.PCI_BRIDGES)
        above |= {bridge: bridges[i] for i, bridge in enumerate(bridges[1:])}
        for bridge in bridges:
            below[bridge].add(gpu.id)
    cases: list[Case] = []
    for bridge, parent in above.items():
        if "redirect" in view.facts.join_texts(pci_subject(bridge), keys.PCI_ACS) and len(
            below[parent]
        ) > len(below[bridge]):
            cases.append(
                ("", below[bridge], (view.format_fact(pci_subject(bridge), keys.PCI_ACS),))
            )
    for _, about, evidence in view.group(cases):
        yield Finding(
            "warning",
            "acs-redirect",
            about,
            f"{join_names(about)}: ACS redirect on the switch port above leads P2P through the CPU",
            evidence,
            "switch ACS off in the BIOS or with setpci on these bridges, unless a hypervisor needs "
            "it",
        )


def check_iommu(view: DoctorView) -> Iterator[Finding]:
    """Report an IOMMU that translates on bare metal (fact `virtual` is `no`) with several GPUs or
    NICs: a warning.
    """
    if (
        view.facts.get_text(HOST, keys.HOST_IOMMU) == "translating"
        and view.facts.get_text(HOST, keys.HOST_VIRTUAL) == "no"
        and not (len(view.gpus) + bool(view.nics) < 2 or not view.gpus)
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
            "boot with iommu=pt, or switch the IOMMU off in the BIOS",
        )


def _knows_p2p(view: DoctorView) -> bool:
    return any(
        view.facts.get_text(s, key) for _, _, s in _list_pairs(view) for key in _READ_AND_WRITE
    )


# The checks of this file.
CHECKS = (
    Check("P2P", check_p2p, _knows_p2p, "no P2P status"),
    Check("P2P both ways", check_p2p_directions, _knows_p2p, "no P2P status"),
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
        "no answer about IOMMU and hypervisor",
    ),
)
