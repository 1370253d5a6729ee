"""Have transfers take turns: a schedule's transfers in other steps, which keep to limits.

Messages (what one rank sends another in one step) are the jobs of a list scheduling (Graham 1966):
step by step, those that are ready are begun in the order of what depends on them, as long as the
limited ports have room. A message that reads what another writes comes in a later step; one that
overwrites or adds to what another reads, or was read with, in the same step or a later one. Two
that exchange values of the same step stay together.

A port (limits.py) is a GPU with what leaves it, or with what enters it, or another device with what
passes through it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import groupby, pairwise
from operator import itemgetter

import networkx as nx
import numpy as np

from ....topo.errors import InfeasibleError
from ....topo.graph import Topology
from ...cost.affine import tighten
from ...ir.collective import Chunk
from ...ir.schedule import Schedule
from ...ir.transfers import COPY, Transfers
from .limits import Port, list_ports

# A rank's value of a chunk.
_Cell = tuple[int, int]


@dataclass
class _Unit:
    """Messages that go in one step, by their numbers, and what they need.

    `after` are the units of earlier steps, `with_or_after` those of earlier steps or the same one.
    `seconds` is the time of its longest message alone, for a GB of buffer, and `path_s` that of the
    longest chain of units that begins with it.
    """

    messages: list[int]
    seconds: float
    first: int
    after: set[int] = field(default_factory=set)
    with_or_after: set[int] = field(default_factory=set)
    path_s: float = 0.0


class _Messages:
    """The messages of a schedule in their order, with ports, durations, and what they need."""

    def __init__(self, schedule: Schedule, topology: Topology, limited: Mapping[Port, int]) -> None:
        t, ranks = schedule.transfers, topology.ranks
        paths, path_of = t.paths()
        ends = [(ranks[src], *route, ranks[dst]) for src, dst, route in paths]
        rates = [min(topology.capacity_GBps[link] for link in pairwise(path)) for path in ends]
        ports = [list_ports(path, limited) for path in ends]
        keys = [*zip(t.step.tolist(), path_of.tolist(), strict=True)]
        number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        self.of_transfer = [number[key] for key in keys]
        self.steps = [step for step, _ in number]
        self.pairs = [paths[path][:2] for _, path in number]
        self.ports: list[list[Port]] = [ports[path] for _, path in number]
        shares = [Fraction(0)] * len(number)
        for message, chunk in zip(self.of_transfer, t.chunk.tolist(), strict=True):
            shares[message] += schedule.chunks[chunk].share
        self.seconds = [
            float(share / rates[path]) for share, (_, path) in zip(shares, number, strict=True)
        ]
        self.after: list[set[int]] = [set() for _ in number]
        self.with_or_after: list[set[int]] = [set() for _ in number]
        self._find_needs(schedule)

    def _find_needs(self, schedule: Schedule) -> None:
        """Set what each message has to come after, by the cells that its transfers read and write.

        A sum's terms may be added in any order, but stay in the order of their steps.
        """
        written: dict[_Cell, list[int]] = defaultdict(list)
        read: dict[_Cell, list[int]] = defaultdict(list)
        columns = (x.tolist() for x in schedule.transfers.columns[:5])
        rows = [
            (step, message, (src, chunk), (dst, chunk), op == COPY)
            for message, step, src, dst, chunk, op in zip(self.of_transfer, *columns, strict=True)
        ]
        for _, group in groupby(rows, key=itemgetter(0)):
            now = [*group]
            for _, message, source, _, _ in now:
                self.after[message].update(written[source])
                read[source].append(message)
            for _, message, _, target, copies in now:
                before = self.after[message] if copies else self.with_or_after[message]
                before.update(written[target])
                self.with_or_after[message].update(read[target])
            for _, _, _, target, copies in now:
                if copies:
                    written[target], read[target] = [], []
            for _, message, _, target, _ in now:
                written[target].append(message)


def take_turns(
    schedule: Schedule, topology: Topology, limited: Mapping[Port, int], *, by_step: bool = False
) -> Schedule:
    """Return a schedule of the same transfers, in steps that keep to the limits of ports.

    `limited` maps ports to the most messages at a time. The result has one segment. With `by_step`,
    what was sent in an earlier step goes first, instead of what most depends on. Raise
    InfeasibleError if messages that must go in one step do not fit into one.
    """
    messages = _Messages(schedule.uncut, topology, limited)
    units = _join(messages)
    ranks = len(topology.ranks)

    def rank_unit(unit: int) -> tuple[float, ...]:
        mine = units[unit]
        src, dst = messages.pairs[mine.messages[0]]
        # The order of shifts: those of one distance are a matching.
        shift = (dst - src) % ranks
        return (mine.first, shift, src) if by_step else (-mine.path_s, mine.first, shift, src)

    order = sorted(range(len(units)), key=rank_unit)
    step_of = np.zeros(len(messages.pairs), dtype=np.int64)
    for step, placed in enumerate(_place(messages, units, order, limited)):
        step_of[[x for unit in placed for x in units[unit].messages]] = step
    t = schedule.transfers
    moved = Transfers(
        step_of[messages.of_transfer], t.src, t.dst, t.chunk, t.op, t.route, t.routes
    ).sorted()
    return tighten(replace(schedule.uncut, transfers=moved, step_s_per_GB=()), topology)


def _join(messages: _Messages) -> list[_Unit]:
    """Return the messages as units, in an order in which each comes after what it needs."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(messages.pairs)))
    for message, before in enumerate(messages.with_or_after):
        graph.add_edges_from((x, message) for x in before if x != message)
    unit_of: dict[int, int] = {}
    units: list[_Unit] = []
    for group in nx.strongly_connected_components(graph):
        listed = sorted(group)
        unit_of |= dict.fromkeys(listed, len(units))
        units.append(
            _Unit(
                listed,
                max(messages.seconds[x] for x in listed),
                min(messages.steps[x] for x in listed),
            )
        )
    needs: nx.DiGraph[int] = nx.DiGraph()
    needs.add_nodes_from(range(len(units)))
    for message, unit in unit_of.items():
        mine = units[unit]
        mine.after |= {unit_of[x] for x in messages.after[message]}
        mine.with_or_after |= {unit_of[x] for x in messages.with_or_after[message]} - {unit}
        needs.add_edges_from((x, unit) for x in mine.after | mine.with_or_after)
    for unit in reversed([*nx.topological_sort(needs)]):
        later = (units[x].path_s for x in needs.successors(unit))
        units[unit].path_s = units[unit].seconds + max(later, default=0.0)
    return units


def _place(
    messages: _Messages, units: Sequence[_Unit], order: Sequence[int], limited: Mapping[Port, int]
) -> Iterator[list[int]]:
    """Yield the units of one step after the other."""
    done: set[int] = set()
    waiting = [*order]
    while waiting:
        placed: list[int] = []
        now: set[int] = set()
        pairs: set[tuple[int, int]] = set()
        used: Counter[Port] = Counter()
        is_growing = True
        while is_growing:  # what waits for a unit of the same step may stand before it
            is_growing = False
            for unit in waiting:
                mine = units[unit]
                if unit in now or not mine.after <= done or not mine.with_or_after <= done | now:
                    continue
                more = {messages.pairs[x]: messages.ports[x] for x in mine.messages}
                need = Counter(
                    port for pair, ports in more.items() if pair not in pairs for port in ports
                )
                if any(used[port] + count > limited[port] for port, count in need.items()):
                    continue
                placed.append(unit)
                now.add(unit)
                pairs |= more.keys()
                used += need
                is_growing = True
        if not placed:
            raise InfeasibleError(
                f"{len(waiting)} groups of messages do not fit into one step: ranks that exchange "
                "values need more transfers at a time"
            )
        done |= now
        waiting = [unit for unit in waiting if unit not in now]
        yield placed


def cut(schedule: Schedule, parts: int) -> Schedule:
    """Return a schedule with each chunk cut into `parts` equal chunks, sent in the same steps.

    `take_turns` can then put them into different steps, so that one is sent on while the next
    arrives. Durations of steps stay those of the whole chunks.
    """
    t = schedule.transfers
    every = np.arange(len(t)).repeat(parts)
    chunk = t.chunk[every] * parts + np.tile(np.arange(parts), len(t))
    return replace(
        schedule.uncut,
        chunks=tuple(
            Chunk(c.share / parts, c.source, c.target, c.piece)
            for c in schedule.chunks
            for _ in range(parts)
        ),
        transfers=Transfers(
            t.step[every], t.src[every], t.dst[every], chunk, t.op[every], t.route[every], t.routes
        ).sorted(),
    )
