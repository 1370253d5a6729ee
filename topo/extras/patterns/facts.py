"""Patterns as facts: the subjects `pattern/N`, counted from 0.

A pattern is a set of flows, each from one rank to another, that were measured at once. A topology
has facts in `extra["facts"]`, each about a subject, with a key and a source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ...exact import parse_fraction
from ...facts import Fact, Facts, facts_to_json, load_facts
from ...facts.keys import Key
from ...graph import Topology

PATTERN = "pattern"
FLOWS: Key[tuple[str, ...]] = Key(
    "pattern/N", "flows", "flows that ran at once, by ranks: 0>2 1>3; N counts from 0"
)
TOGETHER: Key[str] = Key("pattern/N", "together_GBps", "GB/s of all flows of it together")
ALONE: Key[str] = Key("pattern/N", "alone_GBps", "GB/s of the fastest of its flows alone")
HOW: Key[str] = Key("pattern/N", "how", "write, read or copy; copy where nothing says which")

Flow = tuple[int, int]


@dataclass(frozen=True)
class Pattern:
    """Flows from rank to rank that ran at once, and what they got: `together_GBps` in sum.

    The fastest of them gets `alone_GBps` alone. `flows` are (sending rank, receiving rank). `how`
    is write if the senders' GPUs wrote, read if the receivers' read, or copy if that is not known.
    `source` is who measured it, for messages.
    """

    flows: tuple[Flow, ...]
    together_GBps: Fraction
    alone_GBps: Fraction
    how: str
    source: str

    @property
    def spelled(self) -> str:
        """The flows as text: `0>2 1>3`."""
        return " ".join(f"{a}>{b}" for a, b in self.flows)


def add_patterns(topology: Topology, patterns: Iterable[Pattern]) -> Topology:
    """Return a topology with patterns among its facts, after those that it has."""
    known = load_facts(topology.extra, topology.name)
    first = len(known.list_names(PATTERN))
    facts = [fact for n, pattern in enumerate(patterns, first) for fact in _list_facts(n, pattern)]
    listed = facts_to_json(known + Facts(tuple(facts)))
    return replace(topology, extra={**topology.extra, "facts": listed})


def _list_facts(number: int, pattern: Pattern) -> Iterator[Fact]:
    subject, source = f"{PATTERN}/{number}", pattern.source
    yield Fact(subject, FLOWS, tuple(pattern.spelled.split()), source)
    yield Fact(subject, TOGETHER, f"{float(pattern.together_GBps):.6g}", source)
    yield Fact(subject, ALONE, f"{float(pattern.alone_GBps):.6g}", source)
    yield Fact(subject, HOW, pattern.how, source)


def list_patterns(facts: Facts, ranks: int) -> list[Pattern]:
    """Return the patterns among facts, without those that are malformed or of other ranks.

    `ranks` is the number of the machine's ranks.
    """
    found = []
    for number in facts.list_names(PATTERN):
        subject = f"{PATTERN}/{number}"
        try:
            flows = tuple(parse_flow(x, ranks) for x in facts.get_texts(subject, FLOWS))
            together, alone = (
                parse_fraction(facts.get_text(subject, key) or "") for key in (TOGETHER, ALONE)
            )
        except ValueError:
            continue
        if flows and together > 0 and alone > 0:
            how, source = facts.get_text(subject, HOW), facts.get_source(subject, FLOWS)
            found.append(Pattern(flows, together, alone, how or "copy", source or ""))
    return found


def list_measured(extra: Mapping[str, Any], ranks: int) -> list[Pattern]:
    """Return the patterns that topo-probe --measure has left in a topology's `extra["measured"]`.

    `ranks` is the number of the machine's ranks; malformed patterns and those of other ranks are
    left out.
    """
    measured = extra.get("measured")
    if not isinstance(measured, Mapping) or not isinstance(measured.get("at_once"), list):
        return []
    found = []
    for row in measured["at_once"]:
        try:
            flows = tuple(parse_flow(x, ranks) for x in row["flows"])
            rates = parse_fraction(row["together_GBps"]), parse_fraction(row["alone_GBps"])
            source = f"measured over {measured['over']}, {row['kind']}"
        except (KeyError, TypeError, ValueError):
            continue  # of another writer
        if flows and min(rates) > 0:
            found.append(Pattern(flows, *rates, "copy", source))
    return found


def parse_flow(text: str, ranks: int) -> Flow:
    """Return the ranks of `0>2`, (0, 2).

    Raise ValueError unless they are two different ones of `ranks`, the number of all.
    """
    a, _, b = text.partition(">")
    flow = int(a), int(b)
    if flow[0] == flow[1] or not all(0 <= rank < ranks for rank in flow):
        raise ValueError(text)
    return flow
