"""The CPUs of an hwloc file: a device for each NUMA node that has CPUs, joined pairwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from ...graph import Device, Link, both_ways
from ...hardware import LATENCY_us, inter_cpu_GBps
from ..safe_xml import Element
from .objects import Machine, bits, infos, listed, os_index

MAX_NODES = 512
_ARCHITECTURES: Mapping[str, str] = {"x86_64": "x86_64", "aarch64": "arm64", "ppc64le": "ppc64", "ppc64": "ppc64"}
_WORDS = {"vendor": "CPUVendor", "name": "CPUModel", "familyid": "CPUFamilyNumber", "modelid": "CPUModelNumber"}


@dataclass(frozen=True)
class Node:
    """A NUMA node with CPUs (bits of `cpuset`), and the device that stands for it."""

    number: int | None
    cpuset: int
    device: Device


@dataclass(eq=False)
class Cpus:
    """The nodes of one machine that have CPUs, by number; `near` finds those that an object is close to."""

    nodes: list[Node]
    _near: dict[int, list[Node]] = field(default_factory=dict)

    def near(self, element: Element) -> list[Node]:
        """The nodes whose CPUs, or else whose memory, an object shares; all where it says nothing."""
        found = self._near.get(id(element))
        if found is None:
            cpuset, nodeset = bits(element, "cpuset"), bits(element, "nodeset")
            found = [node for node in self.nodes if node.cpuset & cpuset]
            found = found or [node for node in self.nodes if nodeset >> (node.number or 0) & 1] or self.nodes
            self._near[id(element)] = found
        return found

    @property
    def devices(self) -> list[Device]:
        """A device a node."""
        return [node.device for node in self.nodes]


def read_cpus(machine: Machine) -> Cpus:
    """A device for each NUMA node that has CPUs; one, cpu0, where the file lists no node."""
    extra = _model(machine)
    if not machine.numa:
        machine.notes.add(f"{machine.prefix}cpu0", "no NUMA node is listed; the machine is taken to have one socket")
        return Cpus([Node(None, -1, Device(f"{machine.prefix}cpu0", "cpu", source="assumed", extra=extra))])
    found: list[Node] = []
    for number, (element, cpuset) in sorted(_with_cpus(machine).items()):
        package = machine.package_of.get(id(element)) or _package_below(element)
        socket = os_index(package) if package is not None else None
        own = {"cpus": listed(cpuset) or None, "socket": socket}
        told = extra | {key: value for key, value in own.items() if value is not None}
        name = f"{machine.prefix}cpu{number}"
        found.append(Node(number, cpuset, Device(name, "cpu", numa_node=number, source="hwloc XML", extra=told)))
    if len(found) > MAX_NODES:
        raise machine.element.error(f"has {len(found)} NUMA nodes with CPUs; more than {MAX_NODES} are refused")
    return Cpus(found)


def _with_cpus(machine: Machine) -> dict[int, tuple[Element, int]]:
    """NUMA nodes and their CPUs by number, without those that are memory only.

    hwloc gives memory without CPUs (of a GPU, high-bandwidth, CXL) the cpuset of the CPUs that are near it. A CPU belongs to
    one node only: of several that list it to ordinary memory rather than to what has a subtype, to the smaller set, to
    the lower number.
    """
    numbered: dict[int, Element] = {}
    for element in machine.numa:
        number = os_index(element)
        number = len(numbered) if number is None else number
        if number in numbered:
            raise element.error(f"os_index={number}: another NUMA node has this number; expected one of its own")
        numbered[number] = element
    sets = {number: bits(element, "cpuset") for number, element in numbered.items()}
    if not any(sets.values()):
        return {number: (element, 0) for number, element in numbered.items()}
    taken, found = 0, {}
    for number in sorted(sets, key=lambda n: (bool(numbered[n].get("subtype")), sets[n].bit_count(), n)):
        if sets[number] & ~taken:
            found[number] = numbered[number], sets[number] & ~taken
            taken |= sets[number]
    return found


def _package_below(element: Element) -> Element | None:
    """The package in a NUMA node, as version 1 nests them."""
    return next((inner for inner in element.walk() if inner.get("type") in ("Package", "Socket")), None)


def _model(machine: Machine) -> dict[str, str]:
    """What the CPUs are, in the words of NCCL's XML; they are alike in one machine."""
    told = next((infos(package) for package in machine.packages if infos(package)), {})
    told = {**machine.infos, **told}
    found = {word: told[key] for word, key in _WORDS.items() if told.get(key)}
    arch = _ARCHITECTURES.get(machine.infos.get("Architecture", ""))
    if arch is None and "vendor" in found:
        arch = "x86_64"
    if arch is None and found.get("name", "").startswith("POWER"):
        arch = "ppc64"
    return {"arch": arch, **found} if arch else found


def between_cpus(cpus: Cpus) -> Iterator[Link]:
    """Links from each CPU to each other one of its machine, at the rate that NCCL counts."""
    model = cpus.nodes[0].device.extra
    family, number = (
        int(text) if (text := str(model.get(key))).isdecimal() else None for key in ("familyid", "modelid")
    )
    rate = inter_cpu_GBps(model.get("arch"), model.get("vendor"), family, number)
    known = model.get("arch") in ("arm64", "ppc64") or model.get("vendor") in ("GenuineIntel", "AuthenticAMD")
    source = "CPU model; rate as NCCL counts it" if known else "assumed: the CPU model is not known"
    for a, b in combinations(cpus.devices, 2):
        yield from both_ways(Link(a.id, b.id, rate, LATENCY_us["smp"], "smp", source=source))
