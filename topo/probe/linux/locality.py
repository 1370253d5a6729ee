"""Find the NUMA node of PCI functions whose `numa_node` file does not give it: the one of their
local CPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ...facts import Fact, Facts, keys
from ...facts.keys import NUMA, PCI, numa_subject, pci_subject
from .files import read_fact

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_MASK = re.compile(r"[0-9a-f]{1,8}(?:,[0-9a-f]{1,8})*", re.IGNORECASE)


def read_locality(root: Path, facts: Facts) -> Facts:
    """Return facts `pci/BUS numa_node` for functions in `facts` without one, of the machine whose
    `/` is at `root`.
    """
    return Facts(tuple(_find_nodes(root, facts)))


def _find_nodes(root: Path, facts: Facts) -> Iterator[Fact]:
    numbered = [name for name in facts.list_names(NUMA) if name]
    nodes = {
        int(name): parse_cpu_list(facts.get_text(numa_subject(name), keys.NUMA_CPUS) or "")
        for name in numbered
    }
    for bus_id in facts.list_names(PCI):
        if facts.get_number(pci_subject(bus_id), keys.PCI_NUMA_NODE) is not None:
            continue
        for file, read in (("local_cpulist", parse_cpu_list), ("local_cpus", parse_cpu_mask)):
            listed = read_fact(
                root,
                root / "sys/bus/pci/devices" / bus_id / file,
                pci_subject(bus_id),
                keys.PCI_NUMA_NODE,
            )
            near = [node for node, cpus in nodes.items() if cpus & read(str(listed.value or ""))]
            if len(near) == 1 and len(nodes) > 1:
                yield Fact(pci_subject(bus_id), keys.PCI_NUMA_NODE, near[0], listed.source)
                break


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return the CPU numbers of a list such as `0-19,40-59`; empty for anything else."""
    cpus: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            return frozenset()
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first > 10**5:
            return frozenset()
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def parse_cpu_mask(text: str) -> frozenset[int]:
    """Return the CPU numbers of a mask such as `0000,0000ffff`: groups of 32 bits, the highest
    first.
    """
    if not _MASK.fullmatch(text) or len(text) > 10**4:
        return frozenset()
    bits = int("".join(group.rjust(8, "0") for group in text.split(",")), 16)
    return frozenset(i for i in range(bits.bit_length()) if bits >> i & 1)
