"""The box that every host of a cluster is: a preset or a file of one host, and its ways into the
network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from ...derived.hosts import NETWORK, group_by_host, join_hosts
from ...devices import Device, Link
from ...errors import InputError
from ...graph import Topology
from ...notes import Note
from ...presets import PRESETS, preset


@dataclass(frozen=True)
class Box:
    """A host's devices and links, and its ways into the network: links that end at a switch to be
    named.
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    ways_out: tuple[Link, ...]
    notes: tuple[Note, ...] = ()

    @property
    def rate_GBps(self) -> Fraction:
        """What the host sends into the network, all ways together."""
        return sum((link.bandwidth_GBps for link in self.ways_out), Fraction(0))


def read_box(argument: str, resolve: Callable[[str], Topology]) -> Box:
    """Return the box that an argument names, a preset (`dgx-h100`) or a file of one host.
    InputError where it is none.

    Presets of several boxes say how each of them is joined to the network. A file's NICs of known
    speed do; where there are none, the rate is assumed, as when hosts are joined.
    """
    entry = PRESETS.get(argument)
    if entry is not None and entry.size == "boxes":
        return _take_first(argument, preset(f"{argument}:2"))
    machine = resolve(argument)
    if not machine.ranks:
        raise InputError(
            f"{argument}: it has no GPU; a box is one host with its GPUs", parameter="box"
        )
    hosts = len(group_by_host([machine.by_id[gpu] for gpu in machine.ranks]))
    if hosts > 1 or NETWORK in machine.by_id:
        raise InputError(
            f"{argument}: {hosts} hosts; a box is one host with its GPUs, such as dgx-h100",
            parameter="box",
        )
    joined = join_hosts(
        [machine, machine], [(host, gpu) for host in (0, 1) for gpu in machine.ranks]
    )
    ways_out = tuple(
        replace(link, src=link.src.removeprefix("host0/"))
        for link in joined.links
        if link.dst == NETWORK and link.src.startswith("host0/")
    )
    assumed = [note for note in joined.notes if note.kind == "network-rate-assumed"][:1]
    return Box(
        argument,
        machine.devices,
        machine.links,
        ways_out,
        tuple(note.with_text(f"every host: {note.detail}") for note in assumed),
    )


def _take_first(name: str, boxes: Topology) -> Box:
    """Return the first of two boxes on one network."""
    devices = {d.id: d for d in boxes.devices if d.extra.get("box") == 0}
    return Box(
        name,
        tuple(devices.values()),
        tuple(link for link in boxes.links if link.src in devices and link.dst in devices),
        tuple(link for link in boxes.links if link.src in devices and link.dst == NETWORK),
    )
