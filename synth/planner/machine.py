"""The one door into planning: the machine that an argument names, as planners take it."""

from __future__ import annotations

from os import PathLike

from ...topo.derived.stripes import merge_nvswitches
from ...topo.graph import Topology
from ...topo.loader.resolve import load
from ...topo.routes import HARDWARE, Router


def load_for_planning(machine: str | PathLike[str] | Topology) -> tuple[Topology, Router]:
    """Return the topology that a path, a name or a topology stands for, and its router.

    NVSwitches side by side are merged, since GPUs spread every message over all of them: a route
    through one of them would have a fraction of the hardware's bandwidth. Raises InputError where
    the name stands for no topology.
    """
    topology = merge_nvswitches(machine if isinstance(machine, Topology) else load(machine))
    return topology, HARDWARE.on(topology)
