"""Hosts and NVLink domains into which groups of ranks fit, and what it costs to keep them there.

An NVLink domain is the GPUs that NVLink joins (on AMD's machines, those that xGMI joins). Groups
are those of a dimension of the job's mesh, such as the ranks of one tensor-parallel group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....topo.graph import Topology
from .exhaustive import MAX_LISTED, list_orders
from .improve import Improver
from .job import Ints, Job
from .kinds import need_of
from .loads import Search
from .tiers import Tier, divide_by_links

HOST = "host"
# Media of links inside a domain, with its name.
_MEDIA = {"nvlink": "NVLink domain", "xgmi": "xGMI domain"}
# Work of the search for an order that keeps a dimension's groups together, in seconds of an idle
# core.
_KEEP_S = 1.0


@dataclass(frozen=True)
class Domain:
    """A division of the machine's GPUs into hosts or NVLink domains, called `name` in messages.

    part_of[g] is the number of the part that holds GPU g.
    """

    name: str
    part_of: Ints

    def can_hold(self, size: int) -> bool:
        """Return whether groups of `size` ranks can fill all GPUs without dividing a group."""
        counts = np.bincount(self.part_of)
        return int((counts // size).sum()) * size == len(self.part_of)


@dataclass(frozen=True)
class Stay:
    """A dimension of the job whose groups of `size` ranks fit into one part of a `Domain` each.

    `domain` is the name of such a part in messages: "host", "NVLink domain" or "xGMI domain". In
    the order found, a group is spread over at most `parts` parts; `is_loud` says whether to warn of
    that. The best order tried that keeps every group in one part takes `together_s` seconds a
    training step, the best that does not `divided_s`; None if none was tried.
    """

    dimension: str
    size: int
    domain: str
    parts: int
    together_s: Fraction | None
    divided_s: Fraction | None
    is_loud: bool

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of topo-place (docs/place.md)."""
        return {
            "dimension": self.dimension,
            "size": self.size,
            "domain": self.domain,
            "most_domains": self.parts,
            "together_time_s": None if self.together_s is None else float(self.together_s),
            "divided_time_s": None if self.divided_s is None else float(self.divided_s),
        }


def find_domains(topology: Topology, gpus: Sequence[int], hosts: Sequence[Ints]) -> list[Domain]:
    """Return the machine's divisions into hosts and NVLink domains, the smallest parts first.

    `gpus` are numbers of the topology's ranks; hosts[h] are the indices in `gpus` of host h's.
    """
    domains = []
    at = {gpu: i for i, gpu in enumerate(gpus)}
    by_host = _label(len(gpus), hosts)
    for medium, name in _MEDIA.items():
        tier = divide_by_links(topology, gpus, medium)
        domain = Domain(name, _label(len(gpus), [[at[gpu] for gpu in part] for part in tier]))
        is_host = _is_within(domain.part_of, by_host) and _is_within(by_host, domain.part_of)
        # GPUs without such links are alone.
        if 1 < len(tier) < len(gpus) and not is_host:
            domains.append(domain)
    # In a rack with one NVLink domain, leaving a host costs nothing.
    if len(hosts) > 1 and not any(_is_within(by_host, domain.part_of) for domain in domains):
        domains.append(Domain(HOST, by_host))
    return domains


def _label(count: int, parts: Sequence[Sequence[int] | Ints]) -> Ints:
    part_of = np.zeros(count, dtype=np.int64)
    for number, part in enumerate(parts):
        part_of[part] = number
    return part_of


def _is_within(fine: Ints, coarse: Ints) -> bool:
    """Return whether each part of a division lies in one part of another."""
    return len(np.unique([fine, coarse], axis=1).T) == len(np.unique(fine))


def compare_domains(
    search: Search, tiers: Sequence[Tier], domains: Sequence[Domain], given: Ints
) -> list[Stay]:
    """Return each dimension whose groups fit into a domain, with the times together and divided.

    `search` has the best order found so far, and evaluates others; `tiers` are divisions of the
    GPUs; `given` is the order before placing. An order that keeps groups together becomes the
    search's best one if it is as good, but ranks do not leave `given` for that. The result is empty
    for a job of one group, for one without messages, and if the search found no allowed order.
    """
    stays = []
    if search.job.is_one_group or search.best[0] or not search.loads.phases:
        return []
    for name, size in search.job.dimensions:
        domain = next((domain for domain in domains if domain.can_hold(size)), None)
        if size == 1 or domain is None:
            continue
        groups = search.job.list_groups(name)
        together, divided = _list_best(search, groups, domain)
        if _count_parts(search.order, groups, domain) > 1:
            together = _keep(search, tiers, together, groups, domain)
        may_move = not np.array_equal(search.order, given)
        if together is not None and together[0] < search.best[1] + may_move:
            search.adopt(together[1])
        stays.append((name, size, domain, together, divided))
    parts_of = {
        name: _count_parts(search.order, search.job.list_groups(name), domain)
        for name, _, domain, *_ in stays
    }
    unit = search.loads.seconds_each
    return [
        Stay(
            name,
            size,
            domain.name,
            parts_of[name],
            together and together[0] * unit,
            divided and divided[0] * unit,
            parts_of[name] > 1
            and need_of(name) > 0
            and size * _fill(search.job, name, parts_of) <= max(np.bincount(domain.part_of)),
        )
        for name, size, domain, together, divided in stays
    ]


def _fill(job: Job, name: str, parts_of: Mapping[str, int]) -> int:
    """Return the ranks per domain of dimensions that need it more than `name`, and stay in it."""
    need = need_of(name)
    return prod(n for x, n in job.dimensions if parts_of.get(x) == 1 and need_of(x) > need)


def _count_parts(order: Ints, groups: Ints, domain: Domain) -> int:
    """Return in how many domains a group has ranks, at most."""
    return max(len(set(row)) for row in domain.part_of[order[groups]].tolist())


_Best = tuple[int, Ints] | None


def _list_best(search: Search, groups: Ints, domain: Domain) -> tuple[_Best, _Best]:
    """Return the best order tried that keeps groups in a domain, and the best that divides some.

    Each comes with its value.
    """
    best: list[_Best] = [None, None]
    for orders, values in _list_tried(search):
        parts = domain.part_of[orders[:, groups]]
        is_divided = (parts != parts[:, :, :1]).any(axis=(1, 2))
        for which in (0, 1):
            rows = np.flatnonzero(is_divided == which)
            if len(rows):
                row = rows[values[rows].argmin()]
                now = best[which]
                if now is None or values[row] < now[0]:
                    best[which] = int(values[row]), orders[row].copy()
    return best[0], best[1]


def _list_tried(search: Search) -> Iterator[tuple[Ints, NDArray[Any]]]:
    """Yield orders with their values: all of few ranks, else those with which the search began."""
    yield from search.starts
    few = list_orders(search) if search.job.ranks <= MAX_LISTED else iter(())
    for orders in chain([search.order[None, :]], few):
        apart, values, _ = search.evaluate(orders)
        yield orders[apart == 0], values[apart == 0]


def _keep(
    search: Search, tiers: Sequence[Tier], start: _Best, groups: Ints, domain: Domain
) -> _Best:
    """Return an improved order that keeps the groups in a domain each; None if none is found."""
    if search.job.ranks <= MAX_LISTED:
        return start
    inner = Search(
        search.loads,
        search.job,
        (*search.together, (groups, domain.part_of)),
        search.host_of,
        search.effort.grant(_KEEP_S),
        forwarded=search.forwarded,
    )
    first = search.order if start is None else start[1]
    inner.offer(first[None, :])
    Improver(inner, tiers, np.random.default_rng(1)).improve(first)
    return None if inner.best[0] else (inner.best[1], inner.order)
