"""Show a topology as a text tree: sockets, the devices below them, and links across the tree."""

from __future__ import annotations

import io
import shutil
from collections import defaultdict
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from rich.text import Text
from rich.tree import Tree

from ..devices import Device
from ..errors import InputError
from ..grouping import group_by_key
from ..printable import printable
from .cables import FAMILY_NAMES, Cable, find_cables, format_rate
from .collapse import number_ranks, show_hosts_once
from .console import SafeConsole, safe_text

if TYPE_CHECKING:
    from ..graph import Topology

_WIDTH = 400  # columns if there is no terminal, so that pipes get whole lines
_MAX_PEERS = 16  # maximum number of peers per kind of link in a line
_MAX_KINDS = 16  # maximum number of kinds and rates of links in a line
_MAX_DEPTH = 100  # devices; rich draws a tree recursively


def write(topology: Topology, colour: bool = False, wraps: bool = False) -> str:
    """Return a topology as a text tree, with terminal colours if `colour`.

    `wraps` breaks lines at the terminal's width; without it they are up to 400 characters long.
    Sockets and switches are above the GPUs and NICs connected to them. Rates are GB/s in each
    direction. If there are more than four hosts, identical ones are shown once, as the last line
    states. Raise InputError if switches are chained more than 100 deep.
    """
    shown = show_hosts_once(topology)
    topology = shown.topology
    below, tree_cables, crossing = _build_tree(topology)
    rank = number_ranks(topology)
    root = Tree(safe_text(topology.name, style="bold"))
    stack: list[tuple[Tree, Cable | None, str, int]] = [
        (root, None, top, 1) for top in reversed(below[""])
    ]
    while stack:
        tree, cable, ident, depth = stack.pop()
        if depth > _MAX_DEPTH:
            raise InputError(
                f"{ident!r:.60} is {depth} devices deep; a tree is drawn up to {_MAX_DEPTH}"
            )
        branch = tree.add(
            _format_line(topology.by_id[ident], rank.get(ident), cable, crossing.get(ident, ()))
        )
        stack += [
            (branch, tree_cables.get((ident, child)), child, depth + 1)
            for child in reversed(below.get(ident, []))
        ]
    buffer = io.StringIO()
    SafeConsole(
        file=buffer,
        width=shutil.get_terminal_size().columns if wraps else _WIDTH,
        colour=colour,
        force_terminal=wraps,
        highlight=False,
        emoji=False,
        markup=False,
    ).print(root)
    lines = [line.rstrip() for line in buffer.getvalue().splitlines()]
    if shown.left_out:
        lines.append(printable(f"one host of each kind is shown; {shown.left_out}"))
    return "\n".join(lines) + "\n"


def _build_tree(
    topology: Topology,
) -> tuple[dict[str, list[str]], dict[tuple[str, str], Cable], dict[str, list[Cable]]]:
    """Return each device's children (of "": the roots), the tree's cables, and all other cables."""
    below: dict[str, list[str]] = defaultdict(list)
    above: dict[str, str] = {}
    for start in sorted(topology.devices, key=_sort_key):
        if start.id in above:
            continue
        above[start.id] = ""
        below[""].append(start.id)
        queue = [start] if start.kind in ("cpu", "switch") else []
        for upper in queue:
            for name in topology.out_neighbours[upper.id]:
                device = topology.by_id[name]
                if name not in above and _may_hang(device, upper):
                    above[name] = upper.id
                    below[upper.id].append(name)
                    queue += [device] if device.kind == "switch" else []
    # The first of several parallel cables to the parent is the tree's; the others cross it.
    tree_cables: dict[tuple[str, str], Cable] = {}
    crossing: dict[str, list[Cable]] = defaultdict(list)
    for cable in find_cables(topology):
        parent, child = (cable.a, cable.b) if above.get(cable.b) == cable.a else (cable.b, cable.a)
        if above.get(child) == parent and (parent, child) not in tree_cables:
            tree_cables[parent, child] = cable
            continue
        for end in (cable.a,) if cable.directed else (cable.a, cable.b):
            crossing[end].append(cable)
    return below, tree_cables, crossing


def _sort_key(device: Device) -> int:
    """Sort devices so that those with others below them become roots first."""
    order = {"cpu": 0, "pcie": 1, "nvswitch": 2, "switch": 3, "gpu": 4, "nic": 4}
    return order.get(device.family or "", order[device.kind])


def _may_hang(device: Device, upper: Device) -> bool:
    is_inner = upper.kind == "cpu" or upper.family == "pcie"
    return is_inner if device.family == "pcie" else device.kind in ("gpu", "nic")


def _format_line(
    device: Device, rank: int | None, cable: Cable | None, crossing: Iterable[Cable]
) -> Text:
    """Format a device's line: its name, the cable to its parent, and links across the tree."""
    text = safe_text(device.id, style="bold" if device.kind == "gpu" else "")
    name, bus_id = str(device.extra.get("name") or ""), device.bus_id or ""
    facts = (
        "" if rank is None else f"rank {rank}",
        FAMILY_NAMES.get(str(device.family), "switch") if device.kind == "switch" else "",
        "" if name in device.id else name,
        "" if bus_id in device.id else bus_id,
        ""
        if cable is None
        else f"{cable.label} {format_rate(cable.GBps)} GB/s"
        + (" one direction" if cable.directed else ""),
    )
    text.append(printable("".join(f" · {fact}" for fact in facts if fact)))
    peers = group_by_key(
        ((cable.label, format_rate(cable.GBps)), cable.b if cable.a == device.id else cable.a)
        for cable in crossing
    )
    for (kind, rate), names in islice(peers.items(), _MAX_KINDS):
        many = device.kind == "switch" and len(names) > 1
        peer_text = f"{len(names)} devices" if many or len(names) > _MAX_PEERS else ", ".join(names)
        text.append(printable(f" · {kind} {rate} to {peer_text}"), style="dim")
    if len(peers) > _MAX_KINDS:
        text.append(f" · and links of {len(peers) - _MAX_KINDS} more kinds and rates", style="dim")
    return text
