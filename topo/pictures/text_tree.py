"""A topology as a tree for people: sockets, what hangs below them, and beside each device the links that cross the tree."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable
from itertools import islice

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from ..errors import InputError
from ..graph import Device, Topology
from .cables import FAMILY_NAMES, Cable, cables, kind_name, rate_text

_WIDEST = 400
_MOST_PEERS = 16
_MOST_SORTS = 16
_DEEPEST = 100


def write(topology: Topology, colour: bool = False) -> str:
    """The tree as text, with terminal colours where asked for. GPUs and NICs are leaves; rates are GB/s each way.

    Raises InputError where switches are chained more than 100 deep.
    """
    below, joints, crossing = _hang(topology)
    rank = {ident: i for i, ident in enumerate(topology.ranks)}
    root = Tree(Text(topology.name, style="bold"))
    stack: list[tuple[Tree, Cable | None, str, int]] = [(root, None, top, 1) for top in reversed(below[""])]
    while stack:
        tree, cable, ident, depth = stack.pop()
        if depth > _DEEPEST:
            raise InputError(f"{ident!r:.60} is {depth} devices deep; more than {_DEEPEST} are not drawn as a tree")
        branch = tree.add(_line(topology.by_id[ident], rank.get(ident), cable, crossing.get(ident, ())))
        stack += [(branch, joints.get((ident, child)), child, depth + 1) for child in reversed(below.get(ident, []))]
    buffer = io.StringIO()
    Console(file=buffer, width=_WIDEST, force_terminal=colour, highlight=False, emoji=False, markup=False).print(root)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


Below = dict[str, list[str]]
Joints = dict[tuple[str, str], Cable]


def _hang(topology: Topology) -> tuple[Below, Joints, dict[str, list[Cable]]]:
    """What hangs below each device (below "": the tops) and by which cable, and each device's cables beside the tree."""
    below: dict[str, list[str]] = defaultdict(list)
    above: dict[str, str] = {}
    for start in sorted(topology.devices, key=_first):
        if start.id in above:
            continue
        above[start.id] = ""
        below[""].append(start.id)
        queue = [start] if start.kind in ("cpu", "switch") else []
        for here in queue:
            for name in topology.out_neighbours[here.id]:
                device = topology.by_id[name]
                if name not in above and _may_hang(device, here):
                    above[name] = here.id
                    below[here.id].append(name)
                    queue += [device] if device.kind == "switch" else []
    joints: Joints = {}
    crossing: dict[str, list[Cable]] = defaultdict(list)
    for cable in cables(topology):
        parent, child = (cable.a, cable.b) if above.get(cable.b) == cable.a else (cable.b, cable.a)
        if above.get(child) == parent and (parent, child) not in joints:
            joints[parent, child] = cable
            continue
        crossing[cable.a].append(cable)
        if not cable.one_way:
            crossing[cable.b].append(cable)
    return below, joints, crossing


def _first(device: Device) -> int:
    """The order in which devices become tops: what others hang on comes first."""
    order = {"cpu": 0, "switch": 3, "gpu": 4, "nic": 4}
    return 1 if device.family == "pcie" else 2 if device.family == "nvswitch" else order[device.kind]


def _may_hang(device: Device, here: Device) -> bool:
    if device.family == "pcie":
        return here.kind == "cpu" or here.family == "pcie"
    return device.kind in ("gpu", "nic")


def _line(device: Device, rank: int | None, cable: Cable | None, crossing: Iterable[Cable]) -> Text:
    text = Text(device.id, style="bold" if device.kind == "gpu" else "")
    name = device.extra.get("name")
    facts = [] if rank is None else [f"rank {rank}"]
    facts += [FAMILY_NAMES.get(str(device.family), "switch")] if device.kind == "switch" else []
    facts += [str(name)] if name and str(name) not in device.id else []
    facts += [device.bus_id] if device.bus_id and device.bus_id not in device.id else []
    if cable is not None:
        facts.append(f"{kind_name(cable.kind)} {rate_text(cable.GBps)} GB/s" + (" one way" if cable.one_way else ""))
    text.append("".join(f" · {fact}" for fact in facts))
    peers: dict[tuple[str, str], list[str]] = defaultdict(list)
    for other in crossing:
        there = other.b if other.a == device.id else other.a
        peers[kind_name(other.kind), rate_text(other.GBps)].append(there)
    for (kind, rate), names in islice(peers.items(), _MOST_SORTS):
        many = device.kind == "switch" and len(names) > 1
        told = f"{len(names)} devices" if many or len(names) > _MOST_PEERS else ", ".join(names)
        text.append(f" · {kind} {rate} to {told}", style="dim")
    if len(peers) > _MOST_SORTS:
        text.append(f" · and links of {len(peers) - _MOST_SORTS} more kinds and rates", style="dim")
    return text
