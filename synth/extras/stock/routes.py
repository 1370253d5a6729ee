"""Find the routes that NCCL takes between the GPUs of a host, on the topology's own links."""

from collections.abc import Mapping

from ....topo.graph import Topology
from ....topo.routes import Route, Router
from .constants import PathType
from .model import list_refused_p2p
from .paths import find_gpu_paths
from .system import DEV, GPU, build_system


class NcclRouter(Router):
    """The routes of one topology by NCCL's rules, through a GPU where NCCL does so.

    GPUs that are two NVLinks apart use the GPU between them (NVB), unless NCCL_NVB_DISABLE=1 is
    set. All other routes are those of the router `hardware`. `relays` is the GPU between, by the
    sending and the receiving one. The topology must be one that model_stock of model.py models.
    """

    def __init__(self, hardware: Router) -> None:
        super().__init__(hardware.topology)
        self._hardware = hardware
        self.relays = _find_relays(hardware.topology)

    def find_route(self, start: str, end: str) -> Route | None:
        """Return the route from one device to another, through a GPU only between two NVLinks.

        None if there is none.
        """
        relay = self.relays.get((start, end))
        return (start, relay, end) if relay else self._hardware.find_route(start, end)

    def on(self, topology: Topology) -> Router:
        """Return a router with the same rule for another topology."""
        return self if topology == self.topology else NcclRouter(self._hardware.on(topology))

    def before_each(self, start: str) -> Mapping[str, str]:
        """Return, by device id, the device before it on its route from `start`."""
        before = self._hardware.before_each(start)
        relayed = {end: relay for (src, end), relay in self.relays.items() if src == start}
        # A device follows the one before it.
        return {**{x: y for x, y in before.items() if x not in relayed}, **relayed}


def _find_relays(topology: Topology) -> dict[tuple[str, str], str]:
    """Return the GPU between two GPUs that NCCL joins by NVB, by their ids.

    Pairs whose NVLinks the topology lacks are left out.
    """
    system = build_system(topology)
    gpus = {gpu.index: topology.ranks[gpu.rank] for gpu in system.nodes[GPU]}
    gpu_of = {gpu.parent: gpus[gpu.index] for gpu in system.nodes[GPU]}
    relays = {}
    paths = find_gpu_paths(system, PathType.SYS, True, list_refused_p2p(topology)).paths
    for pair, path in paths.items():
        src, dst = (gpus[index] for index in pair)
        crossed = [gpu_of[link.end] for link in path.links if link.end.kind == DEV]
        between = [gpu for gpu in crossed if gpu not in (src, dst)]
        hops = [(src, gpu) for gpu in between] + [(gpu, dst) for gpu in between]
        if len(between) == 1 and all(hop in topology.capacity_GBps for hop in hops):
            relays[src, dst] = between[0]
    return relays
