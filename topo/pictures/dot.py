"""Writing a topology as Graphviz dot: `dot -Tpng`, or `neato` for meshes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ..graph import Device, Topology
from .cables import Cable, cables, kind_name, rate_text

_SHAPES = {"gpu": "box", "cpu": "box3d", "switch": "hexagon", "nic": "component"}
_FILLS = {"gpu": "#eef7dd", "cpu": "#efe9f8", "switch": "#e6eefa", "nic": "#e2f4f4"}
_COLOURS = {"nvlink": "#5a9e00", "xgmi": "#d9480f", "pcie": "#4475b5", "smp": "#8057b0", "network": "#0d8f92"}
_OTHER_COLOUR = "#55606e"


def write(topology: Topology) -> str:
    """The topology as dot text: a cluster a box or NUMA node, an edge a cable with its GB/s in one direction."""
    rank = {ident: i for i, ident in enumerate(topology.ranks)}
    lines = [f"digraph {_quoted(topology.name)} {{", f"  label={_quoted(topology.name)}; labelloc=t;"]
    lines += ['  node [style="filled,rounded", fontname="Helvetica"];', '  edge [fontname="Helvetica", fontsize=10];']
    clusters: dict[str | None, list[Device]] = defaultdict(list)
    for device in topology.devices:
        clusters[_cluster(device)].append(device)
    for number, (label, devices) in enumerate(clusters.items()):
        nodes = [_node(device, rank.get(device.id)) for device in devices]
        if label is None or len(clusters) == 1:
            lines += [f"  {node}" for node in nodes]
            continue
        lines += [f"  subgraph cluster_{number} {{", f"    label={_quoted(label)};"]
        lines += [*(f"    {node}" for node in nodes), "  }"]
    lines += [f"  {edge}" for edge in _edges(cables(topology))]
    return "\n".join([*lines, "}"]) + "\n"


def _cluster(device: Device) -> str | None:
    """The box that the topology names, else the NUMA node; what belongs to neither stands free."""
    if "box" in device.extra:
        return f"box {device.extra['box']}"
    return None if device.numa_node is None else f"NUMA node {device.numa_node}"


def _node(device: Device, rank: int | None) -> str:
    what = f"rank {rank}" if rank is not None else device.family or device.kind
    label = _quoted(f"{device.id}\n{what}")
    shape, fill = _SHAPES[device.kind], _FILLS[device.kind]
    return f'{_quoted(device.id)} [label={label}, shape={shape}, fillcolor="{fill}"];'


def _edges(found: tuple[Cable, ...]) -> Iterator[str]:
    for cable in found:
        label = f"{kind_name(cable.kind)} {rate_text(cable.GBps)}"
        direction = "forward" if cable.one_way else "none"
        colour = _COLOURS.get(cable.kind, _OTHER_COLOUR)
        width = min(7.0, 1.0 + float(cable.GBps) ** 0.5 / 4)
        yield (
            f"{_quoted(cable.a)} -> {_quoted(cable.b)} "
            f'[label={_quoted(label)}, dir={direction}, color="{colour}", penwidth={width:.1f}];'
        )


def _quoted(text: str) -> str:
    """A dot string: quotes and backslashes escaped, line breaks as \\n, other control characters left out."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"' + "".join(c for c in escaped if c.isprintable()) + '"'
