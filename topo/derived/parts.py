"""Split a machine of several hosts into one topology per host, and find fabrics that span hosts.

An NVLink fabric spans hosts if GPUs of one cluster and clique share NVSwitches. The rule is NCCL's
for MNNVL (the trays of an NVL72): two GPUs share a fabric if both are registered with it, their
cluster UUIDs are equal and not zero, and their clique numbers are equal.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..devices import Device, Link
from ..facts import Facts, keys
from ..facts.keys import split_host
from ..facts.view import MachineView
from ..graph import Topology
from ..notes import list_notes

# Fields of a GPU that correspond to the facts, for machines without facts.
CLUSTER, CLIQUE = str(keys.GPU_FABRIC_CLUSTER), str(keys.GPU_FABRIC_CLIQUE)
SOURCE = "NVML: equal cluster and clique of the GPUs' fabric"

# Clusters that are none: the UUID is missing or all zeros.
NO_CLUSTER = re.compile(r"[0-]*")


def split_hosts(topology: Topology, label: str | None = None) -> dict[str, Topology]:
    """Return a topology for each host of a machine, keyed by the prefix of the host's device ids.

    The prefix is what precedes the slash in `host0/gpu3`; in the result the device is `gpu3`. A
    device of no host, except a network, goes to every host linked to it, such as an NVSwitch of
    several hosts. GPUs linked to such a switch get its fabric's cluster and clique in `extra`
    unless they have their own; if the switch names no cluster, `label` (default: the topology's
    name) is the cluster. A machine of one host, or with a GPU of no host, is returned whole, with
    the key "".
    """
    hosts = list(dict.fromkeys(split_host(d.id)[0] for d in topology.devices if d.kind == "gpu"))
    if len(hosts) < 2 or "" in hosts:
        return {"": topology}
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
    parts: dict[str, Topology] = {}
    for host, ids in ids_of.items():
        new_id = {ident: split_host(ident)[1] for ident in ids}
        taken = set(new_id.values())
        new_id |= {
            c: f"{c} of several hosts" if c in taken else c for c in common if c in near_of[host]
        }
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
        parts[host] = Topology(
            name or f"{topology.name} {host}",
            tuple(
                _rename(topology.by_id[old], new, fabric_of.get(old, {}))
                for old, new in new_id.items()
            ),
            tuple(replace(x, src=new_id[x.src], dst=new_id[x.dst]) for x in links_of[host]),
            topology.source,
            facts_of[host] | {"notes": notes},
        )
    return parts


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


@dataclass(frozen=True, order=True)
class Fabric:
    """An NVLink fabric: the UUID of its cluster and the number of the clique."""

    cluster: str
    clique: str


def find_fabrics(topology: Topology, facts: Facts) -> Mapping[str, Fabric]:
    """Return the fabrics of one host's GPUs by GPU id; GPUs in no fabric are missing.

    `facts` is what was read from the host's driver; it takes precedence over the fields of the
    GPUs' devices in `topology`.
    """
    view = MachineView(topology, facts)
    fabrics: dict[str, Fabric] = {}
    for gpu in view.gpus:
        subject = view.find_subject(gpu.id)
        state = facts.get_text(subject, keys.GPU_FABRIC_STATE)
        cluster, clique = (
            facts.get_text(subject, key)
            for key in (keys.GPU_FABRIC_CLUSTER, keys.GPU_FABRIC_CLIQUE)
        )
        if state is None and {CLUSTER, CLIQUE} <= gpu.extra.keys():
            state, cluster, clique = "completed", str(gpu.extra[CLUSTER]), str(gpu.extra[CLIQUE])
        if state == "completed" and clique is not None and not NO_CLUSTER.fullmatch(cluster or ""):
            fabrics[gpu.id] = Fabric(str(cluster).lower(), clique)
    return fabrics


def name_shared_switches(fabrics_of_hosts: Iterable[Iterable[Fabric]]) -> Mapping[Fabric, str]:
    """Return an id (nvswitch0, ...) for the shared NVSwitch of each fabric on several hosts.

    `fabrics_of_hosts` has, for each host, the fabrics of its GPUs. Fabrics on one host are missing
    in the result.
    """
    hosts_in = Counter(f for fabrics in fabrics_of_hosts for f in dict.fromkeys(fabrics))
    shared = (fabric for fabric, hosts in hosts_in.items() if hosts > 1)
    return {fabric: f"nvswitch{number}" for number, fabric in enumerate(shared)}


def make_shared_switch(fabric: Fabric, ident: str, replaced: Iterable[Device]) -> Device:
    """Return the NVSwitch of a fabric that replaces the NVSwitches `replaced` of its hosts."""
    answers = {switch.in_network for switch in replaced}
    return Device(
        ident,
        "switch",
        "nvswitch",
        source=SOURCE,
        extra={CLUSTER: fabric.cluster, CLIQUE: fabric.clique},
        # if they differ, the shared switch's value is unknown
        in_network=answers.pop() if len(answers) == 1 else None,
    )


def move_links(
    topology: Topology, fabrics: Mapping[str, Fabric], switch_of: Mapping[Fabric, str]
) -> tuple[list[Link], list[Device]]:
    """Move the ends of a host's links from its own NVSwitches to those that it shares with others.

    `fabrics` is from `find_fabrics`, `switch_of` from `name_shared_switches`. Only links of GPUs in
    shared fabrics move. Return all of the host's links after the move, and its NVSwitches that have
    no links left. In these links the id of a shared switch begins with a slash, which no id of a
    host does.
    """
    moved: list[Link] = []
    freed: dict[str, None] = {}
    for link in topology.links:
        ends = [link.src, link.dst]
        for i, (near, far) in enumerate(((link.src, link.dst), (link.dst, link.src))):
            shared = switch_of.get(fabrics[near]) if near in fabrics else None
            if shared is not None and topology.by_id[far].family == "nvswitch":
                ends[1 - i] = f"/{shared}"
                freed[far] = None
        moved.append(
            link if ends == [link.src, link.dst] else replace(link, src=ends[0], dst=ends[1])
        )
    linked = {end for link in moved for end in (link.src, link.dst)}
    return moved, [topology.by_id[ident] for ident in freed if ident not in linked]
