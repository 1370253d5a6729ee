"""The data of the doctor's checks: a view of the machine, findings, and formats of values.

A check takes a DoctorView, which has the topology and the facts (what a probe read of the machine:
a value or why it is missing, and its source), and yields a Finding for each problem.

The state of a PCIe link is joined from the facts of NVML and sysfs, from `extra["pcie"]` ("Gen4
x16", written by the probe) and from `extra["pci"]` (of an NCCL XML file, which has the maximum
generation and width of the parts).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

from ...boards import BOARDS, find_board
from ...facts import keys
from ...facts.keys import NVML, Key, gpu_subject, pci_subject
from ...facts.view import WIRES, read_pci_details
from ...graph import Device, Link
from ...grouping import group_by_key
from ...hardware import PCIE_GTps, pcie_generation
from ...names import join_first
from ...notes import Note, NoteKind
from ..machine_details.view import DetailedView

Severity = Literal["error", "warning", "note"]

# From worst to least. An error breaks communication, or the topology contradicts itself or the
# hardware; a warning costs bandwidth or makes a model of the machine wrong; a note is worth a look.
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

# Mb/s of the fastest NIC there is: 1.6 Tb/s (ConnectX-9 datasheet, both ports of 800 Gb/s
# together).
MAX_NIC_Mbps = 1_600_000
_NUMBER = re.compile(r"-?[0-9]{1,12}(?:\.0+)?")
_STATE = re.compile(r"Gen([1-6]) x([0-9]{1,2})")
# The first PCIe generation with 128b/130b coding; Gen1 and Gen2 have 8b/10b.
MODERN = 3
# Values that a link may have, by the second word of their names.
_POSSIBLE = {"generation": PCIE_GTps.keys(), "width": range(1, 33)}
_NVML_KEYS = {
    "max generation": keys.GPU_PCIE_MAX_GENERATION,
    "max width": keys.GPU_PCIE_MAX_WIDTH,
    "current generation": keys.GPU_PCIE_CURRENT_GENERATION,
    "current width": keys.GPU_PCIE_CURRENT_WIDTH,
}
_SYSFS_KEYS = {
    "max": (keys.PCI_MAX_LINK_SPEED, keys.PCI_MAX_LINK_WIDTH),
    "current": (keys.PCI_CURRENT_LINK_SPEED, keys.PCI_CURRENT_LINK_WIDTH),
}


@dataclass(frozen=True)
class Finding:
    """A problem of a machine.

    `severity` is error (communication breaks, or the topology contradicts itself), warning
    (bandwidth is lost) or note. `what` is its kind (a fixed word such as `missing-bridge`) and
    `about` the ids of the devices, or the PCI addresses of GPUs that the topology lacks. `message`
    describes the problem in one sentence, `evidence` contains "fact = value (source)" lines, and
    `advice` the remedy.
    """

    severity: Severity
    what: str
    about: tuple[str, ...]
    message: str
    evidence: tuple[str, ...]
    advice: str

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        return {**vars(self), "about": list(self.about), "evidence": list(self.evidence)}


# The values that a finding's message depends on (cases with equal ones become one finding), the
# devices concerned, and the evidence.
Case = tuple[Any, Collection[str], Collection[str]]


# -- values in messages


def shorten(value: object) -> str:
    """Return a value as one line of at most 60 characters; a longer one ends in `...`."""
    text = (
        " ".join(str(value).split())
        if isinstance(value, (str, int, float, list, tuple))
        else repr(value)
    )
    return repr(text) if not text else text if len(text) <= 60 else f"{text[:57]}..."


def format_GBps(rate: object) -> str:
    """Return a number of GB/s as text with the unit, rounded to three decimals."""
    try:
        return f"{round(float(rate), 3):g} GB/s"  # type: ignore[arg-type]
    except OverflowError:
        return "more than 1e300 GB/s"


def join_names(ids: Sequence[str]) -> str:
    """Return the first eight ids as one text, with the number of the others."""
    return join_first(ids, 8)


# -- the machine


@dataclass(frozen=True)
class PcieState:
    """The maximum and the current generation and number of PCIe lanes of a device's link.

    `generation` and `width` are the maximum, `now_generation` and `now_width` the current values;
    unknown ones are None. `evidence` has a "fact = value (source)" line for each known value.
    """

    device: Device
    evidence: tuple[str, ...]
    generation: int | None
    width: int | None
    now_generation: int | None
    now_width: int | None

    @property
    def lanes(self) -> int | None:
        """The number of PCIe lanes in use, or the maximum if that is unknown; None if both are."""
        return self.now_width or self.width

    @property
    def raw_GBps(self) -> Fraction | None:
        """GB/s in one direction on the PCIe lanes in use, before packet headers.

        It is the transfer rate of the link's maximum generation, after 8b/10b coding (Gen1 and 2)
        or 128b/130b coding (Gen3 to 5; Gen6 is counted alike), by the PCI Express base
        specifications. None if unknown.
        """
        if self.generation is None or self.lanes is None:
            return None
        coding = Fraction(8, 10) if self.generation < MODERN else Fraction(128, 130)
        return PCIE_GTps[self.generation] * coding * self.lanes / 8

    @property
    def is_below_port(self) -> bool:
        """Whether the device is a NIC whose port is faster than the PCIe lanes in use.

        It is False if a rate is unknown.
        """
        rate, raw = find_nic_GBps(self.device), self.raw_GBps
        return rate is not None and raw is not None and rate > raw

    @property
    def serves_port(self) -> bool:
        """Whether the device is a NIC whose port is no faster than the PCIe lanes in use.

        It is False if a rate is unknown.
        """
        rate, raw = find_nic_GBps(self.device), self.raw_GBps
        return self.device.kind == "nic" and rate is not None and raw is not None and rate <= raw

    @property
    def is_placeholder(self) -> bool:
        """Whether the link is declared as 2.5 GT/s x1 though the device is faster."""
        return (self.generation, self.width) == (1, 1) and (
            self.device.kind != "nic" or self.is_below_port
        )


def find_nic_GBps(device: Device) -> Fraction | None:
    """Return the rate of a NIC's port in GB/s in one direction.

    Return None if it is unknown or impossible.
    """
    speed = parse_whole(device.extra.get("speed"))
    return Fraction(speed, 8000) if speed and 0 < speed <= MAX_NIC_Mbps else None


def _list_possible_wires(gpu: Device) -> set[int]:
    """Return the numbers of links that a GPU has if it has all: its module's, else any board's."""
    board = find_board(str(gpu.extra.get("name") or ""))
    boards = BOARDS if board is None or board.is_card else (board,)
    return {board.wires for board in boards}


class DoctorView(DetailedView):
    """A machine, with values that several checks derive from its links and facts.

    Its base class finds GPUs, NICs and CPUs, the facts about each GPU, and its board.
    """

    @cached_property
    def like_gpus(self) -> tuple[tuple[Device, ...], ...]:
        """The GPUs in groups of one model: equal name, architecture, PCI vendor and device.

        Attributes that a file does not give are equal. A GPU without like ones is a group of its
        own.
        """
        groups: dict[tuple[str, ...], list[Device]] = defaultdict(list)
        for gpu in self.gpus:
            pci = read_pci_details(gpu)
            model = (
                *map(gpu.extra.get, ("name", "sm", "gcn")),
                *map(pci.get, ("vendor", "device")),
            )
            groups[tuple(map(str, model))].append(gpu)
        return tuple(tuple(group) for group in groups.values())

    def has_other_cause(self, gpu: str) -> bool:
        """Return whether a GPU lacks NVLinks and P2P for a reason that is reported as such.

        That is MIG, confidential computing, or a fabric that is not ready.
        """
        return (
            self.has_mig(gpu)
            or self.facts.get_text(NVML, keys.NVML_CONFIDENTIAL) == "on"
            or self.describe_pending_fabric(gpu) is not None
        )

    @cached_property
    def hides_peers(self) -> bool:
        """Whether some GPUs with direct links are hidden, so that numbers of links may differ.

        CUDA_VISIBLE_DEVICES or the job's cgroup hides them. Without a note about it, they count as
        hidden if no board has as many NVLinks as the GPUs do: the others lead to hidden GPUs.
        """
        kinds = {self.topology.by_id[end].kind for pair in self.links_between for end in pair}
        if kinds != {"gpu"}:
            return False
        if any(link.kind == "xgmi" for link in self.topology.links):
            return bool(self.list_notes("gpu-hidden", "gpu-not-listed"))
        counts = {gpu.id: sum(self.wired[gpu.id].values()) for gpu in self.gpus}
        most = max(counts.values())
        return bool(self.list_notes("gpu-hidden", "gpu-not-listed")) or not any(
            most in _list_possible_wires(gpu) for gpu in self.gpus if counts[gpu.id] == most
        )

    @cached_property
    def links_from(self) -> Mapping[str, tuple[Link, ...]]:
        """The outgoing links of each device, by its id; devices without any have no key."""
        links_from = group_by_key((link.src, link) for link in self.topology.links)
        return {src: tuple(links) for src, links in links_from.items()}

    @cached_property
    def links_between(self) -> Mapping[tuple[str, str], int]:
        """The number of NVLink and xGMI links between devices, by ids (source, destination).

        Pairs without any have no key.
        """
        counts = Counter[tuple[str, str]]()
        for link in self.topology.links:
            if link.kind in WIRES:
                counts[link.src, link.dst] += link.count
        return counts

    @cached_property
    def wired(self) -> Mapping[str, Mapping[str, int]]:
        """The number of NVLink and xGMI links of each GPU, by its id, then the other end's id.

        If the two directions differ, the larger number counts. A GPU without links has an empty
        mapping.
        """
        out: dict[str, dict[str, int]] = {gpu.id: {} for gpu in self.gpus}
        for (src, dst), count in self.links_between.items():
            for a, b in ((src, dst), (dst, src)):
                if a in out:
                    out[a][b] = max(count, out[a].get(b, 0))
        return out

    @cached_property
    def islands(self) -> Mapping[str, frozenset[str]]:
        """The groups of connected PCIe switches that a device is in or linked to, by device id.

        Each group (island) is represented by the id of one of its switches. Devices near no PCIe
        switch have no key.
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
        near = group_by_key(
            (a, islands.find_root(b))
            for x in links
            for a, b in ((x.src, x.dst), (x.dst, x.src), (x.src, x.src), (x.dst, x.dst))
            if b in switches
        )
        return {ident: frozenset(names) for ident, names in near.items()}

    def share_switch(self, a: str, b: str) -> bool:
        """Return whether two devices (ids) are in or linked to one group of connected switches.

        These are the groups of PCIe switches in `islands`.
        """
        return bool(self.islands.get(a, frozenset()) & self.islands.get(b, frozenset()))

    # -- PCI Express

    @cached_property
    def pcie_states(self) -> Mapping[str, PcieState]:
        """The state of the PCIe link of each GPU, NIC and PCIe switch, by device id.

        Devices of whose link nothing is known have no key. NVML takes precedence, then sysfs, then
        the device's file.
        """
        states: dict[str, PcieState] = {}
        for device in self.topology.devices:
            known: dict[str, tuple[int, str]] = {}
            for name, value, line in self._list_link_values(device):
                if value is not None and value in _POSSIBLE[name.split()[1]]:
                    known.setdefault(name, (value, line))
            if known:
                states[device.id] = PcieState(
                    device,
                    tuple(line for _, line in known.values()),
                    *(known[name][0] if name in known else None for name in _NVML_KEYS),
                )
        return states

    def _list_link_values(self, device: Device) -> Iterator[tuple[str, int | None, str]]:
        """Yield all values that the sources give: name, value, and line of evidence."""
        if device.kind not in ("gpu", "nic") and device.family != "pcie":
            return
        index, subject = self.index_of.get(device.id), pci_subject(device.bus_id)
        for name, key in _NVML_KEYS.items() if index is not None else ():
            of_gpu = gpu_subject(index)
            yield name, self.facts.get_number(of_gpu, key), self.format_fact(of_gpu, key)
        for part, (speed_key, width_key) in _SYSFS_KEYS.items() if device.bus_id else ():
            generation = pcie_generation(self.facts.get_text(subject, speed_key))
            yield f"{part} generation", generation, self.format_fact(subject, speed_key)
            yield (
                f"{part} width",
                self.facts.get_number(subject, width_key),
                self.format_fact(subject, width_key),
            )
        states = device.extra.get("pcie")
        for part in _SYSFS_KEYS:
            match = _STATE.fullmatch(str(states.get(part))) if isinstance(states, Mapping) else None
            if match and int(match[2]) in _POSSIBLE["width"]:
                line = self.format_attribute(device, f"PCIe {part}", match[0])
                yield f"{part} generation", int(match[1]), line
                yield f"{part} width", int(match[2]), line
        speed, lanes = map(read_pci_details(device).get, ("link_speed", "link_width"))
        generation = pcie_generation(speed if isinstance(speed, str) else None)
        yield "max generation", generation, self.format_attribute(device, "link_speed", speed)
        yield "max width", parse_whole(lanes), self.format_attribute(device, "link_width", lanes)

    # -- notes, facts and cases

    def list_notes(self, *kinds: NoteKind) -> list[Note]:
        """Return the topology's notes of these kinds.

        They hold observations of the topology's reader that are not among the facts.
        """
        return [note for note in self.topology.notes if note.kind in kinds]

    def knows_of_gpus(self, key: Key[Any]) -> bool:
        """Return whether the facts have a value of `key` for at least one GPU."""
        return any(self.facts.get_source(gpu_subject(i), key) for i in self.gpu_of)

    def group(self, cases: Iterable[Case]) -> list[tuple[Any, tuple[str, ...], tuple[str, ...]]]:
        """Merge cases (key, device ids, evidence lines) with equal keys.

        A check calls it to make one finding of equal problems. Return, for each key, the key, its
        devices in the topology's order, and its evidence, each device and line once.
        """
        groups: dict[Any, tuple[dict[str, None], dict[str, None]]] = {}
        for key, about, evidence in cases:
            devices, lines = groups.setdefault(key, ({}, {}))
            devices |= dict.fromkeys(about)
            lines |= dict.fromkeys(evidence)
        return [
            (
                key,
                tuple(sorted(devices, key=lambda i: self.order.get(i, len(self.order)))),
                tuple(lines),
            )
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

    The doctor makes it only if `can_ask(view)` is true; otherwise it is skipped, with `lack` (the
    missing data) as the reason.
    """

    name: str
    check: Callable[[DoctorView], Iterable[Finding]]
    can_ask: Callable[[DoctorView], object]
    lack: str


def has_two_gpus(view: DoctorView) -> bool:
    """Return whether a machine has at least two GPUs, which could be compared or connected."""
    return len(view.gpus) > 1


class DisjointSets:
    """Disjoint sets of names, merged step by step; a name not seen before is a set of its own."""

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
    """Return a whole number given as int, float or text, or None for any other value."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    text = str(value).strip().lower()
    return int(text.partition(".")[0]) if _NUMBER.fullmatch(text) else None
