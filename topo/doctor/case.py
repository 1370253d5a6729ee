"""What the doctor's checks look at and answer with: the topology with its facts, findings, and the checks themselves."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ..facts import Facts
from ..graph import Device, Link, Topology

Severity = Literal["error", "warning", "note"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
"""From worst to least. An error breaks communication, or what is said of the machine cannot be true; a warning costs
bandwidth or makes a model of the machine wrong; a note is worth a look."""

WIRES = ("nvlink", "xgmi")
"""Kinds of links that join GPUs otherwise than over PCI Express."""

_NUMBER = re.compile(r"-?[0-9]{1,12}(?:\.0+)?")
_NAMED = 8


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: `what` is its kind (a fixed word such as `missing-bridge`), `about` the ids of the devices.

    `message` says in one sentence what is wrong, `evidence` holds "fact = value (source)" lines, `advice` what to do.
    """

    severity: Severity
    what: str
    about: tuple[str, ...]
    message: str
    evidence: tuple[str, ...]
    advice: str

    def to_json(self) -> dict[str, Any]:
        """The finding as a JSON object with a field each."""
        return {
            "severity": self.severity,
            "what": self.what,
            "about": list(self.about),
            "message": self.message,
            "evidence": list(self.evidence),
            "advice": self.advice,
        }


@dataclass(frozen=True)
class Case:
    """A topology with its facts, and the views of them that several checks share. Whatever a file holds, none raises."""

    topology: Topology
    facts: Facts
    found_before: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """What a check found out about a device, by its id, that others ask for as well (`pcie_state`)."""

    @cached_property
    def gpus(self) -> tuple[Device, ...]:
        """The GPUs in rank order."""
        return tuple(d for d in self.topology.devices if d.kind == "gpu")

    @cached_property
    def nics(self) -> tuple[Device, ...]:
        """The NICs in their order."""
        return tuple(d for d in self.topology.devices if d.kind == "nic")

    @cached_property
    def cpus(self) -> tuple[Device, ...]:
        """The CPUs, one a NUMA node."""
        return tuple(d for d in self.topology.devices if d.kind == "cpu")

    @cached_property
    def order(self) -> Mapping[str, int]:
        """The place of each device in the topology."""
        return {d.id: i for i, d in enumerate(self.topology.devices)}

    @cached_property
    def gpu_of(self) -> Mapping[str, str]:
        """Device id of each GPU number among the facts: that at its bus address, else the one called gpuN."""
        at = {d.bus_id: d.id for d in reversed(self.gpus) if d.bus_id}
        names = self.facts.names("gpu")
        return {index: at.get(self.facts.text(f"gpu/{index}", "bus_id") or "", f"gpu{index}") for index in names}

    @cached_property
    def number_of(self) -> Mapping[str, str]:
        """The GPU number among the facts of each GPU that has one."""
        return {ident: index for index, ident in self.gpu_of.items() if ident in self.topology.by_id}

    @cached_property
    def like_gpus(self) -> tuple[tuple[Device, ...], ...]:
        """The GPUs in groups of one model (by name, architecture and PCI device, where these are given)."""
        groups: dict[tuple[str, ...], list[Device]] = defaultdict(list)
        for gpu in self.gpus:
            model = (*(gpu.extra.get(key) for key in ("name", "sm", "gcn")), pci(gpu).get("device"))
            groups[tuple(str(part) for part in model)].append(gpu)
        return tuple(tuple(group) for group in groups.values())

    @cached_property
    def links_from(self) -> Mapping[str, tuple[Link, ...]]:
        """The links that leave each device that has any."""
        out: dict[str, list[Link]] = defaultdict(list)
        for link in self.topology.links:
            out[link.src].append(link)
        return {src: tuple(links) for src, links in out.items()}

    @cached_property
    def lanes(self) -> Mapping[tuple[str, str], int]:
        """Lanes of NVLink and xGMI from a device to another, keyed (src, dst)."""
        lanes: dict[tuple[str, str], int] = defaultdict(int)
        for link in self.topology.links:
            if link.kind in WIRES:
                lanes[link.src, link.dst] += link.count
        return dict(lanes)

    @cached_property
    def wired(self) -> Mapping[str, Mapping[str, int]]:
        """Lanes of NVLink and xGMI of each GPU by the device at the other end; the larger count where ends disagree."""
        out: dict[str, dict[str, int]] = {gpu.id: {} for gpu in self.gpus}
        for (src, dst), lanes in self.lanes.items():
            for a, b in ((src, dst), (dst, src)):
                if a in out:
                    out[a][b] = max(lanes, out[a].get(b, 0))
        return out

    @cached_property
    def islands(self) -> Mapping[str, frozenset[str]]:
        """PCIe switches that hang together are an island, called by one of them: those that each device is in or linked to."""
        switches = {d.id for d in self.topology.devices if d.kind == "switch" and d.family in ("pcie", None)}
        links = [x for x in self.topology.links if x.kind not in (*WIRES, "network") and {x.src, x.dst} & switches]
        union = Union()
        for x in links:
            if {x.src, x.dst} <= switches:
                union.join(x.src, x.dst)
        out: dict[str, set[str]] = defaultdict(set)
        for x in links:
            for a, b in ((x.src, x.dst), (x.dst, x.src), (x.src, x.src), (x.dst, x.dst)):
                if b in switches:
                    out[a].add(union.root(b))
        return {ident: frozenset(found) for ident, found in out.items()}

    @cached_property
    def wire_facts(self) -> Mapping[str, tuple[str, ...]]:
        """Subjects of the NVLinks that the facts tell of, by GPU number."""
        subjects: dict[str, dict[str, None]] = defaultdict(dict)
        for fact in self.facts.items:
            parts = fact.subject.split("/")
            if len(parts) == 4 and (parts[0], parts[2]) == ("gpu", "nvlink"):
                subjects[parts[1]][fact.subject] = None
        return {index: tuple(found) for index, found in subjects.items()}

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What the reader of the topology had to say: doubts that no fact holds."""
        told = self.topology.extra.get("notes")
        return tuple(note for note in told if isinstance(note, str)) if isinstance(told, (list, tuple)) else ()

    # -- evidence ------------------------------------------------------------------------------------------------

    def fact(self, subject: str, key: str) -> str:
        """A fact as a line of evidence, with the reason where it is missing."""
        source = self.facts.source(subject, key)
        if source is None:
            return f"{subject} {key} is not known: {self.facts.reason(subject, key)}"
        value = self.facts.text(subject, key) or ", ".join(self.facts.texts(subject, key))
        return f"{subject} {key} = {short(value)} ({source})"

    def said(self, device: Device, key: str, value: object) -> str:
        """What the topology says of a device, as a line of evidence."""
        return f"{device.id} {key} = {short(value)} ({device.source or self.topology.source or 'the topology'})"

    def link(self, link: Link) -> str:
        """A link as a line of evidence."""
        lanes = f"{link.count} x, " if link.count > 1 else ""
        source = link.source or self.topology.source or "the topology"
        return f"{link.src} -> {link.dst} {link.kind} = {lanes}{gbps(link.bandwidth_GBps)} ({source})"


@dataclass(frozen=True)
class Check:
    """One question of the doctor's: `wants` answers None where it can be put, else what is not known for it."""

    name: str
    find: Callable[[Case], Iterable[Finding]]
    wants: Callable[[Case], str | None]


class Grouped:
    """Equal findings over several devices become one: groups by whatever makes them equal, devices in their order."""

    def __init__(self, case: Case) -> None:
        self._order = case.order
        self._groups: dict[Any, tuple[dict[str, None], dict[str, None]]] = {}

    def add(self, key: Any, about: Iterable[str], evidence: Iterable[str]) -> None:
        """Put devices and evidence into the group `key`; what is already there is not told twice."""
        devices, lines = self._groups.setdefault(key, ({}, {}))
        devices |= dict.fromkeys(about)
        lines |= dict.fromkeys(evidence)

    def __iter__(self) -> Iterator[tuple[Any, tuple[str, ...], tuple[str, ...]]]:
        """Each key with the devices and the evidence of its group."""
        last = len(self._order)
        for key, (devices, lines) in self._groups.items():
            yield key, tuple(sorted(devices, key=lambda ident: self._order.get(ident, last))), tuple(lines)


class Union:
    """Disjoint sets of names that grow together."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def join(self, a: str, b: str) -> None:
        """Make one set of the two that hold `a` and `b`."""
        self._above[self.root(a)] = self.root(b)

    def root(self, name: str) -> str:
        """A name that stands for the whole set."""
        path = []
        while (above := self._above.get(name, name)) != name:
            path.append(name)
            name = above
        self._above.update(dict.fromkeys(path, name))
        return name


# -- reading what anybody may have written ------------------------------------------------------------------------------


def pci(device: Device) -> Mapping[str, Any]:
    """The PCI details of a device, empty where there are none."""
    told = device.extra.get("pci")
    return told if isinstance(told, Mapping) else {}


def whole(value: object) -> int | None:
    """A whole number, written as one or as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    text = str(value).strip().lower()
    return int(text.partition(".")[0]) if _NUMBER.fullmatch(text) else None


def short(value: object) -> str:
    """A value as it fits a line: of long ones the beginning."""
    text = " ".join(str(value).split()) if isinstance(value, (str, int, float, list, tuple)) else repr(value)
    return repr(text) if not text else text if len(text) <= 60 else f"{text[:57]}..."


def gbps(rate: object) -> str:
    """A bandwidth with its unit, to three digits after the point at most."""
    try:
        return f"{round(float(rate), 3):g} GB/s"  # type: ignore[arg-type]
    except OverflowError:
        return "more than 1e300 GB/s"


def names(ids: Sequence[str]) -> str:
    """Ids in a row; of many the first."""
    more = len(ids) - _NAMED
    return ", ".join(ids[:_NAMED]) + (f" and {more} more" if more > 0 else "")
