"""Find how the hosts of a launch are joined by testing their ports, before any process group.

The facts are the ports, which of them reach each other, and at which rates (finding.py).
"""

import os
from datetime import timedelta

from torch.distributed.rendezvous import rendezvous

from ....topo.errors import InputError
from ....topo.extras.cables import FabricFacts
from ...ranks.launch import init_method, is_rank
from ...ranks.launchers import join_launch
from .finding import PortLaunch, collect_facts


def probe_fabric(timeout_s: float = 60.0) -> FabricFacts:
    """Return the facts about the network ports of the launch's hosts. Collective over its ranks.

    For programs started by torchrun, mpirun, srun or topo-emulate. Each wait ends after `timeout_s`
    seconds. Raise InputError outside a launch, and ExecutionError if a rank does not answer.
    """
    if not is_rank() and join_launch() is None:
        raise InputError(
            "there are no ranks; start one on each host with torchrun (--nnodes and "
            "--rdzv-endpoint) or mpirun",
            parameter="fabric",
        )
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=timeout_s)
    store, _, _ = next(rendezvous(init_method(), rank, ranks, timeout=timeout))
    return collect_facts(PortLaunch(store, rank, ranks, os.environ.get("MASTER_ADDR", ""), timeout))
