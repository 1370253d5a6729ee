"""Build RCCL's own graph of a host and its paths between GPUs, by its graph/topo.cc and paths.cc.

RCCL grew out of NCCL: the PCI tree and the CPUs are the same. A GPU is one node, with xGMI links at
a rate by architecture. A path never leads through another GPU, and all pairs use P2P except on
Intel's and ARM's CPUs. From the sources of October 2024.
"""

from fractions import Fraction

from ....topo.boards import BOARDS
from ....topo.graph import Topology
from ....topo.hardware import xgmi_counted_GBps
from .constants import LINK_PCI, RCCL_SM, LOCAL_kBps, PathType, kBps_PER_GBps
from .paths import NO_PATH, GpuPaths, StockPath, join_paths
from .system import (
    CPU,
    DEV,
    GPU,
    PCI,
    StockLink,
    StockNode,
    StockSystem,
    build_system,
    connect,
    list_gpu_elements,
)


def find_architecture(topology: Topology) -> str:
    """Return the architecture of the first GPU, such as gfx942 or 906; "" if unknown.

    If the topology does not name it, the rate of its xGMI links tells it.
    """
    gpu = topology.by_id[topology.ranks[0]]
    if gpu.extra.get("gcn"):
        return str(gpu.extra["gcn"])
    rates = {x.bandwidth_GBps / x.count for x in topology.links if x.kind == "xgmi"}
    rate = max(rates, default=Fraction(0))
    fitting = (
        board.gcn
        for board in BOARDS
        if board.gcn and rate in (board.wire_GBps, xgmi_counted_GBps(board.gcn))
    )
    return next(fitting, "")


def build_rccl_system(topology: Topology) -> StockSystem:
    """Return RCCL's graph of a host, without NICs: RCCL leaves them out on one host.

    In `nodes` the DEV nodes are the GPU nodes themselves.
    """
    system = build_system(topology)
    counted = xgmi_counted_GBps(find_architecture(topology))
    for gpu in system.nodes[GPU]:
        _merge_hardware(gpu)
    system.nodes[DEV] = system.nodes[GPU]
    by_address = {gpu.address: gpu for gpu in system.nodes[GPU]}
    for element, address in list_gpu_elements(system.root, order=iter):
        gpu = by_address[address]
        gcn = element.get("gcn")
        each = xgmi_counted_GBps(gcn) if gcn else counted
        for wire in element.select("xgmi"):
            target = by_address.get(wire.get("target") or "")
            if target is not None:
                count = wire.get_integer("count", 0) or 0
                connect(gpu, target, PathType.NVL, int(count * each * kBps_PER_GBps))
        # As RCCL sorts them: the PCI link up comes last.
        gpu.links.sort(key=lambda link: link.type == LINK_PCI)
    return system


def _merge_hardware(gpu: StockNode) -> None:
    """Move the links of a GPU's hardware node to the GPU."""
    dev = gpu.parent
    assert dev is not None
    gpu.address, gpu.parent, gpu.sm = dev.address, None, RCCL_SM
    gpu.links = [link for link in dev.links if link.end is not gpu]
    for link in gpu.links:
        for back in link.end.links:
            if back.end is dev:
                back.end = gpu


def find_rccl_paths(system: StockSystem) -> GpuPaths:
    """Return the paths between GPUs in RCCL's graph `system`; GPUs are indices in its order."""
    gpus, cpus = system.nodes[GPU], system.nodes[CPU]
    level = _find_p2p_level(system)
    to_gpu = [find_paths_to(gpu) for gpu in gpus]
    to_cpu = [find_paths_to(cpu) for cpu in cpus]
    paths = {(a.index, b.index): to_gpu[b.index].get(a, NO_PATH) for a in gpus for b in gpus}
    for dst in gpus:
        own = min(cpus, key=lambda cpu: len(to_cpu[cpu.index].get(dst, NO_PATH).links) or 1 << 30)
        down = to_gpu[dst.index].get(own, NO_PATH)
        for src in gpus:
            if src is not dst and paths[src.index, dst.index].type > level:
                up = to_cpu[own.index].get(src, NO_PATH)
                paths[src.index, dst.index] = join_paths(up, down)
    p2p = frozenset(pair for pair, path in paths.items() if path.links and path.type <= level)
    return GpuPaths(paths, p2p, max(p.rate_kBps for p in paths.values() if p.links))


def _find_p2p_level(system: StockSystem) -> PathType:
    """Return the type of the farthest path with P2P; other data goes through a CPU."""
    far = not (system.has_cpu("arm64") or system.has_cpu("x86_64", "GenuineIntel"))
    return PathType.SYS if far else PathType.PXB


def find_paths_to(base: StockNode) -> dict[StockNode, StockPath]:
    """Return the path from each node that has one to `base`."""
    paths = {base: StockPath(PathType.LOC, LOCAL_kBps, ())}
    reached = [base]
    while reached:
        following: dict[StockNode, None] = {}
        for node in reached:
            path = paths[node]
            for link in node.links:
                old = paths.get(link.end, NO_PATH)
                rate = min(path.rate_kBps, link.rate_kBps)
                if old.rate_kBps < rate and (not old.rate_kBps or len(old.links) > len(path.links)):
                    back = next(x for x in link.end.links if x.end is node and x.type == link.type)
                    kind = max(path.type, _get_type(node, link))
                    paths[link.end] = StockPath(kind, rate, (back, *path.links))
                    if link.end.kind != GPU:
                        following[link.end] = None
        reached = list(following)
    return paths


def _get_type(node: StockNode, link: StockLink) -> PathType:
    """Return the type that a link from `node` gives to a path."""
    if node.kind == link.end.kind == PCI:
        return PathType.PXB
    if link.type == PathType.NET:
        return PathType.LOC
    is_at_cpu = link.type == LINK_PCI and CPU in (node.kind, link.end.kind)
    return PathType.PHB if is_at_cpu else link.type
