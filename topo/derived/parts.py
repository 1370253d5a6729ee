"""Take a machine of several hosts apart: each host as if it were alone, with the facts about it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..devices import Device
from ..facts.keys import split_host
from ..graph import Topology
from .fabric import CLIQUE, CLUSTER


@dataclass(frozen=True)
class Part:
    """One host of a machine: `id`, such as host0 (empty for a machine that is one host), and its topology alone."""

    id: str
    topology: Topology


def split_hosts(topology: Topology, label: str | None = None) -> tuple[Part, ...]:
    """Return the hosts of a topology, in the order of their first devices; the topology itself where it is one host's.

    Hosts are told by the ids of devices, `host0/gpu3`. A device of no host, but for networks, is in the part of each host
    that is linked to it: an NVSwitch of several hosts is each one's. GPUs that are linked to such a one say so in the fields
    of their fabric, unless they say something else already; where the switch itself names none, `label` (default: the
    topology's name) is the cluster. What cannot be told apart (a GPU of no host) is not split.
    """
    hosts = list(dict.fromkeys(split_host(d.id)[0] for d in topology.devices if d.kind == "gpu"))
    if len(hosts) < 2 or "" in hosts:
        return (Part("", topology),)
    all_hosts = dict.fromkeys([*hosts, *(host for d in topology.devices if (host := split_host(d.id)[0]))])
    common = {d.id for d in topology.devices if not split_host(d.id)[0] and d.family != "network"}
    seen_from: dict[str, dict[str, None]] = defaultdict(dict)
    for link in topology.links:
        for near, far in ((link.src, link.dst), (link.dst, link.src)):
            if far in common and near not in common:
                seen_from[far][split_host(near)[0]] = None
    shared = {
        ident for ident, seen in seen_from.items() if len(seen) > 1 and topology.by_id[ident].family == "nvswitch"
    }
    fabric_of = {
        near: {CLUSTER: fields.get(CLUSTER, label or topology.name), CLIQUE: fields.get(CLIQUE, far)}
        for link in topology.links
        for near, far in ((link.src, link.dst), (link.dst, link.src))
        if far in shared and (fields := topology.by_id[far].extra) is not None
    }
    return tuple(_cut_out(topology, host, {c for c in common if host in seen_from[c]}, fabric_of) for host in all_hosts)


def _cut_out(topology: Topology, host: str, common: set[str], fabric_of: Mapping[str, Mapping[str, Any]]) -> Part:
    """Return one host, its devices and facts under the names that they have there, with the devices in `common`."""
    old_ids = [d.id for d in topology.devices if split_host(d.id)[0] == host or d.id in common]
    new_id = {ident: split_host(ident)[1] for ident in old_ids}
    taken = {new_id[ident] for ident in old_ids if ident not in common}
    new_id |= {ident: f"{ident} of several hosts" for ident in common if ident in taken}
    devices = tuple(_rename(topology.by_id[old], new_id[old], fabric_of.get(old, {})) for old in old_ids)
    links = tuple(
        replace(x, src=new_id[x.src], dst=new_id[x.dst]) for x in topology.links if x.src in new_id and x.dst in new_id
    )
    name = next((str(n) for old in old_ids if (n := topology.by_id[old].extra.get("host")) is not None), None)
    extra: dict[str, Any] = {}
    notes, facts = topology.extra.get("notes"), topology.extra.get("facts")
    if isinstance(notes, (list, tuple)):
        about = f"{name}: " if name is not None else f"{host}/"
        extra["notes"] = [text.removeprefix(f"{name}: ") for text in map(str, notes) if text.startswith(about)]
    if isinstance(facts, list) and all(isinstance(fact, Mapping) for fact in facts):
        subjects = ((fact, split_host(str(fact.get("subject")))) for fact in facts)
        extra["facts"] = [{**fact, "subject": subject} for fact, (of, subject) in subjects if of == host]
    elif facts is not None:
        extra["facts"] = facts
    return Part(host, Topology(name or f"{topology.name} {host}", devices, links, topology.source, extra))


def _rename(device: Device, ident: str, fabric: Mapping[str, Any]) -> Device:
    """Return a device as its host alone has it."""
    own = {key: value for key, value in device.extra.items() if key != "host"}
    return replace(device, id=ident, extra={**fabric, **own} if device.kind == "gpu" else own)
