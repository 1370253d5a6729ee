"""The one door into planning: the machine that an argument names, as planners take it."""

from __future__ import annotations

from os import PathLike, fspath

from ..topo.derived.stripes import merge_nvswitches
from ..topo.graph import Topology
from ..topo.resolve import resolve
from ..topo.routes import Router


def load_for_planning(machine: str | PathLike[str] | Topology) -> tuple[Topology, Router]:
    """Return the topology that a path, a name or a topology stands for, and its router.

    NVSwitches side by side are merged, since GPUs spread every message over all of them: a plan for
    the single switches would use a fraction of the hardware. Raises InputError where the name
    stands for no topology.
    """
    named = machine if isinstance(machine, Topology) else resolve(fspath(machine))
    topology = merge_nvswitches(named)
    return topology, Router(topology)
