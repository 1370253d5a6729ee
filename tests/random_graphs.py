"""Random machines and brute force on them, for several test files."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations

from hypothesis import strategies as st

from topoplan.synth.ir.collective import Collective
from topoplan.topo.graph import Device, Link, Topology

ROOTED = ("broadcast", "reduce", "gather", "scatter")


def on(name: str, topology: Topology) -> Collective:
    return Collective(name, len(topology.ranks), 0 if name in ROOTED else None)


@st.composite
def graphs(draw: st.DrawFn, most: int = 6, two_way: bool = True, switches: int = 0) -> Topology:
    """A random connected graph of GPUs (and plain switches) with small whole bandwidths, uneven
    unless `two_way`.
    """
    n = draw(st.integers(3, most))
    nodes = [f"g{i}" for i in range(n)] + [f"s{i}" for i in range(draw(st.integers(0, switches)))]
    order = draw(st.permutations(range(len(nodes)))) if switches else list(range(n))
    joined = {(order[draw(st.integers(0, v - 1))], order[v]) for v in range(1, len(nodes))}
    joined |= draw(st.sets(st.sampled_from(sorted(combinations(range(len(nodes)), 2))), max_size=n))
    links: list[Link] = []
    for a, b in sorted({(min(pair), max(pair)) for pair in joined}):
        there = draw(st.integers(1, 4))
        back = there if two_way else draw(st.integers(1, 4))
        links += [
            Link(nodes[a], nodes[b], Fraction(there)),
            Link(nodes[b], nodes[a], Fraction(back)),
        ]
    devices = tuple(Device(name, "gpu" if name[0] == "g" else "switch") for name in nodes)
    return Topology("random", devices, tuple(links))


def partitions(items: list[str]) -> Iterator[list[set[str]]]:
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [{items[0]}, *rest]
        for i in range(len(rest)):
            yield [*rest[:i], rest[i] | {items[0]}, *rest[i + 1 :]]


def partition_bound(topology: Topology) -> Fraction:
    """min over partitions of (capacity between parts, one direction) / (parts - 1) (Tutte;
    Nash-Williams 1961).
    """
    number = {g: i for i, g in enumerate(topology.ranks)}
    links = [
        (number[a], number[b], c)
        for (a, b), c in topology.capacity_GBps.items()
        if number[a] < number[b]
    ]
    best = None
    for parts in partitions(list(topology.ranks)):
        if len(parts) > 1:
            part_of = [0] * len(number)
            for i, part in enumerate(parts):
                for gpu in part:
                    part_of[number[gpu]] = i
            across = sum((c for a, b, c in links if part_of[a] != part_of[b]), Fraction(0))
            value = across / (len(parts) - 1)
            best = value if best is None else min(best, value)
    assert best is not None
    return best
