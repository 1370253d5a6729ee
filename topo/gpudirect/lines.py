"""Format verdicts for reading: pairs that are alike in all but their devices are one group, one
line.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

from ..facts.keys import qualify, split_host
from .verdict import Verdict

# Names that become a run ("gpu0-gpu2"); two are as short when listed.
_RUN = 3
# Sets of GPUs above which one is shown, with how the others go on.
_MANY_SETS = 3
# Columns below which wrapping breaks rules into single words.
_NARROWEST = 60
_COMMAND = "; do "


@dataclass(frozen=True)
class LineGroup:
    """Verdicts that differ in their devices only; `pairs` are (a, b) in the order given."""

    kind: str
    answer: str
    rule: str
    evidence: tuple[str, ...]
    advice: str | None
    pairs: tuple[tuple[str, str], ...]

    def describe_pairs(self) -> str:
        """Return the pairs in short: `gpu0-gpu3 with each other; gpu4 with mlx5_0, mlx5_1`."""
        return describe_pairs(self.pairs, self.kind == "p2p")


def group_verdicts(verdicts: Iterable[Verdict]) -> tuple[LineGroup, ...]:
    """Return groups of verdicts with equal kind, answer, rule, evidence and advice, in order of
    first appearance.
    """
    pairs_of: dict[tuple[str, str, str, tuple[str, ...], str | None], list[tuple[str, str]]] = (
        defaultdict(list)
    )
    for v in verdicts:
        pairs_of[v.kind, v.answer, v.rule, v.evidence, v.advice].append((v.a, v.b))
    return tuple(LineGroup(*key, tuple(pairs)) for key, pairs in pairs_of.items())


def format_verdicts(verdicts: Iterable[Verdict], width: int = 120) -> list[str]:
    """Return for each group its line, followed by an indented line with the advice if there is any.

    What is longer than `width` goes on in further lines, but for commands, which are to be copied.
    """
    lines: list[str] = []
    for group in group_verdicts(verdicts):
        evidence = f" ({'; '.join(group.evidence)})" if group.evidence else ""
        name = {"p2p": "P2P", "rdma": "RDMA"}.get(group.kind, group.kind)
        lines += _wrap(
            f"{name} {group.answer}: {group.describe_pairs()}: {group.rule}{evidence}", width, ""
        )
        lines += _wrap(group.advice, width, "  ") if group.advice else []
    return lines


def _wrap(text: str, width: int, indent: str) -> list[str]:
    if _COMMAND in text:
        return [indent + text]
    return wrap(
        text,
        max(width, _NARROWEST),
        initial_indent=indent,
        subsequent_indent=indent + "    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def describe_pairs(pairs: Sequence[tuple[str, str]], mutual: bool) -> str:
    """Return pairs in short; with `mutual`, sets of three or more that are all paired are "with
    each other". Pairs that are the same on several hosts are said once.
    """
    if mutual and _joins_hosts(pairs):
        return (
            f"{format_runs(dict.fromkeys(ident for pair in pairs for ident in pair))} with those "
            "of each other host"
        )
    of_host: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for a, b in pairs:
        (host, first), (other, second) = split_host(a), split_host(b)
        if host == other:
            of_host[host].append((first, second))
        else:
            of_host[""].append((a, b))
    hosts_with: dict[tuple[tuple[str, str], ...], list[str]] = defaultdict(list)
    for host, of_one in of_host.items():
        hosts_with[tuple(of_one)].append(host)
    said = []
    for own, hosts in hosts_with.items():
        text = _describe_in_host(own, mutual)
        said.append(text if hosts == [""] else f"on {', '.join(_shorten_runs(hosts))} {text}")
    return "; ".join(said)


def _describe_in_host(pairs: Sequence[tuple[str, str]], mutual: bool) -> str:
    partners: dict[str, list[str]] = defaultdict(list)
    for a, b in pairs:
        partners[a].append(b)
    cliques = _list_cliques(partners) if mutual else []
    parts = _describe_cliques(cliques)
    for a in (a for members in cliques for a in members):
        partners.pop(a, None)
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for a, bs in partners.items():
        alike[tuple(bs)].append(a)
    return "; ".join(
        [
            *parts,
            *(
                f"{format_runs(firsts)} with {format_runs(seconds)}"
                for seconds, firsts in alike.items()
            ),
        ]
    )


def _describe_cliques(cliques: Sequence[Sequence[str]]) -> list[str]:
    """Return sets of names that are paired with each other; many that are runs of one length are
    said in one.
    """
    texts = [format_runs(members) for members in cliques]
    if len(texts) > _MANY_SETS and len({len(members) for members in cliques}) == 1:
        return [
            f"{texts[0]} with each other, and so on in sets of {len(cliques[0])} up to {texts[-1]}"
        ]
    return [f"{text} with each other" for text in texts]


def _joins_hosts(pairs: Sequence[tuple[str, str]]) -> bool:
    """Return whether pairs are each two of some ids that are of different hosts, and no others."""
    on_host = Counter(split_host(ident)[0] for ident in {ident for pair in pairs for ident in pair})
    across = (on_host.total() ** 2 - sum(n * n for n in on_host.values())) // 2
    return (
        not any(split_host(a)[0] == split_host(b)[0] for a, b in pairs)
        and len({frozenset(pair) for pair in pairs}) == across
    )


def _list_cliques(partners: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the sets of three or more ids that are all paired with each other, and with no id
    outside of the set.
    """
    near: dict[str, set[str]] = defaultdict(set)
    for a, bs in partners.items():
        for b in bs:
            near[a].add(b)
            near[b].add(a)
    cliques: list[list[str]] = []
    seen: set[str] = set()
    for a in near:
        members = {a, *near[a]}
        if (
            a not in seen
            and len(members) >= _RUN
            and all({b, *near[b]} == members for b in members)
        ):
            cliques.append(sorted(members))
        seen |= members
    return cliques


def format_runs(names: Iterable[str]) -> str:
    """Return names sorted by their numbers, runs of three or more shortened: `gpu0-gpu3, gpu7`; the
    same names of several hosts are put together: `host0-host17/gpu0-gpu3`.
    """
    names_of: dict[str, list[str]] = defaultdict(list)
    for name in names:
        host, rest = split_host(name)
        names_of[host].append(rest)
    hosts_with: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for host, rests in names_of.items():
        hosts_with[tuple(_shorten_runs(rests))].append(host)
    return ", ".join(
        qualify(host, piece) if host else piece
        for pieces, hosts in hosts_with.items()
        for host in _shorten_runs(hosts)
        for piece in pieces
    )


def _shorten_runs(names: Iterable[str]) -> Iterator[str]:
    """Yield names sorted by their numbers, runs of three or more as one: `gpu0-gpu3`."""
    runs: list[list[str]] = []
    for _, _, name in sorted((*_split_number(name), name) for name in names):
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    for run in runs:
        yield from (f"{run[0]}-{run[-1]}",) if len(run) >= _RUN else run


def _split_number(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.*?)(\d{1,9})", name, re.DOTALL)
    return (match.group(1), int(match.group(2))) if match else (name, -1)


def _follows(before: str, name: str) -> bool:
    (stem, number), (other, following) = _split_number(before), _split_number(name)
    return stem == other and 0 <= number == following - 1
