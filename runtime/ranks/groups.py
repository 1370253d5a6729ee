"""Make plain gloo or NCCL groups for topoplan's own messages, and torch's backends for them.

torch 2.15 has several NCCL engines. "nccl" makes nccl2 there, unless TORCH_DIST_USE_NCCL2=0;
"nccl-legacy" is the only engine of older torch; "nccl-lazy" is nccl2 with a communicator for each
pair of ranks that send to each other.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, _DistributedBackendOptions

from ...topo.errors import InputError
from .cabled import find_cabling

# As in pyproject.toml; `make torch-versions` runs tests of hook and backend on it.
OLDEST = (2, 9)


def is_torch_at_least(major: int, minor: int) -> bool:
    """Return whether the imported torch has the version `major`.`minor` or a newer one.

    True if its version is not a number.
    """
    numbers = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return numbers is None or (int(numbers[1]), int(numbers[2])) >= (major, minor)


def check_torch() -> None:
    """Raise InputError if the imported torch is older than `OLDEST`."""
    if not is_torch_at_least(*OLDEST):
        oldest = ".".join(map(str, OLDEST))
        raise InputError(
            f"torch {torch.__version__} in {Path(torch.__file__).parent}: topoplan needs "
            f"{oldest} or newer; pip install 'torch>={oldest}'"
        )


check_torch()  # here, as all that needs torch.distributed imports this module

GroupMaker = Callable[[timedelta], dist.ProcessGroup]
"""Makes a process group whose operations have a timeout; all ranks that are to be in it call it."""


def uses_nccl(group: dist.ProcessGroup | None) -> bool:
    """Return whether NCCL moves the data of a group (None: of all ranks)."""
    return "nccl" in dist.get_backend(group)


def device_of(group: dist.ProcessGroup | None) -> torch.device:
    """Return the device where a group's tensors must be: the current GPU over NCCL, else the CPU.

    `group` None is the group of all ranks.
    """
    return (
        torch.device("cuda", torch.cuda.current_device())
        if uses_nccl(group)
        else torch.device("cpu")
    )


def make_private_group(
    group: dist.ProcessGroup | GroupMaker | None, timeout: timedelta
) -> dist.ProcessGroup:
    """Make a plain group (gloo or NCCL) over the ranks of `group` (None: all), for own use.

    `timeout` limits its calls. Collective over the default group, like new_group; with a
    GroupMaker, over the maker's ranks. Raise InputError on ranks outside the group.
    """
    if callable(group):
        return group(timeout)
    members = group or dist.group.WORLD
    assert members is not None
    if get_attempt_name() or find_cabling() is not None:
        return make_group_maker(members)(timeout)
    private = dist.new_group(
        dist.get_process_group_ranks(members), timeout=timeout, backend=_transport(group)
    )
    if not isinstance(private, dist.ProcessGroup):
        raise InputError("this rank is not in the group that the communicator is for")
    return private


@dataclass(frozen=True)
class PlainGroupMaker:
    """A function object that makes a plain group over `ranks`, in their order, without other ranks.

    `name` must be the same on its ranks, and new. `transport` is gloo or an NCCL engine. They meet
    in `store`, where this rank is `ranks[number]`; without a store in the default group's, by the
    global rank. torch's own functions cannot do that: all need a default group; new_group with
    use_local_synchronization names a group by how many groups a rank is in, which differs between
    ranks; and if the default group is bound to a GPU (nccl2 binds it unasked), they split the new
    group off it, for which NCCL needs all ranks of the default group.
    """

    name: str
    ranks: Sequence[int]
    transport: str
    store: Store | None = None
    number: int | None = None

    def __call__(self, timeout: timedelta) -> dist.ProcessGroup:
        """Make the group."""
        name, ranks, (whole, number) = self.name, self.ranks, find_store(self)
        if number is None:
            number = list(ranks).index(dist.get_rank())
        store = PrefixStore(f"{name}/", whole)
        group = dist.ProcessGroup(store, number, len(ranks))
        place = describe_place(store, number, len(ranks), timeout, name)
        place.global_ranks_in_group = list(ranks)
        kinds, is_nccl = dist.ProcessGroup.BackendType, self.transport.startswith("nccl")
        group._set_default_backend(kinds.NCCL if is_nccl else kinds.GLOO)
        if is_nccl:
            gpu = torch.device("cuda", torch.cuda.current_device())
            backend, devices = make_nccl(place, store, self.transport, gpu), ["cuda"]
        else:
            backend, devices = make_gloo(place, store), ["cpu", "cuda"]
        for device in devices:
            group._register_backend(
                torch.device(device), kinds.NCCL if is_nccl else kinds.GLOO, backend
            )
        group._set_group_name(place.group_id)
        _enter(group, name, ranks, self.transport, store)
        return group


def find_members(group: dist.ProcessGroup | GroupMaker | None) -> list[int]:
    """Return the global ranks of a group (None: of all), or of the group that a maker makes."""
    if isinstance(group, PlainGroupMaker):
        return list(group.ranks)
    return dist.get_process_group_ranks(group if isinstance(group, dist.ProcessGroup) else None)


def find_store(group: dist.ProcessGroup | GroupMaker | None) -> tuple[Store, int | None]:
    """Return the store in which the ranks of a new group meet, and this rank's number there.

    The number is None in the default group's store, where it follows from the global rank.
    """
    maker = group if isinstance(group, PlainGroupMaker) else None
    if maker is None or maker.store is None:
        return dist.distributed_c10d._get_default_store(), None
    return maker.store, maker.number


def _enter(
    group: dist.ProcessGroup, name: str, ranks: Sequence[int], transport: str, store: Store
) -> None:
    """Register a group in torch's tables of groups, as torch itself does."""
    c10d: Any = dist.distributed_c10d
    c10d._world.pg_map[group] = (transport, store)
    c10d._world.pg_names[group] = name
    c10d._world.pg_group_ranks[group] = {rank: number for number, rank in enumerate(ranks)}
    # No tag that torch searches for groups of equal ranks.
    c10d._world.pg_to_tag[group] = f"topoplan:{name}"
    c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(c10d.Backend(transport)))
    c10d._register_process_group(name, group)


def leave_tables(group: dist.ProcessGroup) -> None:
    """Remove a group from torch's registry of process groups, without ending it."""
    c10d: Any = dist.distributed_c10d
    world, name = c10d._world, c10d._world.pg_names.get(group)
    for table in ("pg_map", "pg_names", "pg_group_ranks", "pg_to_tag", "pg_backend_config"):
        getattr(world, table).pop(group, None)
    for groups in world.tags_to_pg.values():
        if group in groups:
            groups.remove(group)
    if name is not None:
        c10d._unregister_process_group(name)


def describe_place(store: Store, rank: int, size: int, timeout: timedelta, name: str) -> Any:
    """Return torch's DistributedBackendOptions for a group with a store but no default group.

    torchft's groups are made like this: `TopoGroup(describe_place(store, rank, size, timeout,
    name), None)`. The group has `size` ranks, numbered from 0, whatever their numbers in a default
    group.
    """
    place = _DistributedBackendOptions()
    place.store, place.group_rank, place.group_size = store, rank, size
    place.timeout, place.group_id, place.global_ranks_in_group = timeout, name, []
    return place


def list_members(place: Any) -> tuple[list[int], bool]:
    """Return the global ranks of the group that `place` describes, and whether it has all ranks.

    `place` is torch's DistributedBackendOptions.
    """
    ranks = list(place.global_ranks_in_group)
    if not ranks:  # the default group, or one without any
        return list(range(place.group_size)), True
    return ranks, len(ranks) == dist.get_world_size()


def make_group_maker(group: dist.ProcessGroup) -> GroupMaker:
    """Return a function that makes a plain group, called by the ranks of `group` alone.

    All must call it in the same order, so that subgroups can make theirs concurrently. Raise
    InputError if this rank is not in the group.
    """
    try:
        ranks = dist.get_process_group_ranks(group)
    except (KeyError, TypeError):
        raise InputError("this rank is not in the group that the communicator is for") from None
    name = f"topoplan/{get_attempt_name()}/{group.group_name}"
    # Each member's own count.
    number = dist.distributed_c10d._get_default_store().add(
        f"{name}/groups/{dist.get_rank(group)}", 1
    )
    return PlainGroupMaker(f"{name}/{number}", ranks, _transport(group))


def get_attempt_name() -> str:
    """Return the name of this attempt of the launch, "" if the launcher does not repeat launches.

    torchrun starts ranks again after a failure, in a store that may outlive them: each start is an
    attempt, whose ranks agree on a name (store.py). A default group of the backend "topo" keeps it
    as its attribute `attempt`; it is "" for other default groups. The name is part of names in the
    store: torch's own groups cannot be made again in a store that outlives their ranks.
    """
    return getattr(dist.group.WORLD, "attempt", "")


def _transport(group: dist.ProcessGroup | None) -> str:
    """Return the backend for a plain group next to `group`.

    It is gloo, nccl, or the NCCL engine that the user named.
    """
    named = dist.get_backend(group)
    if named == "nccl-lazy":
        return "nccl2"  # the engine of its collectives; batches need one communicator for all ranks
    if named.startswith("nccl"):
        return named
    is_nccl = uses_nccl(group) or (
        named == "topo" and torch.cuda.is_available() and dist.is_nccl_available()
    )
    return "nccl" if is_nccl else "gloo"


class Gloo(dist.ProcessGroupGloo):
    """gloo's backend, which calls `on_timeout` when torch sets its timeout."""

    on_timeout: Callable[[timedelta], object] | None = None

    def _set_default_timeout(self, timeout: timedelta) -> None:
        super()._set_default_timeout(timeout)
        if self.on_timeout is not None:
            self.on_timeout(timeout)


def make_gloo(place: Any, store: Store) -> Any:
    """Return a new gloo backend for the group that `place`, DistributedBackendOptions, describes.

    The ranks meet in `store`.
    """
    cabling = find_cabling()
    gloo: Any = (
        Gloo(store, place.group_rank, place.group_size, place.timeout)
        if cabling is None
        else cabling.make_gloo(place, store)
    )
    if not is_torch_at_least(2, 14):  # which numbers calls by itself, and warns if asked to
        gloo._set_sequence_number_for_group()
    return gloo


def make_nccl(
    place: Any, store: Store, engine: str = "nccl", device: torch.device | None = None
) -> Any:
    """Return a new NCCL backend for the group that `place`, DistributedBackendOptions, describes.

    The ranks meet in `store`. `engine` is named as torch names backends; "nccl" is torch's own
    choice. An engine that is bound to one GPU (nccl2) takes `device`, else the group's, else the
    one of this rank's number.
    """
    if is_torch_at_least(2, 15):
        return _ask_torch_for_nccl(place, store, engine, device)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = place.timeout
    options.global_ranks_in_group = place.global_ranks_in_group
    options.group_name = place.group_id
    nccl = dist.ProcessGroupNCCL(store, place.group_rank, place.group_size, options)
    if not is_torch_at_least(2, 14):
        nccl._set_sequence_number_for_group()
    return nccl


def _ask_torch_for_nccl(place: Any, store: Store, engine: str, device: torch.device | None) -> Any:
    """Return the backend that torch's own creator makes.

    For "nccl" it depends on the environment at first use.
    """
    own = type(place)()
    for name in (
        "group_rank",
        "group_size",
        "timeout",
        "group_id",
        "global_ranks_in_group",
        "process_group",
    ):
        setattr(own, name, getattr(place, name))
    # Splitting off another group would need all ranks of that one.
    own.store, own.split_from = store, None
    if device is not None:
        own.process_group = dist.ProcessGroup(store, place.group_rank, place.group_size)
        own.process_group.bound_device_id = device
    registry: Any = dist.Backend
    registry._ensure_backend_registered(engine)
    return registry._plugins[engine.upper()].creator_fn(own, None)


def find_engine(group: dist.ProcessGroup, device: torch.device) -> str:
    """Return torch's name for what runs a group's stock collectives on the type of `device`.

    It is gloo, nccl, nccl2 or nccl-lazy. "nccl" is the engine of torch before 2.15, which later
    versions call nccl-legacy.
    """
    return str(group._get_backend(device).name())
