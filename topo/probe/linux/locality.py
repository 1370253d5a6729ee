"""The NUMA node of PCI functions whose `numa_node` file says nothing: the one whose CPUs are local to them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ...facts import Fact, Facts
from .files import read_fact

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_MASK = re.compile(r"[0-9a-f]{1,8}(?:,[0-9a-f]{1,8})*", re.IGNORECASE)


def read_locality(root: Path, facts: Facts) -> Facts:
    """Facts `pci/BUS numa_node` for functions in `facts` without one, of the machine whose `/` is at `root`."""
    return Facts(tuple(_read(root, facts)))


def _read(root: Path, facts: Facts) -> Iterator[Fact]:
    numbered = [name for name in facts.names("numa") if name]
    nodes = {int(name): cpus_of_list(facts.text(f"numa/{name}", "cpus") or "") for name in numbered}
    for bus_id in facts.names("pci"):
        if facts.number(f"pci/{bus_id}", "numa_node") is not None:
            continue
        for file, read in (("local_cpulist", cpus_of_list), ("local_cpus", cpus_of_mask)):
            told = read_fact(root, root / "sys/bus/pci/devices" / bus_id / file, f"pci/{bus_id}", "numa_node")
            near = [node for node, cpus in nodes.items() if cpus & read(str(told.value or ""))]
            if len(near) == 1 and len(nodes) > 1:
                yield Fact(told.subject, told.key, near[0], told.source)
                break


def cpus_of_list(text: str) -> frozenset[int]:
    """CPU numbers of a list such as `0-19,40-59`; empty for anything else."""
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


def cpus_of_mask(text: str) -> frozenset[int]:
    """CPU numbers of a mask such as `0000,0000ffff`: groups of 32 bits, the highest first."""
    if not _MASK.fullmatch(text) or len(text) > 10**4:
        return frozenset()
    bits = int("".join(group.rjust(8, "0") for group in text.split(",")), 16)
    return frozenset(i for i in range(bits.bit_length()) if bits >> i & 1)
