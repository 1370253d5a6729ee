"""Whether all ranks of a group make the same calls: an extra compares them, if it is here.

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
    """A comparison of this rank's calls with the others'; this one compares nothing.

    `rank` is its number in the group, `ranks` are the group's global ranks. If calls differ,
    `break_off` is called with the error.
    """

    error: ExecutionError | None = None
    """Names the ranks whose calls differ, as soon as that is known."""

    def __init__(self, store: Store, rank: int, ranks: Sequence[int], break_off: BreakOff) -> None:
        self._store, self._rank, self._ranks, self._break_off = store, rank, list(ranks), break_off

    def post(self, number: int, what: str, *, is_awaited: bool = False) -> None:
        """Post this rank's call `number` for comparison in the background, as the text `what`.

        `is_awaited` says that all ranks call `wait_until_same` for it.
        """

    def wait_until_same(self, number: int) -> None:
        """Wait briefly until all ranks have posted call `number` and it is the same.

        Raise ExecutionError if the ranks differ.
        """

    def compare(self, number: int, calls: Sequence[str]) -> None:
        """Raise ExecutionError unless `calls`, those of all ranks in their order, are the same."""

    def watch(self, work: PlannedWork) -> None:
        """Make the call of `work` fail if the ranks' calls turn out to differ before it ends."""

    def find_error(self) -> ExecutionError | None:
        """Return the error that names the differing ranks, or None, after a call has failed."""
        return self.error

    def close(self) -> None:
        """Compare nothing more."""


def open_check(store: Store, rank: int, ranks: Sequence[int], break_off: BreakOff) -> CallCheck:
    """Return what compares the calls of a group's ranks, for one of them."""
    kind: type[CallCheck] = Names(CALL_CHECKS).find_only(CallCheck)
    return kind(store, rank, ranks, break_off)
