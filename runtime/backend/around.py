"""Hooks around the calls that a group of the backend "topo" makes by plans; extras override them.

A plan says how the ranks carry out one collective; a transport is what carries its messages. The
plain group (gloo or NCCL) runs stock collectives, those without a plan. A CallCheck compares the
calls that the ranks make.
"""

from __future__ import annotations

from collections.abc import Callable

from ...synth.plan import Plan
from ...topo.errors import ExecutionError
from ..ranks.transport import Transport
from .call_check import CallCheck
from .sizes import Key


class Around:
    """Hooks that change nothing: the group finds its plans and makes its calls by itself.

    With `takes_all` every call must go through a plan, so none is left to the plain group.
    """

    takes_all = False
    """Whether all calls on CPU tensors go through it, of any size, and none by stock."""

    def find_plan(self, key: Key, wait: Callable[[], Plan | None]) -> Plan | None:
        """Return the plan for `key` (collective, root, device type), or None if there is none.

        `wait` blocks until the search for the plan has ended, and returns its result, which this
        method returns for any `key`.
        """
        return wait()

    def heed(self, device: str, transport: Transport) -> None:
        """Take note that the group has made `transport` for a device type ("cpu", "cuda")."""

    def find_transport(self, device: str, plan: Plan) -> Transport | None:
        """Return the transport for a plan's calls on a device type, or None for the group's own.

        Here it is None for all.
        """
        return None

    def compare(self, number: int, what: str, check: CallCheck) -> None:
        """Compare the group's `number`-th call, `what`, with the other ranks' by `check`.

        Raise ExecutionError if they make another one. `what` is not used here.
        """
        check.wait_until_same(number)

    def check_stock(self, what: str) -> None:
        """Raise ExecutionError if the plain group can no longer run the stock collective `what`.

        `what` describes the call for the message.
        """

    def list_transports(self) -> list[Transport]:
        """Return the transports that calls use besides the group's own; here none."""
        return []

    def break_off(self, error: ExecutionError) -> None:
        """Make all calls fail with `error`, those in progress too."""

    def let_go(self) -> None:
        """Release other processes that wait for calls of this group, because this process exits."""

    def close(self) -> None:
        """Free what the hooks hold; the group calls this after its last call has ended."""
