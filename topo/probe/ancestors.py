"""Infer the PCIe tree above GPUs from NVML if /sys lists no bridges, as in some containers.

NVML reports the common ancestor of each pair of GPUs, which is the label that nvidia-smi prints
(single is PIX, multiple PXB, and so on), and their affinities, which are the columns next to the
labels. The tree is inferred from both as from a printed matrix.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from ..devices import Device, Link, both_directions
from ..facts import Facts, keys
from ..facts.keys import gpu_subject, p2p_subject, pci_subject
from ..formats.smi.cells import read_cells
from ..formats.smi.facts import read_affinities
from ..formats.smi.inferred import InferredTopology
from ..formats.smi.parser import CPU, NUMA, LabelMatrix, MatrixRow
from ..formats.smi.pcie_tree import infer_pcie_tree
from ..hardware import LATENCY_us
from ..notes import assumed

SOURCE = "NVML's common ancestors and affinities"
NOTE = (
    "no PCI bridges are listed below /sys; GPUs are placed by NVML's common ancestors and NUMA "
    "affinities"
)
# NVML reports ancestors of pairs, so a single GPU has none.
_MIN_GPUS = 2
_LABELS: Mapping[str | None, str] = {
    "internal": "PIX",
    "single": "PIX",
    "multiple": "PXB",
    "hostbridge": "PHB",
    "node": "NODE",
    "system": "SYS",
}


@dataclass(frozen=True)
class AncestorTree:
    """The tree above the GPUs as NVML's answers imply it; empty if /sys lists the bridges.

    `parent` maps the id of a GPU or switch to that of the switch or CPU above it, `root` a GPU's id
    to its root complex. `cpus` are inferred too; methods replace them by the machine's own CPUs
    that the caller gives.
    """

    cpus: tuple[Device, ...] = ()
    switches: tuple[Device, ...] = ()
    parent: Mapping[str, str] = field(default_factory=dict)
    root: Mapping[str, str] = field(default_factory=dict)

    def find_parent(self, child: str, cpus: Sequence[Device]) -> str | None:
        """Return the id of the switch or CPU right above a GPU or switch, None if unknown.

        An inferred CPU is replaced by its match in `cpus`: the one of its NUMA node, else of its
        name, else the first.
        """
        parent = self.parent.get(child)
        cpu = next((cpu for cpu in self.cpus if cpu.id == parent), None)
        return parent if cpu is None else _match_cpu(cpu, cpus).id

    def find_cpu(self, gpu: str, cpus: Sequence[Device]) -> Device | None:
        """Return the CPU in `cpus` that is above a GPU, at any distance; None if unknown.

        An inferred CPU is replaced by its match in `cpus`: the one of its NUMA node, else of its
        name, else the first.
        """
        above = self._list_above(gpu)
        return next((_match_cpu(cpu, cpus) for cpu in self.cpus if cpu.id in above[-1:]), None)

    def link_switches(self, links: Sequence[Link], cpus: Sequence[Device]) -> Iterator[Link]:
        """Yield new links from each switch up to its parent, in both directions.

        `links` are those of the GPUs; each new link is as fast as the fastest of them below its
        switch. A switch without such links, or without a known parent, gets none.
        """
        for switch in self.switches:
            rates = [
                link.bandwidth_GBps for link in links if switch.id in self._list_above(link.src)
            ]
            parent = self.find_parent(switch.id, cpus)
            if rates and parent is not None:
                yield from both_directions(
                    Link(
                        switch.id,
                        parent,
                        max(rates),
                        LATENCY_us["pcie"],
                        "pcie",
                        source=assumed("as the GPUs below"),
                    )
                )

    def _list_above(self, ident: str) -> list[str]:
        above: list[str] = []
        while ident in self.parent:
            ident = self.parent[ident]
            above.append(ident)
        return above


def _match_cpu(known: Device, cpus: Sequence[Device]) -> Device:
    # The CPU of the same NUMA node, else the one with the same name, else the first.
    return next(
        (cpu for cpu in cpus if cpu.numa_node == known.numa_node and cpu.numa_node is not None),
        next((cpu for cpu in cpus if cpu.id == known.id), cpus[0]),
    )


def infer_tree(facts: Facts, index_at: Mapping[str, str]) -> AncestorTree:
    """Infer the tree above GPUs; `index_at` maps their PCI addresses to their NVML indices.

    It is empty for fewer than two GPUs, if /sys lists the bridges, and if NVML reports neither
    ancestors nor affinities.
    """
    indices = tuple(index_at.values())
    if len(indices) < _MIN_GPUS or any(
        facts.get_source(pci_subject(bus_id), keys.PCI_BRIDGES) is not None for bus_id in index_at
    ):
        return AncestorTree()
    labels = {
        (a, b): _LABELS[ancestor]
        for a, b in permutations(indices, 2)
        if (ancestor := facts.get_text(p2p_subject(a, b), keys.P2P_ANCESTOR)) in _LABELS
    }
    rows = {
        f"GPU{a}": MatrixRow(
            tuple("X" if a == b else labels.get((a, b)) for b in indices),
            {
                column: text
                for column, key in ((CPU, keys.GPU_CPU_AFFINITY), (NUMA, keys.GPU_NUMA_NODE))
                if (text := facts.get_text(gpu_subject(a), key)) is not None
            },
        )
        for a in indices
    }
    if not labels and not any(row.affinities for row in rows.values()):
        return AncestorTree()
    table = LabelMatrix(0, tuple(rows), (CPU, NUMA), None, rows)
    unprinted: list[str] = []  # notes on a printed matrix, of which there is none
    inferred = InferredTopology(
        read_cells(table, {}, unprinted), read_affinities(table, unprinted), SOURCE
    )
    infer_pcie_tree(inferred, SOURCE)
    return AncestorTree(
        tuple(d for d in inferred.devices if d.kind == "cpu"),
        tuple(d for d in inferred.devices if d.kind == "switch"),
        {link.src: link.dst for link in inferred.links[::2] if link.kind == "pcie"},
        {inferred.cells.ids[i]: root for i, root in inferred.root.items()},
    )
