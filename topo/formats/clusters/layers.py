"""Hosts with the switches above them, closest first: what topograph, Kubernetes labels and lists by
hand have in common.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from ...errors import InputError
from .cluster import Cluster, join_tops

# A host, the names of the switches above it from the closest on, and the place in the file.
Row = tuple[str, tuple[str, ...], str]


def add_rows(cluster: Cluster, rows: Iterable[Row], *, qualify: bool) -> None:
    """Add hosts with the switches above them, all hosts as many; one network is assumed above them
    all.

    With `qualify` switches of one name below different ones are different (labels name domains
    within domains). Without it that is refused, as a host named twice is.
    """
    seen: dict[tuple[int, str], tuple[tuple[str, ...], str]] = {}
    rows = list(rows)
    ids = _name_paths([path for _, path, _ in rows]) if qualify else {}
    for name, path, place in rows:
        for depth, switch in enumerate(path):
            rest = path[depth + 1 :]
            before, first = seen.setdefault((depth, switch), (rest, place))
            if before != rest and not qualify:
                one, other = (" and ".join(above) or "nothing" for above in (rest, before))
                raise InputError(
                    f"{place}: {switch} is below {one}, and below {other} at "
                    f"{first.removeprefix(cluster.where + ': ')}; give "
                    "different switches different names"
                )
        names = [ids.get(path[depth:], switch) for depth, switch in enumerate(path)]
        if len(set(names)) < len(names):
            raise InputError(
                f"{place}: host {name} is below one switch twice ({', '.join(names)}); name each "
                "tier apart"
            )
        for switch in names:
            cluster.add_switch(switch, place)
        for child, parent in pairwise(names):
            cluster.put_below(child, parent, place)
        cluster.add_host(name, names[0], place)
    join_tops(cluster, cluster.where)


def _name_paths(paths: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Return a name for each switch (it and what is above it): its own where that tells it apart,
    else with those above.
    """
    switches = dict.fromkeys(path[depth:] for path in paths for depth in range(len(path)))
    count: dict[str, int] = {}
    for path in switches:
        count[path[0]] = count.get(path[0], 0) + 1
    return {path: path[0] if count[path[0]] == 1 else ".".join(reversed(path)) for path in switches}


def drop_single_tiers(rows: list[Row]) -> list[Row]:
    """Return rows without tiers in which every host is alone, or that divide hosts as the tier
    before does.
    """
    depths = range(min((len(path) for _, path, _ in rows), default=0))
    kept: list[int] = []
    for depth in depths:
        parts = len({path[depth:] for _, path, _ in rows})
        before = len({path[kept[-1] :] for _, path, _ in rows}) if kept else len(rows)
        if parts < before:
            kept.append(depth)
    kept = kept or list(depths[-1:])
    return [(name, tuple(path[depth] for depth in kept), place) for name, path, place in rows]
