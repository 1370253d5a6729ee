"""GPUDirect: which GPUs and NICs reach a GPU's memory directly, by rule, with the evidence.

Verdicts follow from a topology and its facts; nothing is measured. If these are not enough, the
answer is unknown, with the reason. The rules are those of NCCL 2.30 and RCCL, in `p2p.py` and
`rdma.py`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap
from typing import TypeVar

from ...derived.parts import split_hosts
from ...errors import InputError
from ...facts.keys import qualify, split_host
from ...graph import Topology
from ...grouping import group_by_key
from .p2p import judge_fabrics, judge_p2p, list_fabric_pairs
from .rdma import judge_rdma
from .verdict import Answer, Verdict
from .view import PairView

__all__ = ["MAX_PAIRS", "LineGroup", "Verdict", "format_verdicts", "group_verdicts", "judge_pairs"]

# Maximum number of pairs judged at once; only topologies of many hosts have more.
MAX_PAIRS = 20_000
# Minimum number of names in a run ("gpu0-gpu2"): a list of two is as short.
_RUN = 3
# Maximum number of sets of GPUs listed; if there are more, only the first and the last are shown.
_MANY_SETS = 3
# Minimum columns: narrower lines would break rules into single words.
_NARROWEST = 60
# Text before the command in a verdict's advice.
_COMMAND = "; do "
_T = TypeVar("_T")


def judge_pairs(topology: Topology) -> tuple[Verdict, ...]:
    """Return a verdict for each pair of devices that GPUDirect could connect.

    Each pair appears once. The order is: each two GPUs of one host, host by host; each GPU and NIC
    of one host, host by host; each two GPUs of different hosts in one NVLink fabric. Equivalent
    NICs are judged once. Raise InputError if the topology's facts are malformed, or if more than
    MAX_PAIRS pairs are to be judged.
    """
    views = {host: PairView(part) for host, part in split_hosts(topology).items()}
    across = list_fabric_pairs(topology) if len(views) > 1 else []
    pairs = sum(view.count_pairs() for view in views.values()) + len(across)
    if pairs > MAX_PAIRS:
        raise InputError(
            f"topology {topology.name!r}: {pairs} pairs of GPUs and NICs; GPUDirect is judged for "
            f"at most {MAX_PAIRS}; give one host at a time"
        )
    verdicts: list[Verdict] = []
    for host, view in views.items():
        rdma: dict[tuple[str, str], Answer] = {}
        for kind, a, b in view.pairs:
            if kind == "p2p":
                answer = judge_p2p(view, a, b)
            else:
                alike = a, view.first_alike[b]
                answer = rdma[alike] = rdma.get(alike) or judge_rdma(view, *alike)
            first, second = (qualify(host, end) if host else end for end in (a, b))
            verdicts.append(Verdict(kind, first, second, **vars(answer)))
    return (*verdicts, *judge_fabrics(topology, across))


# -- verdicts for reading: one line for all pairs with the same verdict


@dataclass(frozen=True)
class LineGroup:
    """Verdicts that differ in their devices only; `pairs` are their (a, b) in the order given.

    Of each pair: the `kind` of GPUDirect (p2p or rdma), the `answer` (yes, no or unknown), the
    `rule` that decided, the `evidence` known, and `advice`, None if there is none.
    """

    kind: str
    answer: str
    rule: str
    evidence: tuple[str, ...]
    advice: str | None
    pairs: tuple[tuple[str, str], ...]

    def describe_pairs(self) -> str:
        """Summarize the pairs: `gpu0-gpu3 with each other; gpu4 with mlx5_0, mlx5_1`.

        Sets of three or more GPUs that are all paired are "with each other". Pairs that are the
        same on several hosts are listed once.
        """
        mutual = self.kind == "p2p"
        if mutual and _joins_hosts(self.pairs):
            ids = dict.fromkeys(ident for pair in self.pairs for ident in pair)
            return f"{_format_runs(ids)} with those of each other host"
        of_host: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for a, b in self.pairs:
            (host, first), (other, second) = split_host(a), split_host(b)
            of_host[host if host == other else ""].append(
                (first, second) if host == other else (a, b)
            )
        return "; ".join(
            ("" if hosts == [""] else f"on {', '.join(_shorten_runs(hosts))} ")
            + _describe_in_host(own, mutual)
            for own, hosts in _list_keys_by_value(of_host).items()
        )


def group_verdicts(verdicts: Iterable[Verdict]) -> tuple[LineGroup, ...]:
    """Group verdicts with equal kind, answer, rule, evidence and advice, in the given order."""
    pairs_of = group_by_key(
        ((v.kind, v.answer, v.rule, v.evidence, v.advice), (v.a, v.b)) for v in verdicts
    )
    return tuple(LineGroup(*key, tuple(pairs)) for key, pairs in pairs_of.items())


def format_verdicts(verdicts: Iterable[Verdict], width: int = 120) -> list[str]:
    """Format a line for each group of equal verdicts, and an indented line with its advice, if any.

    Lines are wrapped at `width`, except lines with a command, so that it can be copied.
    """
    lines: list[str] = []
    for group in group_verdicts(verdicts):
        evidence = f" ({'; '.join(group.evidence)})" if group.evidence else ""
        answer = f"{group.kind.upper()} {group.answer}: {group.describe_pairs()}: {group.rule}"
        lines += _wrap(answer + evidence, width, "")
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


def _list_keys_by_value(items: Mapping[str, Sequence[_T]]) -> dict[tuple[_T, ...], list[str]]:
    return group_by_key((tuple(value), key) for key, value in items.items())


def _describe_in_host(pairs: Sequence[tuple[str, str]], mutual: bool) -> str:
    partners = group_by_key(pairs)
    cliques = _list_cliques(partners) if mutual else []
    in_cliques = {a for members in cliques for a in members}
    alike = _list_keys_by_value({a: bs for a, bs in partners.items() if a not in in_cliques})
    texts = [f"{_format_runs(members)} with each other" for members in cliques]
    if len(texts) > _MANY_SETS and len({len(members) for members in cliques}) == 1:
        size, last = len(cliques[0]), _format_runs(cliques[-1])
        texts = [f"{texts[0]}, and so on in sets of {size} up to {last}"]
    texts += (f"{_format_runs(a)} with {_format_runs(b)}" for b, a in alike.items())
    return "; ".join(texts)


def _joins_hosts(pairs: Sequence[tuple[str, str]]) -> bool:
    """Return whether the pairs are all pairs of their ids on different hosts, and no others."""
    on_host = Counter(split_host(ident)[0] for ident in {ident for pair in pairs for ident in pair})
    across = (on_host.total() ** 2 - sum(n * n for n in on_host.values())) // 2
    return (
        not any(split_host(a)[0] == split_host(b)[0] for a, b in pairs)
        and len({frozenset(pair) for pair in pairs}) == across
    )


def _list_cliques(partners: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the sets of three or more ids that are paired with each other and with no others."""
    near: dict[str, set[str]] = defaultdict(set)
    for a, bs in partners.items():
        for b in bs:
            near[a] |= {a, b}
            near[b] |= {a, b}
    cliques: list[list[str]] = []
    seen: set[str] = set()
    for a, members in near.items():
        if a not in seen and len(members) >= _RUN and all(near[b] == members for b in members):
            cliques.append(sorted(members))
        seen |= members
    return cliques


def _format_runs(names: Iterable[str]) -> str:
    """Sort names by their numbers and shorten runs of three or more: `gpu0-gpu3, gpu7`.

    The same names of several hosts are combined: `host0-host17/gpu0-gpu3`.
    """
    names_of = group_by_key(map(split_host, names))
    runs_of = {host: tuple(_shorten_runs(rests)) for host, rests in names_of.items()}
    return ", ".join(
        qualify(host, piece) if host else piece
        for pieces, hosts in _list_keys_by_value(runs_of).items()
        for host in _shorten_runs(hosts)
        for piece in pieces
    )


def _shorten_runs(names: Iterable[str]) -> Iterator[str]:
    """Yield names sorted by their numbers, runs of three or more as one: `gpu0-gpu3`."""
    ordered = sorted((*_split_number(name), name) for name in names)
    # throughout a run, the number less its position is the same
    for _, members in groupby(enumerate(ordered), lambda at: (at[1][0], at[1][1] - at[0])):
        run = [name for _, (_, _, name) in members]
        yield from (f"{run[0]}-{run[-1]}",) if len(run) >= _RUN else run


def _split_number(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.*?)(\d{1,9})", name, re.DOTALL)
    return (match[1], int(match[2])) if match else (name, -2)  # no number follows or precedes it
