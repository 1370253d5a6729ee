"""Read hwloc's XML (`lstopo --of xml`), versions 1 to 3: CPUs, PCI, GPUs, NICs, NVLink and xGMI.

PCI links and links between CPUs have the rates that NCCL counts; NVLink and xGMI links have the
rates in the file. Doubts about a file are in the topology's `extra["notes"]`, a line each; its
other information is in `extra["facts"]`, each with a subject such as `gpu/0`, a key and a source.
"""

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from ...between_cpus import join_all_cpus
from ...boards import find_board, find_by_id
from ...errors import InputError
from ...facts import facts_to_json
from ...facts.slots import PciNode
from ...facts.view import WIRES
from ...formats.notes import Notes
from ...formats.safe_xml import Element, parse_xml
from ...graph import Device, Link, Topology, both_directions
from ...hardware import NVSWITCH_GENERATIONS, LATENCY_us, nvswitch_adding
from ...names import pick_unused_name
from ...notes import assumed
from .bandwidth_matrices import BandwidthMatrix, MatrixLinkReader, read_matrices
from .cpus import MAX_NODES, Cpus, read_cpus
from .facts import find_port_state, find_uuid, read_facts
from .objects import (
    HwlocMachine,
    PciFunction,
    read_bus_id,
    read_gp_index,
    read_machines,
    read_pci_ids,
)
from .pci import (
    SOURCE,
    HwlocGpu,
    HwlocNic,
    find_gpu_board,
    find_gpus,
    find_nics,
    find_nvswitches,
    find_slots,
)

_VERSION = re.compile(r"([1-9][0-9]?)(\.[0-9]{1,4})?")
# Major version of the format that hwloc 3 writes.
_NEWEST_VERSION = 3
_KEPT_OF_NICS = re.compile(r"Address|NodeGUID|SysImageGUID|Port|Port[0-9]{1,3}(State|LID|LMC)")


def read(text: str, where: str) -> Topology:
    """Read the machine in hwloc's XML.

    `where` names the file, in errors and as the topology's name. Ranks are the GPUs in the order of
    NVML, ROCm SMI or CUDA, else of their addresses; a machine without GPUs is read as well. Raise
    InputError if the text is not hwloc's XML, is cut off, or has a malformed number.
    """
    root = parse_xml(text, where, doctype=True)
    if root.tag != "topology":
        raise root.make_error("is not hwloc's XML; expected <topology> as the outermost element")
    notes = Notes()
    version_text, version = _read_version(root, notes)
    machines = read_machines(root, version, notes)
    if len(machines) > 1:
        notes.add(
            f"{len(machines)} machines",
            "in one file, which does not say what joins them; they stand apart",
        )
    readers: list[_Reader] = []
    for machine in machines:
        readers.append(_Reader(root, machine, whole=len(machines) == 1))
        if sum(len(reader.cpus.nodes) for reader in readers) > MAX_NODES:
            raise machine.element.make_error(
                f"is one of machines with more than {MAX_NODES} NUMA nodes; these are refused"
            )
    devices = [device for reader in readers for device in reader.devices]
    devices.sort(key=lambda device: device.kind != "gpu")
    if not any(reader.gpus for reader in readers):
        notes.add("no GPUs", "the file lists none, so there is nothing to plan for", "no-gpus")
    lines = notes.format_lines()
    extra: dict[str, Any] = {"notes": lines} if lines else {}
    if len(machines) == 1:
        extra["facts"] = readers[0].collect_facts()
    try:
        return Topology(
            name=PurePath(where).stem or where,
            devices=tuple(devices),
            links=tuple(link for reader in readers for link in reader.links),
            source=f"hwloc XML, version {version_text}",
            extra=extra,
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _read_version(root: Element, notes: Notes) -> tuple[str, int]:
    """Return the version as written (default 1) and the number to read it as."""
    text = root.get("version") or "1"
    match = _VERSION.fullmatch(text)
    if match is None:
        raise root.make_error(f"version={text[:40]!r}: expected one such as 2.0")
    number = int(match[1])
    if number > _NEWEST_VERSION:
        notes.add("topology", f"version {text} is not known; read as version {_NEWEST_VERSION}")
    return text, min(number, _NEWEST_VERSION)


class _Reader:
    """Reader of the devices and links of one machine."""

    def __init__(self, root: Element, machine: HwlocMachine, whole: bool) -> None:
        self.machine, self.notes = machine, machine.notes
        self.cpus: Cpus = read_cpus(machine)
        self.gpus: list[HwlocGpu] = find_gpus(machine)
        self.nics = self._name_nics(find_nics(machine))
        matrices = read_matrices(root, machine) if whole else {}
        nvswitches = self._find_linked_nvswitches(matrices)
        self.pcie_switches: list[Device] = []
        self.links: list[Link] = []
        slots, self.resting = find_slots(machine, self.gpus, list(self.nics.values()))
        self._add_pci_tree(slots)
        self.links += join_all_cpus(self.cpus.devices, self._find_generation(slots))
        gpu_by_gp = {
            number: gpu
            for gpu in self.gpus
            for element in (gpu.function.element, *gpu.function.osdevs)
            if (number := read_gp_index(element)) is not None
        }
        self.links += MatrixLinkReader(machine, self.cpus, gpu_by_gp, nvswitches).read(matrices)
        self._note_missing_links()
        self.devices = [
            *map(self._build_gpu, self.gpus),
            *self.cpus.devices,
            *self.pcie_switches,
            *map(self._build_nic, self.nics, self.nics.values()),
            *nvswitches.values(),
        ]

    def collect_facts(self) -> list[dict[str, Any]]:
        """Return the file's information about the machine, as facts in JSON."""
        nodes = {
            device.bus_id: device.numa_node
            for device in self.devices
            if device.kind in ("gpu", "nic") and device.bus_id and device.numa_node is not None
        }
        return facts_to_json(
            read_facts(self.machine, self.cpus, self.gpus, list(self.nics.values()), nodes)
        )

    def _note_missing_links(self) -> None:
        """Note GPUs whose boards have NVLink or xGMI if the file has no such link of any GPU."""
        if not any(link.kind in WIRES for link in self.links):
            self.notes.add_missing_links(
                {gpu.id: find_gpu_board(gpu) for gpu in self.gpus},
                "hwloc writes them only where it was built with NVML or ROCm SMI",
            )

    # -- positions

    def _find_node(self, function: PciFunction) -> int | None:
        """Return the NUMA node of a function, None if the file does not give one."""
        near = self.cpus.find_near(function.near)
        return near[0].device.numa_node if len(near) == 1 else None

    def _choose_cpu(self, function: PciFunction, name: str) -> Device:
        """Return the CPU above a function; note the choice if the file allows several."""
        near = self.cpus.find_near(function.near)
        if len(near) > 1:
            several = "" if len(near) == len(self.cpus.nodes) else f" than one of {len(near)}"
            self.notes.add(
                name, f"NUMA node not known nearer{several}; taken to hang on {near[0].device.id}"
            )
        return near[0].device

    def _add_pci_tree(self, slots: list[PciNode]) -> None:
        names = {gpu.key: [gpu.id] for gpu in self.gpus}
        functions = {gpu.key: gpu.function for gpu in self.gpus}
        for name, nic in self.nics.items():
            names.setdefault(nic.function.bus_id or "", []).append(name)
            functions.setdefault(nic.function.bus_id or "", nic.function)
        # the elements of the bridges that slots name by address
        bridges = {read_bus_id(bridge): bridge for f in functions.values() for bridge in f.bridges}
        # a chain is connected to the CPU near its first leaf: bridges have no NUMA node themselves
        leaf_of = {slot.top: slot.bus_id for slot in reversed(slots) if not slot.is_switch}
        cpu_of = {
            top: self._choose_cpu(functions[leaf], names[leaf][0]) for top, leaf in leaf_of.items()
        }
        for slot in slots:
            cpu, switch = cpu_of[slot.top], f"{self.machine.prefix}pci-{slot.bus_id}"
            for note in slot.notes:
                about, _, doubt = note.partition(" ")
                self.notes.add(about, doubt)
            parent = cpu.id if slot.parent is None else f"{self.machine.prefix}pci-{slot.parent}"
            for child in [switch] if slot.is_switch else names[slot.bus_id]:
                self.links += both_directions(self._build_pcie_link(child, parent, slot))
            if slot.is_switch:
                self.pcie_switches.append(
                    Device(
                        switch,
                        "switch",
                        "pcie",
                        numa_node=cpu.numa_node,
                        bus_id=slot.bus_id,
                        source=SOURCE,
                        extra={"pci": _select_pci_ids(read_pci_ids(bridges[slot.bus_id]))},
                    )
                )
        for ports in names.values():
            self.notes.add_shared_ports(ports)

    def _build_pcie_link(self, child: str, parent: str, slot: PciNode) -> Link:
        source: str = self.resting.get(slot.bus_id) or "hwloc XML, pci_link_speed"
        if slot.link.assumed:
            source = assumed("hwloc gives no PCIe speed")
            self.notes.add(
                child, "no pci_link_speed above it; taken as PCIe Gen3 x16, as NCCL does"
            )
        return Link(
            child,
            parent,
            slot.link.bandwidth_GBps,
            LATENCY_us["pcie"],
            "pcie",
            source=source,
            extra={"declared": str(slot.link)},
        )

    def _find_generation(self, slots: list[PciNode]) -> int | None:
        """Return the newest PCIe generation of a GPU, by its board or its slot; None without any.

        A slot alone does not tell: the file has the speed of a link that may have been at rest.
        """
        keys = {gpu.key for gpu in self.gpus}
        known = [slot.link.generation for slot in slots if slot.bus_id in keys]
        for gpu in self.gpus:
            board = find_board(gpu.infos.get("GPUModel", "")) or find_by_id(
                gpu.function.ids.get("device", "")
            )
            known += [board.pcie.generation] if board is not None else []
        return max(known, default=None)

    # -- devices

    def _build_gpu(self, gpu: HwlocGpu) -> Device:
        return self._build_function(
            gpu.id,
            "gpu",
            gpu.function,
            {
                "name": gpu.infos.get("GPUModel"),
                "uuid": find_uuid(gpu),
                "osdevs": list(gpu.names),
            },
        )

    def _name_nics(self, nics: list[HwlocNic]) -> dict[str, HwlocNic]:
        """Return the NICs by their device ids; if names are equal, later ones get a number."""
        taken = {device.id for device in self.cpus.devices} | {gpu.id for gpu in self.gpus}
        by_id: dict[str, HwlocNic] = {}
        for nic in nics:
            name = pick_unused_name(self.machine.prefix + nic.name, by_id, taken)
            by_id[name] = nic
            self.notes.add(name, "speed of the network not known: hwloc does not write it")
        return by_id

    def _build_nic(self, name: str, nic: HwlocNic) -> Device:
        return self._build_function(
            name,
            "nic",
            nic.function,
            {
                **{key: value for key, value in nic.infos.items() if _KEPT_OF_NICS.fullmatch(key)},
                "state": find_port_state(nic.infos)[0],
                "interfaces": list(nic.interfaces),
            },
        )

    def _build_function(
        self, name: str, kind: str, function: PciFunction, own: Mapping[str, Any]
    ) -> Device:
        """Build the device of a PCI function, with its `own` fields that have a value."""
        extra = {**own, "pci": _select_pci_ids(function.ids), "root": function.root}
        return Device(
            name,
            kind,
            numa_node=self._find_node(function),
            bus_id=function.bus_id,
            source=SOURCE,
            extra={key: value for key, value in extra.items() if value},
        )

    def _find_linked_nvswitches(self, matrices: Mapping[str, BandwidthMatrix]) -> dict[int, Device]:
        """Return the NVSwitches that a matrix links, by gp_index, ordered by address."""
        matrix = matrices.get("NVLinkBandwidth")
        linked = {number for pair in matrix.values for number in pair} if matrix else set()
        listed = find_nvswitches(self.machine)
        by_gp: dict[int, Device] = {}
        for function in listed:
            number = read_gp_index(function.element)
            if number is None or number not in linked:
                continue
            by_gp[number] = Device(
                f"{self.machine.prefix}nvswitch{len(by_gp)}",
                "switch",
                "nvswitch",
                numa_node=self._find_node(function),
                bus_id=function.bus_id,
                source=SOURCE,
                extra={"pci": _select_pci_ids(function.ids)} if function.ids else {},
                in_network=nvswitch_adding(
                    NVSWITCH_GENERATIONS.get(function.ids.get("device", "").removeprefix("0x"))
                ),
            )
        if listed and not by_gp:
            self.notes.add(
                f"{len(listed)} NVSwitches",
                "the file has no links to them (hwloc writes NVLinks only where it was built with "
                "NVML); left out",
            )
        return by_gp


def _select_pci_ids(ids: Mapping[str, str]) -> dict[str, str]:
    """Return the PCI ids that a function's device gets, by the keys of NCCL's XML."""
    return {key: ids[key] for key in ("class", "vendor", "device") if key in ids}
