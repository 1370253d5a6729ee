"""Check that all ranks of a group make the same calls; an extra compares them if it is installed.

The extra adds a subclass of CallCheck to the group `call_checks` (extras.py at the root).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch._C._distributed_c10d import Store

from ...extras import CALL_CHECKS, Names
from ...topo.errors import ExecutionError
from ..queues import BreakOff
from ..works import PlannedWork


class CallCheck:
    """A comparison of this rank's calls with the other ranks'; this base class compares nothing.

    `rank` is this rank's number in the group, `ranks` are the group's global ranks, `store` is what
    they exchange texts by. If calls differ, `break_off`, which makes all calls of the group fail,
    is called with the error, which `error` keeps.
    """

    error: ExecutionError | None = None
    """Names the ranks whose calls differ, as soon as that is known."""

    def __init__(self, store: Store, rank: int, ranks: Sequence[int], break_off: BreakOff) -> None:
        self._store, self._rank, self._ranks, self._break_off = store, rank, list(ranks), break_off

    def post(self, number: int, what: str, *, is_awaited: bool = False) -> None:
        """Publish this rank's call, the group's `number`-th, as the text `what`, without waiting.

        `is_awaited` announces that all ranks will call `wait_until_same` for it.
        """

    def wait_until_same(self, number: int) -> None:
        """Wait briefly until all ranks have posted call `number`, and check that it is the same.

        Raise ExecutionError if the ranks differ.
        """

    def compare(self, number: int, calls: Sequence[str]) -> None:
        """Raise ExecutionError unless all texts in `calls`, one per rank in order, are the same.

        They describe the group's `number`-th call.
        """

    def watch(self, work: PlannedWork) -> None:
        """Make the call behind `work` fail if ranks are found to make different calls meanwhile."""

    def find_error(self) -> ExecutionError | None:
        """Return the error that names the ranks whose calls differ, None if none do.

        It is asked after a call has failed.
        """
        return self.error

    def close(self) -> None:
        """Stop comparing."""


def open_check(store: Store, rank: int, ranks: Sequence[int], break_off: BreakOff) -> CallCheck:
    """Return the comparison of calls for one rank: the extra's, else one that compares nothing.

    `rank` is the number in the group, `ranks` are its global ranks, `store` is the group's;
    `break_off` is called with the error if calls differ.
    """
    kind: type[CallCheck] = Names(CALL_CHECKS).find_only(CallCheck)
    return kind(store, rank, ranks, break_off)
