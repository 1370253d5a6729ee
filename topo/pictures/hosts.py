"""Show identical hosts once: a rack of 18 trays becomes one tray and its count."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..facts.keys import split_host
from ..graph import Device, Topology

# Hosts: up to this many are shown even if they are identical.
_MAX_HOSTS = 4
# Key in a device's `extra` that holds its rank on the whole machine.
_RANK = "rank_of_whole"


@dataclass(frozen=True)
class ShownHosts:
    """The hosts to show; `left_out` counts the identical others, None if all are shown."""

    topology: Topology
    left_out: str | None


def show_hosts_once(topology: Topology) -> ShownHosts:
    """Return the machine with one host of each kind, if it has more than four and some are equal.

    Hosts are equal if they have the same devices in the same order, and the same links among these
    and to shared devices. Shared devices (networks, NVSwitches of a rack) stay if a shown host is
    linked to them.
    """
    members: dict[str, list[Device]] = defaultdict(list)
    for device in topology.devices:
        members[name_host(device)].append(device)
    common = {d.id: d for d in members.pop("", [])}
    # GPUs of no host would be left out together with the hosts' count, so then all is shown.
    if len(members) <= _MAX_HOSTS or any(d.kind == "gpu" for d in common.values()):
        return ShownHosts(topology, None)
    place = {d.id: (host, i) for host, of_host in members.items() for i, d in enumerate(of_host)}
    links: dict[str, Counter[tuple[object, ...]]] = {host: Counter() for host in members}
    joined_to: dict[str, set[str]] = {host: set() for host in members}
    for link in topology.links:
        for host in dict.fromkeys(place[end][0] for end in (link.src, link.dst) if end in place):
            ends = tuple(_describe_end(end, host, place, common) for end in (link.src, link.dst))
            described = (*ends, link.kind, link.count, link.bandwidth_GBps)
            links[host][described] += 1
            joined_to[host] |= {link.src, link.dst} & common.keys()
    kinds: dict[object, list[str]] = defaultdict(list)
    for host, of_host in members.items():
        kinds[tuple((d.kind, d.family) for d in of_host), frozenset(links[host].items())].append(
            host
        )
    if len(kinds) == len(members):
        return ShownHosts(topology, None)
    shown = [hosts[0] for hosts in kinds.values()]
    kept = {d.id for host in shown for d in members[host]} | {
        ident for host in shown for ident in joined_to[host]
    }
    ranks = {ident: i for i, ident in enumerate(topology.ranks)}
    devices = tuple(
        replace(d, extra={**d.extra, _RANK: ranks[d.id]}) if d.id in ranks else d
        for d in topology.devices
        if d.id in kept
    )
    of_kept = tuple(x for x in topology.links if x.src in kept and x.dst in kept)
    listed = ", ".join(_count_hosts(hosts, members) for hosts in kinds.values())
    return ShownHosts(
        replace(topology, devices=devices, links=of_kept), f"{len(members)} hosts: {listed}"
    )


def number_ranks(topology: Topology) -> dict[str, int]:
    """Return each GPU's rank on the whole machine, even if only some of its hosts are shown."""
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
    name = device.extra.get("host")
    return str(name) if name is not None else split_host(device.id)[0]


def _describe_end(
    ident: str, host: str, place: Mapping[str, tuple[str, int]], common: Mapping[str, Device]
) -> tuple[object, ...]:
    """Describe the end of a link as seen from a host: its own device, a shared or another one."""
    if ident in common:
        return "shared", common[ident].kind, common[ident].family
    return ("own", place[ident][1]) if place[ident][0] == host else ("other", place[ident][1])
