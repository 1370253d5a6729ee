"""Reading hwloc's XML (`lstopo --of xml`), versions 1, 2 and 3: CPUs, the PCI tree, GPUs, NICs, NVLink and xGMI.

PCI links and those between CPUs are counted as other readers count them; NVLink and xGMI links have the rates that
the file says. What a file leaves in doubt is listed, a line each, in the topology's `extra["notes"]`; what it says
beside the topology is in `extra["facts"]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from ...errors import InputError
from ...facts import facts_to_json
from ...graph import Device, Link, Topology, both_ways
from ...hardware import LATENCY_us, PCIE_GTps
from ...probe.pcie import Slot
from ..notes import Notes
from ..safe_xml import Element, parse_xml
from .bandwidth_matrices import Matrix, Wiring, read_matrices
from .cpus import MAX_NODES, Cpus, between_cpus, read_cpus
from .facts import port_state, read_facts, uuid
from .objects import Function, Machine, bus_id, gp_index, machines, pci_ids
from .pci import SOURCE, Gpu, Nic, find_gpus, find_nics, find_nvswitches, tree

_VERSION = re.compile(r"([1-9][0-9]?)(\.[0-9]{1,4})?")
_KNOWN_VERSIONS = (1, 2, 3)
_KEPT_OF_NICS = re.compile(r"Address|NodeGUID|SysImageGUID|Port|Port[0-9]{1,3}(State|LID|LMC)")
_LINK_TOOLS = "hwloc writes NVLinks only where it was built with NVML"


def read(text: str, where: str) -> Topology:
    """The machine that the XML in `text` describes; `where` names the file, in errors and as the topology's name.

    Ranks are the GPUs in the order of NVML, ROCm SMI or CUDA, else of their addresses; a machine without any is shown as
    it is. Raises InputError where the text is no such XML, is cut off, or holds a number that is none.
    """
    root = parse_xml(text, where, doctype=True)
    if root.tag != "topology":
        raise root.error("is not hwloc's XML; expected <topology> as the outermost element")
    notes = Notes()
    told, version = _version(root, notes)
    found = machines(root, version, notes)
    if len(found) > 1:
        notes.add(f"{len(found)} machines", "in one file, which does not say what joins them; they stand apart")
    readers: list[_Reader] = []
    nodes = 0
    for machine in found:
        readers.append(_Reader(root, machine, whole=len(found) == 1))
        nodes += len(readers[-1].cpus.nodes)
        if nodes > MAX_NODES:
            raise machine.element.error(f"is one of machines with more than {MAX_NODES} NUMA nodes; these are refused")
    devices = [device for reader in readers for device in reader.devices()]
    devices.sort(key=lambda device: device.kind != "gpu")
    if not any(device.kind == "gpu" for device in devices):
        notes.add("no GPUs", "the file lists none, so there is nothing to plan for")
    extra: dict[str, Any] = {"notes": notes.lines()} if notes.lines() else {}
    if len(found) == 1:
        extra["facts"] = readers[0].facts()
    try:
        return Topology(
            name=PurePath(where).stem or where,
            devices=tuple(devices),
            links=tuple(link for reader in readers for link in reader.links),
            source=f"hwloc XML, version {told}",
            extra=extra,
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _version(root: Element, notes: Notes) -> tuple[str, int]:
    """The version as written (1 where it is not) and the number it is read as."""
    told = root.get("version") or "1"
    match = _VERSION.fullmatch(told)
    if match is None:
        raise root.error(f"version={told[:40]!r}: expected one such as 2.0")
    number = int(match.group(1))
    if number not in _KNOWN_VERSIONS:
        notes.add("topology", f"version {told} is not known; read as version {_KNOWN_VERSIONS[-1]}")
    return told, min(number, _KNOWN_VERSIONS[-1])


class _Reader:
    """Gathers the devices and links of one machine, the parts one after the other."""

    def __init__(self, root: Element, machine: Machine, whole: bool) -> None:
        self.machine, self.notes = machine, machine.notes
        self.cpus: Cpus = read_cpus(machine)
        self.gpus: list[Gpu] = find_gpus(machine)
        self.nics = self._named(find_nics(machine))
        matrices = read_matrices(root, machine) if whole else {}
        nvswitches = self._nvswitches(matrices)
        self.pcie: list[Device] = []
        self.links: list[Link] = []
        self._hang(tree(machine, self.gpus, list(self.nics.values())))
        self.links += between_cpus(self.cpus)
        gpu_by_gp = {gp: gpu for gpu in self.gpus for gp in _numbers(gpu.function)}
        self.links += Wiring(machine, self.cpus, self.gpus, gpu_by_gp, nvswitches).join(matrices)
        self.nvswitches = list(nvswitches.values())

    def devices(self) -> Iterator[Device]:
        """GPUs, CPUs, PCIe switches, NICs, NVSwitches."""
        yield from (self._gpu(gpu) for gpu in self.gpus)
        yield from self.cpus.devices
        yield from self.pcie
        yield from (self._nic(name, nic) for name, nic in self.nics.items())
        yield from self.nvswitches

    def facts(self) -> list[dict[str, Any]]:
        """What the file says of the machine, as facts in JSON."""
        functions = [gpu.function for gpu in self.gpus] + [nic.function for nic in self.nics.values()]
        nodes = {f.bus_id: node for f in functions if f.bus_id and (node := self._node(f)) is not None}
        return facts_to_json(read_facts(self.machine, self.cpus, self.gpus, list(self.nics.values()), nodes))

    # -- where things are ----------------------------------------------------------------------------------------

    def _node(self, function: Function) -> int | None:
        """The NUMA node of a function, None where the file does not tell one."""
        near = self.cpus.near(function.near)
        return near[0].number if len(near) == 1 else None

    def _cpu(self, function: Function, name: str) -> Device:
        near = self.cpus.near(function.near)
        if len(near) > 1:
            several = "" if len(near) == len(self.cpus.nodes) else f" than one of {len(near)}"
            self.notes.add(name, f"NUMA node not known nearer{several}; taken to hang on {near[0].device.id}")
        return near[0].device

    def _hang(self, slots: list[Slot]) -> None:
        """The switches and the links of the PCI tree."""
        names: dict[str, list[str]] = {gpu.key: [gpu.id] for gpu in self.gpus}
        functions: dict[str, Function] = {gpu.key: gpu.function for gpu in self.gpus}
        for name, nic in self.nics.items():
            names.setdefault(nic.function.bus_id or "", []).append(name)
            functions.setdefault(nic.function.bus_id or "", nic.function)
        bridges = {bus_id(bridge): bridge for f in functions.values() for bridge in f.bridges}
        leaf_of = {slot.top: slot.bus_id for slot in reversed(slots) if not slot.is_switch}
        cpu_of = {top: self._cpu(functions[leaf], names[leaf][0]) for top, leaf in leaf_of.items()}
        for slot in slots:
            cpu, switch = cpu_of[slot.top], f"{self.machine.prefix}pci-{slot.bus_id}"
            for note in slot.notes:
                about, _, doubt = note.partition(" ")
                self.notes.add(about, doubt)
            parent = cpu.id if slot.parent is None else f"{self.machine.prefix}pci-{slot.parent}"
            for child in [switch] if slot.is_switch else names[slot.bus_id]:
                self.links += both_ways(self._pcie(child, parent, slot))
            if slot.is_switch:
                extra = {"pci": _pci(pci_ids(bridges[slot.bus_id]))}
                node = cpu.numa_node
                self.pcie.append(Device(switch, "switch", "pcie", False, False, node, slot.bus_id, SOURCE, extra))
        _note_shared_ports(self.notes, names)

    def _pcie(self, child: str, parent: str, slot: Slot) -> Link:
        link = slot.link
        told = f"{float(PCIE_GTps[link.generation]):g} GT/s x{link.width}"
        source = "hwloc XML, pci_link_speed"
        if link.assumed:
            source = "assumed: hwloc gives no PCIe speed"
            self.notes.add(child, "no pci_link_speed on its way up; taken as PCIe Gen3 x16, as NCCL does")
        extra = {"declared": told}
        return Link(child, parent, link.bandwidth_GBps, LATENCY_us["pcie"], "pcie", source=source, extra=extra)

    # -- devices -------------------------------------------------------------------------------------------------

    def _gpu(self, gpu: Gpu) -> Device:
        function = gpu.function
        extra: dict[str, Any] = {"name": gpu.told.get("GPUModel"), "uuid": uuid(gpu), "osdevs": list(gpu.names)}
        extra |= {"pci": _pci(function.ids), "root": function.root}
        extra = {key: value for key, value in extra.items() if value}
        return Device(gpu.id, numa_node=self._node(function), bus_id=function.bus_id, source=SOURCE, extra=extra)

    def _named(self, nics: list[Nic]) -> dict[str, Nic]:
        """The cards by the ids of their devices; of equal names the later get a number."""
        taken = {device.id for device in self.cpus.devices} | {gpu.id for gpu in self.gpus}
        found: dict[str, Nic] = {}
        for nic in nics:
            name, copy = self.machine.prefix + nic.name, 2
            while name in found or name in taken:
                name, copy = f"{self.machine.prefix}{nic.name}#{copy}", copy + 1
            found[name] = nic
            self.notes.add(name, "speed of the network not known: hwloc does not write it")
        return found

    def _nic(self, name: str, nic: Nic) -> Device:
        state, _ = port_state(nic.told)
        extra: dict[str, Any] = {key: value for key, value in nic.told.items() if _KEPT_OF_NICS.fullmatch(key)}
        extra |= {"state": state, "interfaces": list(nic.interfaces)}
        extra |= {"pci": _pci(nic.function.ids), "root": nic.function.root}
        return Device(
            name,
            "nic",
            numa_node=self._node(nic.function),
            bus_id=nic.function.bus_id,
            source=SOURCE,
            extra={key: value for key, value in extra.items() if value},
        )

    def _nvswitches(self, matrices: Mapping[str, Matrix]) -> dict[int, Device]:
        """The NVSwitches to which a matrix has links, by gp_index, in the order of their addresses."""
        matrix = matrices.get("NVLinkBandwidth")
        linked = {matrix.objects[i] for pair in matrix.values for i in pair} if matrix else set()
        there = find_nvswitches(self.machine)
        found: dict[int, Device] = {}
        for function in there:
            number = gp_index(function.element)
            if number is None or number not in linked:
                continue
            name = f"{self.machine.prefix}nvswitch{len(found)}"
            extra = {"pci": _pci(function.ids)} if function.ids else {}
            node = self._node(function)
            found[number] = Device(name, "switch", "nvswitch", False, False, node, function.bus_id, SOURCE, extra)
        if there and not found:
            self.notes.add(f"{len(there)} NVSwitches", f"the file has no links to them ({_LINK_TOOLS}); left out")
        return found


def _pci(ids: Mapping[str, str]) -> dict[str, str]:
    """What is kept of a PCI function's ids beside the facts, in the words of NCCL's XML."""
    return {key: ids[key] for key in ("class", "vendor", "device") if key in ids}


def _numbers(function: Function) -> Iterator[int]:
    """The numbers by which matrices may name what is on a PCI function."""
    for element in (function.element, *function.osdevs):
        if (number := gp_index(element)) is not None:
            yield number


def _note_shared_ports(notes: Notes, names: Mapping[str, list[str]]) -> None:
    for shared in names.values():
        if len(shared) > 1:
            notes.add(
                " and ".join(shared), "ports of one adapter: they share one PCI link, though each is given it all"
            )
