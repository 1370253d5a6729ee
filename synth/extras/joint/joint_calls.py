"""Groups that run collectives at the same time, as texts and files name them.

`tp:allreduce:64M=0,1|2,3 dp:allreduce:1G=0,2|1,3` are two kinds of groups with two groups each. A
kind is a name, and after colons its collective, the bytes of a call, and its weight; what is left
out is the default. Groups are separated by `|`, ranks by commas. A file has the same, over as many
lines as one likes; from `#` on, a line is a comment.

Helpers of a group are ranks outside it that relay, copy and add for it.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ....topo.errors import InputError
from ....topo.exact import parse_positive
from ....topo.files import read_file
from ....topo.graph import Topology
from ...groups.ranks import REST, check_ranks, parse_helpers, parse_ranks
from ...ir.collective import Collective, spell_ranks
from ...numeric.steiner import MAX_TERMINALS
from ...sizes import parse_size, show_size

ONE = Fraction(1)
# Bytes of a file: 4,096 groups of 64 ranks take 1.5 MB.
_MAX_FILE_BYTES = 1 << 24
# Largest weight, and largest denominator of one: shares of links are fractions with such
# denominators.
_MAX_WEIGHT = 10**6
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
    weight: Fraction = ONE

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
        """The call as text, kind and ranks: "tp 0,1"."""
        return f"{self.kind} {','.join(map(str, self.collective.members))}"

    def __str__(self) -> str:
        weight = "" if self.weight == 1 else f", weight {self.weight}"
        size = show_size(self.size_bytes)
        return f"{self.kind}: {self.collective} of {size}{weight}"


def read_calls(
    source: str, topology: Topology, collective: str | None, size: str
) -> tuple[JointCall, ...]:
    """Parse the calls that `source`, a text with "=" or the name of a file, states for a topology.

    `collective` and `size`, a text such as "64M", are for kinds that state none. Raise InputError,
    in one line, for malformed text and for calls that contradict each other.
    """
    name, text = ("groups", source) if "=" in source else (source, _read_file(Path(source)))
    words = [word for line in text.splitlines() for word in line.partition("#")[0].split()]
    try:
        calls = [call for word in words for call in _read_kind(word, collective, size)]
        return check_calls(calls, topology)
    except InputError as error:
        message = str(error).removeprefix("groups: ")
        raise InputError(f"{name}: {message}", parameter="groups") from None


def list_mesh_calls(
    mesh: Any, names: Sequence[str] | None, calls: Iterable[tuple[str, str, int]]
) -> tuple[JointCall, ...]:
    """Return the calls of all groups of a mesh's dimensions.

    `mesh` holds ranks as nested lists, one level for each of `names`. Each of `calls` is
    (dimension's name, collective, bytes of a call): all groups of the dimension make it, but those
    of one rank. Raise InputError if the names do not fit the mesh or the calls.
    """
    ranks, levels = np.array(mesh), list(names or ())
    if ranks.ndim != len(levels) or ranks.dtype.kind != "i":
        raise InputError(
            f"groups: the mesh has {ranks.ndim} dimensions and the names {', '.join(levels)}; "
            "expected a name for each dimension, and ranks"
        )
    out = []
    for kind, collective, size_bytes in calls:
        if kind not in levels:
            raise InputError(
                f"groups: the mesh has no dimension {kind!r:.60}; it has {', '.join(levels)}"
            )
        last = np.moveaxis(ranks, levels.index(kind), -1)
        rows = last.reshape(-1, last.shape[-1]).tolist()
        out += [_make_call(kind, collective, row, size_bytes) for row in rows if len(row) > 1]
    return tuple(out)


def check_calls(calls: Iterable[JointCall], topology: Topology) -> tuple[JointCall, ...]:
    """Return the calls, after checking that they fit the topology.

    A call of all ranks is returned with the collective of all GPUs (`has_all_gpus`). Raise
    InputError if there is no call, a rank does not exist, or groups of one kind overlap.
    """
    listed, ranks = list(calls), len(topology.ranks)
    if not listed:
        raise InputError(f"groups: no group with two ranks or more; {_SYNTAX}")
    taken: dict[str, set[int]] = {}
    for i, call in enumerate(listed):
        members = call.collective.members
        if members[-1] >= ranks:
            raise InputError(
                f"groups: {call.name}: rank {members[-1]}; {topology.name} has ranks 0 to "
                f"{ranks - 1}"
            )
        of_kind = taken.setdefault(call.kind, set())
        if twice := of_kind.intersection(members):
            raise InputError(
                f"groups: rank {min(twice)} is in two groups of kind {call.kind}, which run at "
                "once; give one of them another kind"
            )
        of_kind.update(members)
        if len(members) == ranks:
            listed[i] = replace(call, collective=replace(call.collective, members=()))
    return tuple(listed)


def choose_any_helpers(
    helpers: str | Sequence[int], calls: Iterable[JointCall], topology: Topology
) -> tuple[int, ...]:
    """Return the ranks that may help (relay for) groups of which they are not members, ascending.

    `helpers` is "rest" (all), "none", ranks in text ("2,3"), or ranks. Raise InputError for ranks
    that the topology does not have, a rank twice, and one that is a member of all groups.
    """
    named = parse_helpers(helpers) if isinstance(helpers, str) else helpers
    if isinstance(named, str):
        return tuple(range(len(topology.ranks))) if named == REST else ()
    chosen = check_ranks("helpers", named, topology)
    for rank in chosen:
        if all(rank in call.collective.members for call in calls):
            raise InputError(
                f"helpers: rank {rank} is in every group, so there is none that it could help; "
                "leave it out",
                parameter="helpers",
            )
    return chosen


def helpers_of(call: JointCall, helpers: Iterable[int]) -> list[int]:
    """Return those of `helpers` that may help a call: not members of its group, ascending.

    None may help groups of more than MAX_TERMINALS members, as their cheapest trees are too hard to
    find.
    """
    if call.collective.ranks > MAX_TERMINALS:
        return []
    return sorted(set(helpers).difference(call.collective.members))


def _read_file(path: Path) -> str:
    try:
        raw = read_file(path, _MAX_FILE_BYTES + 1)
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


def _read_kind(word: str, collective: str | None, size: str) -> list[JointCall]:
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
        _make_call(kind, name, parse_ranks(part, kind), size_bytes, weight)
        for part in body.split("|")
    ]


def _make_call(
    kind: str, collective: str, listed: Sequence[int], size_bytes: int, weight: Fraction = ONE
) -> JointCall:
    """Return the call of one group; the first rank listed is the root, if there is one."""
    members, spelled = sorted(listed), spell_ranks(listed)
    if len(members) < 2:
        raise InputError(f"groups: {kind} {spelled}: expected at least two ranks in a group")
    twice = [a for a, b in pairwise(members) if a == b]
    if twice:
        raise InputError(f"groups: {kind} {spelled}: rank {twice[0]} is there twice; list it once")
    one = Collective.with_default_root(collective, len(members), members=members)
    if one.root is not None:
        one = replace(one, root=listed[0])
    return JointCall(kind, one, size_bytes, weight)
