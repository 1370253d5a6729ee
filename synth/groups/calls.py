"""Groups that run collectives at the same time, as texts and files name them.

`tp:allreduce:64M=0,1|2,3 dp:allreduce:1G=0,2|1,3` are two kinds of groups with two groups each. A
kind is a name, and after colons its collective, the bytes of a call, and its weight; what is left
out is the default. Groups are separated by `|`, ranks by commas. A file has the same, over as many
lines as one likes; from `#` on, a line is a comment.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

from ...topo.errors import InputError
from ...topo.exact import parse_positive
from ..ir.collective import Collective, spell_ranks
from ..numeric.steiner import MAX_TERMINALS
from ..sizes import parse_size, show_size

# What "rest" and "none" say of helpers: all GPUs outside a group, or none of them.
REST, NONE = "rest", "none"
# Bytes of a file: 4,096 groups of 64 ranks take 1.5 MB.
_MAX_FILE_BYTES = 1 << 24
# Digits of a weight's parts: shares of links are fractions with such denominators.
_MAX_WEIGHT = 10**6
# At least one rank has 10 digits or fewer, so that messages stay short.
_RANK = re.compile(r"[0-9]{1,9}")
_KIND = re.compile(r"[A-Za-z_][\w.-]*")
_SYNTAX = 'expected KIND=RANKS|RANKS|..., such as "tp=0,1|2,3 dp:allreduce:1G=0,2|1,3"'


@dataclass(frozen=True)
class JointCall:
    """A collective of one group, on buffers of `size_bytes`, at the same time as other groups'.

    `kind` names what the group is for, such as "tp"; groups of one kind are disjoint. A call gets
    its share of the links in proportion to its bytes times `weight`: all calls of equal weight end
    together, and one of weight 2 in half of that time.
    """

    kind: str
    collective: Collective
    size_bytes: int
    weight: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        if not _KIND.fullmatch(self.kind):
            raise InputError(
                f"groups: {self.kind!r:.60} is no name of a kind; expected a letter, then letters, "
                "digits, '_', '.' or '-'"
            )
        if self.size_bytes < 1:
            raise InputError(
                f"groups: {self.kind} has {self.size_bytes} bytes; expected at least 1"
            )
        if not 0 < self.weight <= _MAX_WEIGHT or self.weight.denominator > _MAX_WEIGHT:
            raise InputError(
                f"groups: {self.kind} has the weight {self.weight}; expected more than 0, at most "
                f"{_MAX_WEIGHT}, with at most 6 decimals"
            )

    @property
    def demand_GB(self) -> Fraction:
        """The buffer's size in GB times the weight."""
        return self.weight * Fraction(self.size_bytes, 10**9)

    @property
    def name(self) -> str:
        """The call in words: "tp 0,1"."""
        return f"{self.kind} {','.join(map(str, self.collective.members))}"

    def __str__(self) -> str:
        weight = "" if self.weight == 1 else f", weight {self.weight}"
        size = show_size(self.size_bytes)
        return f"{self.kind}: {self.collective} of {size}{weight}"


def read_calls(source: str, ranks: int, collective: str | None, size: str) -> tuple[JointCall, ...]:
    """Return the calls that a text states, or the file that it names.

    `ranks` is the number of GPUs. `collective` and `size` are for kinds that state none. Raise
    InputError, in one line, for malformed text and for calls that contradict each other.
    """
    name, text = ("groups", source) if "=" in source else (source, _read_file(Path(source)))
    words = [word for line in text.splitlines() for word in line.partition("#")[0].split()]
    try:
        calls = [c for word in words for c in _read_kind(word, ranks, collective, size)]
        return check_calls(calls, ranks)
    except InputError as error:
        message = str(error).removeprefix("groups: ")
        raise InputError(f"{name}: {message}", parameter="groups") from None


def groups_of_mesh(
    mesh: Any, names: Sequence[str] | None, calls: Iterable[tuple[str, str, int]]
) -> tuple[JointCall, ...]:
    """Return the calls of the groups of a mesh.

    `mesh` holds ranks as nested lists, one level for each of `names`. Each of `calls` is the name
    of a dimension, a collective, and the bytes of a call: all groups of the dimension make it.
    """
    levels = list(names or ())
    shape, ranks = _measure_mesh(mesh, len(levels))
    strides = [1] * len(shape)
    for i in reversed(range(len(shape) - 1)):
        strides[i] = strides[i + 1] * shape[i + 1]
    out = []
    for kind, collective, size_bytes in calls:
        if kind not in levels:
            raise InputError(
                f"groups: the mesh has no dimension {kind!r:.60}; it has {', '.join(levels)}"
            )
        own = levels.index(kind)
        others = [range(1 if i == own else size) for i, size in enumerate(shape)]
        for place in product(*others):
            start = sum(i * stride for i, stride in zip(place, strides, strict=True))
            members = [ranks[start + i * strides[own]] for i in range(shape[own])]
            if len(members) > 1:
                out.append(
                    _make_call(kind, collective, members, size_bytes, Fraction(1), len(ranks))
                )
    return check_calls(out, max(ranks) + 1)


def check_calls(calls: Iterable[JointCall], ranks: int) -> tuple[JointCall, ...]:
    """Return the calls; raise InputError if there is none, or groups of one kind overlap."""
    listed = tuple(calls)
    if not listed:
        raise InputError(f"groups: no group with two ranks or more; {_SYNTAX}")
    taken: dict[str, set[int]] = {}
    for call in listed:
        members = call.collective.members
        if max(members) >= ranks:
            raise InputError(
                f"groups: {call.name} has rank {max(members)}; the topology has ranks 0 to "
                f"{ranks - 1}"
            )
        of_kind = taken.setdefault(call.kind, set())
        if twice := of_kind.intersection(members):
            raise InputError(
                f"groups: rank {min(twice)} is in two groups of kind {call.kind}, whose groups run "
                "at once; give one of them another kind"
            )
        of_kind.update(members)
    return listed


def choose_helpers(
    helpers: str | Sequence[int], calls: Iterable[JointCall], ranks: int
) -> list[int]:
    """Return the ranks that may help groups of which they are no members, ascending.

    `helpers` is "rest", "none", ranks in text ("2,3"), or ranks. Raise InputError for ranks that
    the topology does not have, a rank twice, and one that is a member of all groups.
    """
    if helpers == REST:
        return list(range(ranks))
    if helpers == NONE:
        return []
    chosen = _read_ranks(helpers, "helpers", ranks) if isinstance(helpers, str) else list(helpers)
    for rank in chosen:
        if not 0 <= rank < ranks:
            raise InputError(
                f"helpers: rank {rank}; the topology has ranks 0 to {ranks - 1}",
                parameter="helpers",
            )
        if chosen.count(rank) > 1:
            raise InputError(
                f"helpers: rank {rank} is listed twice; list it once", parameter="helpers"
            )
        if all(rank in call.collective.members for call in calls):
            raise InputError(
                f"helpers: rank {rank} is in every group, so there is none that it could help; "
                "leave it out",
                parameter="helpers",
            )
    return sorted(chosen)


def helpers_of(call: JointCall, helpers: Iterable[int]) -> list[int]:
    """Return those of `helpers` that may help a call: no members of its group, ascending.

    Groups of more than MAX_TERMINALS members are not helped: their cheapest trees are too hard to
    find.
    """
    if call.collective.ranks > MAX_TERMINALS:
        return []
    return sorted(set(helpers).difference(call.collective.members))


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
        if len(raw) > _MAX_FILE_BYTES:
            raise InputError(
                f"{path}: larger than {_MAX_FILE_BYTES >> 20} MiB; not a file of groups",
                parameter="groups",
            )
        return raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "not UTF-8 text"
        raise InputError(
            f"{str(path)!r:.200}: neither groups nor a file of them: {reason}; {_SYNTAX}",
            parameter="groups",
        ) from None


def _read_kind(word: str, ranks: int, collective: str | None, size: str) -> list[JointCall]:
    """Return the calls of one word, KIND[:COLLECTIVE[:BYTES[:WEIGHT]]]=RANKS|RANKS|..."""
    head, _, body = word.partition("=")
    kind, *more = head.split(":")
    if len(more) > 3 or not body or "=" in body:
        raise InputError(f"groups: {word!r:.100}; {_SYNTAX}")
    given = [*more, *[""] * (3 - len(more))]
    name = given[0] or collective
    if not name:
        raise InputError(
            f"groups: no collective is given for {kind}; write {kind}:allreduce=..., or name one "
            "for all groups"
        )
    weight = parse_positive(given[2] or 1)
    if weight is None:
        raise InputError(f"groups: {kind} has the weight {given[2]!r:.40}; expected more than 0")
    try:
        size_bytes = parse_size(given[1] or size)
    except InputError as error:
        raise InputError(f"groups: {kind}: {error}") from None
    return [
        _make_call(
            kind, name, _read_ranks(part, f"groups: {kind}", ranks), size_bytes, weight, ranks
        )
        for part in body.split("|")
    ]


def _make_call(
    kind: str, collective: str, listed: Sequence[int], size_bytes: int, weight: Fraction, ranks: int
) -> JointCall:
    """Return the call of one group; the first rank listed is the root, if there is one."""
    members = sorted(listed)
    spelled = f"{kind} {spell_ranks(listed)}"
    if len(members) < 2:
        raise InputError(f"groups: {spelled}: one rank alone; expected at least two in a group")
    if len(set(members)) < len(members):
        twice = next(rank for rank in members if members.count(rank) > 1)
        raise InputError(f"groups: {spelled}: rank {twice} is there twice; list it once")
    one = Collective.with_default_root(collective, len(members), members=members)
    if one.root is not None:
        one = replace(one, root=listed[0])
    if members == list(range(ranks)):
        one = replace(one, members=())
    return JointCall(kind, one, size_bytes, weight)


def _read_ranks(text: str, what: str, ranks: int) -> list[int]:
    """Return the ranks of a list such as "0,1" or "0-3,8"."""
    out: list[int] = []
    for word in text.split(","):
        first, dash, last = word.partition("-")
        ends = (first, last if dash else first)
        if not all(_RANK.fullmatch(end) for end in ends) or int(ends[0]) > int(ends[1]):
            raise InputError(
                f"{what}: {word!r:.40} is no rank; expected ranks such as 0,1 or 0-3",
                parameter=what.partition(":")[0],
            )
        if int(ends[1]) >= ranks:
            raise InputError(
                f"{what}: rank {ends[1]}; the topology has ranks 0 to {ranks - 1}",
                parameter=what.partition(":")[0],
            )
        out += range(int(ends[0]), int(ends[1]) + 1)
    return out


def _measure_mesh(mesh: Any, levels: int) -> tuple[list[int], list[int]]:
    """Return the shape of nested lists, and their ranks in order."""
    shape: list[int] = []
    flat = [mesh]
    for _ in range(levels):
        sizes = {len(part) if isinstance(part, (list, tuple)) else 0 for part in flat}
        if len(sizes) != 1 or 0 in sizes:
            raise InputError("groups: the mesh has rows of different lengths, or too few levels")
        shape.append(sizes.pop())
        flat = [item for part in flat for item in part]
    if not levels or any(not isinstance(rank, int) for rank in flat):
        raise InputError("groups: the mesh has no names for its dimensions, or too few")
    return shape, flat
