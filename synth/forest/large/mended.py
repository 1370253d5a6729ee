"""The machine that a damaged one would be: every link as fast as most links of its role are.

What is best there, and which bound holds there, is a good start for the damaged machine: its own
best plan mostly differs a little only, and no schedule is faster on it than on the mended one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

from ....topo.graph import Link, Topology


def mend(topology: Topology) -> Topology | None:
    """Return the machine with links that are slower than most of their role at the usual bandwidth;
    None if there are none.

    Links of one role join devices of the same kinds with as many lanes of the same medium.
    """

    def name_role(link: Link) -> tuple[object, ...]:
        """Return what links of one role have in common."""
        ends = (
            (d.kind, d.family, d.can_reduce, d.can_copy)
            for d in (topology.by_id[link.src], topology.by_id[link.dst])
        )
        return (link.kind, link.count, *ends)

    rates: dict[tuple[object, ...], Counter[Fraction]] = {}
    for link in topology.links:
        rates.setdefault(name_role(link), Counter())[link.bandwidth_GBps] += 1
    usual = {}
    for role, seen in rates.items():
        rate, times = seen.most_common(1)[0]
        if 2 * times > seen.total():
            usual[role] = rate
    links = []
    for link in topology.links:
        rate = usual.get(name_role(link), link.bandwidth_GBps)
        links.append(replace(link, bandwidth_GBps=rate) if rate > link.bandwidth_GBps else link)
    if all(a is b for a, b in zip(links, topology.links, strict=True)):
        return None
    return replace(topology, name=f"{topology.name}, mended", links=tuple(links))
