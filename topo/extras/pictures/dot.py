"""Write a topology as Graphviz dot: `dot -Tpng`, or `neato` for meshes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...devices import Device
from ...grouping import group_by_key
from ...pictures.cables import Cable, find_cables, format_rate
from ...printable import printable_lines

if TYPE_CHECKING:
    from ...graph import Topology

_SHAPES = {"gpu": "box", "cpu": "box3d", "switch": "hexagon", "nic": "component"}
_FILLS = {"gpu": "#eef7dd", "cpu": "#efe9f8", "switch": "#e6eefa", "nic": "#e2f4f4"}
_COLOURS = {
    "nvlink": "#5a9e00",
    "xgmi": "#d9480f",
    "pcie": "#4475b5",
    "smp": "#8057b0",
    "network": "#0d8f92",
}


def write(topology: Topology) -> str:
    """Return a topology as a Graphviz dot document: nodes are devices, edges are cables.

    A cable stands for the links of one kind between two devices, of both directions if these are
    equal. A frame (dot's cluster) surrounds the devices of each server (`extra["box"]`) or NUMA
    node. Edges are labelled with GB/s in one direction.
    """
    rank = {ident: i for i, ident in enumerate(topology.ranks)}
    lines = [
        f"digraph {_quote(topology.name)} {{",
        f"  label={_quote(topology.name)}; labelloc=t;",
        '  node [style="filled,rounded", fontname="Helvetica"];',
        '  edge [fontname="Helvetica", fontsize=10];',
    ]
    clusters = group_by_key((_get_cluster(device), device) for device in topology.devices)
    for number, (label, devices) in enumerate(clusters.items()):
        nodes = [_write_node(device, rank.get(device.id)) for device in devices]
        if label is None or len(clusters) == 1:
            lines += [f"  {node}" for node in nodes]
            continue
        lines += [
            f"  subgraph cluster_{number} {{",
            f"    label={_quote(label)};",
            *(f"    {node}" for node in nodes),
            "  }",
        ]
    lines += [f"  {_write_edge(cable)}" for cable in find_cables(topology)]
    return "\n".join([*lines, "}"]) + "\n"


def _get_cluster(device: Device) -> str | None:
    """Return the label of a device's box or else NUMA node, None if it has neither."""
    if "box" in device.extra:
        return f"box {device.extra['box']}"
    return None if device.numa_node is None else f"NUMA node {device.numa_node}"


def _write_node(device: Device, rank: int | None) -> str:
    what = f"rank {rank}" if rank is not None else device.family or device.kind
    label = _quote(f"{device.id}\n{what}")
    shape, fill = _SHAPES[device.kind], _FILLS[device.kind]
    return f'{_quote(device.id)} [label={label}, shape={shape}, fillcolor="{fill}"];'


def _write_edge(cable: Cable) -> str:
    label = f"{cable.label} {format_rate(cable.GBps)}"
    direction = "forward" if cable.directed else "none"
    colour = _COLOURS.get(cable.kind, "#55606e")
    width = min(7.0, 1.0 + float(cable.GBps) ** 0.5 / 4)
    return (
        f"{_quote(cable.a)} -> {_quote(cable.b)} "
        f'[label={_quote(label)}, dir={direction}, color="{colour}", penwidth={width:.1f}];'
    )


def _quote(text: str) -> str:
    """Quote a dot string; line breaks become \\n, invisible characters escapes."""
    escaped = printable_lines(text).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n") + '"'
