"""The one place where facts about this machine become a topology."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..facts import Fact, Facts, facts_to_json
from ..graph import Device, Link, Topology, both_ways
from ..hardware import LATENCY_us, PCIE_GTps, inter_cpu_GBps
from .capture import captured
from .linux.files import list_folder
from .linux.gpudirect import read_gpudirect
from .linux.kfd import read_kfd
from .linux.locality import read_locality
from .linux.rdma import read_network
from .linux.sysfs import read_sysfs
from .linux.unlisted import read_unlisted
from .notes import absent, lost, unlisted
from .nvlinks import join_nvlinks
from .nvml.questions import SUBJECT as NVML
from .nvml.questions import read_nvml
from .pcie import Slot, slots
from .visible import visible
from .xgmi import join_xgmi

SOURCE = "probed on the machine itself"


def probe_local(sysfs_root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Topology:
    """This machine: CPUs by NUMA node, PCIe switches, GPUs, NICs and what joins them.

    Ranks are the GPUs in NVML's order, or as CUDA_VISIBLE_DEVICES in `environment` lists them. What could not be learned
    is in `extra["notes"]`, a line each, and with everything else in `extra["facts"]`; nothing is raised for it.

    `sysfs_root` may be a folder, or an archive (tar) of one, with the `/sys` and `/proc` of another machine. NVML speaks of
    the one that this runs on; it is heard only if it lists a GPU at an address that the folder knows, or the folder knows
    no address. InputError where the folder holds no machine.
    """
    nvml = read_nvml()
    if sysfs_root == Path("/"):
        return join(_gather(sysfs_root, nvml), environment)
    with captured(sysfs_root) as root:
        facts = _gather(root, nvml)
        listed = {nvml.text(f"gpu/{index}", "bus_id") for index in nvml.names("gpu")}
        there = {path.name for path in list_folder(root / "sys/bus/pci/devices")}
        if listed and there and not there & listed:
            reason = "it lists other GPUs than the captured files"
            facts = _gather(root, Facts((Fact(NVML, "library", None, "nvmlDeviceGetPciInfo", reason),)))
        topology = join(facts, environment)
    name = facts.text("host", "name") or sysfs_root.name.partition(".")[0] or "captured"
    return replace(topology, name=name, source=f"captured files ({sysfs_root.name})")


def _gather(root: Path, nvml: Facts) -> Facts:
    """All facts of the machine whose `/` is at `root`."""
    facts = nvml + read_sysfs(root) + read_network(root) + read_gpudirect(root)
    facts += read_locality(root, facts)
    if not facts.names("gpu"):
        facts += read_kfd(root)
    return facts if facts.names("gpu") else facts + read_unlisted(root, facts)


def join(facts: Facts, environment: Mapping[str, str] = MappingProxyType({})) -> Topology:
    """The topology that facts add up to, with the GPUs that `environment` shows."""
    return _Joiner(facts, environment).topology()


class _Joiner:
    """Gathers devices, links and notes, the parts one after the other."""

    def __init__(self, facts: Facts, environment: Mapping[str, str]) -> None:
        self.facts = facts
        self.links: list[Link] = []
        answering = tuple(i for i in facts.names("gpu") if facts.text(f"gpu/{i}", "lost") is None)
        seen = visible(facts, answering, environment if facts.number(NVML, "count") else {})
        self.notes = [*seen.notes, *lost(facts)]
        self.gpus = {_bus_of(facts, i) or f"gpu/{i}": i for i in seen.indices}
        self.nics = _nic_names(facts)

    def topology(self) -> Topology:
        """All of it; the order matters only for the order of notes."""
        self.notes += absent(self.facts)
        cpus = self._cpus()
        self._between_cpus(cpus)
        tree = list(slots(self.facts, (*self.gpus, *self.nics)))
        switches, cpu_of = self._hang(tree, cpus)
        gpus = [self._gpu(i, bus_id, tree) for bus_id, i in self.gpus.items()]
        nics = [self._nic(name, bus_id, tree) for bus_id, names in self.nics.items() for name in names]
        nvlinks = join_nvlinks(self.facts, {i: f"gpu{i}" for i in self.gpus.values()}, cpu_of)
        self.notes += [*nvlinks.notes, *unlisted(self.facts)]
        return Topology(
            name=self.facts.text("host", "name") or platform.node() or "local",
            devices=(*cpus, *switches, *gpus, *nics, *nvlinks.devices),
            links=(*self.links, *nvlinks.links, *join_xgmi(self.facts, {i: f"gpu{i}" for i in self.gpus.values()})),
            source=SOURCE,
            extra={"notes": list(dict.fromkeys(self.notes)), "facts": facts_to_json(self.facts)},
        )

    # -- CPUs ----------------------------------------------------------------------------------------------------

    def _cpus(self) -> list[Device]:
        """A device for each NUMA node that has CPUs; one where no node is listed."""
        extra = _cpu_facts(self.facts)
        cpus: list[Device] = []
        for node in self.facts.names("numa"):
            subject = f"numa/{node}"
            affinity = self.facts.text(subject, "cpus")
            if affinity is not None:
                own = {"cpus": affinity, "socket": self.facts.number(subject, "socket")}
                source = self.facts.source(subject, "cpus")
                known = {k: v for k, v in own.items() if v is not None}
                cpus.append(Device(f"cpu{node}", "cpu", numa_node=int(node), source=source, extra={**extra, **known}))
        if not cpus:
            cpus.append(Device("cpu0", "cpu", source="assumed", extra=extra))
            self.notes.append("no NUMA node with CPUs is listed; the machine is taken to have one socket, cpu0")
        return cpus

    def _between_cpus(self, cpus: list[Device]) -> None:
        arch, vendor = cpus[0].extra.get("arch"), cpus[0].extra.get("vendor")
        family, model = (self.facts.number("cpuinfo", key) for key in ("family", "model"))
        rate = inter_cpu_GBps(arch, vendor, family, model)
        known = arch in ("arm64", "ppc64") or vendor in ("GenuineIntel", "AuthenticAMD")
        source = "CPU model; rate as NCCL counts it" if known else "assumed: the CPU model is not known"
        for a, b in combinations(cpus, 2):
            self.links += both_ways(Link(a.id, b.id, rate, LATENCY_us["smp"], "smp", source=source))

    # -- PCI Express ---------------------------------------------------------------------------------------------

    def _hang(self, tree: list[Slot], cpus: list[Device]) -> tuple[list[Device], dict[str, str]]:
        """Links of the tree, its switches, and the CPU of each GPU."""
        cpu_of_top = {slot.top: self._cpu_of(tree, slot.top, cpus) for slot in tree}
        switches: list[Device] = []
        for slot in tree:
            self.notes += slot.notes
            parent = cpu_of_top[slot.top].id if slot.parent is None else f"pci-{slot.parent}"
            for child in self._ids(slot):
                self.links += both_ways(_pcie(child, parent, slot))
            if slot.is_switch:
                source = slot.source.rpartition("/")[0] or slot.source
                node = cpu_of_top[slot.top].numa_node
                extra = {"pci": _pci_facts(self.facts, slot.bus_id)}
                switches.append(
                    Device(f"pci-{slot.bus_id}", "switch", "pcie", False, False, node, slot.bus_id, source, extra)
                )
        return switches, {f"gpu{self.gpus[s.bus_id]}": cpu_of_top[s.top].id for s in tree if s.bus_id in self.gpus}

    def _ids(self, slot: Slot) -> tuple[str, ...]:
        if slot.is_switch:
            return (f"pci-{slot.bus_id}",)
        return (f"gpu{self.gpus[slot.bus_id]}",) if slot.bus_id in self.gpus else self.nics[slot.bus_id]

    def _cpu_of(self, tree: list[Slot], top: str, cpus: list[Device]) -> Device:
        """The CPU above a top-level bridge: that of the first device below whose NUMA node is known."""
        below = [slot.bus_id for slot in tree if slot.top == top and not slot.is_switch]
        by_node = {cpu.numa_node: cpu for cpu in cpus}
        for bus_id in below:
            cpu = by_node.get(_node_of(self.facts, bus_id, self.gpus.get(bus_id)))
            if cpu is not None and cpu.numa_node is not None:
                return cpu
        if len(cpus) > 1:
            names = ", ".join(name for s in tree if s.bus_id in below for name in self._ids(s))
            self.notes.append(f"{names}: NUMA node not known; taken to hang on {cpus[0].id}")
        return cpus[0]

    # -- devices -------------------------------------------------------------------------------------------------

    def _gpu(self, index: str, bus_id: str, tree: list[Slot]) -> Device:
        subject = f"gpu/{index}"
        slot = next(s for s in tree if s.bus_id == bus_id)
        extra: dict[str, Any] = {key: self.facts.text(subject, key) for key in ("name", "uuid", "gcn")}
        extra["sm"] = self.facts.number(subject, "sm")
        extra["pcie"] = _max_and_current(self.facts, subject)
        extra |= self._place(bus_id)
        if slot.link.assumed:
            self.notes.append(f"gpu{index}: {'; '.join(slot.link.assumed)}")
        return Device(
            f"gpu{index}",
            numa_node=_node_of(self.facts, bus_id, index),
            bus_id=_bus_of(self.facts, index),
            source=self.facts.source(subject, "bus_id"),
            extra={k: v for k, v in extra.items() if v},
        )

    def _place(self, bus_id: str) -> dict[str, Any]:
        """What sysfs says of a device on PCI, and the root complex above it."""
        return {"pci": _pci_facts(self.facts, bus_id), "root": self.facts.text(f"pci/{bus_id}", "root")}

    def _nic(self, name: str, bus_id: str, tree: list[Slot]) -> Device:
        subject = next(s for s in (f"rdma/{name}", f"net/{name}", f"pci/{bus_id}") if self.facts.source(s, "bus_id"))
        speed = self.facts.number(subject, "speed_Mbps")
        state = self.facts.text(subject, "state")
        interfaces = [n for n in self.facts.names("net") if self.facts.text(f"net/{n}", "bus_id") == bus_id]
        if speed is None:
            reason = next((f.missing for f in self.facts.missing if (f.subject, f.key) == (subject, "speed_Mbps")), "")
            self.notes.append(f"{name}: speed not known ({reason})")
        extra: dict[str, Any] = {"speed": speed, "state": state, **self._place(bus_id)}
        if speed is not None:
            extra["net_speed_GBps"] = speed / 8000
        if subject.startswith("rdma"):
            extra["interfaces"] = interfaces
        return Device(
            name,
            "nic",
            numa_node=_node_of(self.facts, bus_id, None),
            bus_id=bus_id,
            source=self.facts.source(subject, "bus_id"),
            extra={k: v for k, v in extra.items() if v},
        )


# -- facts read in one way or another -------------------------------------------------------------------------------


def _bus_of(facts: Facts, index: str) -> str | None:
    return facts.text(f"gpu/{index}", "bus_id")


def _nic_names(facts: Facts) -> dict[str, tuple[str, ...]]:
    """Names of the cards at each bus address: the RDMA device's where there is one, else the interface's."""
    names: dict[str, dict[str, list[str]]] = defaultdict(lambda: {"rdma": [], "net": []})
    for top in ("rdma", "net"):
        for name in facts.names(top):
            bus_id = facts.text(f"{top}/{name}", "bus_id")
            if bus_id is not None:
                names[bus_id][top].append(name)
    return {bus_id: tuple(found["rdma"] or found["net"]) for bus_id, found in sorted(names.items())}


def _node_of(facts: Facts, bus_id: str, index: str | None) -> int | None:
    """The NUMA node of a device: sysfs' word, else, for a GPU, NVML's."""
    node = facts.number(f"pci/{bus_id}", "numa_node")
    return facts.number(f"gpu/{index}", "numa_node") if node is None and index is not None else node


def _pci_facts(facts: Facts, bus_id: str) -> dict[str, str]:
    """What sysfs says of a PCI device, in the words of NCCL's XML."""
    keys = {"class": "class", "vendor": "vendor", "device": "device"}
    keys |= {"link_speed": "max_link_speed", "link_width": "max_link_width"}
    told = {name: facts.text(f"pci/{bus_id}", key) for name, key in keys.items()}
    return {name: text for name, text in told.items() if text is not None}


def _max_and_current(facts: Facts, subject: str) -> dict[str, str]:
    """Both PCIe states of a GPU: an idle one clocks its link down."""
    out: dict[str, str] = {}
    for state in ("max", "current"):
        generation, width = (facts.number(subject, f"pcie_{state}_{key}") for key in ("generation", "width"))
        if generation is not None and width is not None:
            out[state] = f"Gen{generation} x{width}"
    return out


def _cpu_facts(facts: Facts) -> dict[str, Any]:
    """What the CPUs are, in the words of NCCL's XML."""
    vendor, name = facts.text("cpuinfo", "vendor"), facts.text("cpuinfo", "model_name")
    arch = "x86_64" if vendor else "arm64" if facts.text("cpuinfo", "implementer") else None
    if arch is None and str(name).startswith("POWER"):
        arch = "ppc64"
    told = {"arch": arch, "vendor": vendor, "name": name}
    told |= {"familyid": facts.text("cpuinfo", "family"), "modelid": facts.text("cpuinfo", "model")}
    return {key: value for key, value in told.items() if value is not None}


def _pcie(child: str, parent: str, slot: Slot) -> Link:
    GTps: Fraction = PCIE_GTps[slot.link.generation]
    told = f"{float(GTps):g} GT/s x{slot.link.width}"
    source = "assumed: " + "; ".join(slot.link.assumed) if slot.link.assumed else slot.source
    return Link(
        child, parent, slot.link.bandwidth_GBps, LATENCY_us["pcie"], "pcie", source=source, extra={"declared": told}
    )
