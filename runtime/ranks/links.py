"""What carries the messages of plans between the ranks of a group, and its stock collectives.

A program is one rank's list of instructions for a plan's schedule; a player runs it. Stock
collectives are the backend's own. There is a class for each kind of links. A transport takes the
kind that it is asked for by name, which an extra adds, else that of its group's backend. Nothing
asks links for their name except to show it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import BarrierOptions

from ...extras import LINKS, Names
from ...synth.cost.host_costs import HostCosts
from ...synth.ir.collective import Collective
from ...topo.errors import InputError
from ..environment import TRANSPORT, read
from ..program.contract import Operation, Player
from ..program.instructions import Program
from .cabled import find_cabling
from .faults import Faults
from .groups import find_engine, uses_nccl
from .stock import has_stock, make_stock_call
from .timing import find_slowest_s

if TYPE_CHECKING:
    from .transport import Transport

# The transport's own choice, by the devices of the ranks.
AUTO = "auto"
ReduceOp = dist.ReduceOp.RedOpType
# Makes the player of a program, given its instructions with views in place of ranges, and the
# buffers "work" and "staging" that they are views of.
MakePlayer = Callable[[list[Operation], dict[str, torch.Tensor]], Player]


class Links:
    """gloo's connections between ranks on CPUs, and the base of other kinds of links.

    `group` is the torch group that has them, `device` that of tensors; `faults` finds the rank to
    blame for a failure. `name` is for messages to users. `carrier` names in machines' descriptions
    what carries messages instead of the group's own backend ("" if that does); `costs` are then the
    host's costs per message and byte if nothing was measured.
    """

    name: ClassVar[str] = "gloo"
    carrier: str = ""
    costs: ClassVar[HostCosts | None] = None
    is_batched: ClassVar[bool] = False
    """Whether the messages of a step are posted together, and the host does not wait for them."""
    memory_runner: ClassVar[str | None] = "hosts"
    """The name, in the group `runners` of extras, of what plays schedules in the ranks' memory.

    None if there is nothing.
    """
    leaves_stock: ClassVar[bool] = True
    """Whether a stock collective ends by itself when the rank that started it does other things."""
    why_links_must_hold: ClassVar[str | None] = None
    """Why calls cannot go on after a lost link, None if they can."""
    why_fixed: ClassVar[str | None] = None
    """Why the ranks of a group cannot change, None if they can."""
    why_no_host_memory: ClassVar[str | None] = None
    """Why ranks on several hosts need not share memory within each, None if that may pay."""

    def __init__(self, group: Any, device: torch.device, faults: Faults) -> None:
        self.group, self.device, self.faults = group, device, faults

    @property
    def backend(self) -> Any:
        """What sends and receives a program's messages in the program's own order."""
        # gloo's backend itself: posting through the group costs 5 us more.
        return self.group._get_backend(torch.device("cpu"))

    def prepare(
        self,
        program: Program,
        ranks: int,
        dtype: torch.dtype,
        op: ReduceOp | None,
        *,
        encodes: bool,
    ) -> MakePlayer | None:
        """Return a maker of players for a program, or None if it is run in its own order.

        `ranks` is the group's size, `op` what the program reduces by, `encodes` whether it sends
        values in another format. Here it is None for all programs.
        """
        return None

    def uses_torch(self, *, is_numpys: bool) -> bool:
        """Return whether torch carries out additions of programs in place on CPU tensors.

        `is_numpys` says whether numpy can. Here torch always does.
        """
        return True

    def has_stock(self, collective: Collective, dtype: torch.dtype, op: ReduceOp) -> bool:
        """Return whether the backend has the collective for a dtype and reduction.

        The answer is the same on all ranks, without communication. Here only the dtype counts.
        """
        return has_stock(dtype)

    def make_stock(
        self,
        collective: Collective,
        source: torch.Tensor,
        target: torch.Tensor,
        op: ReduceOp,
        group: Any = None,
    ) -> Callable[[], object]:
        """Return a function that runs the stock collective from `source` to `target`, flat tensors.

        For AVG the result is the sum. `group` has the same ranks, and may stand in for the links'
        own.
        """
        return make_stock_call(collective, group or self.group, source, target, op)

    def run_stock(
        self, call: Callable[[], object], what: str, finish: Callable[[], object]
    ) -> Callable[..., None]:
        """Return a function that runs `call` (from `make_stock`) and, if no rank failed, `finish`.

        The function takes the call's number in the group's count of calls, equal on all ranks
        (None: the next one). If a rank fails it raises an ExecutionError that names the rank at
        fault, if known, and the call by the text `what`. An error by which the backend refuses
        `call` is raised unchanged.
        """

        def run(number: int | None = None) -> None:
            with self.faults.stock(what, number, may_refuse=True):
                call()
            finish()

        return run

    @property
    def stock_engine(self) -> str:
        """The engine of stock collectives, as torch names it: "gloo", "nccl", "nccl2"."""
        return find_engine(self.group, self.device)

    def meet(self, timeout_s: float) -> None:
        """Wait for all ranks at a barrier, with as little skew as there can be.

        Raise RuntimeError if a rank does not come: within the group's own timeout here, within
        `timeout_s` where links keep their own limit.
        """
        options = BarrierOptions()
        if self.device.type == "cuda":  # else NCCL guesses the device
            options.device_ids = [self.device.index]
        self.group.barrier(options).wait()

    def find_largest(self, values: list[float], timeout_s: float) -> list[float]:
        """Return, for each item of `values`, the maximum over all ranks. Collective.

        `values` are mostly times in seconds. Raise RuntimeError if a rank does not come: within the
        group's own timeout here, within `timeout_s` where links keep their own limit.
        """
        return find_slowest_s(values, self.group, self.device)

    def call_between(self, timeout_s: float) -> None:
        """Make a small stock call, to separate calls of plans that are timed. Collective.

        `timeout_s` is as for `meet`.
        """
        dist.all_reduce(torch.zeros(1024, device=self.device), group=self.group)

    def close(self, *, is_private: bool) -> None:
        """Free the links' own resources, here none.

        `is_private` says that their group will end, too.
        """


class NcclLinks(Links):
    """NCCL's connections between GPUs, or RCCL's."""

    name = "nccl"
    is_batched = True
    memory_runner: ClassVar[str | None] = "gpus"
    why_links_must_hold = "NCCL does not say which connection is lost, and cannot leave a call"

    @property
    def backend(self) -> Any:
        """What posts messages in the order of a program (players/in_order.py)."""
        return self.group


def connect(group: Any, device: torch.device, faults: Faults) -> Links:
    """Return links that join the ranks of a group: NCCL's if that moves its data, else gloo's.

    `device` is that of its tensors, `faults` finds the rank to blame for a failure.
    """
    if uses_nccl(group):
        return NcclLinks(group, device, faults)
    return connect_gloo(group, device, faults)


def connect_gloo(group: Any, device: torch.device, faults: Faults) -> Links:
    """Return links that join the ranks of a group over gloo, or over cables that join hosts.

    `device` is that of its tensors, `faults` finds the rank to blame for a failure.
    """
    cabling = find_cabling()
    cabled = None if cabling is None else cabling.connect(group, device, faults)
    return cabled or Links(group, device, faults)


def check_transport(name: str | None) -> str:
    """Return the name of the links to use: `name`, else TOPOPLAN_TRANSPORT, else "auto".

    Raise InputError if neither an extra nor another package adds links of that name.
    """
    chosen, links = name or read(TRANSPORT) or AUTO, Names(LINKS)
    # Those of an extra that is not here are refused by its name when they are to be used.
    if chosen == AUTO or chosen in links.list_all() or chosen in links:
        return chosen
    raise InputError(
        f"{'transport' if name else TRANSPORT}={chosen!r}: expected one of "
        f"{', '.join([AUTO, *links])}"
    )


class NamedLinks(Links, ABC):
    """Links that an extra adds, used where they are asked for by their name."""

    @classmethod
    @abstractmethod
    def open(cls, transport: Transport, name: str) -> NamedLinks:
        """Connect the ranks of a transport, for messages of the group `name`. Collective.

        Raise InputError, on all ranks, if one of them cannot.
        """

    @classmethod
    @abstractmethod
    def takes_gpu_memory(cls) -> bool:
        """Return whether the tensors that messages send may be in GPUs' memory."""

    @classmethod
    @abstractmethod
    def join_launch(cls) -> bool:
        """Set torchrun's variables if a launcher such as mpirun started this process as a rank.

        Return whether one did. Collective over the launch; raise InputError if the links do not
        suit the launcher.
        """


def find_kind(transport: str) -> type[Links]:
    """Return the class of links for a transport's name, for ranks on CPUs: gloo's for "auto".

    Raise InputError if nothing that is installed has the name.
    """
    return Links if transport == AUTO else find_named(transport)


def find_named(name: str) -> type[NamedLinks]:
    """Return the class of links that an extra adds under a name; raise InputError without one."""
    kind: type[NamedLinks] = Names(LINKS).find(name)
    return kind
