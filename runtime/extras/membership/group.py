"""Process groups of the backend "topo" whose ranks can change.

A rank's seat is the number of its GPU on the machine that plans were named for: it stays when the
rank's number in the group changes.
"""

import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ....topo.errors import ExecutionError
from ...backend.collectives import CollectiveGroup
from ...backend.scope import Scope
from ...ranks.addresses import Addresses
from ...ranks.groups import list_members
from ...ranks.set_up import Known
from ...usage_log import GroupUsage, find_usage_log
from ...works import get_done_work
from .handles import make_handle, make_nonce
from .scope import SeatedScope

# Attributes that a group has only while it has members.
_OF_MEMBERS = ("usage", "check", "plain", "planned", "transports")


class MemberGroup(CollectiveGroup):
    """A process group of the backend "topo" that can be re-formed over other ranks.

    `nonce` is a random text that identifies this rank to others; `identities` are the uuids of
    torch's reconfigure calls so far, which may not be used again.
    """

    # torch's contract for other memberships (torch 2.14); see reconfigure.py.
    supports_reconfigure = True

    def _begin_life(self, place: Any) -> None:
        self.nonce, self.identities = make_nonce(), set[int]()
        self._rank: int = place.group_rank
        self._size: int = place.group_size
        # A process that comes to join others is alone until then, and has no seat among theirs.
        self._seat: int | None = self._rank if self._size > 1 else None
        self._is_remade = False
        self._abort_hooks: dict[int, Callable[[], object]] = {}
        # torch gives a group that can be reconfigured its members by the first `reconfigure`.
        self._waits_for_members = bool(getattr(place, "enable_reconfigure", False))
        if not self._waits_for_members:
            super()._begin_life(place)

    def join(self, place: Any, attempt: str) -> None:
        """Re-form the group as torch's DistributedBackendOptions `place` says (ranks, store).

        `attempt` names this attempt, the same on all ranks. Collective over them. Raise
        RuntimeError if one does not come within the timeout of `place`.
        """
        self.attempt, self._is_remade = attempt, True
        self.ranks, self.whole = list_members(place)
        before: GroupUsage | None = self.__dict__.pop("usage_before", None)
        shown = "" if self._seat is None else str(self._seat)
        place.store.set(f"seat/{place.group_rank}", shown)
        self._set_up(place, place.store, Known())
        self._rank, self._size = place.group_rank, place.group_size
        if self is dist.group.WORLD:
            find_usage_log().is_rank_0 = self._rank == 0
        if before is not None:  # now: the run's last line comes when the last group is closed
            before.close()

    def _make_scope(self, place: Any) -> Scope:
        if not self._is_remade:
            return super()._make_scope(place)
        # All ranks have met since they published their seats.
        numbers = range(place.group_size)
        seats = _give_seats([place.store.get(f"seat/{number}") for number in numbers])
        if place.group_size > 1:
            self._seat = seats[place.group_rank]
        return SeatedScope(self.ranks, place.group_rank, seats, whole=self.whole)

    def _open(self, place: Any, own_store: Store, addresses: Addresses) -> None:
        super()._open(place, own_store, addresses)
        self._called_abort_hooks = False
        if self._abort_hooks:
            self._watch()

    @property
    def _has_members(self) -> bool:
        return "usage" in self.__dict__  # the last of them that a set-up makes

    def __getattr__(self, name: str) -> Any:
        """Raise ExecutionError if a call needs members and the group has none."""
        if name in _OF_MEMBERS:
            raise ExecutionError(
                "the process group has no members yet, or lost them in a reconfigure that failed; "
                "call reconfigure"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def leave(self, why: str) -> None:
        """Drop the group's ranks, connections, threads and plans; calls then fail with `why`."""
        if self._has_members:
            self._abort(why)
            self.usage_before = self.usage
        for name in _OF_MEMBERS:
            self.__dict__.pop(name, None)

    # What torch calls

    def rank(self) -> int:
        """Return this rank's number in the group."""
        return self._rank

    def size(self) -> int:
        """Return the number of ranks."""
        return self._size

    getRank, getSize = rank, size

    def get_reconfigure_handle(self) -> str:
        """Return the text by which ranks find this one, as topoplan.reconfigure_handle does."""
        return str(make_handle(self.nonce))

    def reconfigure(self, opts: Any) -> dist.Work:
        """Re-form the group over the ranks of `opts.handles`, as topoplan.reconfigure does.

        `opts` are torch's ReconfigureOptions. The returned Work is already done.
        """
        from .reconfigure import reconfigure_group  # it imports this module

        reconfigure_group(self, opts.handles, opts.uuid, opts.timeout)
        return get_done_work()

    def get_error(self) -> Any:
        """Return torch's ErrorType of the failure that ended the group's calls, or SUCCESS."""
        error = self.planned.transport("cpu").faults.broken if self._has_members else None
        kinds = torch._C._distributed_c10d.ErrorType
        return kinds.SUCCESS if error is None else kinds.COMM_ERROR

    def register_abort_hook(self, hook_id: int, hook: Callable[[], object]) -> None:
        """Call `hook` once when calls fail or are aborted, before connections close.

        `hook_id` is for `unregister_abort_hook`.
        """
        self._abort_hooks[hook_id] = hook
        if self._has_members:
            self._watch()

    def unregister_abort_hook(self, hook_id: int) -> None:
        """Forget the hook registered under `hook_id`."""
        self._abort_hooks.pop(hook_id, None)

    def _watch(self) -> None:
        """Call the hooks at the first failure of the current members."""
        faults = self.planned.transport("cpu").faults
        if self._call_abort_hooks not in faults.on_hang_up:
            faults.on_hang_up.insert(0, self._call_abort_hooks)

    def _call_abort_hooks(self) -> None:
        if not self._called_abort_hooks:
            self._called_abort_hooks = True
            for hook in list(self._abort_hooks.values()):
                hook()

    def _get_backend(self, device: torch.device) -> Any:
        """Return the backend of a device: the group itself if torch may reconfigure it.

        Its members' own backend ends with them, and callers hold what they once got.
        """
        return self if self._waits_for_members else self.plain._get_backend(device)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later calls and of the next `reconfigure`."""
        self.timeout = timeout
        if self._has_members:
            super().set_timeout(timeout)

    def shutdown(self) -> None:
        """Destroy the group and its subgroups, once the calls already made have ended."""
        if self._has_members:
            super().shutdown()

    def abort(self) -> None:
        """Abort the group and its subgroups: calls in progress fail, then the threads end."""
        if self._has_members:
            super().abort()

    def close_at_exit(self) -> None:
        """End the threads of a group that the program did not destroy, at interpreter exit."""
        if self._has_members:
            super().close_at_exit()


def _give_seats(published: Sequence[bytes]) -> list[int]:
    """Return each rank's GPU on the machine that plans were named for.

    Ranks of the launch have the GPU of their first number; others get the lowest that are free.
    """
    seats = [int(text) if text else None for text in published]
    free = (seat for seat in itertools.count() if seat not in seats)
    return [
        next(free) if seat is None or seat in seats[:rank] else seat
        for rank, seat in enumerate(seats)
    ]
