"""Write a matrix as `nvidia-smi topo -m` prints it, for any topology."""

from __future__ import annotations

import re

from ...facts import Facts, keys, load_facts
from ...facts.keys import gpu_subject
from ...graph import Device, Topology
from ...matrix import LABELS, ConnectionFinder
from .parser import RANGES

_LEGEND = {
    "X": "Self",
    "SYS": "Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., "
    "QPI/UPI)",
    "NODE": "Connection traversing PCIe as well as the interconnect between PCIe Host Bridges "
    "within a NUMA node",
    "PHB": "Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)",
    "PXB": "Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)",
    "PIX": "Connection traversing at most a single PCIe bridge",
    "NV#": "Connection traversing a bonded set of # NVLinks",
}
_GPU_ID = re.compile(r"gpu(\d{1,6})")


def write(topology: Topology) -> str:
    """Write the topology as `nvidia-smi topo -m` prints a machine: labels, affinities, legends.

    GPUs have the numbers in their ids if all are `gpuN`, else their ranks. For routes without a
    label of nvidia-smi, topo/matrix.py has labels (XGMI#, LNK, SW, NET, DIS), which the legend
    explains. `read` restores the properties for which the format has room: writing the topology
    that it reads gives the same text.
    """
    connections, facts = ConnectionFinder(topology), load_facts(topology.extra, topology.name)
    names = {ident: f"GPU{rank}" for rank, ident in enumerate(topology.ranks)}
    if all(_GPU_ID.fullmatch(ident) for ident in names):
        names = {ident: ident.upper() for ident in names}
    nics = [device.id for device in topology.devices if device.kind == "nic"]
    names |= {nic: f"NIC{i}" for i, nic in enumerate(nics)}
    labels = {src: [connections.find(src, dst).label for dst in names] for src in names}
    lines = ["\t".join(("", *names.values(), "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"))]
    for ident, name in names.items():
        cells = [f" {label} " if label == "X" else label for label in labels[ident]]
        if ident not in nics:
            cells += _write_affinities(topology, connections, facts, topology.by_id[ident])
        lines.append("\t".join((name, *cells)))
    own = {re.sub(r"\d+$", "#", x) for row in labels.values() for x in row} - _LEGEND.keys()
    legend = _LEGEND | {x: f"{LABELS[x]} (a label of topoplan)" for x in LABELS if x in own}
    lines += ["", "Legend:", ""]
    lines += [f"  {label:4} = {meaning}" for label, meaning in legend.items()]
    if nics:
        lines += ["", "NIC Legend:", ""]
        lines += [f"  {names[nic]}: {' '.join(nic.split())}" for nic in nics]
    return "\n".join(lines) + "\n"


def _write_affinities(
    topology: Topology, connections: ConnectionFinder, facts: Facts, gpu: Device
) -> tuple[str, ...]:
    """Return a GPU's CPU affinity, NUMA affinity, an empty field, and its memory's NUMA node.

    nvidia-smi aligns the columns with the empty field.
    """
    match = _GPU_ID.fullmatch(gpu.id)
    subject = gpu_subject(match.group(1)) if match else ""
    cpu = _find_nearest_cpu(topology, connections, gpu)
    cpus = (
        facts.get_text(subject, keys.GPU_CPU_AFFINITY),
        gpu.extra.get("cpus"),
        cpu and cpu.extra.get("cpus"),
    )
    nodes = (
        facts.get_text(subject, keys.GPU_NUMA_NODE),
        gpu.numa_node,
        cpu and cpu.numa_node,
    )
    own_node = facts.get_text(subject, keys.GPU_OWN_NUMA_NODE)
    return _choose_first(cpus), _choose_first(nodes), "", _choose_first((own_node,))


def _choose_first(values: tuple[object, ...]) -> str:
    """Return the first value that is a number or a list of ranges, N/A if there is none."""
    texts = ("".join(str(value).split()) for value in values if value is not None)
    return next((text for text in texts if RANGES.fullmatch(text)), "N/A")


def _find_nearest_cpu(
    topology: Topology, connections: ConnectionFinder, gpu: Device
) -> Device | None:
    """Return the CPU that a GPU reaches over the fewest links, else the one of its NUMA node.

    None if there is neither.
    """
    cpus = [device for device in topology.devices if device.kind == "cpu"]
    lengths = {
        cpu.id: len(route)
        for cpu in cpus
        if (route := connections.route(gpu.id, cpu.id)) is not None
    }
    if lengths:
        return topology.by_id[min(lengths, key=lambda ident: lengths[ident])]
    same_node = (
        cpu for cpu in cpus if gpu.numa_node is not None and cpu.numa_node == gpu.numa_node
    )
    return next(same_node, None)
