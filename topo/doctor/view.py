"""A view of a machine for the doctor's checks, and the format of their evidence."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..facts import Facts
from ..facts.keys import Key, gpu_subject
from ..facts.view import WIRES, MachineView, read_pci_details
from ..graph import Device, Link, Topology
from ..notes import Note, NoteKind
from .finding import Case, Finding, format_GBps, shorten

_NUMBER = re.compile(r"-?[0-9]{1,12}(?:\.0+)?")


class DoctorView(MachineView):
    """A machine, with values that several checks derive from its links and facts."""

    def __init__(self, topology: Topology, facts: Facts) -> None:
        super().__init__(topology, facts)
        self.pcie_states: dict[str, Any] = {}
        """Results of `find_pcie_state` by device id, which several checks ask for."""

    @cached_property
    def like_gpus(self) -> tuple[tuple[Device, ...], ...]:
        """The GPUs grouped by model: by name, architecture and PCI device, if given."""
        groups: dict[tuple[str, ...], list[Device]] = defaultdict(list)
        for gpu in self.gpus:
            model = (
                *(gpu.extra.get(key) for key in ("name", "sm", "gcn")),
                read_pci_details(gpu).get("device"),
            )
            groups[tuple(str(part) for part in model)].append(gpu)
        return tuple(tuple(group) for group in groups.values())

    @cached_property
    def links_from(self) -> Mapping[str, tuple[Link, ...]]:
        """The links from each device that has any."""
        links_from: dict[str, list[Link]] = defaultdict(list)
        for link in self.topology.links:
            links_from[link.src].append(link)
        return {src: tuple(links) for src, links in links_from.items()}

    @cached_property
    def links_between(self) -> Mapping[tuple[str, str], int]:
        """The number of NVLink and xGMI links from one device to another, keyed (src, dst)."""
        counts = Counter[tuple[str, str]]()
        for link in self.topology.links:
            if link.kind in WIRES:
                counts[link.src, link.dst] += link.count
        return counts

    @cached_property
    def wired(self) -> Mapping[str, Mapping[str, int]]:
        """The number of NVLink and xGMI links of each GPU, by the device at the other end.

        If the two ends disagree, the larger number counts.
        """
        out: dict[str, dict[str, int]] = {gpu.id: {} for gpu in self.gpus}
        for (src, dst), count in self.links_between.items():
            for a, b in ((src, dst), (dst, src)):
                if a in out:
                    out[a][b] = max(count, out[a].get(b, 0))
        return out

    @cached_property
    def islands(self) -> Mapping[str, frozenset[str]]:
        """The islands of connected PCIe switches that each device is in or linked to.

        An island is named by one of its switches.
        """
        switches = {
            d.id for d in self.topology.devices if d.kind == "switch" and d.family in ("pcie", None)
        }
        links = [
            x
            for x in self.topology.links
            if x.kind not in (*WIRES, "network") and {x.src, x.dst} & switches
        ]
        islands = DisjointSets()
        for x in links:
            if {x.src, x.dst} <= switches:
                islands.join(x.src, x.dst)
        near: dict[str, set[str]] = defaultdict(set)
        for x in links:
            for a, b in ((x.src, x.dst), (x.dst, x.src), (x.src, x.src), (x.dst, x.dst)):
                if b in switches:
                    near[a].add(islands.find_root(b))
        return {ident: frozenset(names) for ident, names in near.items()}

    def share_switch(self, a: str, b: str) -> bool:
        """Return whether two devices are on the same island of connected PCIe switches."""
        return bool(self.islands.get(a, frozenset()) & self.islands.get(b, frozenset()))

    def list_notes(self, *kinds: NoteKind) -> list[Note]:
        """Return the topology's notes of these kinds.

        They hold observations of the topology's reader that are not among the facts.
        """
        return [note for note in self.topology.notes if note.kind in kinds]

    def knows_of_gpus(self, key: Key[Any]) -> bool:
        """Return whether the facts have this key for any GPU."""
        return any(self.facts.get_source(gpu_subject(i), key) for i in self.gpu_of)

    def group(self, cases: Iterable[Case]) -> list[tuple[Any, tuple[str, ...], tuple[str, ...]]]:
        """Merge cases with equal keys.

        Return, for each key, the key, its devices in the topology's order, and its evidence, each
        device and line once.
        """
        groups: dict[Any, tuple[dict[str, None], dict[str, None]]] = {}
        for key, about, evidence in cases:
            devices, lines = groups.setdefault(key, ({}, {}))
            devices |= dict.fromkeys(about)
            lines |= dict.fromkeys(evidence)
        last = len(self.order)
        return [
            (key, tuple(sorted(devices, key=lambda i: self.order.get(i, last))), tuple(lines))
            for key, (devices, lines) in groups.items()
        ]

    # -- evidence

    def format_fact(self, subject: str, key: Key[Any]) -> str:
        """Return a fact as a line of evidence, or the reason why it is missing."""
        source = self.facts.get_source(subject, key)
        if source is None:
            return f"{subject} {key} is not known: {self.facts.get_reason(subject, key)}"
        return f"{subject} {key} = {shorten(self.facts.join_texts(subject, key))} ({source})"

    def format_attribute(self, device: Device, key: str, value: object) -> str:
        """Return an attribute of a device as a line of evidence."""
        return (
            f"{device.id} {key} = {shorten(value)} "
            f"({device.source or self.topology.source or 'the topology'})"
        )

    def format_link(self, link: Link) -> str:
        """Return a link as a line of evidence."""
        count = f"{link.count} x, " if link.count > 1 else ""
        source = link.source or self.topology.source or "the topology"
        return (
            f"{link.src} -> {link.dst} {link.kind} = {count}{format_GBps(link.bandwidth_GBps)} "
            f"({source})"
        )


@dataclass(frozen=True)
class Check:
    """A named check of the doctor: `check` yields findings.

    It is made if `can_ask` returns a true value; otherwise `lack` names the missing data.
    """

    name: str
    check: Callable[[DoctorView], Iterable[Finding]]
    can_ask: Callable[[DoctorView], object]
    lack: str


def has_two_gpus(view: DoctorView) -> bool:
    """Return whether a machine has at least two GPUs, which could be compared or connected."""
    return len(view.gpus) > 1


class DisjointSets:
    """Disjoint sets of names, merged step by step."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def join(self, a: str, b: str) -> None:
        """Unite the sets of `a` and `b`."""
        self._above[self.find_root(a)] = self.find_root(b)

    def find_root(self, name: str) -> str:
        """Return the name that represents the set of `name`."""
        path = []
        while (above := self._above.get(name, name)) != name:
            path.append(name)
            name = above
        self._above.update(dict.fromkeys(path, name))
        return name


def parse_whole(value: object) -> int | None:
    """Return an integer that is given as a number or as text, or None for any other value."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    text = str(value).strip().lower()
    return int(text.partition(".")[0]) if _NUMBER.fullmatch(text) else None
