"""Build machines and graphs by name: `preset("dgx1")`, `preset("mesh:4x4@25")`.

An argument is `name[:size][@GBps]`. Graphs (ring, mesh, ...) have 1 GB/s links, `@25` gives them
25. Machines have datasheet rates in one direction; their size is the number of boxes. Ranks go box
by box, and in row-major order on meshes (the last coordinate counts fastest).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import prod

from ..errors import InputError
from ..exact import fraction_to_json
from ..graph import DEFAULT_BANDWIDTH_GBps, Device, Link, Topology, both_ways
from .machines import dgx1, dgx2, dgx_a100, dgx_h100, gb200_nvl72, mi250, mi300x, pcie_2socket, z52

# More GPUs than this are refused: nothing here plans for them.
MAX_GPUS = 4096

_DIGITS = re.compile(r"[0-9]{1,9}")
_RATE = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")


@dataclass(frozen=True)
class Preset:
    """One entry of the registry: how it is asked for, what it is, and how it is built.

    `size` is what the size means ("GPUs", "dimensions", "dimension", "boxes", "racks", or "" where
    none is taken), and `build` takes the sizes (one, or one a dimension) and, for graphs, the
    bandwidth of a link in GB/s.
    """

    name: str
    example: str
    description: str
    size: str
    gpus: Callable[[tuple[int, ...]], int]
    graph: Callable[[tuple[int, ...], Fraction], Topology] | None = None
    machine: Callable[[int], Topology] | None = None


def preset(argument: str) -> Topology:
    """Return the topology that an argument such as `ring:8`, `torus:8x8@25` or `dgx-a100:2` names.

    Raises InputError for an unknown name, a missing, wrong or too large size, and a bandwidth that
    is none.
    """
    head, at, rate = argument.partition("@")
    name, colon, spec = head.partition(":")
    entry = PRESETS.get(name)
    if entry is None:
        raise InputError(_describe_unknown(name))
    sizes = _parse_sizes(entry, spec if colon else None, argument)
    gpus = entry.gpus(sizes) if max(sizes) <= MAX_GPUS and len(sizes) <= 12 else MAX_GPUS + 1
    if gpus > MAX_GPUS:
        raise InputError(
            f"{argument!r} has more than {MAX_GPUS} GPUs, the most that a preset may have; ask "
            "for fewer"
        )
    if entry.graph is not None:
        bandwidth = _parse_bandwidth(rate, argument) if at else DEFAULT_BANDWIDTH_GBps
        return entry.graph(sizes, bandwidth)
    if at:
        raise InputError(
            f"{argument!r}: {name} has the bandwidths of its datasheet, so '@{rate}' cannot be "
            "applied; "
            "leave it out, or write the machine as JSON with the bandwidths you want"
        )
    if entry.machine is None:
        raise InputError(f"preset {name!r} has nothing to build it")
    return entry.machine(sizes[0])


def _describe_unknown(name: str) -> str:
    """Return the message for an unknown name, with the nearest known one."""
    near = difflib.get_close_matches(name.lower(), PRESETS, n=1, cutoff=0.6)
    hint = f" (did you mean {PRESETS[near[0]].example!r}?)" if near else ""
    known = ", ".join(p.example for p in PRESETS.values())
    return f"unknown topology {name[:60]!r}{hint}; expected a file, 'local', or a preset such as {known}"


def _parse_sizes(entry: Preset, spec: str | None, argument: str) -> tuple[int, ...]:
    """Return the sizes of an argument; (1,) for a machine without one."""
    if not entry.size:
        if spec is not None:
            raise InputError(f"{argument!r}: {entry.name} takes no size; write {entry.example!r}")
        return (1,)
    if spec is None and entry.size in ("boxes", "racks"):
        return (1,)
    parts = (spec or "").split("x") if entry.size == "dimensions" else [spec or ""]
    if not all(_DIGITS.fullmatch(part) and int(part) > 0 for part in parts):
        wanted = {
            "dimensions": "whole numbers of at least 1 with x between them",
            "dimension": "a dimension of at least 1",
        }.get(entry.size, f"a number of {entry.size} of at least 1")
        raise InputError(
            f"{argument!r}: expected {wanted} after '{entry.name}:'; for example {entry.example!r}"
        )
    return tuple(int(part) for part in parts)


def _parse_bandwidth(text: str, argument: str) -> Fraction:
    """Return the bandwidth after '@' in GB/s. Raises InputError where it is none."""
    if not _RATE.fullmatch(text) or not Fraction(text):
        raise InputError(
            f"{argument!r}: the bandwidth {text!r} after '@' is not a number of GB/s above 0; "
            "write for example '@25' or '@19.2'"
        )
    return Fraction(text)


# -- graphs
# --------------------------------------------------------------------------------------------------------


def _build_graph(
    name: str, gpus: int, pairs: list[tuple[int, int]], bandwidth: Fraction
) -> Topology:
    """Return a graph of GPUs with a two-way link for each pair."""
    at = "" if bandwidth == DEFAULT_BANDWIDTH_GBps else f"@{fraction_to_json(bandwidth)}"
    return Topology(
        name=name + at,
        devices=tuple(Device(f"gpu{i}") for i in range(gpus)),
        links=tuple(x for a, b in pairs for x in both_ways(Link(f"gpu{a}", f"gpu{b}", bandwidth))),
        source="preset",
    )


def _list_grid_pairs(dims: tuple[int, ...], wrap: bool) -> list[tuple[int, int]]:
    """Return neighbours along every dimension; `wrap` joins the ends too, where that is not the
    same pair again.
    """
    pairs: list[tuple[int, int]] = []
    for node in range(prod(dims)):
        stride = 1
        for extent in reversed(dims):
            coordinate = node // stride % extent
            if coordinate + 1 < extent:
                pairs.append((node, node + stride))
            elif wrap and extent > 2:
                pairs.append((node - coordinate * stride, node))
            stride *= extent
    return pairs


def _build_ring(sizes: tuple[int, ...], bandwidth: Fraction) -> Topology:
    return _build_graph(f"ring:{sizes[0]}", sizes[0], _list_grid_pairs(sizes, wrap=True), bandwidth)


def _build_path(sizes: tuple[int, ...], bandwidth: Fraction) -> Topology:
    return _build_graph(
        f"path:{sizes[0]}", sizes[0], _list_grid_pairs(sizes, wrap=False), bandwidth
    )


def _build_star(sizes: tuple[int, ...], bandwidth: Fraction) -> Topology:
    return _build_graph(
        f"star:{sizes[0]}", sizes[0], [(0, leaf) for leaf in range(1, sizes[0])], bandwidth
    )


def _build_mesh(sizes: tuple[int, ...], bandwidth: Fraction) -> Topology:
    return _build_graph(
        f"mesh:{'x'.join(map(str, sizes))}",
        prod(sizes),
        _list_grid_pairs(sizes, wrap=False),
        bandwidth,
    )


def _build_torus(sizes: tuple[int, ...], bandwidth: Fraction) -> Topology:
    return _build_graph(
        f"torus:{'x'.join(map(str, sizes))}",
        prod(sizes),
        _list_grid_pairs(sizes, wrap=True),
        bandwidth,
    )


def _build_hypercube(sizes: tuple[int, ...], bandwidth: Fraction) -> Topology:
    gpus = 1 << sizes[0]
    pairs = [(a, a | 1 << bit) for a in range(gpus) for bit in range(sizes[0]) if not a >> bit & 1]
    return _build_graph(f"hypercube:{sizes[0]}", gpus, pairs, bandwidth)


def _build_full(sizes: tuple[int, ...], bandwidth: Fraction) -> Topology:
    return _build_graph(
        f"full:{sizes[0]}", sizes[0], list(combinations(range(sizes[0]), 2)), bandwidth
    )


def _build_switch(sizes: tuple[int, ...], bandwidth: Fraction) -> Topology:
    bare = _build_graph(f"switch:{sizes[0]}", sizes[0], [], bandwidth)
    links = (x for gpu in bare.ranks for x in both_ways(Link(gpu, "switch0", bandwidth)))
    return Topology(
        bare.name, (*bare.devices, Device("switch0", "switch")), tuple(links), bare.source
    )


# -- the registry
# --------------------------------------------------------------------------------------------------


def _get_first(sizes: tuple[int, ...]) -> int:
    return sizes[0]


def _count_hypercube(sizes: tuple[int, ...]) -> int:
    return 1 << min(sizes[0], MAX_GPUS.bit_length())


def _multiply_boxes(gpus: int) -> Callable[[tuple[int, ...]], int]:
    return lambda sizes: sizes[0] * gpus


# Every preset by its name, for help texts and for `preset`.
PRESETS: Mapping[str, Preset] = {
    entry.name: entry
    for entry in (
        Preset("ring", "ring:8", "GPUs in a circle", "GPUs", _get_first, graph=_build_ring),
        Preset("path", "path:8", "GPUs in a row", "GPUs", _get_first, graph=_build_path),
        Preset(
            "star",
            "star:5",
            "a hub (gpu0) and leaves, all of them GPUs",
            "GPUs",
            _get_first,
            graph=_build_star,
        ),
        Preset(
            "full",
            "full:8",
            "every GPU joined to every other",
            "GPUs",
            _get_first,
            graph=_build_full,
        ),
        Preset(
            "switch",
            "switch:8",
            "GPUs with one link each to a switch",
            "GPUs",
            _get_first,
            graph=_build_switch,
        ),
        Preset(
            "mesh",
            "mesh:4x4",
            "a grid of any number of dimensions",
            "dimensions",
            prod,
            graph=_build_mesh,
        ),
        Preset(
            "torus",
            "torus:8x8",
            "a grid whose ends are joined",
            "dimensions",
            prod,
            graph=_build_torus,
        ),
        Preset(
            "hypercube",
            "hypercube:4",
            "2^d GPUs, d links each",
            "dimension",
            _count_hypercube,
            graph=_build_hypercube,
        ),
        Preset(
            "dgx1", "dgx1", "8 V100, NVLink hybrid cube mesh", "", _multiply_boxes(8), machine=dgx1
        ),
        Preset(
            "dgx2",
            "dgx2",
            "16 V100 on two groups of NVSwitches",
            "",
            _multiply_boxes(16),
            machine=dgx2,
        ),
        Preset(
            "dgx-a100",
            "dgx-a100:2",
            "boxes of 8 A100 on NVSwitches",
            "boxes",
            _multiply_boxes(8),
            machine=dgx_a100,
        ),
        Preset(
            "dgx-h100",
            "dgx-h100:2",
            "boxes of 8 H100 on NVSwitches",
            "boxes",
            _multiply_boxes(8),
            machine=dgx_h100,
        ),
        Preset(
            "gb200-nvl72",
            "gb200-nvl72",
            "72 GB200 in 18 trays on NVSwitches; with :2, two such racks",
            "racks",
            _multiply_boxes(72),
            machine=gb200_nvl72,
        ),
        Preset(
            "mi250",
            "mi250:2",
            "boxes of 8 MI250, that is 16 dies, on xGMI",
            "boxes",
            _multiply_boxes(16),
            machine=mi250,
        ),
        Preset(
            "mi300x",
            "mi300x",
            "8 MI300X, each joined to each by xGMI",
            "",
            _multiply_boxes(8),
            machine=mi300x,
        ),
        Preset(
            "z52",
            "z52",
            "8 MI50 as SCCL models a Gigabyte Z52: a ring",
            "",
            _multiply_boxes(8),
            machine=z52,
        ),
        Preset(
            "pcie-2socket",
            "pcie-2socket",
            "8 GPUs behind 4 PCIe switches and 2 sockets",
            "",
            _multiply_boxes(8),
            machine=pcie_2socket,
        ),
    )
}
