"""topoplan: a topology-aware communication planner for training on several GPUs.

    machine = topoplan.probe()                          # this machine; or topoplan.load("dgx1")
    plan = topoplan.synthesize("allreduce", machine)    # fastest schedules by size, and the bound
    print(plan.describe())
    plan.save("plan.json")                              # read it with topoplan.Plan.load
    topoplan.Communicator(plan).allreduce(tensor)       # in an initialised process group
    model.register_comm_hook(None, topoplan.ddp_hook(plan))    # DDP
    torch.distributed.init_process_group("topo")        # all collectives through plans
    topoplan.reshard_state_dict(trained, serving)       # DTensors to another mesh
    print(topoplan.summary())                           # what ran, and what it saved
    with topoplan.nccl_graph("local"): ...              # stock NCCL on the best rings and chains
    topoplan.place("dgx1").order                        # the GPU of each rank

Modules are imported when their names are first used: topologies and plans need no torch, which is
the extra `topoplan[run]`.
docs/api.md is the reference.
"""

from __future__ import annotations

from importlib import import_module

from .topo.version import VERSION

TYPE_CHECKING = False  # not from typing, whose import takes longer than all else in this module
if TYPE_CHECKING:
    from .runtime.backend.options import Plans, backend_options
    from .runtime.candidates import Choice
    from .runtime.communicator import Communicator
    from .runtime.ddp import DdpHook, ddp_hook
    from .runtime.extras.device_mesh import device_mesh
    from .runtime.extras.helpers.new_group import new_group
    from .runtime.extras.joint.mesh import mesh_groups
    from .runtime.extras.membership.reconfigure import reconfigure, reconfigure_handle
    from .runtime.extras.mpi.launched import join_mpi
    from .runtime.extras.nccl_graph.around_group import nccl_graph
    from .runtime.extras.reshard.state_dict import reshard_state_dict
    from .runtime.extras.reshard.transfer import Reshard, reshard
    from .runtime.extras.summaries.summary import GroupSummary, SizeSummary, Summary
    from .runtime.extras.summaries.usage_log import summary
    from .runtime.policy import ChooseMode, Policy
    from .runtime.ranks.groups import GroupMaker
    from .runtime.ranks.transport import Transport
    from .synth.bounds.certificate import Bound
    from .synth.cost.affine import Cost
    from .synth.extras.exact.api import pareto
    from .synth.extras.exact.front import ParetoFront
    from .synth.extras.exact.search import ParetoRow
    from .synth.extras.joint.bound import JointBound
    from .synth.extras.joint.joint_calls import JointCall
    from .synth.extras.joint.plan import GroupPlan, JointPlan
    from .synth.extras.joint.synthesize import synthesize_joint
    from .synth.extras.place.job import Job, Traffic
    from .synth.extras.place.placement import Placement, Step
    from .synth.extras.place.placing import place
    from .synth.extras.place.proof.check import PlaceBound
    from .synth.ir.collective import Chunk, Collective, CollectiveName
    from .synth.ir.schedule import Schedule
    from .synth.ir.transfers import Transfer, Transfers
    from .synth.numeric.effort import Effort
    from .synth.plan import Entry, Plan
    from .synth.planner.api import synthesize, verify
    from .synth.planner.registry import strategy
    from .synth.request import Request, Send, TreeLimits, build_schedule
    from .topo.devices import Device, InNetwork, Link
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
    from .topo.loader.resolve import load, probe
    from .topo.notes import Note
    from .topo.routes import Router


__version__ = VERSION

# The module that each public name of the core is in; extras.py has those of extras.
_HOMES = {
    "Bound": "synth.bounds.certificate",
    "Choice": "runtime.candidates",
    "ChooseMode": "runtime.policy",
    "Policy": "runtime.policy",
    "Chunk": "synth.ir.collective",
    "Collective": "synth.ir.collective",
    "CollectiveName": "synth.ir.collective",
    "Communicator": "runtime.communicator",
    "Cost": "synth.cost.affine",
    "DdpHook": "runtime.ddp",
    "Device": "topo.devices",
    "Effort": "synth.numeric.effort",
    "Entry": "synth.plan",
    "ExecutionError": "topo.errors",
    "GroupMaker": "runtime.ranks.groups",
    "InNetwork": "topo.devices",
    "InfeasibleError": "topo.errors",
    "InputError": "topo.errors",
    "Link": "topo.devices",
    "Note": "topo.notes",
    "Plan": "synth.plan",
    "PlanMismatchError": "topo.errors",
    "Plans": "runtime.backend.options",
    "Request": "synth.request",
    "Router": "topo.routes",
    "Schedule": "synth.ir.schedule",
    "Send": "synth.request",
    "StrategyError": "topo.errors",
    "TimeLimitError": "topo.errors",
    "Topology": "topo.graph",
    "TopoplanError": "topo.errors",
    "Transfer": "synth.ir.transfers",
    "Transfers": "synth.ir.transfers",
    "Transport": "runtime.ranks.transport",
    "TreeLimits": "synth.request",
    "VerificationError": "topo.errors",
    "backend_options": "runtime.backend.options",
    "build_schedule": "synth.request",
    "ddp_hook": "runtime.ddp",
    "load": "topo.loader.resolve",
    "probe": "topo.loader.resolve",
    "strategy": "synth.planner.registry",
    "synthesize": "synth.planner.api",
    "verify": "synth.planner.api",
}

# Old names: the module and the name there, and what to write instead. They go with version 0.2.
_OLD = {
    "BackendOptions": (
        "runtime.backend.options",
        "BackendOptions",
        "topoplan.backend_options(...)",
    ),
    "Limits": ("synth.request", "TreeLimits", "topoplan.TreeLimits"),
    "describe": ("synth.planner.api", "describe", "the method describe() of the object"),
    "resolve": ("topo.loader.resolve", "resolve", "topoplan.load"),
}

__all__ = [
    "Bound",
    "Choice",
    "ChooseMode",
    "Chunk",
    "Collective",
    "CollectiveName",
    "Communicator",
    "Cost",
    "DdpHook",
    "Device",
    "Effort",
    "Entry",
    "ExecutionError",
    "GroupMaker",
    "GroupPlan",
    "GroupSummary",
    "InNetwork",
    "InfeasibleError",
    "InputError",
    "Job",
    "JointBound",
    "JointCall",
    "JointPlan",
    "Link",
    "Note",
    "ParetoFront",
    "ParetoRow",
    "PlaceBound",
    "Placement",
    "Plan",
    "PlanMismatchError",
    "Plans",
    "Policy",
    "Request",
    "Reshard",
    "Router",
    "Schedule",
    "Send",
    "SizeSummary",
    "Step",
    "StrategyError",
    "Summary",
    "TimeLimitError",
    "Topology",
    "TopoplanError",
    "Traffic",
    "Transfer",
    "Transfers",
    "Transport",
    "TreeLimits",
    "VerificationError",
    "backend_options",
    "build_schedule",
    "ddp_hook",
    "device_mesh",
    "join_mpi",
    "load",
    "mesh_groups",
    "nccl_graph",
    "new_group",
    "pareto",
    "place",
    "probe",
    "reconfigure",
    "reconfigure_handle",
    "reshard",
    "reshard_state_dict",
    "strategy",
    "summary",
    "synthesize",
    "synthesize_joint",
    "verify",
]

if not TYPE_CHECKING:  # with __getattr__, type checkers would accept names that do not exist

    def __getattr__(name: str) -> object:
        """Import a public name's module when the name is first used; warn about an old name."""
        if name in _OLD:
            from warnings import warn

            home, now, instead = _OLD[name]
            message = f"topoplan.{name} goes with version 0.2; use {instead}"
            warn(message, DeprecationWarning, stacklevel=2)
            return getattr(import_module(f".{home}", __name__), now)
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            if name in _HOMES:
                value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
            else:
                from .extras import NAMES, Names

                value = Names(NAMES).find(name)
        except ImportError as error:
            from .runtime.ranks.torch_extra import explain_import_error

            raise explain_import_error(error) from None
        globals()[name] = value
        return value


def _list_homes() -> dict[str, str]:
    """Return the module of each public name, but of names of extras that are not here."""
    from .extras import NAMES, Names

    return {**_HOMES, **Names(NAMES).list_modules()}


def __dir__() -> list[str]:
    """Return the public names, whether they were used yet or not.

    Without torch those that run plans are left out: `help` and editors import all that is listed.
    """
    from importlib.util import find_spec

    runs = find_spec("torch") is not None
    public = (
        name for name, home in _list_homes().items() if runs or not home.startswith("runtime.")
    )
    return sorted({*public, *(name for name in globals() if name.startswith("__"))})
