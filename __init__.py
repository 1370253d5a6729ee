"""topoplan: a topology-aware communication planner for training on several GPUs.

    machine = topoplan.probe()                                      or topoplan.load("dgx1"), load("matrix.txt"), ...
    plan = topoplan.synthesize("allreduce", machine)                the fastest schedules by size, verified, with their bound
    print(topoplan.describe(plan)); plan.save("plan.json")          and later topoplan.Plan.load("plan.json")
    topoplan.Communicator(plan).allreduce(tensor)                   inside an initialised process group
    model.register_comm_hook(None, topoplan.ddp_hook(plan))         the one line for DDP
    torch.distributed.init_process_group("topo")                    plans for all collectives, and no other line
    with topoplan.nccl_graph("local"): ...                          stock NCCL on the best rings and chains
    topoplan.place("dgx1").order                                    which GPU each rank should get

What needs torch is imported when it is first used; topologies and plans do without. docs/api.md is
the reference.
"""

from __future__ import annotations

from importlib import import_module

from .topo.version import VERSION

TYPE_CHECKING = False  # as typing has it: importing typing takes longer than all else here
if TYPE_CHECKING:
    from .runtime.backend.options import BackendOptions, backend_options
    from .runtime.choose import Choice
    from .runtime.communicator import Communicator
    from .runtime.ddp import ddp_hook
    from .runtime.mpi.launched import join_mpi
    from .runtime.ranks.mesh import device_mesh
    from .runtime.ranks.nccl_graph import nccl_graph
    from .synth.bounds.certificate import Bound
    from .synth.forest.candidates import TreeLimits
    from .synth.ir.collective import Chunk, Collective, CollectiveName
    from .synth.ir.schedule import Schedule
    from .synth.ir.transfers import Transfer
    from .synth.place.placement import Placement
    from .synth.place.placing import place
    from .synth.plan import Entry, Plan
    from .synth.planner.api import describe, synthesize, verify
    from .synth.planner.registry import strategy
    from .synth.request import Request, Send, build_schedule
    from .topo.devices import Device, Link
    from .topo.errors import (
        ExecutionError,
        InfeasibleError,
        InputError,
        PlanMismatchError,
        StrategyError,
        TimeLimitError,
        TopoplanError,
        VerificationError,
    )
    from .topo.graph import Topology
    from .topo.loader.resolve import load, probe, resolve


__version__ = VERSION

# The module that each public name is in.
_HOMES = {
    "BackendOptions": "runtime.backend.options",
    "Bound": "synth.bounds.certificate",
    "Choice": "runtime.choose",
    "Chunk": "synth.ir.collective",
    "Collective": "synth.ir.collective",
    "CollectiveName": "synth.ir.collective",
    "Communicator": "runtime.communicator",
    "Device": "topo.devices",
    "Entry": "synth.plan",
    "ExecutionError": "topo.errors",
    "InfeasibleError": "topo.errors",
    "InputError": "topo.errors",
    "TreeLimits": "synth.forest.candidates",
    "Link": "topo.devices",
    "Placement": "synth.place.placement",
    "Plan": "synth.plan",
    "PlanMismatchError": "topo.errors",
    "Request": "synth.request",
    "Schedule": "synth.ir.schedule",
    "Send": "synth.request",
    "StrategyError": "topo.errors",
    "TimeLimitError": "topo.errors",
    "Topology": "topo.graph",
    "TopoplanError": "topo.errors",
    "Transfer": "synth.ir.transfers",
    "VerificationError": "topo.errors",
    "backend_options": "runtime.backend.options",
    "build_schedule": "synth.request",
    "ddp_hook": "runtime.ddp",
    "describe": "synth.planner.api",
    "device_mesh": "runtime.ranks.mesh",
    "join_mpi": "runtime.mpi.launched",
    "load": "topo.loader.resolve",
    "nccl_graph": "runtime.ranks.nccl_graph",
    "place": "synth.place.placing",
    "probe": "topo.loader.resolve",
    "resolve": "topo.loader.resolve",
    "strategy": "synth.planner.registry",
    "synthesize": "synth.planner.api",
    "verify": "synth.planner.api",
}

# Old names, which warn for one version.
_RENAMED = {"Limits": "TreeLimits"}

__all__ = [
    "BackendOptions",
    "Bound",
    "Choice",
    "Chunk",
    "Collective",
    "CollectiveName",
    "Communicator",
    "Device",
    "Entry",
    "ExecutionError",
    "InfeasibleError",
    "InputError",
    "Link",
    "Placement",
    "Plan",
    "PlanMismatchError",
    "Request",
    "Schedule",
    "Send",
    "StrategyError",
    "TimeLimitError",
    "Topology",
    "TopoplanError",
    "Transfer",
    "TreeLimits",
    "VerificationError",
    "backend_options",
    "build_schedule",
    "ddp_hook",
    "describe",
    "device_mesh",
    "join_mpi",
    "load",
    "nccl_graph",
    "place",
    "probe",
    "resolve",
    "strategy",
    "synthesize",
    "verify",
]

if not TYPE_CHECKING:  # type checkers are to know which names there are not

    def __getattr__(name: str) -> object:
        """Import a public name's module when the name is first asked for."""
        if name in _RENAMED:
            from warnings import warn

            new = _RENAMED[name]
            warn(f"topoplan.{name} is now topoplan.{new}", DeprecationWarning, stacklevel=2)
            return __getattr__(new)
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return the public names, whether they were asked for yet or not."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
