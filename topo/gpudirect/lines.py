"""Verdicts put together for reading: pairs that are alike in all but their devices become one group, one line."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .verdict import Verdict

_RUN = 3


@dataclass(frozen=True)
class Group:
    """Verdicts that differ in their devices only; `pairs` are (a, b) in the order given."""

    kind: str
    answer: str
    rule: str
    evidence: tuple[str, ...]
    advice: str | None
    pairs: tuple[tuple[str, str], ...]

    def who(self) -> str:
        """The pairs in few words: `gpu0-gpu3 with each other; gpu4 with mlx5_0, mlx5_1`."""
        return who(self.pairs, self.kind == "p2p")


def grouped(verdicts: Iterable[Verdict]) -> tuple[Group, ...]:
    """Groups of verdicts with equal kind, answer, rule, evidence and advice, in order of first appearance."""
    found: dict[tuple[str, str, str, tuple[str, ...], str | None], list[tuple[str, str]]] = defaultdict(list)
    for v in verdicts:
        found[v.kind, v.answer, v.rule, v.evidence, v.advice].append((v.a, v.b))
    return tuple(Group(*key, tuple(pairs)) for key, pairs in found.items())


def lines(verdicts: Iterable[Verdict]) -> list[str]:
    """A line a group, and below it, indented, a line with the advice where there is some."""
    out: list[str] = []
    for group in grouped(verdicts):
        evidence = f" ({'; '.join(group.evidence)})" if group.evidence else ""
        name = {"p2p": "P2P", "rdma": "RDMA"}.get(group.kind, group.kind)
        out.append(f"{name} {group.answer}: {group.who()}: {group.rule}{evidence}")
        out += [f"  {group.advice}"] if group.advice else []
    return out


def who(pairs: Sequence[tuple[str, str]], mutual: bool) -> str:
    """Pairs in few words; `mutual` where both ends are of one sort, so that all may be said to be with each other."""
    partners: dict[str, list[str]] = defaultdict(list)
    for a, b in pairs:
        partners[a].append(b)
    parts: list[str] = []
    for members in _complete(partners) if mutual else ():
        parts.append(f"{spans(members)} with each other")
        for a in members:
            partners.pop(a, None)
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for a, bs in partners.items():
        alike[tuple(bs)].append(a)
    return "; ".join([*parts, *(f"{spans(firsts)} with {spans(seconds)}" for seconds, firsts in alike.items())])


def _complete(partners: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Sets of three or more ids that are all paired with each other, and with no id outside of the set."""
    near: dict[str, set[str]] = defaultdict(set)
    for a, bs in partners.items():
        for b in bs:
            near[a].add(b)
            near[b].add(a)
    found: list[list[str]] = []
    seen: set[str] = set()
    for a in near:
        members = {a, *near[a]}
        if a not in seen and len(members) >= _RUN and all({b, *near[b]} == members for b in members):
            found.append(sorted(members))
        seen |= members
    return found


def spans(names: Iterable[str]) -> str:
    """Names by their numbers, runs of three or more put together: `gpu0-gpu3, gpu7`."""
    runs: list[list[str]] = []
    for _, _, name in sorted((*_parts(name), name) for name in names):
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) >= _RUN else ", ".join(run) for run in runs)


def _parts(name: str) -> tuple[str, int]:
    """What stands before the number that a name ends with, and the number (-1 for none)."""
    match = re.fullmatch(r"(.*?)(\d{1,9})", name, re.DOTALL)
    return (match.group(1), int(match.group(2))) if match else (name, -1)


def _follows(before: str, name: str) -> bool:
    (stem, number), (other, following) = _parts(before), _parts(name)
    return stem == other and 0 <= number == following - 1
