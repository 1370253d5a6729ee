"""Find the paths that NCCL takes between GPUs, by the rules of its graph/paths.cc.

Nodes and links are those of NCCL's own graph of a host (system.py), not the topology's. P2P means
that GPUs access each other's memory.
"""

from collections.abc import Container
from dataclasses import dataclass

from .constants import LINK_PCI, LOCAL_kBps, PathType
from .system import CPU, DEV, GPU, PCI, StockLink, StockNode, StockSystem


@dataclass(frozen=True, slots=True)
class StockPath:
    """A path of links to a node: its type, rate in kB/s, and links in the order of travel."""

    type: PathType
    rate_kBps: int
    links: tuple[StockLink, ...]


NO_PATH = StockPath(PathType.DIS, 0, ())


def find_paths(base: StockNode, nvb: bool) -> dict[StockNode, StockPath]:
    """Return the path from each node that has one to `base`.

    A path leads from the node to `base`. Paths go through another GPU's hardware only from NVLink
    to NVLink, and only with `nvb`.
    """
    paths = {base: StockPath(PathType.LOC, LOCAL_kBps, ())}
    base_dev = base.parent if base.parent is not None else base
    max_before_relay = 2 if base.kind == GPU else 1
    reached = [base]
    while reached:
        following: dict[StockNode, None] = {}
        for node in reached:
            path = paths[node]
            for link in node.links:
                through_gpu = node.kind == DEV and node is not base_dev
                if (
                    through_gpu
                    and (link.type != PathType.LOC or link.end.kind != GPU)
                    and not (
                        nvb
                        and link.type == PathType.NVL
                        and link.end.kind == DEV
                        and len(path.links) <= max_before_relay
                    )
                ):
                    continue
                kind = max(path.type, _get_type(node, link, path, max_before_relay))
                rate = min(path.rate_kBps, link.rate_kBps)
                old = paths.get(link.end, NO_PATH)
                if (kind, -rate, len(path.links) + 1) < (
                    old.type,
                    -old.rate_kBps,
                    len(old.links),
                ):
                    back = next(x for x in link.end.links if x.end is node and x.type == link.type)
                    paths[link.end] = StockPath(kind, rate, (back, *path.links))
                    following[link.end] = None
        reached = list(following)
    return paths


def _get_type(node: StockNode, link: StockLink, path: StockPath, max_before_relay: int) -> PathType:
    """Return the type that a link from `node` gives to a path that continues with `path`."""
    if link.type == PathType.NET:
        return PathType.LOC
    if node.kind == PCI and link.end.kind == PCI:
        return PathType.PXB
    if link.type == LINK_PCI and CPU in (node.kind, link.end.kind):
        return PathType.PHB
    if (
        node.kind == DEV
        and path.type == link.type == PathType.NVL
        and len(path.links) == max_before_relay
    ):
        return PathType.NVB
    return link.type


@dataclass(frozen=True)
class GpuPaths:
    """The paths between the GPUs of a host; GPUs are indices in NCCL's order of them.

    `paths` are those that data takes, keyed (from, to), and `p2p` the ordered pairs that NCCL
    connects with P2P; the others go through a CPU and host memory. `max_rate_kBps` is the rate of
    the fastest path between the hardware of two GPUs.
    """

    paths: dict[tuple[int, int], StockPath]
    p2p: frozenset[tuple[int, int]]
    max_rate_kBps: int


def find_gpu_paths(
    system: StockSystem,
    level: PathType | None,
    nvb: bool,
    refused: Container[tuple[int, int]] = (),
) -> GpuPaths:
    """Return the paths between all GPUs of NCCL's graph of a host.

    `level` is the type of the farthest path with P2P (NCCL_P2P_LEVEL), None for NCCL's default:
    PXB, or SYS with at most two GPUs on AMD's CPUs. `nvb` is false with NCCL_NVB_DISABLE=1. Between
    the pairs of ranks in `refused` the driver refuses P2P.
    """
    gpus, cpus = system.nodes[GPU], system.nodes[CPU]
    if level is None:
        is_small = len(system.nodes[DEV]) <= 2 and system.has_cpu("x86_64", "AuthenticAMD")
        level = PathType.SYS if is_small else PathType.PXB
    to_cpu = [find_paths(cpu, nvb) for cpu in cpus]
    to_gpu = [find_paths(gpu, nvb) for gpu in gpus]
    paths = {(a.index, b.index): to_gpu[b.index].get(a, NO_PATH) for a in gpus for b in gpus}
    for dst in gpus:
        cpu = min(cpus, key=lambda cpu: measure_distance(to_cpu[cpu.index].get(dst, NO_PATH)))
        down = to_gpu[dst.index].get(cpu, NO_PATH)
        for src in gpus:
            pair = src.index, dst.index
            is_refused = paths[pair].type > level or (src.rank, dst.rank) in refused
            if src is not dst and is_refused:
                up = to_cpu[cpu.index].get(src, NO_PATH)
                paths[pair] = join_paths(up, down)
    # NCCL decides this when it connects, by the paths that data takes.
    p2p = frozenset(
        (a, b)
        for (a, b), path in paths.items()
        if path.links and path.type <= level and (gpus[a].rank, gpus[b].rank) not in refused
    )
    return GpuPaths(paths, p2p, _find_max_rate_kBps(system, nvb))


def measure_distance(path: StockPath) -> tuple[int, PathType, int]:
    """Return the key by which NCCL picks a GPU's nearest CPU: the path with the smallest one."""
    return (-path.rate_kBps, path.type, len(path.links))


def join_paths(first: StockPath, second: StockPath) -> StockPath:
    """Return the path that goes along `first` and then along `second`."""
    kinds = {first.type, second.type}
    kind = PathType.P2C if kinds == {PathType.PHB, PathType.C2C} else max(kinds)
    return StockPath(kind, min(first.rate_kBps, second.rate_kBps), first.links + second.links)


def _find_max_rate_kBps(system: StockSystem, nvb: bool) -> int:
    """Return the rate of the fastest path between the hardware of two GPUs."""
    devs = system.nodes[DEV]
    to_devs = [find_paths(dev, nvb) for dev in devs]
    rates = [
        to[a].rate_kBps
        for b, to in zip(devs, to_devs, strict=True)
        for a in devs
        if a in to and a is not b
    ]
    return max(rates, default=0)
