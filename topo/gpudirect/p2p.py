"""Whether two GPUs of one host reach each other's memory directly, by the rules of NCCL and RCCL (ncclTopoCheckP2p).

NCCL 2.30: the path is PXB or better, SYS or better where an AMD CPU has two GPUs at most; and NVML says ok to read and
write. Where two GPUs have NVLinks to a third, the path is NVB, and NVML is asked for both legs.
RCCL: any path inside the host, but PXB or better under CPUs of Intel, Zhaoxin and ARM; NVML is not there to be asked.
"""

from __future__ import annotations

from collections.abc import Iterator

from .case import AMD, NVIDIA, Case
from .nccl_paths import PCIE_PATHS, within
from .pcie import HERE, pcie_answers
from .verdict import Answer, decide

_MANY_GPUS = 2
_WITH_NVLINK = (60, 70, 80, 90, 100, 103)
"""Compute capabilities, times ten, of GPUs that there are with NVLink."""
_FAR = {"PHB": "through a CPU", "SYS": "through the link between CPUs"}
_WIRED = {
    (NVIDIA, "NVL"): "NVLink joins them, and the driver allows it",
    (NVIDIA, "NVB"): "NVLinks join them through one other GPU, and the driver allows it",
    (NVIDIA, "C2C"): "NVLink-C2C joins them, and the driver allows it",
    (AMD, "NVL"): "xGMI joins them, which RCCL takes without asking further",
    (AMD, "NVB"): "xGMI joins them through one other GPU, which RCCL takes without asking further",
}
_REFUSED = {
    "chipset not supported": (
        "the driver does not do P2P through this chipset",
        "put both GPUs below one PCIe switch or root port, or switch the IOMMU and ACS off in the BIOS",
    ),
    "gpu not supported": ("the driver does not do P2P with these GPUs", "use GPUs that can, or NCCL's shared memory"),
    "topology not supported": (
        "the driver does not do P2P between these slots",
        "put both GPUs below one PCIe switch or root complex",
    ),
    "disabled by registry key": (
        "P2P is switched off by an option of the driver",
        "take the key out of NVreg_RegistryDwords in /etc/modprobe.d and load the driver again",
    ),
    "not supported": ("the driver does not do P2P between these GPUs", "see nvidia-smi topo -p2p r"),
}
_GATED = "GeForce GPUs of late have no P2P in NVIDIA's driver; NCCL goes through shared memory"
_BROKEN = (
    "NCCL ends with an error here: see nvidia-smi nvlink -s, dmesg, and the fabric manager where there are NVSwitches"
)


def p2p(case: Case, a: str, b: str) -> Answer:
    """The answer for two GPUs of one host, by their ids."""
    path = case.paths.kind(a, b)
    maker = AMD if AMD in (case.maker(a), case.maker(b)) else NVIDIA
    label = case.paths.label(a, b)
    known = (f"way {label}, NVB to NCCL" if path == "NVB" else f"way {label}",)
    far = f"PCIe, {_FAR[path]}" if path in _FAR else "PCIe without a CPU between"
    rule = _WIRED.get((maker, path), f"{far}, and nothing stands between them")
    return decide(known, _answers(case, a, b, path, maker), Answer("yes", rule))


def _answers(case: Case, a: str, b: str, path: str, maker: str) -> Iterator[Answer]:
    if path == "???":
        yield Answer("unknown", "the topology does not say enough of what joins them")
    hidden = maker == NVIDIA and path in _FAR and _may_hide_nvlinks(case, a)
    if hidden:
        rule = "the file lists no NVLinks, which NCCL would find by itself; by PCIe they are too far from each other"
        yield Answer("unknown", rule, (f"GPU: sm {case.number(a, 'sm')}",), HERE)
    yield from _unfit(case, a, b)
    if maker == NVIDIA:
        yield from _nvml(case, a, b, path)
    if not hidden:
        yield from _distance(case, a, path, maker)
    if path in PCIE_PATHS:
        yield from pcie_answers(case, a, b, path, from_file=False)


def _unfit(case: Case, a: str, b: str) -> Iterator[Answer]:
    for gpu in (a, b):
        lost = case.facts.text(case.subject(gpu), "lost")
        if lost is not None:
            advice = "see dmesg for its Xid, reset it or restart the machine"
            yield Answer("no", "a GPU does not answer", (f"{gpu}: {lost}",), advice)
    if "on" in (case.facts.text(case.subject(gpu), "mig") for gpu in (a, b)):
        advice = "switch MIG off: nvidia-smi -mig 0, on each GPU"
        yield Answer("no", "instances of GPUs (MIG) do not reach each other", ("MIG is on",), advice)


# -- NVML ------------------------------------------------------------------------------------------------------------


def _nvml(case: Case, a: str, b: str, path: str) -> Iterator[Answer]:
    if path != "NVB":
        yield _asked(case, a, b, path)
        return
    through = [(_asked(case, a, c, path), _asked(case, c, b, path)) for c in case.paths.relays(a, b)]
    legs = [decide((), pair, pair[0]) for pair in through]
    order = ("yes", "unknown", "no")
    yield min(legs, key=lambda leg: order.index(leg.answer))


def _asked(case: Case, a: str, b: str, path: str) -> Answer:
    """What NVML says of reading and writing between two GPUs, in either direction."""
    here, there = (case.subject(gpu).rpartition("/")[2] for gpu in (a, b))
    subjects = (f"gpu/{here}/p2p/{there}", f"gpu/{there}/p2p/{here}")
    said = {key: [case.facts.text(subject, key) for subject in subjects] for key in ("read", "write")}
    refusal = next((text for texts in said.values() for text in texts if text not in (None, "ok")), None)
    if refusal is not None:
        evidence = f"NVML: {', '.join(f'{key} {_worst(texts)}' for key, texts in said.items())}"
        return _refusal(case, a, b, path, refusal, evidence)
    unasked = next((key for key, texts in said.items() if texts == [None, None]), None)
    if unasked is not None:
        reason = case.reason(subjects[0], unasked)
        rule = "whether the driver allows it is not known"
        return Answer(
            "unknown", rule, (f"NVML: {reason}",), HERE if reason == "not asked" else "try it: p2pBandwidthLatencyTest"
        )
    return Answer("yes", "", ("NVML: read ok, write ok",))


def _worst(texts: list[str | None]) -> str:
    return next((text for text in texts if text not in (None, "ok")), None) or next(filter(None, texts), "not known")


def _refusal(case: Case, a: str, b: str, path: str, refusal: str, evidence: str) -> Answer:
    rule, advice = _REFUSED.get(refusal, ("the driver does not allow P2P", "see nvidia-smi topo -p2p r"))
    if path in ("NVL", "NVB"):
        return Answer("no", f"{rule}, although NVLink joins them", (evidence,), _BROKEN)
    if any("GeForce" in (case.text(gpu, "name") or "") for gpu in (a, b)):
        advice = _GATED
    return Answer("no", rule, (evidence,), advice)


# -- distance --------------------------------------------------------------------------------------------------------


def _distance(case: Case, a: str, path: str, maker: str) -> Iterator[Answer]:
    if path == "DIS":
        yield Answer("no", "nothing in their host joins them but other GPUs")
    elif path != "???" and not within(path, "PXB"):
        yield from _rccl_level(case, a, path) if maker == AMD else _nccl_level(case, a, path)


def _nccl_level(case: Case, a: str, path: str) -> Iterator[Answer]:
    advice = f"NCCL_P2P_LEVEL={path} switches it on; measure whether that is faster"
    rule = f"{_FAR[path]}; NCCL's P2P ends at PXB, unless an AMD CPU has two GPUs at most"
    if len(case.paths.of_host(a, "gpu")) <= _MANY_GPUS:
        vendor = case.cpu_text(a, "vendor")
        if vendor == "AuthenticAMD":
            yield Answer("yes", "", ("two GPUs under an AMD CPU",))
            return
        if vendor is None and case.cpu_text(a, "arch") in (None, "x86_64"):
            yield Answer("unknown", rule, ("CPU: vendor not known",), advice)
            return
    yield Answer("no", rule, (), advice)


def _may_hide_nvlinks(case: Case, gpu: str) -> bool:
    """Whether a GPU of a generation with NVLink comes from a file that lists no NVLink in the host, as NCCL's may."""
    wired = any(case.paths.wired.get(g) or case.paths.kind(g, gpu) == "NVL" for g in case.paths.of_host(gpu, "gpu"))
    return not wired and case.number(gpu, "sm") in _WITH_NVLINK and case.subject(gpu) not in case.subjects


def _rccl_level(case: Case, a: str, path: str) -> Iterator[Answer]:
    arch, vendor = case.cpu_text(a, "arch"), case.cpu_text(a, "vendor")
    advice = f"NCCL_P2P_LEVEL={path} switches it on; measure whether that is faster"
    rule = f"{_FAR[path]}; RCCL's P2P ends at PXB under CPUs of Intel, Zhaoxin and ARM"
    if arch == "arm64" or vendor in ("GenuineIntel", "CentaurHauls", "  Shanghai  "):
        yield Answer("no", rule, (f"CPU: {vendor or arch}",), advice)
    elif vendor is None and arch in (None, "x86_64"):
        yield Answer("unknown", rule, ("CPU: vendor not known",), advice)
