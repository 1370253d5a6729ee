"""topoplan: a topology-aware communication planner for training on several GPUs.

    plan = topoplan.Plan.load("plan.json")                          written by topo-synth -o
    topoplan.Communicator(plan).allreduce(tensor)                   inside an initialised process group
    model.register_comm_hook(None, topoplan.ddp_hook(plan))         the one line for DDP
    torch.distributed.init_process_group("topo")                    plans for all collectives, and no other line
    with topoplan.nccl_graph("local"): ...                          stock NCCL on the best rings and chains

What needs torch is imported when it is first used; topologies and plans do without.
"""

from __future__ import annotations

from importlib import import_module

from .topo.version import VERSION

TYPE_CHECKING = False  # as typing has it: importing typing takes longer than all else here
if TYPE_CHECKING:
    from .runtime.backend.options import BackendOptions, backend_options
    from .runtime.communicator import Communicator
    from .runtime.ddp import ddp_hook
    from .runtime.ranks.nccl_graph import nccl_graph
    from .synth.plan import Plan
    from .synth.synthesize import synthesize
    from .topo.errors import (
        ExecutionError,
        InfeasibleError,
        InputError,
        PlanMismatchError,
        TimeLimitError,
        TopoplanError,
        VerificationError,
    )
    from .topo.graph import Topology
    from .topo.resolve import resolve


__version__ = VERSION

_HOMES = {
    "BackendOptions": "runtime.backend.options",
    "Communicator": "runtime.communicator",
    "ExecutionError": "topo.errors",
    "InfeasibleError": "topo.errors",
    "InputError": "topo.errors",
    "Plan": "synth.plan",
    "PlanMismatchError": "topo.errors",
    "TimeLimitError": "topo.errors",
    "Topology": "topo.graph",
    "TopoplanError": "topo.errors",
    "VerificationError": "topo.errors",
    "backend_options": "runtime.backend.options",
    "ddp_hook": "runtime.ddp",
    "nccl_graph": "runtime.ranks.nccl_graph",
    "resolve": "topo.resolve",
    "synthesize": "synth.synthesize",
}

__all__ = [
    "BackendOptions",
    "Communicator",
    "ExecutionError",
    "InfeasibleError",
    "InputError",
    "Plan",
    "PlanMismatchError",
    "TimeLimitError",
    "Topology",
    "TopoplanError",
    "VerificationError",
    "backend_options",
    "ddp_hook",
    "nccl_graph",
    "resolve",
    "synthesize",
]


def __getattr__(name: str) -> object:
    """Import a public name's module when the name is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
