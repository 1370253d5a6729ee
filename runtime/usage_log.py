"""The log of what groups and hooks call: kept by an extra, if it is here (group `usage_logs`)."""

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

    `list_used` returns its communicators by collective, and `mode` is their choose mode; without
    it, plans are off. `is_first` says that this is its first rank. `stock` is torch's name for what
    runs its stock collectives on GPUs: torch has several engines for NCCL, which differ in speed.
    """

    name: str
    ranks: Iterable[int]
    list_used: Callable[[], Mapping[str, Communicator]] | None
    mode: ChooseMode
    is_first: bool
    stock: str = ""
    is_hook: bool = False


class GroupUsage:
    """The calls of one group or hook; this class counts none of them."""

    is_wanted = False
    """Whether it wants to know why calls are left to the stock collective."""

    def count_stock(self, collective: str) -> None:
        """Count a call that went to gloo or NCCL directly, which could have had a plan."""

    def note_stock_reason(self, collective: str, why: str) -> None:
        """Note the reason `why` a call was left to the stock collective, for the log."""

    def close(self) -> None:
        """Stop counting, when the group ends; later calls do nothing."""


class UsageLog:
    """The usage of all groups and hooks of this process; this class keeps none."""

    is_rank_0 = False
    """Whether this process is the first rank of the launch, the only one that says something."""

    def open(self, whose: CountedGroup) -> GroupUsage:
        """Start counting the calls of the group or hook `whose`, and return its counter.

        This one counts nothing.
        """
        return GroupUsage()

    def observe(self, dispatcher: Dispatcher) -> None:
        """Count the calls of a dispatcher from now on."""

    def summarize(self, usages: Iterable[GroupUsage]) -> Summary:
        """Return what the calls of some groups ran by so far.

        Raise InputError where the extra that keeps the log is not here: nothing was counted.
        """
        return Names(NAMES).find("Summary")  # raises, and names the extra


def find_usage_log() -> UsageLog:
    """Return the usage log of this process."""
    found: UsageLog = Names(USAGE_LOGS).find_only(UsageLog())
    return found
