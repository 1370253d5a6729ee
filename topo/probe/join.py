"""Build the topology of a machine from the facts about it.

A fact is a value about a GPU, CPU, PCI device or NIC with its source, or why it is missing.
"""

import os
import platform
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...extras import PROBES, Names
from ..between_cpus import join_all_cpus
from ..boards import find_board
from ..facts import Fact, Facts, facts_to_json, keys
from ..facts.keys import (
    CPUINFO,
    GPU,
    HOST,
    NET,
    NUMA,
    NVML,
    RDMA,
    Key,
    gpu_subject,
    net_subject,
    numa_subject,
    pci_subject,
    rdma_subject,
)
from ..facts.slots import PciNode, list_slots
from ..graph import Device, Link, Topology, both_directions
from ..hardware import ASSUMED_PLACE, LATENCY_us, PCIE_GTps
from ..notes import assumed
from .ancestors import NOTE, infer_tree
from .capture import open_capture
from .gpu_links import join_nvlinks, join_xgmi
from .linux.gpus import read_kfd, read_unlisted
from .linux.host import is_wsl, read_host
from .linux.sysfs import list_folder, read_locality, read_network, read_sysfs
from .nvml.questions import read_nvml
from .visible import note_denied, note_lost, note_missing, note_unlisted, select_visible

SOURCE = "probed on the machine itself"

_PCIE_STATES = {
    "max": (keys.GPU_PCIE_MAX_GENERATION, keys.GPU_PCIE_MAX_WIDTH),
    "current": (keys.GPU_PCIE_CURRENT_GENERATION, keys.GPU_PCIE_CURRENT_WIDTH),
}
# Keys of sysfs facts about a PCI function, by the attribute of NCCL's XML.
_PCI_DETAILS: dict[str, Key[Any]] = {
    "class": keys.PCI_CLASS,
    "vendor": keys.PCI_VENDOR,
    "device": keys.PCI_DEVICE,
    "link_speed": keys.PCI_MAX_LINK_SPEED,
    "link_width": keys.PCI_MAX_LINK_WIDTH,
}


def probe_local(
    sysfs_root: Path = Path("/"), environment: Mapping[str, str] = os.environ
) -> Topology:
    """Return the topology of this machine: CPUs, PCIe switches, GPUs, NICs and their links.

    There is a CPU for each NUMA node with CPUs. Ranks are the GPUs in NVML's order, or as
    CUDA_VISIBLE_DEVICES in `environment` lists them. `extra["notes"]` has a line for each thing
    that could not be found out, and `extra["facts"]` has all facts, missing ones included; no
    missing fact raises an error.

    `sysfs_root` may be a folder, or an archive (tar) of one, with the `/sys` and `/proc` of another
    machine. NVML answers for the machine that this runs on, so its facts are used only if it lists
    a GPU at a PCI address that the folder has, or the folder has no PCI addresses. Under WSL,
    where the driver's addresses are those of Windows, they are always used. Raise InputError if the
    folder holds no machine.
    """
    nvml = read_nvml()
    if sysfs_root == Path("/"):
        return join(_gather(sysfs_root, nvml), environment)
    with open_capture(sysfs_root) as root:
        facts = _gather(root, nvml)
        listed = {
            nvml.get_text(gpu_subject(index), keys.GPU_BUS_ID) for index in nvml.list_names(GPU)
        } - {None}
        captured = {path.name for path in list_folder(root / "sys/bus/pci/devices")}
        if listed and captured and not captured & listed and not is_wsl(facts):
            facts = _gather(
                root,
                Facts(
                    (
                        Fact(
                            NVML,
                            keys.NVML_LIBRARY,
                            None,
                            "nvmlDeviceGetPciInfo",
                            "it lists other GPUs than the captured files",
                        ),
                    )
                ),
            )
    return replace(
        join(facts, environment),
        name=facts.get_text(HOST, keys.HOST_NAME)
        or sysfs_root.name.partition(".")[0]
        or "captured",
        source=f"captured files ({sysfs_root.name})",
    )


def _gather(root: Path, nvml: Facts) -> Facts:
    facts = nvml + read_sysfs(root) + read_network(root) + read_host(root)
    probes = Names(PROBES)
    for name in probes.describe():
        facts += probes.find(name)(root)
    facts += read_locality(root, facts)
    if not facts.list_names(GPU):
        facts += read_kfd(root)
    return facts if facts.list_names(GPU) else facts + read_unlisted(root, facts)


def join(facts: Facts, environment: Mapping[str, str] = MappingProxyType({})) -> Topology:
    """Return the topology that follows from facts, without querying the machine.

    Its ranks are the GPUs that CUDA_VISIBLE_DEVICES in `environment` shows. All GPUs are ranks if
    it is absent or NVML does not answer, except those that are lost, or that the process may not
    use. `probe_local` gathers the facts first.
    """
    return _Joiner(facts, environment).join()


class _Joiner:
    """Collects devices, links and notes, one part of the machine after the other."""

    def __init__(self, facts: Facts, environment: Mapping[str, str]) -> None:
        self.facts = facts
        self.links: list[Link] = []
        answering = tuple(
            i
            for i in facts.list_names(GPU)
            if facts.get_text(gpu_subject(i), keys.GPU_LOST) is None
            and facts.get_text(gpu_subject(i), keys.GPU_DENIED) is None
        )
        visible, notes = select_visible(
            facts, answering, environment if facts.get_number(NVML, keys.NVML_COUNT) else {}
        )
        self.notes: list[str] = [*notes, *note_lost(facts), *note_denied(facts)]
        self.gpus = {
            facts.get_text(gpu_subject(i), keys.GPU_BUS_ID) or gpu_subject(i): i for i in visible
        }
        self.nics = _list_nic_names(facts)
        # PCI addresses of devices whose CPU is a guess.
        self.guessed: set[str] = set()
        self.ancestors = infer_tree(facts, self.gpus)
        self.notes += [NOTE] if self.ancestors.parent else []

    def join(self) -> Topology:
        """Return the topology; the order of its parts matters only for the order of notes."""
        self.notes += note_missing(self.facts)
        cpus = self._make_cpus()
        tree = list(list_slots(self.facts, (*self.gpus, *self.nics)))
        self.links += join_all_cpus(cpus, self._find_generation(tree))
        switches, cpu_of = self._link_tree(tree, cpus)
        gpus = [self._make_gpu(i, bus_id, tree) for bus_id, i in self.gpus.items()]
        nics = [
            self._make_nic(name, bus_id) for bus_id, names in self.nics.items() for name in names
        ]
        ids = {i: f"gpu{i}" for i in self.gpus.values()}
        nvswitch, nvlinks, oddities = join_nvlinks(self.facts, ids, cpu_of)
        self.notes += [*oddities, *note_unlisted(self.facts)]
        return Topology(
            name=self.facts.get_text(HOST, keys.HOST_NAME) or platform.node() or "local",
            devices=(*cpus, *switches, *gpus, *nics, *nvswitch),
            links=(*self.links, *nvlinks, *join_xgmi(self.facts, ids)),
            source=SOURCE,
            extra={"notes": list(dict.fromkeys(self.notes)), "facts": facts_to_json(self.facts)},
        )

    # -- CPUs

    def _make_cpus(self) -> list[Device]:
        """Return a device for each NUMA node that has CPUs; one CPU if no node is listed."""
        extra = _read_cpu_model(self.facts)
        cpus: list[Device] = []
        for node in self.facts.list_names(NUMA):
            subject = numa_subject(node)
            affinity = self.facts.get_text(subject, keys.NUMA_CPUS)
            if affinity is not None:
                own = {"cpus": affinity, "socket": self.facts.get_number(subject, keys.NUMA_SOCKET)}
                cpus.append(
                    Device(
                        f"cpu{node}",
                        "cpu",
                        numa_node=int(node),
                        source=self.facts.get_source(subject, keys.NUMA_CPUS),
                        extra={**extra, **{k: v for k, v in own.items() if v is not None}},
                    )
                )
        if not cpus:
            cpus += [replace(cpu, extra={**extra, **cpu.extra}) for cpu in self.ancestors.cpus]
        if not cpus:
            cpus.append(Device("cpu0", "cpu", source=assumed(), extra=extra))
            self.notes.append(
                "no NUMA node with CPUs is listed; the machine is taken to have one socket, cpu0"
            )
        return cpus

    # -- PCI Express

    def _link_tree(
        self, tree: list[PciNode], cpus: list[Device]
    ) -> tuple[list[Device], dict[str, str]]:
        """Add the links of the PCIe tree; return its switches, and the id of each GPU's CPU."""
        cpu_of_top = {slot.top: self._find_cpu(tree, slot.top, cpus) for slot in tree}
        switches: list[Device] = []
        for slot in tree:
            self.notes += slot.notes
            parent = cpu_of_top[slot.top].id if slot.parent is None else f"pci-{slot.parent}"
            for child in self._list_ids(slot):
                self.links += both_directions(
                    _make_pcie_link(child, self.ancestors.find_parent(child, cpus) or parent, slot)
                )
            if slot.is_switch:
                switches.append(
                    Device(
                        f"pci-{slot.bus_id}",
                        "switch",
                        "pcie",
                        False,
                        False,
                        cpu_of_top[slot.top].numa_node,
                        slot.bus_id,
                        slot.source.rpartition("/")[0] or slot.source,
                        {"pci": _read_pci_details(self.facts, slot.bus_id)},
                    )
                )
        switches += self.ancestors.switches
        self.links += self.ancestors.link_switches(self.links, cpus)
        return switches, {
            f"gpu{self.gpus[s.bus_id]}": cpu_of_top[s.top].id for s in tree if s.bus_id in self.gpus
        }

    def _list_ids(self, slot: PciNode) -> tuple[str, ...]:
        # The ports of a NIC share one slot.
        if slot.is_switch:
            return (f"pci-{slot.bus_id}",)
        return (
            (f"gpu{self.gpus[slot.bus_id]}",)
            if slot.bus_id in self.gpus
            else self.nics[slot.bus_id]
        )

    def _find_cpu(self, tree: list[PciNode], top: str, cpus: list[Device]) -> Device:
        """Return the CPU above a top-level bridge, or the first CPU, with a note, if unknown.

        The CPU is that of a GPU below the bridge in NVML's tree, else that of the first device
        below the bridge with a known NUMA node.
        """
        below = [slot.bus_id for slot in tree if slot.top == top and not slot.is_switch]
        above = (
            self.ancestors.find_cpu(f"gpu{self.gpus[bus_id]}", cpus)
            for bus_id in below
            if bus_id in self.gpus
        )
        if (near := next(filter(None, above), None)) is not None:
            return near
        by_node = {cpu.numa_node: cpu for cpu in cpus}
        for bus_id in below:
            cpu = by_node.get(_find_numa_node(self.facts, bus_id, self.gpus.get(bus_id)))
            if cpu is not None and cpu.numa_node is not None:
                return cpu
        if len(cpus) > 1:
            names = ", ".join(name for s in tree if s.bus_id in below for name in self._list_ids(s))
            self.notes.append(f"{names}: NUMA node not known; taken to hang on {cpus[0].id}")
            self.guessed |= {*below}
        return cpus[0]

    def _find_generation(self, tree: list[PciNode]) -> int | None:
        """Return the newest PCIe generation of a GPU, by its board or its slot; None without any.

        A board in an older slot is rare, a slot whose speed could not be read is not.
        """
        known = [slot.link.generation for slot in tree if slot.bus_id in self.gpus]
        for i in self.gpus.values():
            board = find_board(self.facts.get_text(gpu_subject(i), keys.GPU_NAME) or "")
            known += [board.pcie.generation] if board is not None else []
        return max(known, default=None)

    # -- devices

    def _make_gpu(self, index: str, bus_id: str, tree: list[PciNode]) -> Device:
        subject = gpu_subject(index)
        slot = next(s for s in tree if s.bus_id == bus_id)
        place = self._read_place(bus_id)
        extra = {
            "name": self.facts.get_text(subject, keys.GPU_NAME),
            "uuid": self.facts.get_text(subject, keys.GPU_UUID),
            "gcn": self.facts.get_text(subject, keys.GPU_GCN),
            "sm": self.facts.get_number(subject, keys.GPU_SM),
            "pcie": _read_pcie_states(self.facts, subject),
            **place,
            "root": place["root"] or self.ancestors.root.get(f"gpu{index}"),
        }
        if slot.link.assumed:
            self.notes.append(f"gpu{index}: {'; '.join(slot.link.assumed)}")
        return Device(
            f"gpu{index}",
            numa_node=_find_numa_node(self.facts, bus_id, index),
            bus_id=self.facts.get_text(subject, keys.GPU_BUS_ID),
            source=self.facts.get_source(subject, keys.GPU_BUS_ID),
            extra={k: v for k, v in extra.items() if v},
        )

    def _read_place(self, bus_id: str) -> dict[str, Any]:
        return {
            "pci": _read_pci_details(self.facts, bus_id),
            "root": self.facts.get_text(pci_subject(bus_id), keys.PCI_ROOT),
            ASSUMED_PLACE: bus_id in self.guessed,
        }

    def _make_nic(self, name: str, bus_id: str) -> Device:
        subject, address, speed_key, state = (
            net_subject(name),
            keys.NET_BUS_ID,
            keys.NET_SPEED_Mbps,
            keys.NET_STATE,
        )
        interfaces: list[str] = []
        if self.facts.get_source(rdma_subject(name), keys.RDMA_BUS_ID) is not None:
            subject, address = rdma_subject(name), keys.RDMA_BUS_ID
            speed_key, state = keys.RDMA_SPEED_Mbps, keys.RDMA_STATE
            ports = _list_ports(self.facts, bus_id, name)
            interfaces += (
                n
                for n in self.facts.list_names(NET)
                if self.facts.get_text(net_subject(n), keys.NET_BUS_ID) in ports
            )
        speed = self.facts.get_number(subject, speed_key)
        if speed is None:
            self.notes.append(
                f"{name}: speed not known ({self.facts.get_reason(subject, speed_key) or ''})"
            )
        extra = {
            "speed": speed,
            "state": self.facts.get_text(subject, state),
            **self._read_place(bus_id),
            "net_speed_GBps": speed / 8000 if speed else None,
            "interfaces": interfaces,
        }
        return Device(
            name,
            "nic",
            numa_node=_find_numa_node(self.facts, bus_id, None),
            bus_id=bus_id,
            source=self.facts.get_source(subject, address),
            extra={k: v for k, v in extra.items() if v},
        )


# -- values from several facts


def _list_nic_names(facts: Facts) -> dict[str, tuple[str, ...]]:
    # An RDMA device and its network interface share a PCI address; the NIC gets the RDMA name.
    names: dict[str, dict[str, list[str]]] = defaultdict(lambda: {RDMA: [], NET: []})
    for top, make_subject, key in (
        (RDMA, rdma_subject, keys.RDMA_BUS_ID),
        (NET, net_subject, keys.NET_BUS_ID),
    ):
        for name in facts.list_names(top):
            bus_id = facts.get_text(make_subject(name), key)
            if bus_id is not None:
                names[bus_id][top].append(name)
    bonded = {
        port
        for bus_id, by_top in names.items()
        for name in by_top[RDMA]
        for port in _list_ports(facts, bus_id, name)
        if port != bus_id
    }
    return {
        bus_id: tuple(by_top[RDMA] or by_top[NET])
        for bus_id, by_top in sorted(names.items())
        if by_top[RDMA] or bus_id not in bonded
    }


def _list_ports(facts: Facts, bus_id: str, name: str) -> tuple[str, ...]:
    """Return the PCI addresses of the ports that an RDMA device has, by its own and its name.

    mlx5's driver makes one device, mlx5_bond_0, of the bonded ports of an adapter: those are the
    functions of one PCI device.
    """
    adapter = bus_id.rpartition(".")[0]
    return (
        tuple(
            address
            for n in facts.list_names(NET)
            if (address := facts.get_text(net_subject(n), keys.NET_BUS_ID)) is not None
            and address.rpartition(".")[0] == adapter
        )
        if "bond" in name
        else (bus_id,)
    )


def _find_numa_node(facts: Facts, bus_id: str, index: str | None) -> int | None:
    # sysfs first: NVML knows only of GPUs.
    node = facts.get_number(pci_subject(bus_id), keys.PCI_NUMA_NODE)
    return (
        facts.get_number(gpu_subject(index), keys.GPU_NUMA_NODE)
        if node is None and index is not None
        else node
    )


def _read_pci_details(facts: Facts, bus_id: str) -> dict[str, str]:
    return {
        attribute: text
        for attribute, key in _PCI_DETAILS.items()
        if (text := facts.get_text(pci_subject(bus_id), key)) is not None
    }


def _read_pcie_states(facts: Facts, subject: str) -> dict[str, str]:
    """Return the best and the current state of a GPU's PCIe link, such as `Gen4 x16`.

    They may differ, since idle GPUs slow the link down. Unknown states are left out.
    """
    values = {
        state: [facts.get_number(subject, key) for key in of_state]
        for state, of_state in _PCIE_STATES.items()
    }
    return {
        state: f"Gen{generation} x{width}"
        for state, (generation, width) in values.items()
        if generation is not None and width is not None
    }


def _read_cpu_model(facts: Facts) -> dict[str, Any]:
    vendor, name = (
        facts.get_text(CPUINFO, keys.CPUINFO_VENDOR),
        facts.get_text(CPUINFO, keys.CPUINFO_MODEL_NAME),
    )
    # The fields of /proc/cpuinfo depend on the architecture.
    is_arm = facts.get_text(CPUINFO, keys.CPUINFO_IMPLEMENTER)
    usual = "arm64" if is_arm else "ppc64" if str(name).startswith("POWER") else None
    model = {
        "arch": "x86_64" if vendor else usual,
        "vendor": vendor,
        "name": name,
        "familyid": facts.get_text(CPUINFO, keys.CPUINFO_FAMILY),
        "modelid": facts.get_text(CPUINFO, keys.CPUINFO_MODEL),
    }
    return {key: value for key, value in model.items() if value is not None}


def _make_pcie_link(child: str, parent: str, slot: PciNode) -> Link:
    return Link(
        child,
        parent,
        slot.link.bandwidth_GBps,
        LATENCY_us["pcie"],
        "pcie",
        source=assumed("; ".join(slot.link.assumed)) if slot.link.assumed else slot.source,
        extra={"declared": f"{float(PCIE_GTps[slot.link.generation]):g} GT/s x{slot.link.width}"},
    )
