"""The members of a group of the backend "topo": its set-up, other memberships, and its end."""

import atexit
import itertools
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from ...topo.errors import ExecutionError, InputError
from ..accounts import Account, Accountable, find_accounts
from ..communicator import Communicator
from ..ranks.addresses import Addresses, publish_in, read_published
from ..ranks.cabled import find_cabling, find_networks
from ..ranks.faults import grace_s
from ..ranks.groups import find_engine, list_members
from ..ranks.set_up import Known, meet_made, set_up_in_time
from ..ranks.store import agree_on_attempt, find_client, poll_store
from ..works import get_done_work
from .call_check import CallCheck
from .communicators import Communicators, Key
from .handles import make_handle, make_nonce
from .options import BackendOptions, backend_options
from .plain_calls import PlainCalls, backend_type, make_plain_group
from .plan_finder import PlanFinder

# Attributes that a group has only while it has members.
_OF_MEMBERS = ("account", "check", "plain", "planned", "transports")


class MemberGroup(PlainCalls):
    """A group whose members can change: its set-up, membership and end; PlainCalls has its calls.

    `timeout` is that of calls; `nonce` identifies this rank's handle, `identities` are the uuids of
    torch's reconfigure that were used.
    """

    # torch's contract for other memberships (torch 2.14); see reconfigure.py.
    supports_reconfigure = True
    supports_splitting = supports_coalescing = False

    def __init__(self, place: Any, options: BackendOptions | None) -> None:
        super().__init__(place.group_rank, place.group_size)  # type: ignore[call-arg]
        if options is not None and not isinstance(options, BackendOptions):
            raise InputError(
                f"pg_options is {type(options).__name__}; the backend topo expects "
                "topoplan.backend_options()"
            )
        world = dist.group.WORLD  # its options are those of groups that are created without any
        self.options: BackendOptions = (
            options
            or (world.options if isinstance(world, MemberGroup) else None)
            or backend_options()
        )
        self.timeout: timedelta = place.timeout
        self.name_in_launch: str = place.group_id
        self.nonce, self.identities = make_nonce(), set[int]()
        self._rank: int = place.group_rank
        self._size: int = place.group_size
        # A process that comes to join others is alone until then, and has no seat among theirs.
        self._seat: int | None = self._rank if self._size > 1 else None
        # torch gives a group that can be reconfigured its members by the first `reconfigure`.
        self._waits_for_members = bool(getattr(place, "enable_reconfigure", False))
        self.attempt, self.ranks, self.whole = "", list[int](), True
        self._abort_hooks: dict[int, Callable[[], object]] = {}
        if not self._waits_for_members:
            ranks, _ = list_members(place)
            set_up_in_time(
                partial(self._make, place),
                f"setting up the process group {place.group_id}",
                ranks[place.group_rank],
                ranks,
                place.timeout,
            )
        # Weak: the exit handler must not keep a destroyed group alive.
        atexit.register(_close, weakref.ref(self))

    def join(self, place: Any, attempt: str) -> None:
        """Enter the membership that `place`, torch's DistributedBackendOptions, describes.

        Its ranks share its store alone, and the name `attempt`. Collective over them. Raise
        RuntimeError if one does not come in the place's timeout.
        """
        self.attempt = attempt
        before: Account | None = self.__dict__.pop("account_before", None)
        self._set_up(place, place.store, Known(), is_remade=True)
        self._rank, self._size = place.group_rank, place.group_size
        if self is dist.group.WORLD:
            find_accounts().is_rank_0 = self._rank == 0
        if before is not None:  # now: the run's last line comes with the last account
            before.close()

    def _make(self, place: Any, known: Known) -> None:
        client = find_client(place.store)
        known.store = client.store
        self.attempt = agree_on_attempt(
            place.store, place.group_rank, place.group_size, place.timeout
        )
        self._set_up(place, PrefixStore(f"attempt/{self.attempt}", place.store), known)

    def _set_up(self, place: Any, store: Store, known: Known, *, is_remade: bool = False) -> None:
        self.ranks, self.whole = list_members(place)
        if self.whole and self._size > 1 and not is_remade:
            for network in find_networks():
                network.join(store, place.group_rank, place.group_size, self.timeout)
        shown = PrefixStore("topoplan", store)
        publish_in(shown, place.group_rank)
        shown.set(f"seat/{place.group_rank}", "" if self._seat is None else str(self._seat))
        if place.group_rank == 0:
            shown.set("nonce", uuid.uuid4().hex)

        def read(number: int) -> None:
            known.addresses[self.ranks[number]] = read_published(shown, number)

        numbers = range(place.group_size)
        poll_store(shown, [f"address/{number}" for number in numbers], self.timeout, read)
        addresses = {number: known.addresses[self.ranks[number]] for number in numbers}
        self.plain, self._gloo, self.transports = make_plain_group(place, store)
        self._gloo.on_timeout = partial(_tell_timeout, weakref.ref(self))
        self._limit_stock()
        # All ranks have published what is read from here on.
        meet_made(shown, place.group_rank, place.group_size, self.timeout)
        seats = None
        if is_remade:
            seats = _give_seats([shown.get(f"seat/{rank}") for rank in range(place.group_size)])
            if place.group_size > 1:
                self._seat = seats[place.group_rank]
        self._client = find_client(place.store)
        own_store = PrefixStore(f"topoplan/{shown.get('nonce').decode()}", self._client.store)
        for device in self.plain._device_types:
            self._register_backend(
                device, backend_type(self.transports[device.type]), self.plain._get_backend(device)
            )
        self._set_default_backend(backend_type(self.transports["cuda"]))
        self._open(place, own_store, addresses, seats)

    def _open(
        self,
        place: Any,
        own_store: Store,
        addresses: Addresses,
        seats: Sequence[int] | None,
    ) -> None:
        """Make what carries out calls by plans, checks them, and counts them."""
        plans = PlanFinder(
            self.options,
            own_store,
            place.group_rank,
            self.ranks,
            self.timeout,
            whole=self.whole,
            seats=seats,
        )
        plans.addresses = {self.ranks[number]: address for number, address in addresses.items()}
        self.planned = Communicators(
            f"{place.group_id}{self.attempt}",
            plans,
            self.plain,
            self.transports,
            own_store,
            addresses,
        )
        self.check = CallCheck(own_store, place.group_rank, self.ranks, self._break_off)
        self.account = find_accounts().open(
            Accountable(
                f"group {place.group_id}",
                self.ranks,
                None if self.options.off else partial(_name_used, self.planned.by_key),
                self.options.policy.choose,
                is_first=place.group_rank == 0,
                stock=find_engine(self.plain, torch.device("cuda")),
            )
        )
        self._number, self._called_abort_hooks = 0, False
        if self._abort_hooks:
            self._watch()
        self._devices_are_known, self._refused = False, dict[str, str]()

    def __getattr__(self, name: str) -> Any:
        """Raise ExecutionError if a call needs members and the group has none."""
        if name in _OF_MEMBERS:
            raise ExecutionError(
                "the process group has no members yet, or lost them in a reconfigure that failed; "
                "call reconfigure"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # Membership

    def rank(self) -> int:
        """Return this rank's number in the group."""
        return self._rank

    def size(self) -> int:
        """Return the number of ranks."""
        return self._size

    getRank, getSize = rank, size

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later calls and of the next `reconfigure`."""
        self.timeout = timeout
        if self._has_members:
            self._limit_stock()
            self.planned.set_timeout(timeout)

    def _limit_stock(self) -> None:
        """Set the timeouts of stock collectives; those over cables leave time to name a cut one."""
        self.plain.set_timeout(self.timeout)
        if find_cabling() is not None:  # elsewhere as torch does, which tests that none ends early
            grace = timedelta(seconds=grace_s(self.timeout))
            dist.ProcessGroupGloo._set_default_timeout(self._gloo, self.timeout - grace)

    def get_reconfigure_handle(self) -> str:
        """Return what other ranks need to find this one, as topoplan.reconfigure_handle does."""
        return str(make_handle(self.nonce))

    def reconfigure(self, opts: Any) -> dist.Work:
        """Make the group anew over the ranks of `opts.handles`, as topoplan.reconfigure does.

        `opts` are torch's ReconfigureOptions. The work is done on return.
        """
        from .reconfigure import reconfigure_group  # it imports this module

        reconfigure_group(self, opts.handles, opts.uuid, opts.timeout)
        return get_done_work()

    def get_error(self) -> Any:
        """Return torch's ErrorType of the failure that ended the group's calls, SUCCESS if none."""
        error = self.planned.transport("cpu").faults.broken if self._has_members else None
        kinds = torch._C._distributed_c10d.ErrorType
        return kinds.SUCCESS if error is None else kinds.COMM_ERROR

    def register_abort_hook(self, hook_id: int, hook: Callable[[], object]) -> None:
        """Have `hook` called when calls fail or are aborted, once, before connections close."""
        self._abort_hooks[hook_id] = hook
        if self._has_members:
            self._watch()

    def unregister_abort_hook(self, hook_id: int) -> None:
        """Call a hook no more."""
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

    @property
    def _has_members(self) -> bool:
        return "account" in self.__dict__  # the last of them that a set-up makes

    def _break_off(self, error: ExecutionError) -> None:
        self.planned.break_off(error)

    def shutdown(self) -> None:
        """End the group's threads after the calls that wait, and destroy all groups."""
        if self._has_members:
            self.account.close()
            self.check.close()
            self.planned.close()
            self.plain.shutdown()

    def abort(self) -> None:
        """Abort all groups: calls in progress fail, then the threads end."""
        if self._has_members:
            self.account.close()
            self._abort("aborted")

    def leave(self, why: str) -> None:
        """Drop the group's members, connections, threads and plans; calls in flight say `why`."""
        if self._has_members:
            self._abort(why)
            self.account_before = self.account
        for name in _OF_MEMBERS:
            self.__dict__.pop(name, None)

    def _abort(self, why: str) -> None:
        # First: the threads may be in calls.
        self.planned.abort(why)
        self.plain.abort()
        self.check.close()
        self.planned.close()


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


def _name_used(by_key: Mapping[Key, Communicator | None]) -> dict[str, Communicator]:
    """Return the communicators by their collective and root, as texts."""
    used = {}
    for (name, root, _), communicator in list(by_key.items()):
        if communicator is not None:
            at = "" if root is None else f" {'from' if name == 'broadcast' else 'to'} {root}"
            used[name + at] = communicator
    return used


def _tell_timeout(group: weakref.ref[MemberGroup], timeout: timedelta) -> None:
    """Let a group have the timeout that torch has set for its gloo (`_set_pg_timeout`)."""
    alive = group()
    if alive is not None:
        alive.set_timeout(timeout)


def _close(group: weakref.ref[MemberGroup]) -> None:
    """Close the queues at exit if the group was not destroyed.

    Otherwise a thread in a call would outlive the interpreter.
    """
    alive = group()
    if alive is not None and alive._has_members:
        alive.account.close()
        alive.check.close()
        alive.planned.close_queues()
        for _, part in alive.planned.attached:
            part.close()
