"""Make a topology of a cluster: every host the same box, hosts behind network switches, rates where
no file gives any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import PurePath

from ...devices import Device, Link, both_ways
from ...errors import InputError
from ...graph import Topology
from ...hardware import LATENCY_us
from ...names import pick_unused_name
from ...notes import Note, assumed
from ...topology_file import MAX_DEVICES, MAX_LINKS
from .boxes import Box
from .cluster import Cluster

# A switch's way up is assumed to carry what the hosts below it send, divided by this: files do not
# say.
OVERSUBSCRIBED = 2
_SOURCE = assumed(f"1/{OVERSUBSCRIBED} of what the hosts below send")


def build(cluster: Cluster, box: Box) -> Topology:
    """Return the topology of a cluster whose hosts are all like `box`, ranks host by host in the
    file's order.

    A device `gpu3` of host node7 is `node7/gpu3`, and names its host. Hosts hang on their switch by
    the box's ways into the network. A link from a switch to one above it is assumed to carry half
    of what the hosts below send, at least what one host does. Raises InputError where that is
    larger than a topology may be.
    """
    inner, out = len(box.links), 2 * len(box.ways_out)
    devices = len(cluster.hosts) * len(box.devices) + len(cluster.above)
    links = len(cluster.hosts) * (inner + out) + 2 * sum(map(len, cluster.above.values()))
    if devices > MAX_DEVICES or links > MAX_LINKS:
        raise InputError(
            f"{cluster.where}: {len(cluster.hosts)} hosts, each {box.name}, are {devices} devices "
            f"and {links} links; more "
            f"than {MAX_DEVICES} and {MAX_LINKS} are refused: give the part of the cluster that "
            "the job runs on"
        )
    gpus: list[Device] = []
    others: list[Device] = []
    wires: list[Link] = []
    ids = _name_switches(cluster)
    for name, host in cluster.hosts.items():
        for device in box.devices:
            extra = {
                key: value for key, value in device.extra.items() if key not in ("box", "host")
            }
            own = replace(device, id=f"{name}/{device.id}", extra={**extra, "host": name})
            (gpus if device.kind == "gpu" else others).append(own)
        wires += [
            replace(link, src=f"{name}/{link.src}", dst=f"{name}/{link.dst}") for link in box.links
        ]
        for link in box.ways_out:
            wires += both_ways(replace(link, src=f"{name}/{link.src}", dst=ids[host.switch]))
    rates = _assume_rates(cluster, box.rate_GBps)
    for child, parents in cluster.above.items():
        for parent in parents:
            rate = rates[child] / len(parents)
            link = Link(
                ids[child], ids[parent], rate, LATENCY_us["network"], "network", source=_SOURCE
            )
            wires += both_ways(link)
    switches = [Device(ident, "switch", "network", source=cluster.what) for ident in ids.values()]
    notes = [*cluster.notes, *box.notes]
    if any(cluster.above.values()):
        text = (
            f"no file gives the links between switches: taken to carry 1/{OVERSUBSCRIBED} of the "
            "hosts' GB/s into the network"
        )
        notes.append(Note(text, "network-rate-assumed"))
    return Topology(
        PurePath(cluster.where).name,
        (*gpus, *others, *switches),
        tuple(wires),
        f"{cluster.what}; every host taken to be {box.name}",
        {"hosts": list(cluster.hosts), "notes": notes},
    )


def _name_switches(cluster: Cluster) -> Mapping[str, str]:
    """Return the id of each switch: its name, which no other device has, since theirs hold a
    slash.
    """
    ids: dict[str, str] = {}
    for name in cluster.above:
        ids[name] = pick_unused_name(name, ids.values())
    return ids


def _assume_rates(cluster: Cluster, host_GBps: Fraction) -> Mapping[str, Fraction]:
    """Return GB/s of each switch's way up, all links together."""
    hosts: dict[str, int] = dict.fromkeys(cluster.above, 0)
    for host in cluster.hosts.values():
        stack, seen = [host.switch], {host.switch}
        while stack:
            name = stack.pop()
            hosts[name] += 1
            above = [parent for parent in cluster.above[name] if parent not in seen]
            seen.update(above)
            stack += above
    return {
        name: host_GBps * max(Fraction(count, OVERSUBSCRIBED), Fraction(1))
        for name, count in hosts.items()
    }
