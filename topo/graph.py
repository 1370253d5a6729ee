"""Define `Topology`, the graph of a machine or cluster: devices and directed links.

It is frozen and exact (bandwidths and latencies are fractions), and its parts carry their sources.
Ranks are the GPUs in their order. Parallel links between two devices add up.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from ..extras import GRAPHS, Names
from .clock import pace
from .devices import (
    DEVICE_KINDS,
    SWITCH_FAMILIES,
    DEFAULT_BANDWIDTH_GBps,
    DEFAULT_LATENCY_us,
    Device,
    InNetwork,
    Link,
    both_directions,
)
from .errors import InputError
from .exact import load_json
from .files import read_file
from .notebook import draw, show
from .notes import Note, list_notes, note_kinds_to_json
from .topology_file import (
    FORMAT,
    VERSION,
    device_to_json,
    links_to_json,
    read_parts,
    read_topology_file,
    to_plain,
    to_text,
)

if TYPE_CHECKING:
    import networkx as nx

_MAX_DIGITS = 100  # digits of a common denominator: more make every sum of rates slow
# Twice the values in 16 MiB of a real topology; 16 MiB of brackets would take gigabytes of memory.
_MAX_VALUES = 2_500_000
# Nodes: individualizing costs a refinement per node.
_MAX_INDIVIDUALIZED = 64
# Colours visited by one refinement: a chain of thousands of devices would need a round per device.
# The limit is independent of names too; machines that differ only beyond it share a fingerprint.
_MAX_WORK = 6_000_000
# Characters; longer edge labels are hashed first, since each is used once per round.
_MAX_LABEL = 80
__all__ = [
    "DEVICE_KINDS",
    "SWITCH_FAMILIES",
    "DEFAULT_BANDWIDTH_GBps",
    "DEFAULT_LATENCY_us",
    "Device",
    "InNetwork",
    "Link",
    "Topology",
    "both_directions",
]


@dataclass(frozen=True)
class Topology:
    """A machine as devices and directed links; the GPUs in their order are ranks 0, 1, ...

    `source` says where the description comes from, None if unknown. `extra` has all other fields of
    its file, such as `notes`. Raise InputError if ids repeat or a link names a device that does not
    exist.
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    source: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in ("devices", "links"):
            if not isinstance(getattr(self, name), tuple):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        uses = Counter(device.id for device in self.devices)
        for ident, count in uses.items():
            if count > 1:
                raise InputError(
                    f"topology {self.name!r}: two devices are called {ident!r}; ids must differ"
                )
        for link in self.links:
            for end in (link.src, link.dst):
                if end not in uses:
                    raise InputError(
                        f"topology {self.name!r}: link {link.src!r} -> {link.dst!r} names {end!r}, "
                        "which is not among the devices; add the device or correct the link"
                    )

    @cached_property
    def ranks(self) -> tuple[str, ...]:
        """Ids of the GPUs; rank i is the i-th."""
        return tuple(d.id for d in self.devices if d.kind == "gpu")

    @cached_property
    def by_id(self) -> Mapping[str, Device]:
        """Devices by id."""
        return {d.id: d for d in self.devices}

    @cached_property
    def capacity_GBps(self) -> Mapping[tuple[str, str], Fraction]:
        """Bandwidth in GB/s from one device to the next, keyed (src, dst).

        It is the sum over all parallel links. Pairs without a direct link are missing.
        """
        total: dict[tuple[str, str], Fraction] = {}
        for link in pace(self.links, "adding up links"):
            key, rate = (link.src, link.dst), link.bandwidth_GBps
            total[key] = total[key] + rate if key in total else rate
        return total

    @cached_property
    def latency_us(self) -> Mapping[tuple[str, str], Fraction]:
        """Latency in microseconds from one device to the next, keyed (src, dst).

        It is the highest of parallel links. Pairs without a direct link are missing.
        """
        worst: dict[tuple[str, str], Fraction] = {}
        for link in self.links:
            key, latency = (link.src, link.dst), link.latency_us
            worst[key] = max(worst[key], latency) if key in worst else latency
        return worst

    @cached_property
    def out_neighbours(self) -> Mapping[str, tuple[str, ...]]:
        """For each device, the devices it has a link to, in device order."""
        order = {d.id: i for i, d in enumerate(self.devices)}
        out: dict[str, list[str]] = {d.id: [] for d in self.devices}
        for src, dst in self.capacity_GBps:
            out[src].append(dst)
        return {src: tuple(sorted(dsts, key=order.__getitem__)) for src, dsts in out.items()}

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether every link has a reverse of the same bandwidth."""
        return all(self.capacity_GBps.get((b, a)) == c for (a, b), c in self.capacity_GBps.items())

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes of the reader or probe on anything unknown or unusual."""
        return list_notes(self.extra)

    def reversed(self) -> Topology:
        """Return the topology with every link reversed.

        A multicast in reverse is a sum, so a switch that multicasts but cannot add does neither in
        the result.
        """
        devices = tuple(
            replace(d, can_copy=False) if d.can_copy and not d.can_reduce else d
            for d in self.devices
        )
        links = (link.reversed() for link in pace(self.links, "reversing links"))
        return replace(self, devices=devices, links=tuple(links))

    def for_plans(self) -> Topology:
        """Return the topology without the facts and measurements that its bandwidths come from.

        They are `facts` and `measured` in `extra`, which plans do not need.
        """
        evidence = ("facts", "measured")  # the sources of rates, not the rates
        rest = {key: value for key, value in self.extra.items() if key not in evidence}
        return self if len(rest) == len(self.extra) else replace(self, extra=rest)

    def __repr__(self) -> str:
        others = len(self.devices) - len(self.ranks)
        gpus = f"{len(self.ranks)} GPU{'' if len(self.ranks) == 1 else 's'}"
        beside = f", {others} other device{'' if others == 1 else 's'}" if others else ""
        return f"<Topology {self.name}: {gpus}{beside}, {len(self.links)} links>"

    def _repr_svg_(self) -> str | None:
        return draw(self)

    def _repr_html_(self) -> str | None:
        return show(self)

    def describe(self) -> str:
        """Return a text with tables of the devices and links, as topo-probe prints them."""
        from .pictures.table import write  # imports rich, which is slow

        return write(self).rstrip("\n")

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits that depend neither on names nor on the order of devices and links.

        They are computed by colour refinement over device kinds, bandwidths and latencies. Equal
        machines have equal fingerprints, and different ones differ in practice: only strongly
        regular graphs can collide. The fingerprint ignores the rank order, so a plan is also
        replayed on the topology it is used with.
        """
        number = {d.id: i for i, d in enumerate(self.devices)}
        return _hash_graph(
            [[d.kind, str(d.family), str(d.can_reduce), str(d.can_copy)] for d in self.devices],
            {
                (number[a], number[b]): f"{capacity},{self.latency_us[a, b]}"
                for (a, b), capacity in self.capacity_GBps.items()
            },
        )

    def to_networkx(
        self, *, merge_parallel: bool = False
    ) -> nx.MultiDiGraph[str] | nx.DiGraph[str]:
        """Return the topology as a graph of networkx, which `from_networkx` reads back equal.

        It is a MultiDiGraph: links have a direction, and parallel links differ in kind and source;
        the key of an edge is the link's number. Nodes and edges have the fields of the JSON file as
        attributes (docs/topology-json.md), with `bandwidth_GBps` and `latency_us` as fractions, and
        ranks are the GPUs in the order of nodes. With `merge_parallel` it is a DiGraph, which
        maximum flow needs: parallel links are one edge with the sum of their bandwidths and the
        highest of their latencies.
        """
        written: nx.MultiDiGraph[str] | nx.DiGraph[str] = (
            Names(GRAPHS).find("networkx").write(self, merge_parallel)
        )
        return written

    @classmethod
    def from_networkx(
        cls,
        graph: nx.Graph[Any],
        name: str | None = None,
        *,
        bandwidth: str = "bandwidth_GBps",
    ) -> Topology:
        """Return the topology of a graph of networkx, of any of its four classes.

        Attributes are those that `to_networkx` writes; all of them may be missing. Nodes are then
        GPUs, named by the text of the node, and links have a latency of 0.7 us and a bandwidth of 1
        GB/s, with the source "assumed: ...". `bandwidth` is the name of the edges' attribute that
        has it, in GB/s (1e9 bytes per second). An undirected edge is a link in both directions,
        each with the whole bandwidth. Parallel edges add up. Other attributes stay as `extra`.
        `name` defaults to that of the graph. Raise InputError if an attribute is invalid.
        """
        topology: Topology = Names(GRAPHS).find("networkx").read(graph, name, bandwidth)
        return topology

    def to_json(self) -> dict[str, Any]:
        """Return the topology as a JSON object, which `from_json` reads back equal."""
        out: dict[str, Any] = {"format": FORMAT, "version": VERSION, "name": self.name}
        if self.source is not None:
            out["source"] = self.source
        out["devices"] = [device_to_json(d) for d in self.devices]
        out["links"] = links_to_json(self.links)
        if kinds := note_kinds_to_json(self.notes):
            out["note_kinds"] = kinds
        return {**to_plain(self.extra), **out}

    def dumps(self) -> str:
        """Return the topology as JSON text with one line per device, link and fact."""
        return to_text(self.to_json())

    @classmethod
    def from_json(cls, data: object, where: str = "topology") -> Topology:
        """Return the topology of a parsed JSON object, as `to_json` returns; `loads` takes text.

        `where` is the file's name for errors, and the topology's name if the object has none. Raise
        InputError if the object does not describe a topology.
        """
        file = read_topology_file(data, where)
        assert isinstance(data, Mapping)
        try:
            devices, links, extra = read_parts(file, data)
            name = where if file.name is UNSET else file.name
            topology = cls(name, devices, links, file.source, extra)
            topology._refuse_unlike_denominators()
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        return topology

    def _refuse_unlike_denominators(self) -> None:
        """Raise InputError if sums of bandwidths or latencies would need more than 100 digits."""
        for key in ("bandwidth_GBps", "latency_us"):
            common = 1
            for denominator in {getattr(link, key).denominator for link in self.links}:
                common = lcm(common, denominator)
                if common >= 10**_MAX_DIGITS:
                    raise InputError(
                        f"topology {self.name!r:.60}: the fractions of {key} have no common "
                        "denominator of at most "
                        f"{_MAX_DIGITS} digits; round them to decimals"
                    )

    @classmethod
    def loads(cls, text: str, where: str = "topology") -> Topology:
        """Return the topology of JSON text, such as `dumps` returns.

        `where` is the file's name for errors, and the topology's name if the text has none. Raise
        InputError if the text is not JSON (with the line of the error) or does not describe a
        topology.
        """
        try:
            return cls.from_json(load_json(text, _MAX_VALUES), where)
        except json.JSONDecodeError as error:
            raise InputError(
                f"{where}: not JSON at line {error.lineno}: {error.msg}; is the file whole?"
            ) from None
        except ValueError as error:
            raise InputError(f"{where}: not usable JSON: {error}") from None

    @classmethod
    def load(cls, path: str | Path) -> Topology:
        """Return the topology of a file in topoplan's JSON; `topoplan.load` reads all formats.

        Raise InputError if the file cannot be read or does not describe a topology.
        """
        try:
            text = read_file(path).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"{path}: cannot be read: {reason}") from None
        return cls.loads(text, str(path))


def _digest(texts: list[str]) -> str:
    return hashlib.sha256("\x1f".join(texts).encode()).hexdigest()[:32]


def _refine(colours: list[str], edges: list[list[tuple[int, str]]]) -> list[str]:
    """Return the coarsest stable colouring, or the last one within the limit.

    `edges[v]` lists (other end, label).
    """
    classes = len(set(colours))
    rounds = max(3, _MAX_WORK // (len(colours) + sum(map(len, edges)) + 1))
    around = [[(u, label + ">") for u, label in listed] for listed in edges]
    for _ in range(rounds):
        colours = [
            _digest([colour, *sorted([label + colours[u] for u, label in near])])
            for colour, near in zip(colours, around, strict=True)
        ]
        refined_classes = len(set(colours))
        if refined_classes == classes:
            break
        classes = refined_classes
    return colours


def _hash_graph(nodes: list[list[str]], edges: dict[tuple[int, int], str]) -> str:
    """Hash a graph, with labels of nodes and directed edges (from, to), to 32 hex digits.

    Colour refinement (Weisfeiler-Leman): each node's colour is hashed with the sorted labels and
    colours around it until the number of colours is stable. If few enough nodes still share a
    colour, each is individualized in turn and refined again, which distinguishes regular graphs
    that refinement alone cannot.
    """
    neighbours: list[list[tuple[int, str]]] = [[] for _ in nodes]
    for (a, b), edge_label in edges.items():
        label = edge_label if len(edge_label) <= _MAX_LABEL else _digest([edge_label])
        neighbours[a].append((b, "out," + label))
        neighbours[b].append((a, "in," + label))
    colours = _refine([_digest(node) for node in nodes], neighbours)
    digests = sorted(colours)
    if len(set(colours)) < len(colours) <= _MAX_INDIVIDUALIZED:
        for v in range(len(colours)):
            # Give one node a colour of its own: refined again, equal nodes may become different.
            individualised = list(colours)
            individualised[v] = _digest([colours[v], "singled out"])
            digests.append(_digest(sorted(_refine(individualised, neighbours))))
    return _digest(["topology", str(len(colours)), *sorted(digests)])
