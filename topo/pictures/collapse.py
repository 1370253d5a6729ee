"""Reduce a large machine to a part that can be shown, and describe the rest.

Only one of several identical hosts is shown: a rack of 18 trays becomes one tray and its count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..devices import Device
from ..facts.keys import split_host
from ..grouping import group_by_key

if TYPE_CHECKING:
    from ..graph import Topology

# Hosts: up to this many are shown even if they are identical.
_MAX_HOSTS = 4
# Key in a device's `extra` that holds its rank on the whole machine.
_RANK = "rank_of_whole"


@dataclass(frozen=True)
class ShownPart:
    """The part of a machine to show; `left_out` is a sentence on the rest, None if all is shown."""

    topology: Topology
    left_out: str | None


def show_hosts_once(topology: Topology) -> ShownPart:
    """Return the machine with one host of each kind, if it has more than four and some are equal.

    Hosts are equal if they have the same devices in the same order, and the same links among these
    and to shared devices. Shared devices (networks, NVSwitches of a rack) stay if a shown host is
    linked to them.
    """
    members = group_by_key((name_host(device), device) for device in topology.devices)
    common = {d.id: d for d in members.pop("", [])}
    # GPUs of no host would be left out together with the hosts' count, so then all is shown.
    if len(members) <= _MAX_HOSTS or any(d.kind == "gpu" for d in common.values()):
        return ShownPart(topology, None)
    place = {d.id: (host, i) for host, of_host in members.items() for i, d in enumerate(of_host)}
    links: dict[str, Counter[tuple[object, ...]]] = {host: Counter() for host in members}
    joined_to: dict[str, set[str]] = {host: set() for host in members}
    for link in topology.links:
        for host in dict.fromkeys(place[end][0] for end in (link.src, link.dst) if end in place):
            ends = tuple(_describe_end(end, host, place, common) for end in (link.src, link.dst))
            links[host][ends, link.kind, link.count, link.bandwidth_GBps] += 1
            joined_to[host] |= {link.src, link.dst} & common.keys()
    kinds = group_by_key(
        ((tuple((d.kind, d.family) for d in of_host), frozenset(links[host].items())), host)
        for host, of_host in members.items()
    )
    if len(kinds) == len(members):
        return ShownPart(topology, None)
    shown = [hosts[0] for hosts in kinds.values()]
    kept = {d.id for host in shown for d in members[host]}
    part = keep_devices(topology, kept.union(*(joined_to[host] for host in shown)))
    listed = ", ".join(_count_hosts(hosts, members) for hosts in kinds.values())
    return ShownPart(replace(part, name=topology.name), f"{len(members)} hosts: {listed}")


def keep_devices(topology: Topology, kept: set[str]) -> Topology:
    """Return the part with some devices; its GPUs have the ranks that they have on the whole."""
    ranks = {ident: i for i, ident in enumerate(topology.ranks)}
    return replace(
        topology,
        name=f"{topology.name}, a part",
        devices=tuple(
            replace(d, extra={**d.extra, _RANK: ranks[d.id]}) if d.id in ranks else d
            for d in topology.devices
            if d.id in kept
        ),
        links=tuple(x for x in topology.links if x.src in kept and x.dst in kept),
    )


def number_ranks(topology: Topology) -> dict[str, int]:
    """Return the rank of each GPU by its id: that on the whole machine.

    `topology` may be a part of it (`keep_devices`).
    """
    return {
        ident: topology.by_id[ident].extra.get(_RANK, i) for i, ident in enumerate(topology.ranks)
    }


def _count_hosts(hosts: list[str], members: Mapping[str, list[Device]]) -> str:
    gpus = sum(d.kind == "gpu" for d in members[hosts[0]])
    each = f"{gpus} GPU{'' if gpus == 1 else 's'}"
    return (
        f"{len(hosts)} like {hosts[0]} ({each} each)" if len(hosts) > 1 else f"{hosts[0]} ({each})"
    )


def name_host(device: Device) -> str:
    """Return the name of a device's host; empty if it has none, as on machines of one host."""
    host = device.extra.get("host")
    return split_host(device.id)[0] if host is None else str(host)


def _describe_end(
    ident: str, host: str, place: Mapping[str, tuple[str, int]], common: Mapping[str, Device]
) -> tuple[object, ...]:
    """Describe the end of a link as seen from a host: its own device, a shared or another one."""
    if ident in common:
        return "shared", common[ident].kind, common[ident].family
    return ("own", place[ident][1]) if place[ident][0] == host else ("other", place[ident][1])
