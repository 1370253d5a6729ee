"""The set-up of a group of the backend "topo", and its end.

The plain group is the gloo or NCCL group inside it, which runs collectives without a plan.
"""

import atexit
import uuid
import weakref
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from ...topo.errors import InputError
from ..communicator import Communicator
from ..ranks.addresses import Addresses, publish_in, read_published
from ..ranks.cabled import find_cabling, find_networks
from ..ranks.faults import grace_s
from ..ranks.groups import find_engine, list_members
from ..ranks.last_words import shorten_last_words
from ..ranks.set_up import Known, set_up_in_time, wait_until_made
from ..ranks.store import agree_on_attempt, find_client, poll_store
from ..usage_log import CountedGroup, find_usage_log
from .call_check import open_check
from .communicators import Communicators
from .options import BackendOptions, backend_options
from .plain_calls import PlainCalls, backend_type, make_plain_group
from .plan_finder import PlanFinder
from .scope import Scope
from .sizes import Key


class GroupLifetime(PlainCalls):
    """The set-up of a process group, and its end; the base class passes calls to the plain group.

    `place` is torch's description of the group (DistributedBackendOptions), `options` the
    backend's, None for those of the default group or else of the environment. `timeout` is the time
    limit of a call; `name_in_launch` is torch's name of the group. `ranks` are its global ranks,
    `whole` says whether these are all. `attempt` names the attempt of the launch: launchers may
    start ranks again in the same store (ranks/store.py); "" if they do not. `planned` carries out
    calls by plans, `check` compares the ranks' calls, `usage` counts them.
    """

    # torch's contract for groups whose ranks can change (torch 2.14), and others.
    supports_reconfigure = supports_splitting = supports_coalescing = False
    finder = PlanFinder
    """What finds the group's plans."""

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
            or (world.options if isinstance(world, GroupLifetime) else None)
            or backend_options()
        )
        self.timeout: timedelta = place.timeout
        self.name_in_launch: str = place.group_id
        self.attempt, self.ranks, self.whole = "", list[int](), True
        shorten_last_words()
        self._begin_life(place)
        # Weak: the exit handler must not keep a destroyed group alive.
        atexit.register(_close, weakref.ref(self))

    def _begin_life(self, place: Any) -> None:
        """Set the group up. Collective over the ranks that `place` describes."""
        if getattr(place, "enable_reconfigure", False):
            raise InputError(
                "enable_reconfigure: groups keep their ranks in this copy of topoplan; leave it out"
            )
        self.ranks, self.whole = list_members(place)
        set_up_in_time(
            partial(self._make, place),
            f"setting up the process group {place.group_id}",
            self.ranks[place.group_rank],
            self.ranks,
            place.timeout,
        )

    def _make(self, place: Any, known: Known) -> None:
        client = find_client(place.store)
        known.store = client.store
        self.attempt = agree_on_attempt(
            place.store, place.group_rank, place.group_size, place.timeout
        )
        store = PrefixStore(f"attempt/{self.attempt}", place.store)
        if self.whole and place.group_size > 1:
            for network in find_networks():
                network.join(store, place.group_rank, place.group_size, self.timeout)
        self._set_up(place, store, known)

    def _set_up(self, place: Any, store: Store, known: Known) -> None:
        shown = PrefixStore("topoplan", store)
        publish_in(shown, place.group_rank)
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
        wait_until_made(shown, place.group_rank, place.group_size, self.timeout)
        self._client = find_client(place.store)
        own_store = PrefixStore(f"topoplan/{shown.get('nonce').decode()}", self._client.store)
        for device in self.plain._device_types:
            self._register_backend(
                device, backend_type(self.transports[device.type]), self.plain._get_backend(device)
            )
        self._set_default_backend(backend_type(self.transports["cuda"]))
        self._open(place, own_store, addresses)

    def _open(self, place: Any, own_store: Store, addresses: Addresses) -> None:
        """Make what carries out calls by plans, checks them, and counts them."""
        by_rank = {self.ranks[number]: address for number, address in addresses.items()}
        plans = self.finder(self.options, own_store, self._make_scope(place), self.timeout, by_rank)
        self.planned = Communicators(
            f"{place.group_id}{self.attempt}",
            plans,
            self.plain,
            self.transports,
            own_store,
            addresses,
        )
        self.check = open_check(own_store, place.group_rank, self.ranks, self.planned.break_off)
        self.usage = find_usage_log().open(
            CountedGroup(
                f"group {place.group_id}",
                self.ranks,
                None if self.options.off else partial(_name_used, self.planned.by_key),
                self.options.policy.choose,
                is_first=place.group_rank == 0,
                stock=find_engine(self.plain, torch.device("cuda")),
            )
        )
        self._number = 0
        self._devices_are_known, self._refused = False, dict[str, str]()

    def _make_scope(self, place: Any) -> Scope:
        """Return what the plans are for of the group that `place` describes."""
        return self.options.scope or Scope(self.ranks, place.group_rank, whole=self.whole)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time limit of later calls, by plans or by the plain group."""
        self.timeout = timeout
        self._limit_stock()
        self.planned.set_timeout(timeout)

    def _limit_stock(self) -> None:
        """Set the timeouts of stock collectives; those over cables leave time to name a cut one."""
        self.plain.set_timeout(self.timeout)
        if find_cabling() is not None:  # elsewhere as torch does, which tests that none ends early
            grace = timedelta(seconds=grace_s(self.timeout))
            dist.ProcessGroupGloo._set_default_timeout(self._gloo, self.timeout - grace)

    def shutdown(self) -> None:
        """Finish the queued calls, end the threads, and destroy this group and those it made."""
        self.usage.close()
        self.check.close()
        self.planned.close()
        self.plain.shutdown()

    def abort(self) -> None:
        """Make calls in progress fail, end the threads, and abort all groups that this one made."""
        self.usage.close()
        self._abort("aborted")

    def _abort(self, why: str) -> None:
        # First: the threads may be in calls.
        self.planned.abort(why)
        self.plain.abort()
        self.check.close()
        self.planned.close()

    def close_at_exit(self) -> None:
        """End the threads of a group that the program has not destroyed when it exits.

        Otherwise a thread in a call would outlive the interpreter.
        """
        self.usage.close()
        self.check.close()
        self.planned.close_queues()
        self.planned.around.let_go()


def _name_used(by_key: Mapping[Key, Communicator | None]) -> dict[str, Communicator]:
    """Return the communicators by their collective and root, as texts."""
    used = {}
    for (name, root, _), communicator in list(by_key.items()):
        if communicator is not None:
            at = "" if root is None else f" {'from' if name == 'broadcast' else 'to'} {root}"
            used[name + at] = communicator
    return used


def _tell_timeout(group: weakref.ref[GroupLifetime], timeout: timedelta) -> None:
    """Let a group have the timeout that torch has set for its gloo (`_set_pg_timeout`)."""
    alive = group()
    if alive is not None:
        alive.set_timeout(timeout)


def _close(group: weakref.ref[GroupLifetime]) -> None:
    alive = group()
    if alive is not None:
        alive.close_at_exit()
