"""topo-probe --fabric: the launch's hosts, joined by their cables.

A launch is the ranks that torchrun, mpirun, srun or topo-emulate started together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...topo.errors import InputError
from ..shared.common import print_error

if TYPE_CHECKING:
    import argparse

    from ...topo.graph import Topology
    from ..shared.progress import ProgressReporter


def find_fabric(arguments: argparse.Namespace, progress: ProgressReporter) -> Topology:
    """Return the launch's hosts, joined by the cables that messages between their ports find.

    All ranks of the launch must call it. If nothing joins the hosts, raise InputError, or with
    --check return them without links, since the doctor's findings say why. Other faults of cables
    are warned of on standard error. Raise InputError outside a launch, too, and for options that
    are for other topologies; ExecutionError if a rank does not answer.
    """
    if arguments.topologies or arguments.for_vm:
        raise InputError("--fabric finds the hosts' cables; leave TOPOLOGY and --for-vm out")
    from ...runtime.extras.cables.probe import probe_fabric
    from ...topo.extras.cables import describe_hosts, find_faults, make_topology

    with progress.follow("finding cables ..."):
        facts = probe_fabric()
    if arguments.check:
        return describe_hosts(facts)
    topology = make_topology(facts)
    for fault in find_faults(facts) if progress.speaks else ():
        print_error(f"{progress.prog}: warning: {fault.text}; {fault.advice}")
    return topology
