"""Degrade a topology: links lost or slower, GPUs gone; or keep some of its GPUs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ..errors import InputError
from ..exact import fraction_to_json, parse_fraction
from ..graph import Topology


@dataclass(frozen=True)
class Change:
    """Links and ranks for `degrade` to remove, and links whose bandwidth it multiplies by a factor.

    `without_links` has texts "A:B", and `scale_links` "A:B=FACTOR" with a factor of the bandwidth,
    where A and B are device ids or ranks before the change. A change applies to both directions,
    and to all parallel links between two devices. An empty Change is false.
    """

    without_links: tuple[str, ...] = ()
    without_ranks: tuple[int, ...] = ()
    scale_links: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.without_links or self.without_ranks or self.scale_links)


def degrade(topology: Topology, change: Change) -> Topology:
    """Return a topology with a change made to it; the GPUs left are ranks 0, 1, ... in their order.

    Raise InputError if a link or rank does not exist, a factor is not above 0, a link is changed
    twice, or no GPU is left.
    """
    factors: dict[frozenset[str], Fraction | None] = {}
    changes = []
    for text in change.without_links:
        ends = _parse_ends(text, topology, "without_links")
        factors[frozenset(ends)] = None
        changes.append(f"without {ends[0]}-{ends[1]}")
    gone = set()
    for rank in change.without_ranks:
        if not 0 <= rank < len(topology.ranks):
            raise InputError(
                f"rank {rank} to leave out: no such rank; {topology.name} has 0 to "
                f"{len(topology.ranks) - 1}",
                parameter="without_ranks",
            )
        gone.add(topology.ranks[rank])
        changes.append(f"without {topology.ranks[rank]}")
    if len(gone) == len(topology.ranks):
        raise InputError("no GPU is left; leave out fewer ranks", parameter="without_ranks")
    for text in change.scale_links:
        link, equals, factor = text.rpartition("=")
        if not equals:
            raise InputError(
                f"{text}: expected A:B=FACTOR, such as gpu0:gpu1=0.5", parameter="scale_links"
            )
        ends = _parse_ends(link, topology, "scale_links")
        if frozenset(ends) in factors or gone & {*ends}:
            lost = gone & {*ends} or factors[frozenset(ends)] is None
            raise InputError(
                f"{text}: this link {'is left out' if lost else 'has been given a factor already'};"
                " name each link once",
                parameter="scale_links",
            )
        factors[frozenset(ends)] = _parse_factor(factor, text)
        changes.append(f"{ends[0]}-{ends[1]} at {factor}")
    kept = (
        (x, factors.get(frozenset((x.src, x.dst)), Fraction(1)))
        for x in topology.links
        if not gone & {x.src, x.dst}
    )
    return replace(
        topology,
        name=f"{topology.name} ({', '.join(changes)})",
        devices=tuple(d for d in topology.devices if d.id not in gone),
        links=tuple(
            x if factor == 1 else replace(x, bandwidth_GBps=x.bandwidth_GBps * factor)
            for x, factor in kept
            if factor is not None
        ),
    )


def keep_gpus(topology: Topology, ranks: Sequence[int]) -> Topology:
    """Return the topology with only the GPUs `ranks`, and all devices that are no GPUs.

    The GPUs kept are ranks 0, 1, ... in the order that they had. Links of the other GPUs are gone.
    If the ranks are all there are, it is the same topology.
    """
    if len(ranks) == len(topology.ranks):
        return topology
    kept = {topology.ranks[rank] for rank in ranks}
    gone = set(topology.ranks) - kept
    return replace(
        topology,
        name=f"{topology.name}, GPUs {', '.join(map(str, ranks))}",
        devices=tuple(d for d in topology.devices if d.id not in gone),
        links=tuple(x for x in topology.links if not gone & {x.src, x.dst}),
    )


def move_root(root: int | None, machine: Topology, left: Topology) -> int | None:
    """Return the rank on `left` of the GPU that is rank `root` of `machine`.

    `left` is what `degrade` made of `machine`. Raise InputError if that GPU is gone. None, and a
    number that is no rank of `machine`, are returned unchanged; Collective (synth/ir/collective.py)
    refuses the latter.
    """
    if root is None or not 0 <= root < len(machine.ranks):
        return root
    gpu = machine.ranks[root]
    if gpu not in left.ranks:
        raise InputError(
            f"root {root}: {gpu} is left out; name a rank that stays (the root and the ranks left "
            "out both number the GPUs of the machine as given)",
            parameter="root",
        )
    return left.ranks.index(gpu)


def _parse_factor(text: str, whole: str) -> Fraction:
    try:
        factor = parse_fraction(text)
    except ValueError:
        raise InputError(
            f"{whole}: {text!r} is not a number; expected a factor such as 0.5",
            parameter="scale_links",
        ) from None
    if factor <= 0:
        raise InputError(
            f"{whole}: the factor is {fraction_to_json(factor)}; expected more than 0 (to lose the "
            "link, leave it out)",
            parameter="scale_links",
        )
    return factor


def _parse_ends(text: str, topology: Topology, parameter: str) -> tuple[str, str]:
    """Parse the two devices of "A:B"."""
    candidates = [
        (a, b)
        for colon in re.finditer(":", text)
        if (a := _find_device(text[: colon.start()], topology))
        and (b := _find_device(text[colon.end() :], topology))
    ]
    if not candidates:
        raise InputError(
            f"{text}: expected A:B with A and B devices of {topology.name} (or rank numbers), "
            f"such as {topology.links[0].src}:{topology.links[0].dst}"
            if topology.links
            else f"{text}: {topology.name} has no links",
            parameter=parameter,
        )
    # Ids may contain colons: if there are several ways to split, the one that names a link counts.
    for a, b in candidates:
        if (a, b) in topology.capacity_GBps or (b, a) in topology.capacity_GBps:
            return a, b
    a, b = candidates[0]
    raise InputError(
        f"{text}: {topology.name} has no link between {a} and {b}; {a} is linked to "
        f"{', '.join(topology.out_neighbours[a][:8])}",
        parameter=parameter,
    )


def _find_device(text: str, topology: Topology) -> str | None:
    if text in topology.by_id:
        return text
    if text.isdecimal() and len(text) < 7 and int(text) < len(topology.ranks):
        return topology.ranks[int(text)]
    return None
