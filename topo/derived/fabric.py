"""Find NVLink fabrics that span hosts: GPUs of one cluster and clique share NVSwitches.

The rule is NCCL's for MNNVL (the trays of an NVL72): two GPUs share a fabric if both are registered
with it, their cluster UUIDs are equal and not zero, and their clique numbers are equal.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..devices import Device, Link
from ..facts import Facts, keys
from ..facts.view import MachineView
from ..graph import Topology

# Fields of a GPU that correspond to the facts, for machines without facts.
CLUSTER, CLIQUE = str(keys.GPU_FABRIC_CLUSTER), str(keys.GPU_FABRIC_CLIQUE)
SOURCE = "NVML: equal cluster and clique of the GPUs' fabric"

# Clusters that are none: the UUID is missing or all zeros.
NO_CLUSTER = re.compile(r"[0-]*")


@dataclass(frozen=True, order=True)
class Fabric:
    """An NVLink fabric: the UUID of its cluster and the number of the clique."""

    cluster: str
    clique: str


def find_fabrics(topology: Topology, facts: Facts) -> Mapping[str, Fabric]:
    """Return the fabric of each GPU that is in one, for the GPUs of one host.

    The host's facts take precedence over the fields of the GPUs.
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
    """Return the id of the one NVSwitch device of each fabric that spans hosts."""
    hosts_in = Counter(f for fabrics in fabrics_of_hosts for f in dict.fromkeys(fabrics))
    shared = [fabric for fabric, hosts in hosts_in.items() if hosts > 1]
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
    """Move a host's links from GPUs of shared fabrics to the shared NVSwitches.

    Return the host's links after the move, and those of its NVSwitches that have no links left. Ids
    of shared switches begin with a slash, which no id of a host does.
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
