"""Facts about the network ports of hosts and the messages between them, collected by the hosts.

The hosts of a launch collect them when it starts (runtime/extras/cables). Hosts are numbered from
0; a port is named by (host's number, interface). The rendezvous is where the launch's ranks meet
(MASTER_ADDR).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from ipaddress import IPv4Interface, IPv4Network
from typing import Any

import msgspec

from ...errors import InputError

# Field of a topology that has the facts from which its cables were inferred.
FIELD = "fabric"


class PortFacts(msgspec.Struct, frozen=True):
    """A network port of a host: an interface with an IPv4 address, or one that is down.

    `name` is the interface. `address` has its prefix ("10.0.0.1/24"), and is empty without one;
    `mtu` is in bytes. `speed_Mbps` is what the driver reports for the link, `rdma` the RDMA device
    of the port, if it has one. Interfaces of one host with the same `connector` share it, and the
    one cable in it, as on cards with a PCIe function for each of two links to their host; empty if
    the driver does not say.
    """

    name: str
    address: str = ""
    mtu: int = 1500
    speed_Mbps: int | None = None
    is_up: bool = True
    rdma: str = ""
    connector: str = ""

    @property
    def network(self) -> IPv4Network | None:
        """The port's subnet; None without an address."""
        return IPv4Interface(self.address).network if self.address else None

    @property
    def ip(self) -> str:
        """The port's IP address without its prefix; "" without an address."""
        return self.address.partition("/")[0]


class HostFacts(msgspec.Struct, frozen=True):
    """A host with the ranks that run on it and its network ports.

    `management` is the port on the route to the rendezvous, `chosen` the ports that the environment
    names for data (GLOO_SOCKET_IFNAME).
    """

    name: str
    ranks: tuple[int, ...]
    ports: tuple[PortFacts, ...]
    management: str = ""
    chosen: tuple[str, ...] = ()

    def find_port(self, name: str) -> PortFacts | None:
        """Return the port with a name, or None."""
        return next((port for port in self.ports if port.name == name), None)


class Hello(msgspec.Struct, frozen=True):
    """A multicast message that `port` of `host` received from a port of another host.

    The sender is `from_port` of host number `from_host`. Such messages need no addresses: they show
    what a cable or a switch leads to.
    """

    host: int
    port: str
    from_host: int
    from_port: str


class PortAnswer(msgspec.Struct, frozen=True):
    """The result of a connection from a port to the address of a port of another host.

    `by_host` and `by_port` say who answered; None and "" if there was no answer. `by_port` is ""
    too where the host answered, but not over exactly these two ports.
    """

    host: int
    port: str
    to_host: int
    to_port: str
    by_host: int | None = None
    by_port: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the port that has the address answered."""
        return (self.by_host, self.by_port) == (self.to_host, self.to_port)


class Flow(msgspec.Struct, frozen=True):
    """A measured flow from one port to another, in GB/s of payload.

    It goes from `port` of host number `host` to `to_port` of host number `to_host`.
    """

    host: int
    port: str
    to_host: int
    to_port: str
    GBps: float


class FabricFacts(msgspec.Struct, frozen=True, dict=True):
    """All facts about the ports of some hosts.

    `hellos` are the multicasts received, `answers` the results of connections. `rounds` has the
    measured flows; those of one round ran at the same time. `key` is a secret of the launch's
    ranks.
    """

    hosts: tuple[HostFacts, ...]
    hellos: tuple[Hello, ...] = ()
    answers: tuple[PortAnswer, ...] = ()
    rounds: tuple[tuple[Flow, ...], ...] = ()
    key: str = ""

    @cached_property
    def ports(self) -> dict[tuple[int, str], PortFacts]:
        """All ports, by host number and name."""
        return {
            (number, port.name): port
            for number, host in enumerate(self.hosts)
            for port in host.ports
        }

    def find_connector(self, key: tuple[int, str]) -> tuple[int, str]:
        """Return (host, connector) of a port; if unknown, the port counts as its own connector."""
        return key[0], self.ports[key].connector or f"port {key[1]}"

    def name_port(self, key: tuple[int, str]) -> str:
        """Return a port's name for messages: "host1:port0"."""
        return f"{self.hosts[key[0]].name}:{key[1]}"

    def to_json(self) -> dict[str, Any]:
        """Return the facts without the secret key, as JSON that `load_facts` reads."""
        return dict(msgspec.to_builtins(msgspec.structs.replace(self, key="")))


def agree_on_management(hosts: Sequence[HostFacts]) -> tuple[HostFacts, ...]:
    """Return the hosts with `management`, the port to the rendezvous, set also where it is unknown.

    It is the first port in the subnet of another host's, empty if there is none. The host of the
    rendezvous itself may know that by a loopback address only (/etc/hosts).
    """
    ports = (host.find_port(host.management) for host in hosts)
    networks = {port.network for port in ports if port is not None and port.address}
    return tuple(
        msgspec.structs.replace(
            host,
            management=host.management
            or next((x.name for x in host.ports if x.network in networks), ""),
        )
        for host in hosts
    )


def list_possible_pairs(
    hosts: Sequence[HostFacts],
) -> list[tuple[tuple[int, str], tuple[int, str]]]:
    """Return all (port, port) of two hosts that are in one subnet, in both orders.

    A port is (host's number, interface). Ports that are down or without an address are left out.
    """
    ports = [
        (number, port)
        for number, host in enumerate(hosts)
        for port in host.ports
        if port.is_up and port.address
    ]
    return [
        ((a, x.name), (b, y.name))
        for a, x in ports
        for b, y in ports
        if a != b and x.network == y.network and x.ip != y.ip
    ]


def load_facts(extra: Any, where: str) -> FabricFacts | None:
    """Parse the facts in a topology's `extra["fabric"]`; None without them.

    Raise InputError, which names `where`, if they are malformed.
    """
    data = extra.get(FIELD)
    if data is None:
        return None
    try:
        return msgspec.convert(data, FabricFacts)
    except (msgspec.ValidationError, ValueError) as error:
        raise InputError(
            f"{where}: field {FIELD}: {error}; write the file anew with topo-probe"
        ) from None
