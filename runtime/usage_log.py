"""The log of the calls that process groups and DDP hooks make; an extra keeps it (`usage_logs`).

A call uses a plan's schedule, or the stock collective, which is gloo's or NCCL's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ..extras import NAMES, USAGE_LOGS, Names
from .policy import ChooseMode

if TYPE_CHECKING:
    from .communicator import Communicator
    from .dispatcher import Dispatcher

# What is said of calls: topoplan.Summary, a type of the extra.
Summary: TypeAlias = Any


@dataclass(frozen=True)
class CountedGroup:
    """The group called `name`, or a hook, whose calls are counted.

    `ranks` are its global ranks. `list_used` returns its communicators by collective (None: plans
    are off), and `mode` is how these choose schedules (race, model, ...). `is_first` says that this
    is its first rank, `is_hook` that it is a hook. `stock` is torch's name for what runs its stock
    collectives on GPUs: torch has several engines for NCCL, which differ in speed.
    """

    name: str
    ranks: Iterable[int]
    list_used: Callable[[], Mapping[str, Communicator]] | None
    mode: ChooseMode
    is_first: bool
    stock: str = ""
    is_hook: bool = False


class GroupUsage:
    """The counter of one group's or hook's calls; this base class counts none of them.

    `is_wanted` says whether it needs `note_stock_reason`.
    """

    is_wanted = False
    """Whether it wants to know why calls are left to the stock collective."""

    def count_stock(self, collective: str) -> None:
        """Count a call that gloo or NCCL made, of a collective (its name) that may have plans."""

    def note_stock_reason(self, collective: str, why: str) -> None:
        """Note why (`why`) a call of a collective was left to gloo or NCCL, for the log."""

    def close(self) -> None:
        """Stop counting, because the group ends; later calls do nothing."""


class UsageLog:
    """The counters of all groups and hooks of this process; this base class keeps none.

    `is_rank_0` says whether this process is to print.
    """

    is_rank_0 = False
    """Whether this process is the first rank of the launch, the only one that says something."""

    def open(self, whose: CountedGroup) -> GroupUsage:
        """Start counting the calls of a group or hook, and return its counter.

        This one counts none.
        """
        return GroupUsage()

    def observe(self, dispatcher: Dispatcher) -> None:
        """Count the calls of a dispatcher, which runs one plan, from now on."""

    def summarize(self, usages: Iterable[GroupUsage]) -> Summary:
        """Return which schedules the calls of some groups have used so far.

        Raise InputError here: without the extra that keeps the log nothing was counted.
        """
        return Names(NAMES).find("Summary")  # raises, and names the extra


def find_usage_log() -> UsageLog:
    """Return the usage log of this process: the extra's, else one that counts nothing."""
    found: UsageLog = Names(USAGE_LOGS).find_only(UsageLog())
    return found
