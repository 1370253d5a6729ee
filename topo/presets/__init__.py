"""Build machines and graphs by name: `preset("dgx1")`, `preset("mesh:4x4@25")`.

An argument is `name[:size][@GBps]`. Links of graphs (ring, mesh, ...) have 1 GB/s, or 25 with
`@25`. Machines have datasheet rates in one direction; their size is the number of boxes (servers),
and `@25` gives each port into the network between them 25 GB/s. Ranks are numbered box by box, and
in row-major order on meshes (the last coordinate changes fastest).
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import combinations
from math import prod

from ..clock import pace
from ..errors import InputError
from ..exact import fraction_to_json
from ..graph import DEFAULT_BANDWIDTH_GBps, Device, Link, Topology, both_directions
from ..port_rate import set_port_rate
from .cabled import mac_mesh, spark_cable, spark_pair, spark_ring, strix_ring
from .machines import (
    dgx1,
    dgx2,
    dgx_a100,
    dgx_b200,
    dgx_b300,
    dgx_h100,
    dgx_h100_rails,
    dgx_h200,
    gb200_nvl72,
    gh200x4,
    mi250,
    mi300x,
    pcie_2socket,
    rtx_pro_6000,
    z52,
)

# The most GPUs of a preset: no strategy plans for more.
MAX_GPUS = 4096
# Dimensions of a mesh or torus: twelve of size 2 already have MAX_GPUS.
_MAX_DIMENSIONS = 12

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _-]{0,60}")
_SEPARATORS = re.compile(r"[ _-]")
_DIGITS = re.compile(r"[0-9]{1,9}")
_RATE = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")

Sizes = tuple[int, ...]
Pairs = list[tuple[int, int]]


@dataclass(frozen=True)
class Preset:
    """A machine or graph that `preset` builds by `name`; `example` is an argument for it.

    `size` is the unit of the numbers after the colon: "GPUs", "dimensions", "dimension", "boxes"
    (servers), "racks", "hosts" (joined by cables), or "" if the preset takes none. `gpus` maps
    these numbers to the number of GPUs. A machine has `machine`, which builds the topology of a
    number of boxes, racks or hosts. A graph has `pairs`, which maps the numbers to the pairs of
    ranks that are linked, or `via_switch`: then one switch links all GPUs. `description` is one
    line for lists.
    """

    name: str
    example: str
    description: str
    size: str
    gpus: Callable[[Sizes], int]
    pairs: Callable[[Sizes], Pairs] | None = None
    machine: Callable[[int], Topology] | None = None
    via_switch: bool = False


def preset(argument: str) -> Topology:
    """Return the topology that an argument such as `ring:8`, `torus:8x8@25` or `dgx-a100:2` names.

    Raise InputError if the name is unknown, or the size or bandwidth is missing or out of range.
    """
    head, at, rate = argument.partition("@")
    name, colon, spec = head.partition(":")
    entry = find_entry(name)
    if entry is None:
        raise InputError(_describe_unknown(name))
    sizes = _parse_sizes(entry, spec if colon else None, argument)
    if max(sizes) > MAX_GPUS or len(sizes) > _MAX_DIMENSIONS or entry.gpus(sizes) > MAX_GPUS:
        raise InputError(
            f"{argument!r} has more than {MAX_GPUS} GPUs, the most that a preset may have; ask for "
            "fewer"
        )
    if entry.machine is None:
        GBps = _parse_rate(rate, argument) if at else DEFAULT_BANDWIDTH_GBps
        return _build_graph(entry, sizes, GBps)
    machine = entry.machine(sizes[0])
    return _set_port_rate(machine, entry, rate, argument) if at else machine


def find_entry(name: str) -> Preset | None:
    """Return the preset with a name or one of its other names, None if there is none.

    Case, spaces, hyphens and underscores do not matter: `DGX_H100` is dgx-h100.
    """
    if name in PRESETS or not _PLAIN.fullmatch(name):
        return PRESETS.get(name)
    return _BY_SPELLING.get(_SEPARATORS.sub("", name.lower()))


def _set_port_rate(machine: Topology, entry: Preset, rate: str, argument: str) -> Topology:
    """Return a machine whose ports into the network have the rate that stands after the '@'."""
    GBps = _parse_rate(rate, argument)
    stated = set_port_rate(machine, GBps, f"{float(GBps):g} GB/s a port, as given by the user")
    if stated is None:
        several = f"; write for example '{entry.name}:2@{rate}'" if entry.size == "boxes" else ""
        raise InputError(
            f"{argument!r}: {entry.name} has the bandwidths of its datasheet, and no network whose "
            f"ports could have '@{rate}'{several or '; leave it out'}, or write the machine as "
            "JSON with the bandwidths you want"
        )
    return replace(stated, name=f"{machine.name}@{fraction_to_json(GBps)}")


def _describe_unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), PRESETS, n=1, cutoff=0.6)
    hint = f" (did you mean {PRESETS[near[0]].example!r}?)" if near else ""
    known = ", ".join(p.example for p in PRESETS.values())
    expected = f"expected a file, 'local', or a preset such as {known}"
    return f"unknown topology {name[:60]!r}{hint}; {expected}"


def _parse_sizes(entry: Preset, spec: str | None, argument: str) -> Sizes:
    """Parse the sizes of an argument; (1,) for a machine without one."""
    if not entry.size:
        if spec is not None:
            raise InputError(f"{argument!r}: {entry.name} takes no size; write {entry.example!r}")
        return (1,)
    if spec is None and entry.size in ("boxes", "racks"):
        return (1,)
    parts = (spec or "").split("x") if entry.size == "dimensions" else [spec or ""]
    if not all(_DIGITS.fullmatch(part) and int(part) > 0 for part in parts):
        expected = {
            "dimensions": "whole numbers of at least 1 with x between them",
            "dimension": "a dimension of at least 1",
        }.get(entry.size, f"a number of {entry.size} of at least 1")
        raise InputError(
            f"{argument!r}: expected {expected} after '{entry.name}:'; for example "
            f"{entry.example!r}"
        )
    return tuple(int(part) for part in parts)


def _parse_rate(text: str, argument: str) -> Fraction:
    if not _RATE.fullmatch(text) or not Fraction(text):
        raise InputError(
            f"{argument!r}: the bandwidth {text!r} after '@' is not a number of GB/s above 0; "
            "write for example '@25' or '@19.2'"
        )
    return Fraction(text)


def _build_graph(entry: Preset, sizes: Sizes, GBps: Fraction) -> Topology:
    name = f"{entry.name}:{'x'.join(map(str, sizes))}"
    name += "" if GBps == DEFAULT_BANDWIDTH_GBps else f"@{fraction_to_json(GBps)}"
    devices = [Device(f"gpu{i}") for i in range(entry.gpus(sizes))]
    if entry.via_switch:
        ends = [(gpu.id, "switch0") for gpu in devices]
        devices.append(Device("switch0", "switch"))
    else:
        assert entry.pairs is not None
        ends = [(f"gpu{a}", f"gpu{b}") for a, b in entry.pairs(sizes)]
    return Topology(
        name,
        tuple(devices),
        tuple(
            link
            for a, b in pace(ends, "building links")
            for link in both_directions(Link(a, b, GBps))
        ),
        source="preset",
    )


def _list_grid_pairs(dims: Sizes, *, wrap: bool = False) -> Pairs:
    """Return neighbours along every dimension; `wrap` links the ends of dimensions above 2."""
    pairs: Pairs = []
    for node in range(prod(dims)):
        stride = 1
        for extent in reversed(dims):
            coordinate = node // stride % extent
            if coordinate + 1 < extent:
                pairs.append((node, node + stride))
            elif wrap and extent > 2:  # with two nodes the wrap-around would be the same pair
                pairs.append((node - coordinate * stride, node))
            stride *= extent
    return pairs


def _list_hypercube_pairs(sizes: Sizes) -> Pairs:
    return [
        (a, a | 1 << bit)
        for a in range(1 << sizes[0])
        for bit in range(sizes[0])
        if not a >> bit & 1
    ]


_list_torus_pairs = partial(_list_grid_pairs, wrap=True)

_GRAPHS = (
    Preset("ring", "ring:8", "GPUs in a circle", "GPUs", prod, _list_torus_pairs),
    Preset("path", "path:8", "GPUs in a row", "GPUs", prod, _list_grid_pairs),
    Preset(
        "star",
        "star:5",
        "a hub (gpu0) and leaves, all of them GPUs",
        "GPUs",
        prod,
        lambda sizes: [(0, leaf) for leaf in range(1, sizes[0])],
    ),
    Preset(
        "full",
        "full:8",
        "every GPU joined to every other",
        "GPUs",
        prod,
        lambda sizes: list(combinations(range(sizes[0]), 2)),
    ),
    Preset(
        "switch", "switch:8", "GPUs with one link each to a switch", "GPUs", prod, via_switch=True
    ),
    Preset(
        "mesh",
        "mesh:4x4",
        "a grid of any number of dimensions",
        "dimensions",
        prod,
        _list_grid_pairs,
    ),
    Preset(
        "torus",
        "torus:8x8",
        "a grid whose ends are joined",
        "dimensions",
        prod,
        _list_torus_pairs,
    ),
    Preset(
        "hypercube",
        "hypercube:4",
        "2^d GPUs, d links each",
        "dimension",
        lambda sizes: 1 << min(sizes[0], MAX_GPUS.bit_length()),
        _list_hypercube_pairs,
    ),
)
# Name, example, description, unit of its size, GPUs per box, builder.
_MACHINES = (
    ("dgx1", "dgx1", "8 V100, NVLink hybrid cube mesh", "", 8, dgx1),
    ("dgx2", "dgx2", "16 V100 on two groups of NVSwitches", "", 16, dgx2),
    ("dgx-a100", "dgx-a100:2", "boxes of 8 A100 on NVSwitches", "boxes", 8, dgx_a100),
    ("dgx-h100", "dgx-h100:2", "boxes of 8 H100 on NVSwitches", "boxes", 8, dgx_h100),
    (
        "dgx-h100-rails",
        "dgx-h100-rails:4",
        "DGX H100 boxes on a fat tree with a rail for each GPU of a box",
        "boxes",
        8,
        dgx_h100_rails,
    ),
    ("dgx-h200", "dgx-h200:2", "boxes of 8 H200 on NVSwitches", "boxes", 8, dgx_h200),
    ("dgx-b200", "dgx-b200:2", "boxes of 8 B200 on NVSwitches", "boxes", 8, dgx_b200),
    ("dgx-b300", "dgx-b300:2", "boxes of 8 B300 on NVSwitches", "boxes", 8, dgx_b300),
    ("gh200x4", "gh200x4:2", "nodes of 4 GH200, NVLink between each two", "boxes", 4, gh200x4),
    (
        "gb200-nvl72",
        "gb200-nvl72",
        "72 GB200 in 18 trays on NVSwitches; with :2, two such racks",
        "racks",
        72,
        gb200_nvl72,
    ),
    ("mi250", "mi250:2", "boxes of 8 MI250, that is 16 dies, on xGMI", "boxes", 16, mi250),
    ("mi300x", "mi300x", "8 MI300X, each joined to each by xGMI", "", 8, mi300x),
    ("z52", "z52", "8 MI50 as SCCL models a Gigabyte Z52: a ring", "", 8, z52),
    (
        "pcie-2socket",
        "pcie-2socket",
        "8 GPUs behind 4 PCIe switches and 2 sockets",
        "",
        8,
        pcie_2socket,
    ),
    (
        "rtx-pro-6000",
        "rtx-pro-6000",
        "8 RTX PRO 6000 on PCIe Gen5, 4 below each of 2 sockets",
        "",
        8,
        rtx_pro_6000,
    ),
    (
        "spark-ring",
        "spark-ring:3",
        "NVIDIA DGX Sparks cabled in a ring, without a switch",
        "hosts",
        1,
        spark_ring,
    ),
    ("spark-pair", "spark-pair", "2 DGX Sparks joined by two cables", "", 2, spark_pair),
    ("spark-cable", "spark-cable", "2 DGX Sparks joined by one cable", "", 2, spark_cable),
    (
        "strix-ring",
        "strix-ring:4",
        "Ryzen AI Max (Strix Halo) boxes in a ring of USB4 cables",
        "hosts",
        1,
        strix_ring,
    ),
    (
        "mac-mesh",
        "mac-mesh:4",
        "Mac Studios with a Thunderbolt 5 cable between every two",
        "hosts",
        1,
        mac_mesh,
    ),
)


def _multiply_boxes(per_box: int) -> Callable[[Sizes], int]:
    return lambda sizes: sizes[0] * per_box


# Every preset by its name.
PRESETS: Mapping[str, Preset] = {
    **{entry.name: entry for entry in _GRAPHS},
    **{
        name: Preset(name, example, text, size, _multiply_boxes(gpus), machine=build)
        for name, example, text, size, gpus, build in _MACHINES
    },
}
# Other names that people look for, each as its preset is called.
_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "dgx1": ("dgx-1", "dgx-1v"),
    "dgx2": ("dgx-2",),
    "dgx-a100": ("a100", "a100x8", "8xa100", "hgx-a100"),
    "dgx-h100": ("h100", "h100x8", "8xh100", "hgx-h100"),
    "dgx-h200": ("h200", "h200x8", "8xh200", "hgx-h200"),
    "dgx-b200": ("b200", "b200x8", "8xb200", "hgx-b200"),
    "dgx-b300": ("b300", "b300x8", "8xb300", "hgx-b300"),
    "dgx-h100-rails": ("h100-rails", "hgx-h100-rails"),
    "gh200x4": ("gh200", "4xgh200", "quad-gh200", "alps"),
    "gb200-nvl72": ("gb200", "nvl72"),
    "mi300x": ("mi300x8", "8xmi300x"),
    "rtx-pro-6000": ("rtx-pro-6000x8", "8x-rtx-pro-6000", "pro-6000", "rtx-6000-pro"),
    "spark-pair": ("dgx-spark-pair", "spark-pair-2"),
    "spark-cable": ("dgx-spark-cable", "spark-pair-1", "spark-pair-one-cable", "dgx-spark"),
}
_BY_SPELLING = {
    _SEPARATORS.sub("", spelling): PRESETS[name]
    for name in PRESETS
    for spelling in (name, *_OTHER_NAMES.get(name, ()))
}
