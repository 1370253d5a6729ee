"""The networks to train over: loopback, an emulated slow network, or any topology, emulated."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import topoplan
from topoplan import Device, InputError, Link, Topology
from topoplan.runtime.extras.emulate import blueprint, parse_rate
from topoplan.runtime.extras.emulate.blueprint import load_machine

LOOPBACK = "loopback"
SLOW = "slow"
# Rate of links inside the slow network's hosts, as a multiple of the link between them.
_RATE_INSIDE = 4
_MAX_RANKS = 32  # each is a process that trains on this machine's cores


@dataclass(frozen=True)
class Site:
    """A network to train over, with one number of ranks; `slowest_bps` is None on loopback.

    `slowest_bps` is the emulated rate of the slowest link, in bit/s. The last `helpers` of the
    topology's GPUs represent hosts without GPUs.
    """

    network: str
    topology: Topology
    slowest_bps: Fraction | None
    helpers: int = 0

    @property
    def ranks(self) -> int:
        """Number of ranks that train, without helpers."""
        return len(self.topology.ranks) - self.helpers

    def with_helpers(self, helpers: int) -> "Site | None":
        """Return the site with this number of helper hosts added.

        None if the network is the user's topology, which has no place for them.
        """
        if not helpers:
            return self
        if self.network not in _MAKERS:
            return None
        return replace(self, topology=_MAKERS[self.network](self.ranks, helpers), helpers=helpers)

    @property
    def links(self) -> str:
        """The number and rates of the links between the ranks, as text."""
        if self.slowest_bps is None:
            return "TCP through the host's memory"
        cables = blueprint(self.topology, self.slowest_bps).cables
        rates = [x for cable in cables for x in (cable.rate_ab, cable.rate_ba) if x is not None]
        span = " to ".join(f"{rate / 1e6:.4g}" for rate in sorted({min(rates), max(rates)}))
        return (
            f"{len(cables)} link{'' if len(cables) == 1 else 's'} of {span} Mbit/s in each "
            "direction, emulated"
        )


def list_sites(networks: list[str], ranks: tuple[int, ...], slowest: str) -> list[Site]:
    """Return a site for each network and number of ranks; a topology has its own number.

    `slowest` is the rate of the slowest emulated link, such as 100Mbit. Raise InputError if it is
    no rate, or if a network is unknown or cannot be emulated.
    """
    out: list[Site] = []
    slowest_bps = parse_rate(slowest)
    for network in networks:
        if network in _MAKERS:
            out += [
                Site(network, _MAKERS[network](n, 0), None if network == LOOPBACK else slowest_bps)
                for n in ranks
            ]
        else:
            out.append(_emulated_site(network, slowest_bps))
    return list(dict.fromkeys(out))


def _emulated_site(argument: str, slowest_bps: Fraction) -> Site:
    topology = load_machine(argument)
    name = Path(argument).name if Path(argument).exists() else argument
    if not 2 <= len(topology.ranks) <= _MAX_RANKS:
        raise InputError(
            f"{name}: has {len(topology.ranks)} GPUs; expected from 2 to {_MAX_RANKS}",
            parameter="network",
        )
    blueprint(topology, slowest_bps)  # raises if it cannot be emulated, before anything is run
    return Site(name, topology, slowest_bps)


def two_hosts(gpus: int, helpers: int = 0) -> Topology:
    """Return two linked switches with half of the GPUs each; helpers alternate between them.

    Helpers are GPUs too, after the others. A device that would be alone on its switch replaces the
    switch.
    """
    half = -(-gpus // 2)
    names = [f"gpu{i}" for i in range(gpus)] + [f"helper{i}" for i in range(helpers)]
    devices = list(map(Device, names))
    ends: list[str] = []
    links: list[Link] = []
    for number, members in enumerate(
        (names[:half] + names[gpus::2], names[half:gpus] + names[gpus + 1 :: 2])
    ):
        ends.append(members[0] if len(members) == 1 else f"switch{number}")
        if len(members) > 1:
            devices.append(Device(ends[-1], "switch"))
            for member in members:
                links += _link(member, ends[-1], _RATE_INSIDE)
    links += _link(ends[0], ends[1], 1)
    return Topology(f"two hosts, {gpus} GPUs", tuple(devices), tuple(links))


def _link(one: str, other: str, rate: int) -> list[Link]:
    return [Link(one, other, Fraction(rate)), Link(other, one, Fraction(rate))]


# The built-in networks, by the numbers of ranks and helpers.
_MAKERS: dict[str, Callable[[int, int], Topology]] = {
    LOOPBACK: lambda ranks, helpers: topoplan.load(f"switch:{ranks + helpers}"),
    SLOW: two_hosts,
}


def parse_ranks(text: str) -> tuple[int, ...]:
    """Parse a list of numbers of ranks such as `2,4`; raise InputError for other texts."""
    parts = [part.strip() for part in text.split(",")]
    if not all(
        part.isdecimal() and len(part) < 5 and 2 <= int(part) <= _MAX_RANKS for part in parts
    ):
        raise InputError(
            f"{text}: expected numbers from 2 to {_MAX_RANKS} separated by commas, as in 2,4",
            parameter="ranks",
        )
    return tuple(dict.fromkeys(int(part) for part in parts))
