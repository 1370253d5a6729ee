"""What the doctor asks of peer-to-peer access: what the driver grants, and what access control and the IOMMU do to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from .case import WIRES, Case, Check, Finding, Grouped, Severity, names

_SHARED = ("internal", "single", "multiple", "PIX", "PXB")
"""NVML's and nvidia-smi's words for GPUs that share PCIe switches."""

_OK = "ok"
_BY_DESIGN = "gpu not supported"
_REFUSALS = (
    "chipset not supported",
    _BY_DESIGN,
    "topology not supported",
    "disabled by registry key",
    "not supported",
)


def refused(case: Case) -> Iterator[Finding]:
    """P2P read or write that the driver refuses: an error between GPUs that share a PCIe switch or have NVLink between them
    (a warning where the status is that this GPU model does not do it), and a note where the way goes through a CPU.
    What is refused in one direction only is left to `p2p-one-sided`.
    """
    found = Grouped(case)
    for a, b, subject in _pairs(case):
        for key in ("read", "write"):
            status = case.facts.text(subject, key)
            if status in _REFUSALS and case.facts.text(_back(subject), key) != _OK:
                found.add((_joined(case, a, b, subject), status), (a, b), (case.fact(subject, key),))
    for (joined, status), about, evidence in found:
        way = f" though they have {joined} between them" if joined else "; the way goes through a CPU"
        message = f"{names(about)}: P2P refused ({status}){way}"
        severity: Severity = "error"
        advice = "look at IOMMU and ACS in the BIOS, at the registry keys of the driver, and at its version"
        if status == _BY_DESIGN:
            severity, advice = "warning", "this GPU model has no P2P; count on copies through host memory"
        yield Finding(severity if joined else "note", "p2p-refused", about, message, evidence, advice)


def one_sided(case: Case) -> Iterator[Finding]:
    """P2P read, or write, that is granted from A to B and refused from B to A: an error between GPUs that share a PCIe switch
    or have NVLink between them, else a warning.
    """
    found = Grouped(case)
    for a, b, subject in _pairs(case):
        for key in ("read", "write"):
            back = _back(subject)
            if case.facts.text(subject, key) == _OK and case.facts.text(back, key) in _REFUSALS:
                joined = _joined(case, a, b, subject) is not None
                found.add(joined, (a, b), (case.fact(subject, key), case.fact(back, key)))
    for joined, about, evidence in found:
        message = f"{names(about)}: P2P granted in one direction and refused in the other"
        advice = "look at the driver's version and at virtualisation; take P2P as refused until both directions have it"
        yield Finding("error" if joined else "warning", "p2p-one-sided", about, message, evidence, advice)


def _back(subject: str) -> str:
    """The subject of the facts about the other direction."""
    _, here, _, there = subject.split("/")
    return f"gpu/{there}/p2p/{here}"


def _pairs(case: Case) -> Iterator[tuple[str, str, str]]:
    """Ids of two GPUs and the subject of the facts about what the first may do to the second."""
    for subject in dict.fromkeys(fact.subject for fact in case.facts.items):
        parts = subject.split("/")
        if len(parts) == 4 and (parts[0], parts[2]) == ("gpu", "p2p") and parts[1] != parts[3]:
            yield case.gpu_of.get(parts[1], f"gpu{parts[1]}"), case.gpu_of.get(parts[3], f"gpu{parts[3]}"), subject


def _joined(case: Case, a: str, b: str, subject: str) -> str | None:
    """What two GPUs have between them that P2P ought to use, None where there is nothing of the kind."""
    near = case.wired.get(a, {}).keys(), case.wired.get(b, {}).keys()
    switches = (x for x in near[0] & near[1] if case.topology.by_id[x].kind != "gpu")
    if b in near[0] or a in near[1] or any(switches):
        kinds = {x.kind for x in case.links_from.get(a, ())} & set(WIRES)
        return "xGMI" if kinds == {"xgmi"} else "NVLink"
    shared = case.islands.get(a, frozenset()) & case.islands.get(b, frozenset())
    return "a PCIe switch" if shared or case.facts.text(subject, "ancestor") in _SHARED else None


def acs(case: Case) -> Iterator[Finding]:
    """A PCIe bridge with GPUs below it and further GPUs below the same switch beside it, with ACS redirect on: what they send
    each other is led through the CPU. A warning.
    """
    below: dict[str, set[str]] = defaultdict(set)
    above: dict[str, str] = {}
    for gpu in case.gpus:
        bridges = case.facts.texts(f"pci/{gpu.bus_id}", "bridges")
        above |= {bridge: bridges[i] for i, bridge in enumerate(bridges[1:])}
        for bridge in bridges:
            below[bridge].add(gpu.id)
    found = Grouped(case)
    for bridge, parent in above.items():
        said = case.facts.text(f"pci/{bridge}", "acs") or ", ".join(case.facts.texts(f"pci/{bridge}", "acs"))
        if "redirect" in said and len(below[parent]) > len(below[bridge]):
            found.add("", below[bridge], (case.fact(f"pci/{bridge}", "acs"),))
    for _, about, evidence in found:
        message = f"{names(about)}: ACS redirect on the switch port above leads P2P through the CPU"
        advice = "switch ACS off in the BIOS or with setpci on these bridges, unless a hypervisor needs it"
        yield Finding("warning", "acs-redirect", about, message, evidence, advice)


def iommu(case: Case) -> Iterator[Finding]:
    """An IOMMU that translates on bare metal (fact `virtual` is `no`) with several GPUs, or a GPU and a NIC: a warning."""
    alone = len(case.gpus) + bool(case.nics) < 2 or not case.gpus
    if case.facts.text("host", "iommu") == "translating" and case.facts.text("host", "virtual") == "no" and not alone:
        evidence = (case.fact("host", "iommu"), case.fact("host", "virtual"))
        message = "the IOMMU translates addresses on bare metal, which slows or breaks P2P and GPUDirect"
        advice = "boot with iommu=pt, or switch the IOMMU off in the BIOS"
        yield Finding("warning", "iommu-translating", (), message, evidence, advice)


def _wants_p2p(case: Case) -> str | None:
    known = any(case.facts.text(s, key) for _, _, s in _pairs(case) for key in ("read", "write"))
    return None if known else "no P2P status"


def _wants_acs(case: Case) -> str | None:
    known = any(case.facts.source(f"pci/{bus_id}", "acs") for bus_id in case.facts.names("pci"))
    return None if known else "no ACS state of bridges"


def _wants_iommu(case: Case) -> str | None:
    known = case.facts.text("host", "iommu") and case.facts.text("host", "virtual")
    return None if known else "no word of IOMMU and hypervisor"


CHECKS = (
    Check("P2P", refused, _wants_p2p),
    Check("P2P both ways", one_sided, _wants_p2p),
    Check("ACS", acs, _wants_acs),
    Check("IOMMU", iommu, _wants_iommu),
)
"""The checks of this file."""
