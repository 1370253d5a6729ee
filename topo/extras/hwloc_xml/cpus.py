"""Read the CPUs of an hwloc file: a device for each NUMA node that has CPUs.

An object is an XML element for a part of the machine, such as a NUMA node, a socket or a PCI
device; HwlocMachine (objects.py) has those of one machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...formats.safe_xml import Element
from ...graph import Device
from ...notes import assumed
from .objects import HwlocMachine, format_cpu_list, parse_bits, read_infos, read_os_index

# Bounds the links between CPUs, all of which the package's reader joins pairwise.
MAX_NODES = 512
_ARCHITECTURES: Mapping[str, str] = {
    "x86_64": "x86_64",
    "aarch64": "arm64",
    "ppc64le": "ppc64",
    "ppc64": "ppc64",
}
_INFO_KEYS = {
    "vendor": "CPUVendor",
    "name": "CPUModel",
    "familyid": "CPUFamilyNumber",
    "modelid": "CPUModelNumber",
}


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node with CPUs and the device for them; bit i of `cpuset` is CPU i."""

    cpuset: int
    device: Device


@dataclass(eq=False)
class Cpus:
    """The NUMA nodes of one machine that have CPUs, in the order of their numbers."""

    nodes: list[NumaNode]
    _near: dict[Element, list[NumaNode]] = field(default_factory=dict)

    def find_near(self, element: Element) -> list[NumaNode]:
        """Return the nodes that share CPUs, else memory, with an object.

        They are all nodes if it has neither.
        """
        if element not in self._near:
            cpuset, nodeset = parse_bits(element, "cpuset"), parse_bits(element, "nodeset")
            self._near[element] = (
                [node for node in self.nodes if node.cpuset & cpuset]
                or [node for node in self.nodes if nodeset >> (node.device.numa_node or 0) & 1]
                or self.nodes
            )
        return self._near[element]

    @property
    def devices(self) -> list[Device]:
        """The device of each node."""
        return [node.device for node in self.nodes]


def read_cpus(machine: HwlocMachine) -> Cpus:
    """Return a device for each NUMA node with CPUs; one, cpu0, if the file lists no node.

    The latter is noted in `machine.notes`. Raise InputError for two nodes of one number, and for
    more than MAX_NODES.
    """
    extra = _read_model(machine)
    if not machine.numa:
        machine.notes.add(
            f"{machine.prefix}cpu0",
            "no NUMA node is listed; the machine is taken to have one socket",
        )
        cpu = Device(f"{machine.prefix}cpu0", "cpu", source=assumed(), extra=extra)
        return Cpus([NumaNode(-1, cpu)])
    nodes: list[NumaNode] = []
    for number, (element, cpuset) in sorted(_assign_cpus(machine).items()):
        # in version 1 of the format a package may be inside a NUMA node
        below = (inner for inner in element.walk() if inner.get("type") in ("Package", "Socket"))
        package = machine.numa[element] or next(below, None)
        own = {
            "cpus": format_cpu_list(cpuset) or None,
            "socket": read_os_index(package) if package is not None else None,
        }
        device = Device(
            f"{machine.prefix}cpu{number}",
            "cpu",
            numa_node=number,
            source="hwloc XML",
            extra=extra | {key: value for key, value in own.items() if value is not None},
        )
        nodes.append(NumaNode(cpuset, device))
    if len(nodes) > MAX_NODES:
        raise machine.element.make_error(
            f"has {len(nodes)} NUMA nodes with CPUs; more than {MAX_NODES} are refused"
        )
    return Cpus(nodes)


def _assign_cpus(machine: HwlocMachine) -> dict[int, tuple[Element, int]]:
    """Return each NUMA node with CPUs, and the bit mask of its CPUs, by number.

    hwloc gives memory without CPUs (of a GPU, high-bandwidth, CXL) the cpuset of the CPUs near it.
    A CPU belongs to one node only. If several list it, ordinary memory is preferred to memory with
    a subtype, then the smaller set, then the lower number.
    """
    numbered: dict[int, Element] = {}
    for element in machine.numa:
        number = read_os_index(element)
        number = len(numbered) if number is None else number
        if number in numbered:
            raise element.make_error(
                f"os_index={number}: another NUMA node has this number; expected one of its own"
            )
        numbered[number] = element
    sets = {number: parse_bits(element, "cpuset") for number, element in numbered.items()}
    if not any(sets.values()):
        return {number: (element, 0) for number, element in numbered.items()}
    taken, assigned = 0, {}
    for number in sorted(
        sets, key=lambda n: (bool(numbered[n].get("subtype")), sets[n].bit_count(), n)
    ):
        if own := sets[number] & ~taken:
            assigned[number] = numbered[number], own
            taken |= own
    return assigned


def _read_model(machine: HwlocMachine) -> dict[str, str]:
    """Return the model of a machine's CPUs, all of one model, by the keys of NCCL's XML."""
    of_packages = (infos for package in machine.packages if (infos := read_infos(package)))
    cpu_infos = {**machine.infos, **next(of_packages, {})}
    model = {word: cpu_infos[key] for word, key in _INFO_KEYS.items() if cpu_infos.get(key)}
    is_power = model.get("name", "").startswith("POWER")
    usual = "x86_64" if "vendor" in model else "ppc64" if is_power else None
    arch = _ARCHITECTURES.get(machine.infos.get("Architecture", ""), usual)
    return {"arch": arch, **model} if arch else model
