"""Find the paths that NCCL takes between GPUs and NICs, and the NICs that it tries for a GPU.

A channel is one ring or chain (a path through all GPUs of a host). With PXN a GPU sends to a NIC
over another GPU that is nearer to it; with GPUDirect a NIC accesses a GPU's memory itself.
"""

from collections.abc import Mapping

from .constants import GDR_LEVEL, GDR_READ_SM, MAX_COMM_CHANNELS, PathType
from .paths import NO_PATH, GpuPaths, StockPath, find_paths, join_paths, measure_distance
from .system import CPU, GPU, NET, StockNode, StockSystem


class NicPaths:
    """The paths that NCCL takes between a host's GPUs and its NICs.

    GPUs and NICs are indices of `gpus` and `nets`, the nodes of NCCL's graph `system`. `out[g, n]`
    is the path from GPU g to NIC n, `back[g, n]` that from NIC n to GPU g; NO_PATH without one.
    `to_net[n]` maps each node that has a path to NIC n to this path, before PXN and GPUDirect are
    considered. `local_gpu[n]` is the GPU nearest to NIC n that prefers it in the lowest channel,
    None if none does. `gpu_paths` are the paths between the GPUs. With `nvb`, NCCL may route over
    another GPU's NVLinks.
    """

    def __init__(self, system: StockSystem, gpu_paths: GpuPaths, nvb: bool) -> None:
        self.system, self.gpu_paths = system, gpu_paths
        self.gpus, self.nets = system.nodes[GPU], system.nodes[NET]
        to_net = [find_paths(net, nvb) for net in self.nets]
        to_gpu = [find_paths(gpu, nvb) for gpu in self.gpus]
        pairs = [(g, n) for g in self.gpus for n in self.nets]
        self.out = {(g.index, n.index): to_net[n.index].get(g, NO_PATH) for g, n in pairs}
        self.back = {(g.index, n.index): to_gpu[g.index].get(n, NO_PATH) for g, n in pairs}
        self._to_cpu = [find_paths(cpu, nvb) for cpu in system.nodes[CPU]]
        self.to_net, self._to_gpu = to_net, to_gpu
        # The GPU in whose place another one writes to a NIC (PXN), keyed (gpu, nic).
        self._proxies: dict[tuple[int, int], int] = {}
        self._use_c2c()
        for net in self.nets:
            for gpu in self.gpus:
                self._use_proxy(gpu, net)
                self._avoid_gpudirect(gpu, net)
        self.local_gpu = [self._find_local_gpu(net) for net in self.nets]

    # -- GPUDirect and PXN

    def _find_cpu(self, gpu: StockNode) -> StockNode:
        return min(
            self.system.nodes[CPU],
            key=lambda cpu: measure_distance(self._to_cpu[cpu.index].get(gpu, NO_PATH)),
        )

    def _use_c2c(self) -> None:
        """Let NICs of a GPU's CPU reach the GPU by C2C."""
        for gpu in self.gpus:
            cpu = self._find_cpu(gpu)
            for n in self._list_local(self.out, gpu.index, of_gpu=True):
                net_type = self._to_cpu[cpu.index][self.nets[n]].type
                if {self._to_cpu[cpu.index][gpu].type, net_type} == {PathType.PHB, PathType.C2C}:
                    for paths in (self.out, self.back):
                        old = paths[gpu.index, n]
                        kind = min(PathType.P2C, old.type)
                        paths[gpu.index, n] = StockPath(kind, old.rate_kBps, old.links)

    def _has_gdr(self, gpu: StockNode, net: StockNode, read: bool) -> bool:
        """Return whether a NIC writes, or reads, a GPU's memory itself."""
        if net.get("gdr") == "0" or gpu.get("gdr") == "0":
            return False
        if read and gpu.parent is not None and gpu.parent.sm < GDR_READ_SM:
            others = (self.gpu_paths.paths[gpu.index, other.index] for other in self.gpus)
            if len(self.gpus) > 1 and not any(path.type == PathType.NVL for path in others):
                return False
        distance = self.out[gpu.index, net.index].type
        if distance == PathType.PXN:
            distance = self.out[self._proxies[gpu.index, net.index], net.index].type
        return distance <= GDR_LEVEL

    def _use_proxy(self, gpu: StockNode, net: StockNode) -> None:
        """Send through another GPU over NVLink if that one is nearer to the NIC."""
        local = self._find_local_gpu(net)
        if local is None or local == gpu.index:
            return
        direct, last = self.out[gpu.index, net.index], self.out[local, net.index]
        first = self.gpu_paths.paths[gpu.index, local]
        if (
            last.type <= GDR_LEVEL
            and self._has_gdr(self.gpus[local], net, read=True)
            and self.gpu_paths.paths[local, gpu.index].type <= PathType.NVL
            and (last.rate_kBps > direct.rate_kBps or direct.type > PathType.PXN)
        ):
            joined = join_paths(first, last)
            self.out[gpu.index, net.index] = StockPath(PathType.PXN, joined.rate_kBps, joined.links)
            self._proxies[gpu.index, net.index] = local

    def _avoid_gpudirect(self, gpu: StockNode, net: StockNode) -> None:
        """Go through the GPU's CPU where the NIC cannot use the GPU's memory."""
        pair = gpu.index, net.index
        if self.out[pair].type < PathType.PHB and not self._has_gdr(gpu, net, read=False):
            cpu = self._find_cpu(gpu)
            to_cpu = self._to_cpu[cpu.index]
            self.back[pair] = join_paths(to_cpu[net], self._to_gpu[gpu.index][cpu])
            self.out[pair] = join_paths(to_cpu[gpu], self.to_net[net.index][cpu])

    # -- nearest NICs and GPUs

    def _list_local(
        self, paths: Mapping[tuple[int, int], StockPath], index: int, of_gpu: bool
    ) -> list[int]:
        """Return the NICs nearest to a GPU, or the GPUs nearest to a NIC if not `of_gpu`."""
        count = len(self.nets if of_gpu else self.gpus)
        distance = {
            i: (-paths[pair].rate_kBps, paths[pair].type)
            for i in range(count)
            if paths[pair := (index, i) if of_gpu else (i, index)].links
        }
        best = min(distance.values(), default=None)
        return [i for i in distance if distance[i] == best]

    def list_local_gpus(self, net: int) -> list[int]:
        """Return the indices of the GPUs nearest to the NIC with the index `net`."""
        return self._list_local(self.back, net, of_gpu=False)

    def choose_nic(self, gpu: int, channel: int) -> int | None:
        """Return the NIC that NCCL prefers for a GPU in a channel; None if the GPU reaches none.

        All are indices; the channels of a graph are numbered from 0.
        """
        nets = self._list_local(self.out, gpu, of_gpu=True)
        if not nets:
            return None
        sharers = len(self.list_local_gpus(nets[0]))
        dev = self.gpus[gpu].element.get_integer("dev", 0) or 0
        first, count = dev % max(sharers, 1), len(nets)
        if count & (count - 1) == 0:
            first = _mirror_bits(first, count)
        each = -(-count // max(sharers, 1))
        return nets[(first + channel % each) % count]

    def _find_local_gpu(self, net: StockNode) -> int | None:
        """Return the GPU that prefers a NIC for the lowest channel."""
        local = self.list_local_gpus(net.index)
        for channel in range(min(len(self.nets), MAX_COMM_CHANNELS)):
            for gpu in local:
                if self.choose_nic(gpu, channel) == net.index:
                    return gpu
        return None

    def list_nics(self, farthest: PathType, gpu: int | None) -> list[int]:
        """Return the NICs that NCCL tries for a GPU (None: to start a channel), in its order.

        They are indices. Preferred ones come first, then others over paths of at most the type
        `farthest`.
        """
        gpus = range(len(self.gpus)) if gpu is None else (gpu,)
        wanted: dict[int, None] = {}
        for g in gpus:
            first = self.choose_nic(g, 0)
            for channel in range(MAX_COMM_CHANNELS):
                nic = self.choose_nic(g, channel)
                if nic is None or (channel and nic == first):
                    break
                wanted[nic] = None
        for kind in range(farthest + 1):
            for g in gpus:
                for n in range(min(len(self.nets), MAX_COMM_CHANNELS)):
                    if self.out[g, n].type == kind:
                        wanted[n] = None
        return list(wanted)


def _mirror_bits(value: int, power: int) -> int:
    """Return `value` with its bits below `power`, a power of two, in reverse order."""
    width = power.bit_length() - 1
    return sum(1 << width - 1 - bit for bit in range(width) if value >> bit & 1)
