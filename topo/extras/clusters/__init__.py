"""Read clusters from the files of schedulers and clouds: hosts and the switches above them.

These files do not describe a host itself; the caller must give its topology, a box. Every host is
the same box behind network switches. Links between switches get assumed rates, since no file gives
any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import PurePath

from ...derived.hosts import NETWORK, group_by_host, join_hosts
from ...devices import Device, Link, both_directions
from ...errors import InputError
from ...graph import Topology
from ...hardware import LATENCY_us
from ...names import pick_unused_name
from ...notes import Note, assumed
from ...presets import find_entry, preset
from ...topology_file import MAX_DEVICES, MAX_LINKS
from . import layers, slurm_conf
from .cluster import Cluster

__all__ = ["CLUSTER_FORMATS", "Box", "ClusterFormat", "read_box", "read_cluster"]

# Characters at the start of a text in which its format is detected.
_SNIFF_CHARACTERS = 64 * 2**10
# Files do not give the rates of uplinks; one carries the rate of the hosts below, divided by this.
# Chosen, not measured.
OVERSUBSCRIBED = 2
_SOURCE = assumed(f"1/{OVERSUBSCRIBED} of what the hosts below send")


@dataclass(frozen=True)
class ClusterFormat:
    """A format of files that locate a cluster's hosts: `name` in messages, `starts` and `read`.

    `starts(text)` is true for a text in the format; it needs the whole text if `whole`, else the
    start of it. `read(text, where)` builds the cluster, without the devices of its hosts.
    """

    name: str
    starts: Callable[[str], object]
    read: Callable[[str, str], Cluster]
    whole: bool = False


def _read_yaml(text: str, where: str) -> Cluster:
    from .slurm_yaml import read  # PyYAML takes longer to import than everything else here

    return read(text, where)


# Formats that locate hosts, in the order in which they are tried.
CLUSTER_FORMATS = (
    ClusterFormat(layers.TOPOGRAPH, layers.TOPOGRAPH_START.match, layers.read_topograph),
    ClusterFormat(
        "kubectl get nodes -o json", layers.KUBERNETES_START.match, layers.read_kubernetes
    ),
    ClusterFormat(slurm_conf.CONF, slurm_conf.looks_like, slurm_conf.read_conf),
    ClusterFormat(slurm_conf.YAML, slurm_conf.YAML_START.match, _read_yaml),
    ClusterFormat(
        "a list of hosts (first line: host rack spine)",
        layers.looks_like_list,
        layers.read_list,
        True,
    ),
)


def read_cluster(text: str, where: str, box: Box | None) -> Topology | None:
    """Read the topology of a cluster whose hosts all have the devices and links of `box`.

    Return None for a text in another format. Raise InputError for a malformed file, for a missing
    box, and for a box given with another format. `where` names the file in errors.
    """
    start = text[:_SNIFF_CHARACTERS].lstrip("\ufeff \t\r\n")
    format = next(
        (form for form in CLUSTER_FORMATS if form.starts(text if form.whole else start)), None
    )
    if format is None:
        if box is None:
            return None
        raise InputError(
            f"{where}: a box is only for files that say where hosts are, and this is none; leave "
            "it out",
            parameter="box",
        )
    cluster = format.read(text.removeprefix("\ufeff"), where)
    if box is None:
        raise InputError(
            f"{where}: {cluster.what}, {len(cluster.hosts)} hosts: it says where they are, not "
            "what each is; give box='dgx-h100' (a preset or a file of one host), or first save the "
            "cluster with its box as JSON",
            parameter="box",
        )
    return _build(cluster, box)


@dataclass(frozen=True)
class Box:
    """The contents of one host, of which every host of a cluster is a copy.

    `uplinks` are its links into the network; their destination is a placeholder, for which the
    reader puts the host's switch. `name` is the preset or file it is from.
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    uplinks: tuple[Link, ...]
    notes: tuple[Note, ...] = ()


def read_box(argument: str, resolve: Callable[[str], Topology]) -> Box:
    """Read the contents of one host from a preset (`dgx-h100`) or a file; `argument` names it.

    `resolve` loads the topology that an argument names, if it is no preset of several hosts. Such a
    preset defines how each host is joined to the network. A host from a file is joined by its NICs
    of known speed; if there are none, the rate is assumed as in `join_hosts`. Raise InputError if
    the argument names anything but one host with GPUs.
    """
    name, at, rate = argument.partition("@")
    entry = find_entry(name)
    if entry is not None and entry.size == "boxes":
        boxes = preset(f"{name}:2{at}{rate}")
        first = {d.id: d for d in boxes.devices if d.extra.get("box") == 0}
        links = [link for link in boxes.links if link.src in first]
        networks = {d.id for d in boxes.devices if d.family == "network"}
        return Box(
            argument,
            tuple(first.values()),
            tuple(link for link in links if link.dst in first),
            tuple(link for link in links if link.dst in networks),
        )
    machine = resolve(argument)
    if not machine.ranks:
        raise InputError(
            f"{argument}: it has no GPU; a box is one host with its GPUs", parameter="box"
        )
    hosts = len(group_by_host([machine.by_id[gpu] for gpu in machine.ranks]))
    if hosts > 1 or NETWORK in machine.by_id:
        raise InputError(
            f"{argument}: {hosts} hosts; a box is one host with its GPUs, such as dgx-h100",
            parameter="box",
        )
    joined = join_hosts(
        [machine, machine], [(host, gpu) for host in (0, 1) for gpu in machine.ranks]
    )
    assumptions = [note for note in joined.notes if note.kind == "network-rate-assumed"][:1]
    return Box(
        argument,
        machine.devices,
        machine.links,
        tuple(
            replace(link, src=link.src.removeprefix("host0/"))
            for link in joined.links
            if link.dst == NETWORK and link.src.startswith("host0/")
        ),
        tuple(note.with_text(f"every host: {note.detail}") for note in assumptions),
    )


def _build(cluster: Cluster, box: Box) -> Topology:
    """Build the topology of a cluster in which each host is a `box`.

    Ranks follow the file's order, host by host. Device `gpu3` of host node7 is `node7/gpu3`, and
    its field `host` names the host. Hosts are connected to their switch by the box's links into the
    network. A link from a switch to one above it is assumed to carry half of the rate at which the
    hosts below can send, and at least the rate of one host. Raise InputError if the result is
    larger than a topology may be.
    """
    devices = len(cluster.hosts) * len(box.devices) + len(cluster.above)
    links = len(cluster.hosts) * (len(box.links) + 2 * len(box.uplinks)) + 2 * sum(
        map(len, cluster.above.values())
    )
    if devices > MAX_DEVICES or links > MAX_LINKS:
        raise InputError(
            f"{cluster.where}: {len(cluster.hosts)} hosts, each {box.name}, are {devices} devices "
            f"and {links} links; more than {MAX_DEVICES} and {MAX_LINKS} are refused: give the "
            "part of the cluster that the job runs on"
        )
    # a switch keeps its name: names of other devices contain a slash
    ids: dict[str, str] = {}
    for name in cluster.above:
        ids[name] = pick_unused_name(name, ids.values())
    gpus: list[Device] = []
    others: list[Device] = []
    wires: list[Link] = []
    for name, host in cluster.hosts.items():
        for device in box.devices:
            kept = {k: v for k, v in device.extra.items() if k not in ("box", "host")}
            own = replace(device, id=f"{name}/{device.id}", extra={**kept, "host": name})
            (gpus if device.kind == "gpu" else others).append(own)
        wires += [
            replace(link, src=f"{name}/{link.src}", dst=f"{name}/{link.dst}") for link in box.links
        ]
        for link in box.uplinks:
            wires += both_directions(replace(link, src=f"{name}/{link.src}", dst=ids[host.switch]))
    below = Counter(
        switch for host in cluster.hosts.values() for switch in cluster.find_above({host.switch})
    )
    host_GBps = sum((link.bandwidth_GBps for link in box.uplinks), Fraction(0))
    for child, parents in cluster.above.items():
        carried_GBps = host_GBps * max(Fraction(below[child], OVERSUBSCRIBED), Fraction(1))
        for parent in parents:
            wires += both_directions(
                Link(
                    ids[child],
                    ids[parent],
                    carried_GBps / len(parents),
                    LATENCY_us["network"],
                    "network",
                    source=_SOURCE,
                )
            )
    notes = [*cluster.notes, *box.notes]
    if any(cluster.above.values()):
        notes.append(
            Note(
                f"no file gives the links between switches: taken to carry 1/{OVERSUBSCRIBED} of "
                "the hosts' GB/s into the network",
                "network-rate-assumed",
            )
        )
    return Topology(
        PurePath(cluster.where).name,
        (
            *gpus,
            *others,
            *(Device(ident, "switch", "network", source=cluster.what) for ident in ids.values()),
        ),
        tuple(wires),
        f"{cluster.what}; every host taken to be {box.name}",
        {"hosts": list(cluster.hosts), "notes": notes},
    )
