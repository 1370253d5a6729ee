"""Judge whether two GPUs reach each other's memory directly, by NCCL's and RCCL's rules.

The rules are those of ncclTopoCheckP2p.

GPUs of one host, NCCL 2.30: the path is PXB or better, or SYS or better if the host has an AMD CPU
and at most two GPUs; and NVML reports "ok" for reads and writes. If two GPUs have NVLinks to a
third, the path is NVB, and NVML is queried for both legs. RCCL: any path inside the host, but PXB
or better under CPUs of Intel, Zhaoxin and ARM; there is no NVML to query.

GPUs of different hosts: NCCL 2.30 treats them as one NVLink domain (MNNVL, as in an NVL72) if their
registration with the fabric is completed, the cluster's UUID is equal and not zero, and the clique
is equal; it then needs the IMEX service on each host, which is not checked here.

nccl_paths.py defines the kinds of paths, such as PXB. An Answer is that of one rule, or of all
together: yes, no or unknown, with its reason, evidence and advice. PairView has the machine and its
facts.
"""

from collections.abc import Iterable, Iterator
from itertools import combinations

from ...boards import has_nvlink
from ...derived.parts import CLIQUE, CLUSTER
from ...facts import keys
from ...facts.keys import NVML, NVML_FUNCTION, TOPO_P2P, p2p_subject, split_host
from ...graph import Topology
from ..machine_details.p2p_or_memory import THROUGH_MEMORY
from .nccl_paths import PCIE_PATHS, is_within
from .pcie import HERE, judge_pcie
from .verdict import Answer, Verdict, decide
from .view import AMD, NVIDIA, PairView

# NCCL uses P2P through an AMD CPU if a host has at most this many GPUs.
_MANY_GPUS = 2
_READ_AND_WRITE = (keys.P2P_READ, keys.P2P_WRITE)
_FAR = {"PHB": "through a CPU", "SYS": "through the link between CPUs"}
_WIRED = {
    (NVIDIA, "NVL"): "NVLink joins them, and the driver allows it",
    (NVIDIA, "NVB"): "NVLinks join them through one other GPU, and the driver allows it",
    (NVIDIA, "C2C"): "NVLink-C2C joins them, and the driver allows it",
    (AMD, "NVL"): "xGMI joins them, which RCCL takes without asking further",
    (AMD, "NVB"): "xGMI joins them through one other GPU, which RCCL takes without asking further",
}
# What says why P2P is refused.
_ASK = f"see {TOPO_P2P} r"
_REFUSED = {
    "chipset not supported": (
        "the driver does not do P2P through this chipset",
        "put both GPUs below one PCIe switch or root port, or switch the IOMMU and ACS off in the "
        "BIOS",
    ),
    "gpu not supported": (
        "the driver does not do P2P with these GPUs",
        "use GPUs that can, or NCCL's shared memory",
    ),
    "topology not supported": (
        "the driver does not do P2P between these slots",
        "put both GPUs below one PCIe switch or root complex",
    ),
    "disabled by registry key": (
        "P2P is switched off by an option of the driver",
        "take the key out of NVreg_RegistryDwords in /etc/modprobe.d and load the driver again",
    ),
    "not supported": (
        "the driver does not do P2P between these GPUs",
        _ASK,
    ),
}
# Two GPUs of different hosts, and the NVSwitch that both are linked to.
FabricPair = tuple[str, str, str]


def judge_p2p(view: PairView, a: str, b: str) -> Answer:
    """Return whether two GPUs (ids) of one host reach each other's memory directly, and why."""
    path = view.paths.find_kind(a, b)
    maker = AMD if AMD in (view.find_maker(a), view.find_maker(b)) else NVIDIA
    label = view.paths.find_label(a, b)
    far = f"PCIe, {_FAR[path]}" if path in _FAR else "PCIe without a CPU between"
    return decide(
        (f"path {label}, NVB to NCCL" if path == "NVB" else f"path {label}",),
        _judge(view, a, b, path, maker),
        Answer("yes", _WIRED.get((maker, path), f"{far}, and nothing stands between them")),
    )


def _judge(view: PairView, a: str, b: str, path: str, maker: str) -> Iterator[Answer]:
    if path == "???":
        yield Answer("unknown", "the topology does not say enough of what joins them")
    far = maker == NVIDIA and path in _FAR
    silent = far and _may_be_wired(view, a, b)
    if silent:
        yield Answer(
            "unknown",
            "the driver does not tell whether NVLink joins them; by PCIe they are too far from "
            "each other",
            (f"NVLinks: {_explain_silence(view, a if a in view.nvlinks_unknown else b)}",),
            "see nvidia-smi nvlink -s",
        )
    hidden = silent or (far and _may_lack_nvlinks(view, a))
    if hidden and not silent:
        sm = view.get_gpu_number(a, keys.GPU_SM)
        yield Answer(
            "unknown",
            "the file lists no NVLinks, which NCCL would find by itself; by PCIe they are too far "
            "from each other",
            () if sm is None else (f"GPU: sm {sm}",),
            HERE,
        )
    yield from _judge_gpus(view, a, b)
    if path == "NVL" and 0 in (counts := _count_nvlinks(view, a, b)) and any(counts):
        yield Answer(
            "unknown",
            "only one of the two counts active NVLinks to the other",
            (f"NVML: {counts[0]} links from {a}, {counts[1]} from {b}",),
            "see nvidia-smi nvlink -s; reseat the bridge",
        )
    yield from _judge_status(view, a, b, path) if maker == NVIDIA else _judge_access(view, a, b)
    if not hidden:
        yield from _judge_distance(view, a, b, path, maker)
    if path in PCIE_PATHS:
        yield from judge_pcie(view, a, b, path, from_file=False)


def _may_be_wired(view: PairView, a: str, b: str) -> bool:
    """Return whether NVLink may join two GPUs, since the driver tells too little.

    It tells of the links of neither, or only of one with links to NVSwitches.
    """
    unknown = {a, b} & {*view.nvlinks_unknown}
    return bool(unknown) and all(
        gpu in unknown
        or any(
            view.topology.by_id[end].family == "nvswitch"
            for end in view.topology.out_neighbours[gpu]
        )
        for gpu in (a, b)
    )


def _count_nvlinks(view: PairView, a: str, b: str) -> list[int]:
    """Return how many active NVLinks each of two GPUs has to the other, by the facts."""
    ends = ((a, view.topology.by_id[b].bus_id), (b, view.topology.by_id[a].bus_id))
    return [
        sum(
            view.facts.get_text(link, keys.NVLINK_REMOTE_BUS_ID) == peer
            for link in view.list_nvlinks(gpu, "active")
        )
        for gpu, peer in ends
    ]


def _explain_silence(view: PairView, gpu: str) -> str:
    subject = view.find_subject(gpu)
    reasons = (
        *(view.facts.get_reason(link, keys.NVLINK_STATE) for link in view.list_nvlinks(gpu)),
        view.facts.get_reason(NVML, keys.NVML_LIBRARY),
        view.facts.get_reason(subject, keys.GPU_NVLINK_COUNT),
    )
    return next(filter(None, reasons), "the driver gives the state of none")


def _judge_gpus(view: PairView, a: str, b: str) -> Iterator[Answer]:
    for gpu in (a, b):
        lost = view.facts.get_text(view.find_subject(gpu), keys.GPU_LOST)
        if lost is not None:
            yield Answer(
                "no",
                "a GPU does not answer",
                (f"{gpu}: {lost}",),
                "see dmesg for its Xid, reset it or restart the machine",
            )
    if view.has_mig(a) or view.has_mig(b):
        yield Answer(
            "no",
            "instances of GPUs (MIG) do not reach each other",
            ("MIG is on",),
            "switch MIG off: nvidia-smi -mig 0, on each GPU",
        )
    for gpu in (a, b):
        if (pending := view.describe_pending_fabric(gpu)) is not None:
            yield Answer(
                "no",
                "the fabric of the NVSwitches is not ready",
                (pending,),
                "start nvidia-fabricmanager, or on NVL72 look at the IMEX service and the switch "
                "trays",
            )


# -- NVML


def _judge_status(view: PairView, a: str, b: str, path: str) -> Iterator[Answer]:
    if path != "NVB":
        yield _ask_nvml(view, a, b, path)
        return
    through = [
        (_ask_nvml(view, a, c, path), _ask_nvml(view, c, b, path))
        for c in view.paths.list_relays(a, b)
    ]
    yield min(
        (decide((), pair, pair[0]) for pair in through),
        key=lambda leg: ("yes", "unknown", "no").index(leg.answer),
    )


def _judge_access(view: PairView, a: str, b: str) -> Iterator[Answer]:
    """Yield no if AMD's driver gives one of two GPUs no access to the other's memory."""
    i, j = view.find_gpu_index(a), view.find_gpu_index(b)
    statuses = (
        view.facts.get_text(subject, key)
        for subject in (p2p_subject(i, j), p2p_subject(j, i))
        for key in _READ_AND_WRITE
    )
    if any(status not in (None, "ok") for status in statuses):
        yield Answer(
            "no",
            "AMD's driver gives these GPUs no access to each other's memory",
            ("access refused in the tables of AMD's tools",),
            "P2P over PCIe needs resizable BAR, iommu=pt or no IOMMU, and a kernel with "
            "CONFIG_HSA_AMD_P2P; RCCL goes through host memory without P2P",
        )


def _ask_nvml(view: PairView, a: str, b: str, path: str) -> Answer:
    i, j = view.find_gpu_index(a), view.find_gpu_index(b)
    subjects = (p2p_subject(i, j), p2p_subject(j, i))
    statuses = {
        key: [view.facts.get_text(subject, key) for subject in subjects] for key in _READ_AND_WRITE
    }
    if path in PCIE_PATHS and not any(map(any, statuses.values())):
        over_pcie = [view.facts.get_text(subject, keys.P2P_PCIE) for subject in subjects]
        if any(over_pcie) and over_pcie != ["ok", "ok"]:
            statuses[keys.P2P_PCIE] = over_pcie
    refusal = next(
        (text for texts in statuses.values() for text in texts if text not in (None, "ok")), None
    )
    if refusal is not None:
        said = ", ".join(f"{key} {_find_worst(texts)}" for key, texts in statuses.items())
        rule, advice = _REFUSED.get(refusal, ("the driver does not allow P2P", _ASK))
        source = _name_source(view, subjects)
        if advice == _ASK and source.startswith(TOPO_P2P):
            advice = f"{source} says no more; NCCL goes through shared memory without P2P"
        if view.facts.get_text(NVML, keys.NVML_CONFIDENTIAL) == "on":
            rule = "confidential computing is on, in which GPUs do not reach each other's memory"
            advice = "switch it off, or use the protected PCIe mode where the platform has it"
        elif path in ("NVL", "NVB"):
            rule = f"{rule}, although NVLink joins them"
            advice = (
                "NCCL ends with an error here: see nvidia-smi nvlink -s, dmesg, and the fabric "
                "manager where there are NVSwitches"
            )
        elif view.is_virtual_gpu(a) or view.is_virtual_gpu(b):
            rule = "virtual GPUs (vGPU) reach each other's memory only where their profile has P2P"
            advice = "ask for a profile with P2P, which the hypervisor's host has to support"
        elif any(
            "GeForce" in (view.get_gpu_name(gpu) or "")
            or ((known := view.find_board(gpu)) is not None and not known.has_pcie_p2p)
            for gpu in (a, b)
        ):
            advice = (
                "GeForce GPUs of late have no P2P in NVIDIA's driver; NCCL goes through shared "
                "memory"
            )
        return Answer("no", rule, (f"{source}: {said}",), advice)
    unasked = next((key for key, texts in statuses.items() if texts == [None, None]), None)
    board = view.find_board_without_p2p(a, b) if path in PCIE_PATHS else None
    if board is not None and board.wires and _may_lack_nvlinks(view, a):
        board = None
    if unasked is not None and board is not None and not _may_be_wired(view, a, b):
        return Answer(
            "no",
            f"NVIDIA's driver has no P2P over PCIe for {board.name}; a changed driver may",
            (),
            f"{_ASK}; without P2P, NCCL goes through shared memory, whatever NCCL_P2P_LEVEL is",
        )
    if unasked is not None:
        reason = view.explain_missing(subjects[0], unasked)
        allowed = "".join(f"{key} ok, " for key, texts in statuses.items() if "ok" in texts)
        return Answer(
            "unknown",
            "whether the driver allows it is not known",
            (f"NVML: {allowed}{unasked} {reason}" if allowed else f"NVML: {reason}",),
            HERE if reason == "not asked" else "try it: p2pBandwidthLatencyTest",
        )
    return Answer("yes", "", (f"{_name_source(view, subjects)}: read ok, write ok",))


def _name_source(view: PairView, subjects: Iterable[str]) -> str:
    """Return who told P2P's status: the tool whose output a text has, else NVML."""
    asked = (*_READ_AND_WRITE, keys.P2P_PCIE)
    sources = (view.facts.get_source(s, key) for key in asked for s in subjects)
    source = next(filter(None, sources), NVML_FUNCTION)
    return "NVML" if source.startswith(NVML_FUNCTION) else source


def _find_worst(texts: list[str | None]) -> str:
    return next((text for text in texts if text not in (None, "ok")), None) or next(
        filter(None, texts), "not known"
    )


# -- distance


def _judge_distance(view: PairView, a: str, b: str, path: str, maker: str) -> Iterator[Answer]:
    if path == "DIS":
        yield Answer("no", "nothing in their host joins them but other GPUs")
    elif path != "???" and not is_within(path, "PXB"):
        yield from (
            _judge_rccl_level(view, a, b, path)
            if maker == AMD
            else _judge_nccl_level(view, a, b, path)
        )


def _judge_nccl_level(view: PairView, a: str, b: str, path: str) -> Iterator[Answer]:
    advice = (
        "none of the boards' NVLinks is active: see what topo-probe's check finds first"
        if {a, b} & {*view.nvlinks_dead}
        else _advise_level(view, a, b, path)
    )
    rule = f"{_FAR[path]}; NCCL's P2P ends at PXB, unless an AMD CPU has two GPUs at most"
    if len(view.paths.list_in_host(a, "gpu")) <= _MANY_GPUS:
        vendor = view.get_cpu_text(a, "vendor")
        if vendor == "AuthenticAMD":
            yield Answer("yes", "", ("two GPUs under an AMD CPU",))
            return
        if vendor is None and view.get_cpu_text(a, "arch") in (None, "x86_64"):
            yield Answer("unknown", rule, ("CPU: vendor not known",), advice)
            return
    yield Answer("no", rule, (), advice)


def _may_lack_nvlinks(view: PairView, gpu: str) -> bool:
    """Return whether a GPU's NVLinks may be missing from the topology.

    That is so if the file leaves NVLinks out, or if the GPU's generation has NVLink but neither its
    host's links nor its facts mention any.
    """
    if any(note.kind == "nvlinks-left-out" for note in view.topology.notes):
        return True
    return (
        has_nvlink(view.get_gpu_number(gpu, keys.GPU_SM))
        and view.find_subject(gpu) not in view.subjects
        and not any(
            view.paths.wired.get(g) or view.paths.find_kind(g, gpu) == "NVL"
            for g in view.paths.list_in_host(gpu, "gpu")
        )
    )


def _advise_level(view: PairView, a: str, b: str, path: str) -> str:
    """Say how P2P between two GPUs is switched on, unless it was measured to be the slower way."""
    if view.faster_by_pair.get(frozenset((a, b))) == THROUGH_MEMORY:
        return "leave it off: by P2P they were measured to be slower than through host memory"
    return f"NCCL_P2P_LEVEL={path} switches it on; measure whether that is faster"


def _judge_rccl_level(view: PairView, a: str, b: str, path: str) -> Iterator[Answer]:
    arch, vendor = view.get_cpu_text(a, "arch"), view.get_cpu_text(a, "vendor")
    advice = _advise_level(view, a, b, path)
    rule = f"{_FAR[path]}; RCCL's P2P ends at PXB under CPUs of Intel, Zhaoxin and ARM"
    if arch == "arm64" or vendor in ("GenuineIntel", "CentaurHauls", "  Shanghai  "):
        yield Answer("no", rule, (f"CPU: {vendor or arch}",), advice)
    elif vendor is None and arch in (None, "x86_64"):
        yield Answer("unknown", rule, ("CPU: vendor not known",), advice)


def list_fabric_pairs(topology: Topology) -> list[FabricPair]:
    """Return each two GPUs of different hosts that have links to and from one NVSwitch.

    A pair is (GPU, GPU, NVSwitch), by ids.
    """
    pairs: dict[tuple[str, str], str] = {}
    for switch in (d for d in topology.devices if d.family == "nvswitch"):
        near = [
            (g, split_host(g)[0])
            for g in topology.ranks
            if {(g, switch.id), (switch.id, g)} <= topology.capacity_GBps.keys()
        ]
        for (a, host), (b, other) in combinations(near, 2):
            if host != other:
                pairs.setdefault((a, b), switch.id)
    return [(a, b, switch) for (a, b), switch in pairs.items()]


def judge_fabrics(topology: Topology, pairs: Iterable[FabricPair]) -> Iterator[Verdict]:
    """Yield a verdict on each pair of `list_fabric_pairs`: yes, if IMEX runs on both hosts.

    Whether it does is not known here; the advice says how to check.
    """
    for a, b, switch in pairs:
        fields = topology.by_id[switch].extra
        evidence = (
            f"fabric: cluster {fields[CLUSTER]}, clique {fields.get(CLIQUE)}"
            if CLUSTER in fields
            else "the file has both hosts, as NCCL writes it for those of one fabric"
        )
        yield Verdict(
            "p2p",
            a,
            b,
            "yes",
            "NVLink joins their hosts in one fabric, which NCCL takes (MNNVL) where the IMEX "
            "service runs on both",
            (evidence,),
            "see systemctl status nvidia-imex on each host, and NCCL_MNNVL_ENABLE",
        )
