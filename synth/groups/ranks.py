"""The ranks of a group and of its helpers, as users name them.

A group is the GPUs of a machine, some or all, that make a call; they are the members of its
collective. Helpers are other GPUs that may relay, copy and add for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal

from ...topo.errors import InputError
from ..ir.collective import Collective

if TYPE_CHECKING:
    from ...topo.graph import Topology

# The GPUs that may help a group: all others, none, or these ranks.
Helpers = Literal["rest", "none"] | Sequence[int]
REST: Final = "rest"
NONE: Final = "none"


def parse_ranks(text: str, parameter: str) -> list[int]:
    """Return the ranks of a list such as "0,1" or "0-3,8", in their order; none of "".

    Raise InputError if it is no such list. `parameter` is what the error says is wrong, "group" or
    "helpers".
    """
    ranks: list[int] = []
    for part in text.split(",") if text.strip() else []:
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        ends = (first, last if dash else first)
        if not all(end.isdecimal() and len(end) < 7 for end in ends) or int(ends[0]) > int(ends[1]):
            named = "rest, none, or " if parameter == "helpers" else ""
            raise InputError(
                f"{parameter} {text!r:.60}: {part.strip()!r:.20} is no rank; expected {named}ranks "
                "with commas between them, such as 0,1 or 0-3",
                parameter=parameter,
            )
        ranks += range(int(ends[0]), int(ends[1]) + 1)
    return ranks


def parse_helpers(text: str) -> Helpers:
    """Return helpers from a text: "rest", "none", or a list as for `parse_ranks`."""
    if text == "rest":
        return "rest"
    return "none" if text == "none" else parse_ranks(text, "helpers")


def group_on(
    name: str, topology: Topology, members: Iterable[int], root: int | None = None
) -> Collective:
    """Return the collective `name` over some ranks of a topology, in any order.

    If they are all of its ranks, it is the collective over the whole machine. The root, if it needs
    one, is by default the lowest of them. Raise InputError if they are fewer than two, one is no
    rank or listed twice, or the root is not among them.
    """
    listed = check_ranks("group", members, topology)
    if len(listed) < 2:
        raise InputError(
            f"group: {'rank ' + str(listed[0]) + ' alone' if listed else 'no ranks'}; expected at "
            "least two ranks",
            parameter="group",
        )
    if len(listed) == len(topology.ranks):
        return Collective.with_default_root(name, len(listed), root)
    return Collective.with_default_root(name, len(listed), root, listed)


def choose_helpers(
    helpers: Helpers, collective: Collective, topology: Topology, *, reproducible: bool = False
) -> tuple[int, ...]:
    """Return the ranks that may help the members of a collective, ascending.

    A `reproducible` plan adds at members only: for it, "rest" is none. Raise InputError if a helper
    is no rank, a member, or listed twice, or if a reproducible plan is to have any.
    """
    if isinstance(helpers, str):
        if helpers not in (REST, NONE):
            raise InputError(
                f"helpers {helpers!r:.40}: expected rest, none, or ranks", parameter="helpers"
            )
        may_help = helpers == REST and not reproducible
        everyone = range(len(topology.ranks)) if may_help else ()
        return tuple(rank for rank in everyone if rank not in collective.members)
    listed = check_ranks("helpers", helpers, topology)
    if not listed:
        raise InputError("helpers: no ranks; expected rest, none, or ranks", parameter="helpers")
    if reproducible:
        raise InputError(
            "helpers: a reproducible plan adds at members only; expected none", parameter="helpers"
        )
    both = [rank for rank in listed if rank in collective.members]
    if both:
        raise InputError(
            f"helpers: rank {both[0]} is a member of {collective.spelled_ranks}; helpers are other "
            "ranks",
            parameter="helpers",
        )
    return listed


def check_ranks(parameter: str, ranks: Iterable[int], topology: Topology) -> tuple[int, ...]:
    """Return ranks of a topology in ascending order.

    Raise InputError if one is listed twice or does not exist; `parameter` names the list in it.
    """
    listed, last = list(ranks), len(topology.ranks) - 1
    for rank in listed:
        if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank <= last:
            raise InputError(
                f"{parameter}: no rank {rank!r:.40}; {topology.name} has ranks 0 to {last}",
                parameter=parameter,
            )
        if listed.count(rank) > 1:
            raise InputError(
                f"{parameter}: rank {rank} is listed {listed.count(rank)} times; list each rank "
                "once",
                parameter=parameter,
            )
    return tuple(sorted(listed))
