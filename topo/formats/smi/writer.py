"""Write the matrix that `nvidia-smi topo -m` prints, for any topology."""

from __future__ import annotations

import re
from collections.abc import Iterator

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
    """Return the topology as `nvidia-smi topo -m` prints a machine: GPUs and NICs against each
    other, affinities, legends.

    GPUs are called by the numbers in their ids where all are `gpuN`, by their ranks otherwise. Connections
    that nvidia-smi has no label for (XGMI#, LNK, SW, NET, DIS) have those of topo/matrix.py, which
    the legend explains. `read` gets back as much as the format has room for: the text of what it
    reads is this text.
    """
    connections, facts = ConnectionFinder(topology), load_facts(topology.extra, topology.name)
    nics = [device for device in topology.devices if device.kind == "nic"]
    names = {**_name_gpus(topology), **{nic.id: f"NIC{i}" for i, nic in enumerate(nics)}}
    labels = {src: [connections.find(src, dst).label for dst in names] for src in names}
    lines = ["\t".join(("", *names.values(), "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"))]
    for ident, name in names.items():
        cells = (f" {label} " if label == "X" else label for label in labels[ident])
        lines.append(
            "\t".join((name, *cells, *_write_affinities(topology, connections, facts, ident)))
        )
    lines += [
        "",
        "Legend:",
        "",
        *_write_legend({label for row in labels.values() for label in row}),
    ]
    if nics:
        lines += [
            "",
            "NIC Legend:",
            "",
            *(f"  {names[nic.id]}: {' '.join(nic.id.split())}" for nic in nics),
        ]
    return "\n".join(lines) + "\n"


def _name_gpus(topology: Topology) -> dict[str, str]:
    """Return the name in the matrix of each GPU."""
    numbers = [_GPU_ID.fullmatch(ident) for ident in topology.ranks]
    if all(numbers):
        return {ident: ident.upper() for ident in topology.ranks}
    return {ident: f"GPU{rank}" for rank, ident in enumerate(topology.ranks)}


def _write_legend(labels: set[str]) -> Iterator[str]:
    """Yield the legend of nvidia-smi, then the other labels that occur."""
    for label, meaning in _LEGEND.items():
        yield f"  {label:4} = {meaning}"
    other_labels = {re.sub(r"\d+$", "#", label) for label in labels} - _LEGEND.keys()
    for label in (label for label in LABELS if label in other_labels):
        yield f"  {label:4} = {LABELS[label]} (a label of topoplan)"


def _write_affinities(
    topology: Topology, connections: ConnectionFinder, facts: Facts, ident: str
) -> tuple[str, ...]:
    """Return CPU affinity, NUMA affinity and the GPU's own NUMA node, with the empty fields that
    nvidia-smi aligns with.
    """
    device = topology.by_id[ident]
    if device.kind != "gpu":
        return ()
    match = _GPU_ID.fullmatch(ident)
    subject = gpu_subject(match.group(1)) if match else ""
    cpu = _find_nearest_cpu(topology, connections, device)
    cpu_node = None if cpu is None else cpu.numa_node
    affinities = (
        facts.get_text(subject, keys.GPU_CPU_AFFINITY),
        device.extra.get("cpus"),
        None if cpu is None else cpu.extra.get("cpus"),
    )
    nodes = (facts.get_text(subject, keys.GPU_NUMA_NODE), device.numa_node, cpu_node)
    gpu_node = facts.get_text(subject, keys.GPU_OWN_NUMA_NODE)
    return (_choose_first(affinities), _choose_first(nodes), "", _choose_first((gpu_node,)))


def _choose_first(values: tuple[object, ...]) -> str:
    """Return the first value that is a number or a list of ranges of numbers, else N/A."""
    texts = ("".join(str(text).split()) for text in values if text is not None)
    return next((text for text in texts if RANGES.fullmatch(text)), "N/A")


def _find_nearest_cpu(
    topology: Topology, connections: ConnectionFinder, gpu: Device
) -> Device | None:
    """Return the CPU that a GPU reaches with the fewest links; where it reaches none, the one of
    its NUMA node.
    """
    cpus = [device for device in topology.devices if device.kind == "cpu"]
    routes = (
        (route, cpu) for cpu in cpus if (route := connections.route(gpu.id, cpu.id)) is not None
    )
    near = min(
        ((len(route), n, cpu) for n, (route, cpu) in enumerate(routes)),
        default=None,
        key=lambda entry: entry[:2],
    )
    if near is not None:
        return near[2]
    return next(
        (cpu for cpu in cpus if cpu.numa_node is not None and cpu.numa_node == gpu.numa_node), None
    )
