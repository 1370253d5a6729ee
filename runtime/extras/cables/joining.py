"""Have this launch's groups use cables, if its hosts are joined by cables instead of a network.

A segment is a cable or a switched network between ports of hosts. Ranks that none joins reach each
other through relays, threads of the ranks that forward connections from host to host (relay.py).
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from ....topo.errors import TopoplanError
from ....topo.extras.cables import FabricFacts, find_faults, find_segments, list_data_segments
from ....topo.extras.cables.facts import list_possible_pairs
from ....topo.extras.cables.segments import count_islands
from ...ranks.cabled import (
    LaunchNetwork,
    find_cabling,
    may_be_cabled,
    set_cabling,
)
from ...ranks.groups import describe_place
from ...ranks.launch import EMULATED, init_method
from ...ranks.machine import HOST
from ...ranks.store import put, take
from .cabling import HostCabling
from .finding import PortLaunch, collect_facts
from .relay import CableRelay

log = logging.getLogger("topoplan")
# More hosts than people wire to each other; hand-shakes of all would delay every start.
_MAX_HOSTS = 32


def join_by_cables(store: Store, rank: int, ranks: int, timeout: timedelta) -> None:
    """Find out whether cables join the launch's hosts, and make later groups use them if they do.

    `ranks` is the number of ranks, `rank` this one; `timeout` limits each wait. Collective over all
    ranks, once; later calls return at once. If cables are used, this starts this rank's relay and
    sets TOPOPLAN_HOST, unless it is set; rank 0 logs faults of the cabling. Hosts that a network
    joins are left to gloo, and so are those whose ports cannot be examined, as when a rank does not
    answer. Raise RuntimeError if a rank does not answer after that.
    """
    if find_cabling() is not None or EMULATED in os.environ or sys.platform != "linux":
        return
    if not may_be_cabled():
        return
    meeting = os.environ.get("MASTER_ADDR", "")
    launch = PortLaunch(PrefixStore("topoplan/cables", store), rank, ranks, meeting, timeout)
    try:
        facts = collect_facts(launch, is_wanted=_may_need_cables)
    except TopoplanError as error:  # the same on all ranks
        log.debug("cables were not looked for: %s", error)
        return
    is_used = needs_cables(facts)
    for fault in find_faults(facts) if rank == 0 and _may_need_cables(facts) else ():
        if is_used or fault.is_fatal:
            unused = "" if is_used else "cables are not used: "
            log.warning("%s%s; %s", unused, fault.text, fault.advice)
    if not is_used:
        return
    me = next(number for number, host in enumerate(facts.hosts) if rank in host.ranks)
    os.environ.setdefault(HOST, facts.hosts[me].name)  # hostnames may be equal
    data = list_data_segments(find_segments(facts))
    addresses = [facts.ports[p].ip for x in data for p in x.ports if p[0] == me]
    relay = CableRelay(rank, addresses, facts.key)
    cabling = HostCabling(facts, rank, relay)
    put(launch.store, f"relay/{rank}", dict(relay.ports))
    cabling.relay_ports = {
        other: take(launch.store, f"relay/{other}", timeout) for other in range(ranks)
    }
    relay.set_hops(cabling.find_hop)
    set_cabling(cabling)


def _may_need_cables(facts: FabricFacts) -> bool:
    """Return whether hand-shakes are worth their time, by the ports' addresses alone.

    Not if the hosts share the network of the rendezvous only, nor on clusters. One host in another
    network is enough: that of a host whose cable is unplugged is named then.
    """
    shared = {
        port.network
        for (number, name), port in facts.ports.items()
        if name == facts.hosts[number].management
    }
    pairs = list_possible_pairs(facts.hosts)
    return len(facts.hosts) <= _MAX_HOSTS and any(
        facts.ports[p].network not in shared for p, _ in pairs
    )


def needs_cables(facts: FabricFacts) -> bool:
    """Return whether groups must use cables, because no one network joins all hosts as well.

    That is so if hosts are joined by something other than the rendezvous' network, and either that
    is cables, or the rendezvous' network does not join them all.
    """
    segments = find_segments(facts)
    data = list_data_segments(segments)
    carrying = {(i, host.management) for i, host in enumerate(facts.hosts)}
    if any(carrying & set(x.ports) for x in data) or any(x.is_fatal for x in find_faults(facts)):
        return False
    if not data or count_islands(facts, data) > 1:
        return False
    managed = [x for x in segments if x.is_management]
    has_network = bool(managed) and count_islands(facts, managed) == 1
    return any(x.is_cable for x in data) or not has_network


def init_gloo_by_cables(rank: int, ranks: int, timeout: timedelta) -> None:
    """Initialize torch's default process group over gloo, over cables if they join the hosts.

    `ranks` is the number of ranks, `rank` this one; `timeout` limits each wait. Collective.
    """
    store, rank, ranks = next(rendezvous(init_method(), rank, ranks, timeout=timeout))
    store.set_timeout(timeout)
    join_by_cables(store, rank, ranks, timeout)
    with _gloo_by_cables():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timeout)


@contextmanager
def _gloo_by_cables() -> Iterator[None]:
    """Have torch's own init_process_group make gloo by cables, while the context lasts."""
    cabling, c10d = find_cabling(), dist.distributed_c10d
    if cabling is None:
        yield
        return

    stock: Any = c10d.ProcessGroupGloo
    make_gloo = cabling.make_gloo

    class Maker(type):
        """Makes gloo by cables where torch calls its class."""

        def __call__(cls, store: Store, rank: int, size: int, timeout: timedelta, **_: Any) -> Any:
            return make_gloo(describe_place(store, rank, size, timeout, "default"), store)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, stock)

        def __getattr__(cls, name: str) -> Any:
            return getattr(stock, name)

    class GlooByCables(metaclass=Maker):
        """In place of torch's ProcessGroupGloo."""

    c10d.ProcessGroupGloo = GlooByCables  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        c10d.ProcessGroupGloo = stock  # type: ignore[misc]


class _Cables:
    """The LaunchNetwork of this extra."""

    join = staticmethod(join_by_cables)
    init_gloo = staticmethod(init_gloo_by_cables)


CABLES: LaunchNetwork = _Cables()
