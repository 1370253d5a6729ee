"""Limits on concurrent transfers: "gpu=1" at every GPU, "plx0=2" at one device.

A transfer is what one rank sends another in one step, however many chunks that is; what a pair of
ranks sends in several steps is one stream, whose parts follow each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations

from ....topo.errors import InputError
from ....topo.graph import Topology
from ....topo.routes import Router

# The words that stand for all devices of a kind, and the kind of each.
KINDS = {"gpu": "gpu", "switch": "switch", "root": "cpu"}
_NUMBER = re.compile(r"[1-9]\d{0,5}")
_OUT, _IN, _THROUGH = "out of", "into", "through"

# Where transfers are counted: a device's id, and "out of" or "into" for a GPU, "through" for other
# devices.
Port = tuple[str, str]


@dataclass(frozen=True)
class Limits:
    """How many transfers may run at a time, by what is limited, in the order of its names.

    A name is one of KINDS, or a device's id. At a GPU so many may leave it, and as many enter it;
    at any other device, so many may pass through it, whatever their direction. Where a kind and a
    device's id both apply, the id counts.
    """

    most: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return ",".join(f"{name}={most}" for name, most in self.most)

    def describe(self) -> str:
        """Return the limits in words: "at most one transfer at a time out of and into each GPU"."""
        return "; ".join(_describe(name, most) for name, most in self.most)

    def find_devices(self, topology: Topology) -> dict[str, int]:
        """Return the limit of each device of a machine that has one, by its id.

        Raise InputError if a name is no device's, or the machine has no device of a kind.
        """
        named = dict(self.most)
        unknown = [name for name in named if name not in KINDS and name not in topology.by_id]
        if unknown:
            raise InputError(
                f"concurrent: {unknown[0]} is neither one of {', '.join(KINDS)} nor a device of "
                f"{topology.name!r}; expected for example gpu=1"
            )
        kinds = {device.kind for device in topology.devices}
        if absent := [name for name in named if name in KINDS and KINDS[name] not in kinds]:
            raise InputError(
                f"concurrent: {topology.name!r} has no {absent[0]}; leave {absent[0]} out"
            )
        words = {kind: word for word, kind in KINDS.items()}
        found = {
            device.id: named.get(device.id, named.get(words.get(device.kind, ""), 0))
            for device in topology.devices
        }
        return {device: most for device, most in found.items() if most}

    def find_ports(self, topology: Topology) -> dict[Port, int]:
        """Return the limit of each port of a machine that has one; raise like `find_devices`."""
        gpus = set(topology.ranks)
        return {
            (device, side): most
            for device, most in self.find_devices(topology).items()
            for side in ((_OUT, _IN) if device in gpus else (_THROUGH,))
        }


def _describe(name: str, most: int) -> str:
    where = {
        "gpu": "out of and into each GPU",
        "switch": "through each switch",
        "root": "through each CPU root",
    }.get(name, f"at {name}")
    return f"at most {'one transfer' if most == 1 else f'{most} transfers'} at a time {where}"


def parse_limits(text: object) -> Limits:
    """Return the limits of "gpu=1,switch=2", or of a mapping {"gpu": 1}.

    Raise InputError unless each has a name and a number of at least 1, and no name comes twice.
    """
    if isinstance(text, Limits):
        return text
    items: Iterable[tuple[str, str]]
    if isinstance(text, Mapping):
        items = ((str(name), str(most)) for name, most in text.items())
    else:
        items = (
            (name, most) for name, _, most in (x.rpartition("=") for x in str(text).split(","))
        )
    most: dict[str, int] = {}
    for given, number in items:
        name = given.strip()
        if not name or name in most or not _NUMBER.fullmatch(number.strip()):
            raise InputError(
                f"concurrent: {text!r:.60}: expected names and numbers of at least 1, each name "
                "once: gpu=1, switch=1, root=2, or a device's id; several with commas"
            )
        most[name] = int(number)
    if not most:
        raise InputError("concurrent: no limit given; expected for example gpu=1")
    return Limits(tuple(sorted(most.items())))


def list_ports(path: Iterable[str], limited: Mapping[Port, int]) -> list[Port]:
    """Return the limited ports that a transfer along a path of devices uses, ends included.

    `path` has device ids from the sending to the receiving GPU; `limited` has the limits of ports.
    """
    devices = [*path]
    ports = [(devices[0], _OUT), (devices[-1], _IN), *((x, _THROUGH) for x in devices[1:-1])]
    return [port for port in ports if port in limited]


def find_fastest_GBps(router: Router, limited: Mapping[Port, int]) -> dict[Port, Fraction]:
    """Return, for each limited port, the rate in GB/s of the fastest route through it.

    Ports that no route uses are missing.
    """
    fastest: dict[Port, Fraction] = {}
    for src, dst in permutations(range(len(router.topology.ranks)), 2):
        if (route := router.route(src, dst)) is None:
            continue
        rate = router.bandwidth_GBps(route)
        for port in list_ports(route, limited):
            fastest[port] = max(rate, fastest.get(port, rate))
    return fastest
