"""The networks to train over: loopback, an emulated slow network, or any topology, emulated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from ...topo.errors import InputError
from ...topo.graph import Device, Link, Topology, both_directions
from ...topo.loader.resolve import load_for_planning
from ...topo.presets import preset
from ..emulate.blueprint import blueprint

LOOPBACK = "loopback"
SLOW = "slow"
DEFAULT_RANKS = (2, 4)  # few enough for a laptop's cores
DEFAULT_SLOWEST_bps = Fraction(100_000_000)
# Rate of links inside the slow network's hosts, as a multiple of the link between them.
_RATE_INSIDE = 4
_MAX_RANKS = 32  # each is a process that trains on this machine's cores


@dataclass(frozen=True)
class Site:
    """One network with one number of ranks; `slowest_bps` is None on loopback.

    The last `helpers` of the topology's GPUs stand for hosts without GPUs.
    """

    network: str
    topology: Topology
    slowest_bps: Fraction | None
    helpers: int = 0

    @property
    def ranks(self) -> int:
        """Number of ranks that train."""
        return len(self.topology.ranks) - self.helpers

    def with_helpers(self, helpers: int) -> Site | None:
        """Return the site with helper hosts, None if the user's topology has no place for them."""
        if not helpers:
            return self
        if self.network == LOOPBACK:
            return replace(self, topology=preset(f"switch:{self.ranks + helpers}"), helpers=helpers)
        if self.network == SLOW:
            return replace(self, topology=two_hosts(self.ranks, helpers), helpers=helpers)
        return None

    @property
    def links(self) -> str:
        """The links between the ranks, as text."""
        if self.slowest_bps is None:
            return "TCP through the host's memory"
        cables = blueprint(self.topology, self.slowest_bps).cables
        rates = [
            rate for cable in cables for rate in (cable.rate_ab, cable.rate_ba) if rate is not None
        ]
        span = " to ".join(f"{rate / 1e6:.4g}" for rate in sorted({min(rates), max(rates)}))
        return (
            f"{len(cables)} link{'' if len(cables) == 1 else 's'} of {span} Mbit/s each way, "
            "emulated"
        )


def list_sites(networks: list[str], ranks: tuple[int, ...], slowest_bps: Fraction) -> list[Site]:
    """Return a site per network and number of ranks; a topology has its own number of ranks.

    Raise InputError if a network is unknown or cannot be emulated.
    """
    out: list[Site] = []
    for network in networks:
        if network == LOOPBACK:
            out += [Site(LOOPBACK, preset(f"switch:{n}"), None) for n in ranks]
        elif network == SLOW:
            out += [Site(SLOW, two_hosts(n), slowest_bps) for n in ranks]
        else:
            out.append(_emulated_site(network, slowest_bps))
    return list(dict.fromkeys(out))


def _emulated_site(argument: str, slowest_bps: Fraction) -> Site:
    topology, _ = load_for_planning(argument)
    name = Path(argument).name if Path(argument).exists() else argument
    if not 2 <= len(topology.ranks) <= _MAX_RANKS:
        raise InputError(
            f"{name}: has {len(topology.ranks)} GPUs; expected from 2 to {_MAX_RANKS}",
            parameter="network",
        )
    site = Site(name, topology, slowest_bps)
    blueprint(
        topology, slowest_bps
    )  # raises where the topology cannot be emulated, before anything is run
    return site


def two_hosts(gpus: int, helpers: int = 0) -> Topology:
    """Return two linked switches with half of the GPUs each; helpers alternate between them.

    A device that would be alone on its switch replaces the switch.
    """
    half = -(-gpus // 2)
    names = [f"gpu{i}" for i in range(gpus)] + [f"helper{i}" for i in range(helpers)]
    hosts = [names[:half] + names[gpus::2], names[half:gpus] + names[gpus + 1 :: 2]]
    devices = [Device(name) for name in names]
    ends: list[str] = []
    links: list[Link] = []
    for number, members in enumerate(hosts):
        if len(members) == 1:
            ends.append(members[0])
            continue
        ends.append(f"switch{number}")
        devices.append(Device(ends[-1], "switch"))
        for member in members:
            links += both_directions(Link(member, ends[-1], Fraction(_RATE_INSIDE)))
    links += both_directions(Link(ends[0], ends[1], Fraction(1)))
    return Topology(f"two hosts, {gpus} GPUs", tuple(devices), tuple(links))


def parse_ranks(text: str) -> tuple[int, ...]:
    """Parse a list of numbers of ranks such as `2,4`; raise InputError for other texts."""
    parts = [part.strip() for part in text.split(",")]
    if not all(
        part.isdecimal() and len(part) < 5 and 2 <= int(part) <= _MAX_RANKS for part in parts
    ):
        raise InputError(
            f"--ranks {text}: expected numbers from 2 to {_MAX_RANKS} separated by commas, as in "
            "2,4"
        )
    return tuple(dict.fromkeys(int(part) for part in parts))
