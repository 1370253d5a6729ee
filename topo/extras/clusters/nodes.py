"""The part of a cluster that a job runs on, by the list of hosts that Slurm gives it.

`select_nodes` is the option --nodes of topo-probe, topo-place and topo-judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...devices import Device
from ...errors import InputError, suggest
from ...graph import Topology
from ...grouping import group_by_key
from ...names import join_first
from .slurm_conf import expand_hostlist

# How messages name the list.
_WHERE = "the list of nodes"
# Hosts that a message names.
_MAX_NAMED = 4


def select_nodes(topology: Topology, text: str) -> Topology:
    """Return the hosts of a machine that a list names: `node[01-04,07],gpu-b[1,3]`.

    That is $SLURM_JOB_NODELIST. Ranks follow the list, as those of a job do. Network switches with
    nothing left to join are dropped. A host may have a domain that the list leaves out. Raise
    InputError for a malformed list, and for a node that is no host of the machine.
    """
    hosts = group_by_key(
        (host, device) for device in topology.devices if (host := _name_host(device)) is not None
    )
    if not hosts:
        raise InputError(
            f"{topology.name}: its devices have no hosts, of which {_WHERE} could name some; give "
            "a cluster's file with its box, or the files of several hosts"
        )
    short = group_by_key((host.partition(".")[0], host) for host in hosts)
    chosen: dict[str, None] = {}
    for name in expand_hostlist(text, _WHERE):
        found = [name] if name in hosts else short.get(name, [])
        if len(found) != 1:
            near = suggest(name, hosts) or f"; it has {join_first(hosts, _MAX_NAMED)}"
            raise InputError(f"{_WHERE}: {name} is no host of {topology.name}{near}")
        if found[0] in chosen:
            raise InputError(f"{_WHERE}: {name} is there twice; name each node once")
        chosen[found[0]] = None
    gpus = [d for host in chosen for d in hosts[host] if d.kind == "gpu"]
    if not gpus:
        raise InputError(f"{_WHERE}: no GPU on {join_first(chosen, _MAX_NAMED)}")
    others = [d for d in topology.devices if d.kind != "gpu" and _name_host(d) in (None, *chosen)]
    kept = _drop_idle_switches(topology, [*gpus, *others])
    ids = {device.id for device in kept}
    return replace(
        topology,
        name=f"{topology.name}, {len(chosen)} of {len(hosts)} hosts",
        devices=tuple(kept),
        links=tuple(x for x in topology.links if {x.src, x.dst} <= ids),
        extra={**topology.extra, "hosts": list(chosen)},
    )


def _name_host(device: Device) -> str | None:
    """Return the name of a device's host; None for a device between hosts."""
    host = device.extra.get("host", device.extra.get("box"))
    return None if host is None else str(host)


def _drop_idle_switches(topology: Topology, kept: Sequence[Device]) -> list[Device]:
    """Return devices without the network switches that join fewer than two hosts or switches."""
    left = {device.id: device for device in kept}
    while True:
        near: dict[str, set[str]] = {ident: set() for ident in left}
        for link in topology.links:
            if link.src in left and link.dst in left:
                near[link.src].add(_name_host(left[link.dst]) or link.dst)
                near[link.dst].add(_name_host(left[link.src]) or link.src)
        idle = [
            ident for ident, d in left.items() if d.family == "network" and len(near[ident]) < 2
        ]
        if not idle:
            return list(left.values())
        for ident in idle:
            del left[ident]
