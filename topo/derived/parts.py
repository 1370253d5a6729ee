"""Split a machine of several hosts into one topology per host, each with its own facts."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..devices import Device, Link
from ..facts.keys import split_host
from ..graph import Topology
from ..notes import list_notes
from .fabric import CLIQUE, CLUSTER


@dataclass(frozen=True)
class Part:
    """One host of a machine.

    `id` is the host's prefix, such as host0 (empty if it is the only host); `topology` describes it
    alone.
    """

    id: str
    topology: Topology


def split_hosts(topology: Topology, label: str | None = None) -> tuple[Part, ...]:
    """Return the hosts of a topology in the order of their first devices.

    A host is the part of a device id before the slash: `host0/gpu3`. A device of no host, except a
    network, goes to every host linked to it, such as an NVSwitch of several hosts. GPUs linked to
    such a switch get its fabric fields unless they have their own; if the switch names no cluster,
    `label` (default: the topology's name) is the cluster. A machine of one host, or with a GPU of
    no host, is returned whole.
    """
    hosts = list(dict.fromkeys(split_host(d.id)[0] for d in topology.devices if d.kind == "gpu"))
    if len(hosts) < 2 or "" in hosts:
        return (Part("", topology),)
    common = {
        d.id: None for d in topology.devices if not split_host(d.id)[0] and d.family != "network"
    }
    ids_of: dict[str, list[str]] = {host: [] for host in hosts}
    links_of: dict[str, list[Link]] = defaultdict(list)
    for ident in topology.by_id:
        if host := split_host(ident)[0]:
            ids_of.setdefault(host, []).append(ident)
    for link in topology.links:
        ends = {split_host(end)[0] for end in (link.src, link.dst) if end not in common}
        if len(ends) == 1 and (host := ends.pop()):
            links_of[host].append(link)
    near_of = {
        host: {end for x in links_of[host] for end in (x.src, x.dst) if end in common}
        for host in ids_of
    }
    counts = Counter(ident for near in near_of.values() for ident in near)
    shared = {
        ident
        for ident, hosts_near in counts.items()
        if hosts_near > 1 and topology.by_id[ident].family == "nvswitch"
    }
    fabric_of = {
        near: {
            CLUSTER: fields.get(CLUSTER, label or topology.name),
            CLIQUE: fields.get(CLIQUE, far),
        }
        for link in topology.links
        for near, far in ((link.src, link.dst), (link.dst, link.src))
        if far in shared and (fields := topology.by_id[far].extra) is not None
    }
    facts_of = _split_facts(topology.extra, ids_of)
    parts: list[Part] = []
    for host, ids in ids_of.items():
        new_id = {ident: split_host(ident)[1] for ident in ids}
        taken = set(new_id.values())
        new_id |= {
            c: f"{c} of several hosts" if c in taken else c for c in common if c in near_of[host]
        }
        devices = tuple(
            _rename(topology.by_id[old], new, fabric_of.get(old, {})) for old, new in new_id.items()
        )
        links = tuple(replace(x, src=new_id[x.src], dst=new_id[x.dst]) for x in links_of[host])
        name = next(
            (str(n) for old in ids if (n := topology.by_id[old].extra.get("host")) is not None),
            None,
        )
        # the notes about a host begin with its name, or with the id of one of its devices
        about = f"{host}/" if name is None else f"{name}: "
        notes = [
            note.with_text(note.removeprefix(f"{name}: "))
            for note in list_notes(topology.extra)
            if note.startswith(about)
        ]
        extra = facts_of[host] | {"notes": notes}
        title = name or f"{topology.name} {host}"
        parts.append(Part(host, Topology(title, devices, links, topology.source, extra)))
    return tuple(parts)


def _split_facts(extra: Mapping[str, Any], hosts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the facts about each host under its own subjects; malformed ones go to every host."""
    facts = extra.get("facts")
    if facts is None:
        return {host: {} for host in hosts}
    if not isinstance(facts, list) or not all(isinstance(fact, Mapping) for fact in facts):
        return {host: {"facts": facts} for host in hosts}
    facts_of: dict[str, list[Any]] = {host: [] for host in hosts}
    for fact in facts:
        host, subject = split_host(str(fact.get("subject")))
        if host in facts_of:
            facts_of[host].append({**fact, "subject": subject})
    return {host: {"facts": of_host} for host, of_host in facts_of.items()}


def _rename(device: Device, ident: str, fabric: Mapping[str, Any]) -> Device:
    own = {key: value for key, value in device.extra.items() if key != "host"}
    return replace(device, id=ident, extra={**fabric, **own} if device.kind == "gpu" else own)
