"""Let groups of ranks use the cables between this launch's hosts: routes, relays, gloo groups.

A relay is a thread of each rank that forwards connections from host to host, to ranks that no cable
reaches from here; a proxy is its socket at the address of a rank of another host (relay.py). A
segment is a cable or a switched network.
"""

import logging
import os
import socket
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from typing import Any

import networkx as nx
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from ....topo.errors import ExecutionError, InputError
from ....topo.extras.cables import (
    FabricFacts,
    PortKey,
    find_segments,
    list_data_segments,
    make_topology,
)
from ....topo.extras.cables.faults import find_rate
from ....topo.extras.cables.segments import count_islands
from ...ranks.groups import Gloo, list_members
from ...ranks.store import put, take
from ..sockets import find_listening_ports, list_sockets
from .cable_gloo import CableChannel, CableGloo
from .links import connect, find_messages, note_messages
from .relay import CableRelay, RelayHop, loopback_of

log = logging.getLogger("topoplan")
# Settings by which users say themselves over which networks Open MPI sends.
_MPI_NETWORKS = tuple(
    f"OMPI_MCA_{name}" for name in ("btl_tcp_if_include", "btl_tcp_if_exclude", "btl", "pml")
)
_Gloo: Any = dist.ProcessGroupGloo  # torch's type stubs lack its devices
# Ports that are tried; the first one is nearly always free on all hosts.
_ATTEMPTS = 100
# gloo finds its device's socket by what was opened meanwhile: one group at a time.
_MAKING = threading.Lock()


@dataclass(frozen=True)
class HostJoint:
    """A cable, or a switched network, between two hosts, as seen from one of them.

    `own` and `other` are the ports at this host and at the other one, as (host number, interface).
    `GBps` is the lower of its measured rates there and back; 1 if none was measured.
    """

    own: PortKey
    other: PortKey
    GBps: float


class HostCabling:
    """The cables of this rank's host, the routes along them to all hosts, and this rank's relay.

    It is the LaunchCabling of ranks/cabled.py, through which the core makes groups. `facts` were
    collected from all hosts (finding.py), `rank` is this rank's number in the launch. `relay_ports`
    maps each rank to the TCP ports of its relay, by IP address; it is set once all relays run
    (joining.py). `topology` has the hosts, joined by their cables. Raise InputError if none joins
    all of them.
    """

    def __init__(self, facts: FabricFacts, rank: int, relay: CableRelay) -> None:
        self.facts, self.rank, self._relay = facts, rank, relay
        self.topology = make_topology(facts)
        self._host_of = {r: i for i, host in enumerate(facts.hosts) for r in host.ranks}
        self._joints = _find_joints(facts)
        self.relay_ports: Mapping[int, Mapping[str, int]] = {}
        graph: nx.Graph[int] = nx.Graph()
        graph.add_nodes_from(range(len(facts.hosts)))
        graph.add_edges_from(self._joints)
        me = self._host_of[rank]
        self._routes = nx.single_source_shortest_path(graph, me)

    @property
    def address(self) -> str:
        """The loopback address at which this rank listens, so that relays can imitate it."""
        return loopback_of(self.rank)

    def find_hop(self, rank: int) -> RelayHop:
        """Return the next relay on the route to `rank`, which is on another host."""
        me, host = self._host_of[self.rank], self._host_of[rank]
        following = self._routes[host][1]
        joint = self._joints[me, following][0]
        by = rank if following == host else self.facts.hosts[following].ranks[0]
        ip = self.facts.ports[joint.other].ip
        return RelayHop(self.facts.ports[joint.own].ip, ip, self.relay_ports[by][ip], by == rank)

    def reach(self, host: str, port: int) -> None:
        """Open a proxy for the address `host` and `port` at which a rank of another host listens.

        Does nothing if that rank is on this host. Raise OSError if a program here has the port.
        """
        rank = next((r for r in self._host_of if loopback_of(r) == host), None)
        if rank is not None and self._host_of[rank] != self._host_of[self.rank]:
            self._relay.open_proxy(rank, port)

    def try_cables(self, timeout_s: float) -> list[tuple[str, str, bool]]:
        """Connect over each cable of this host, for at most `timeout_s` seconds, to test it.

        Return (port here, port at the other end, whether it works) for each. A refused connection
        counts as working: the other relay has ended, but the cable carried its refusal.
        """
        facts, me = self.facts, self._host_of[self.rank]
        joints = [x for (host, _), of in self._joints.items() if host == me for x in of]

        def answers(joint: HostJoint) -> bool:
            own, other = facts.ports[joint.own].ip, facts.ports[joint.other].ip
            relay = facts.hosts[joint.other[0]].ranks[0]
            try:
                socket.create_connection(
                    (other, self.relay_ports[relay][other]), timeout_s, (own, 0)
                ).close()
            except ConnectionRefusedError:
                return True
            except OSError as error:
                log.debug("rank %d: %s: %s", self.rank, facts.name_port(joint.own), error)
                return False
            return True

        with ThreadPoolExecutor(max(1, len(joints))) as pool:
            return [
                (facts.name_port(joint.own), facts.name_port(joint.other), works)
                for joint, works in zip(joints, pool.map(answers, joints), strict=True)
            ]

    def check_mpi(self, mpi: str) -> None:
        """Raise InputError if the MPI with this name and version cannot send over these cables.

        Open MPI 4.1 pairs each port of a host with one of another host's (mca_btl_tcp_proc_insert):
        in one subnet where it can, else in different ones, and messages take turns over all pairs.
        So it works if all hosts have the same subnets; otherwise a job ends with "Network is
        unreachable" even between hosts that a cable joins.
        """
        if not mpi.startswith("Open MPI") or any(name in os.environ for name in _MPI_NETWORKS):
            return
        facts = self.facts
        segments = find_segments(facts)
        networks: dict[int, set[str]] = defaultdict(set)
        for segment in list_data_segments(segments):
            for port in segment.ports:
                networks[port[0]].add(str(facts.ports[port].network))
        if all(networks[0] == networks[host] for host in range(len(facts.hosts))):
            own = facts.hosts[self._host_of[self.rank]]
            others = [
                port.name
                for port in own.ports
                if port.is_up and port.address and str(port.network) not in networks[0]
            ]
            if others and self.rank == 0:
                log.warning(
                    "%s also sends over %s of %s; over the cables alone with: mpirun --mca "
                    "btl_tcp_if_include %s",
                    mpi,
                    ", ".join(others),
                    own.name,
                    ",".join(sorted(networks[0])),
                )
            return
        managed = [x for x in segments if x.is_management]
        joining = {str(facts.ports[port].network) for x in managed for port in x.ports}
        other_network = (
            "; or have MPI use the network that joins all hosts: mpirun --mca btl_tcp_if_include "
            + ",".join(sorted(joining))
            if managed and count_islands(facts, managed) == 1
            else ""
        )
        raise InputError(
            f"transport mpi: {mpi} pairs the ports of any two hosts, with a cable between them or "
            f"not, and so does not reach all of {len(facts.hosts)} hosts that cables join; leave "
            f"the transport out, and gloo sends over the cables{other_network}"
        )

    connect = staticmethod(connect)
    find_messages = staticmethod(find_messages)

    def make_gloo(self, place: Any, store: Store) -> Any:
        """Return gloo for a group of ranks, some of them on other hosts. Collective over the group.

        `place` says which ranks the group has and which is this one (runtime/ranks/groups.py);
        `store` is shared by them. Raise RuntimeError if a rank does not come, ExecutionError if no
        port for gloo is free on all hosts.
        """
        members, _ = list_members(place)
        own: int = place.group_rank
        channels = self._make_channels(store, own, members, place.timeout)
        others = {
            number: rank
            for number, rank in enumerate(members)
            if self._host_of[rank] != self._host_of[self.rank]
        }
        device, proxies = self._listen(store, own, others, place)
        gloo: Any = Gloo(store, own, len(members), _make_options([device], place.timeout))

        def close() -> None:
            for proxy in proxies:
                self._relay.close_proxy(*proxy)

        # Not before: gloo takes a connection for made that the proxy has not accepted yet.
        note_messages(gloo, CableGloo(channels, gloo, close))
        return gloo

    def _listen(
        self, store: Store, own: int, others: Mapping[int, int], place: Any
    ) -> tuple[Any, list[tuple[int, int]]]:
        """Return a device of gloo's that all others reach, and the proxies of theirs: rank, port.

        The system chooses a device's port. If a program of another host uses the same port there,
        the device is made anew. `others` has the ranks on other hosts by number in the group.
        Collective over the group.
        """
        device, port, proxies = None, 0, dict[int, int]()
        refused, attempt = set(range(place.group_size)), 0
        while refused and attempt < _ATTEMPTS:
            if own in refused:
                device, port = self._make_device()
            ports = _share(store, f"listens/{attempt}", own, place, port)
            taken = []
            for number in sorted(refused & {*others}):
                rank = others[number]
                if number in proxies:
                    self._relay.close_proxy(rank, proxies.pop(number))
                try:
                    self._relay.open_proxy(rank, ports[number])
                    proxies[number] = ports[number]
                except OSError as error:
                    log.debug("rank %d: no proxy of rank %d: %s", self.rank, rank, error)
                    taken.append(number)
            refused = set().union(*_share(store, f"refused/{attempt}", own, place, taken))
            attempt += 1
        if refused:
            raise ExecutionError(
                f"rank {self.rank}: each of {_ATTEMPTS} ports that the system chose for gloo is in "
                "use on another host; widen the range net.ipv4.ip_local_port_range on all hosts"
            )
        return device, [(others[number], of) for number, of in proxies.items()]

    def _make_device(self) -> tuple[Any, int]:
        """Return a device of gloo's at this rank's address, and its port."""
        with _MAKING:
            opened = frozenset(list_sockets().values())
            device = _Gloo.create_device(hostname=self.address)
            (port,) = find_listening_ports(opened, self.address)
        return device, port

    def _make_channels(
        self, store: Store, own: int, members: Sequence[int], timeout: timedelta
    ) -> dict[int, list[CableChannel]]:
        """Return the channels to the ranks of neighbouring hosts, by number in the group.

        They connect at the first message.
        """
        me = self._host_of[self.rank]
        channels: dict[int, list[CableChannel]] = {}
        for number, rank in enumerate(members):
            joints = self._joints.get((me, self._host_of[rank]), ())
            total = sum(Fraction(x.GBps) for x in joints)
            for i, joint in enumerate(joints):
                low, high = sorted((own, number))
                device = _Gloo.create_device(
                    hostname=self.facts.ports[joint.own].ip, lazy_init=True
                )
                backend = _Gloo(
                    PrefixStore(f"cable/{low}-{high}/{i}", store),
                    int(own == high),
                    2,
                    _make_options([device], timeout),
                )
                channels.setdefault(number, []).append(
                    CableChannel(backend, int(own == low), Fraction(joint.GBps) / total)
                )
        return channels


def _share(store: Store, key: str, own: int, place: Any, value: Any) -> list[Any]:
    """Return the values of all of a group's ranks, by number. Collective."""
    put(store, f"{key}/{own}", value)
    return [take(store, f"{key}/{number}", place.timeout) for number in range(place.group_size)]


def _make_options(devices: list[Any], timeout: timedelta) -> Any:
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices, options._timeout = devices, timeout
    options._threads = 2 * len(devices)
    return options


def _find_joints(facts: FabricFacts) -> dict[tuple[int, int], list[HostJoint]]:
    """Return the segments between each two hosts, in the same order on both."""
    joints: dict[tuple[int, int], list[HostJoint]] = defaultdict(list)
    for segment in list_data_segments(find_segments(facts)):
        for p in segment.ports:
            for q in segment.ports:
                if p[0] != q[0]:
                    rates = [find_rate(facts, p, q), find_rate(facts, q, p)]
                    known = [rate for rate in rates if rate]
                    joints[p[0], q[0]].append(HostJoint(p, q, min(known, default=1.0)))
    return dict(joints)
