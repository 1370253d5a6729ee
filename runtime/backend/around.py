"""What goes around the calls of a group by plans: nothing, or what an extra adds."""

from __future__ import annotations

from collections.abc import Callable

from ...synth.plan import Plan
from ...topo.errors import ExecutionError
from ..ranks.transport import Transport
from .call_check import CallCheck
from .sizes import Key


class Around:
    """Nothing around a group's calls."""

    takes_all = False
    """Whether all calls on CPU tensors go through it, of any size, and none by stock."""

    def find_plan(self, key: Key, wait: Callable[[], Plan | None]) -> Plan | None:
        """Return a collective's plan, None without one; `wait` awaits the search for it."""
        return wait()

    def heed(self, device: str, transport: Transport) -> None:
        """Take note of a transport of the group's own for a device type, which was just made."""

    def find_transport(self, device: str, plan: Plan) -> Transport | None:
        """Return what a plan's calls on a device type are made over; None: the group's own."""
        return None

    def compare(self, number: int, what: str, check: CallCheck) -> None:
        """Compare the group's `number`-th call, `what`, with the other ranks' by `check`.

        Raise ExecutionError if they make another one.
        """
        check.wait_until_same(number)

    def check_stock(self, what: str) -> None:
        """Raise ExecutionError if a stock collective, `what`, cannot be carried out any more."""

    def list_transports(self) -> list[Transport]:
        """Return the transports that calls are made over besides the group's own."""
        return []

    def break_off(self, error: ExecutionError) -> None:
        """Let all calls fail with an error, those in progress too."""

    def let_go(self) -> None:
        """Let other processes go that wait for calls of the group, which ends with the process."""

    def close(self) -> None:
        """End what goes around calls, once they have ended."""
