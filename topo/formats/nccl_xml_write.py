"""Writing NCCL's XML (or RCCL's, where there are xGMI links or gcn attributes).

What NCCL understands is written as NCCL's own elements: the PCI tree, GPUs, NICs, NVLinks. That text is read back,
and wherever it says something else than the topology, topoplan's own elements are added (see `nccl_xml`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any
from xml.sax.saxutils import quoteattr

from ..errors import InputError
from ..graph import Device, Link, Topology
from ..hardware import PCIE_GTps, pcie_GBps
from .nccl_xml_draft import CPU_CLASS, NVSWITCH_CLASS, OWN
from .nccl_xml_read import read

_NO_TARGET = "fffffff:ff:ff.0"
_BRIDGE_CLASS, _NVIDIA_GPU_CLASS, _AMD_GPU_CLASS, _NIC_CLASS = "0x060400", "0x030200", "0x038000", "0x020000"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_LONGEST_VALUE = 250  # NCCL's parser gives up on values of 255 characters
_DEFAULT_SLOT = (4, 16)
_WIDTHS = (16, 8, 4, 2, 1)


@dataclass(eq=False)
class _Node:
    tag: str
    attributes: dict[str, str]
    children: list[_Node] = field(default_factory=list)

    def lines(self, indent: int = 0) -> Iterator[str]:
        """The element as XML text, a line each."""
        head = "  " * indent + " ".join([f"<{self.tag}", *(f"{k}={quoteattr(v)}" for k, v in self.attributes.items())])
        if not self.children:
            yield head + "/>"
            return
        yield head + ">"
        for child in self.children:
            yield from child.lines(indent + 1)
        yield "  " * indent + f"</{self.tag}>"


def write(topology: Topology) -> str:
    """The topology as XML text; `read` gives back its devices, links and ranks. Raises InputError without GPUs."""
    if not topology.ranks:
        raise InputError(
            f"topology {topology.name!r} has no GPUs; NCCL's XML is about GPUs, so there is nothing to write"
        )
    root = _Writer(topology).system()
    text = _text(root)
    root.children += _differences(topology, read(text, topology.name))
    return _text(root)


def _text(root: _Node) -> str:
    return "\n".join(root.lines()) + "\n"


def _extra(values: Mapping[str, Any], *without: str) -> dict[str, str]:
    """What of `extra` can be an attribute."""
    return {
        key: str(int(value) if isinstance(value, bool) else value)
        for key, value in values.items()
        if key not in without
        and isinstance(value, (str, int, float))
        and _NAME.fullmatch(key)
        and len(str(value)) <= _LONGEST_VALUE
    }


class _Writer:
    """Lays one topology out as NCCL's tree."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.rank = {name: i for i, name in enumerate(topology.ranks)}
        self.amd = any(x.kind == "xgmi" for x in topology.links) or any("gcn" in d.extra for d in topology.devices)
        self.children, self.orphans = self._tree()
        self.bus: dict[str, str] = {}
        self._number_buses()
        self.nvswitches = [d.id for d in topology.devices if d.family == "nvswitch"]
        self.out: dict[str, list[Link]] = defaultdict(list)
        for link in topology.links:
            self.out[link.src].append(link)
        self.pcie = {(x.src, x.dst): x.bandwidth_GBps for x in topology.links if x.kind == "pcie"}
        self.nets = 0

    def _tree(self) -> tuple[dict[str, list[Device]], list[Device]]:
        """Children of each CPU and PCIe switch, those nearest to a CPU first; and what hangs on neither."""
        joined: dict[str, dict[str, None]] = defaultdict(dict)
        for link in self.topology.links:
            if link.kind in ("pcie", "link") and link.extra.get("element") != "pcilink":
                joined[link.src][link.dst] = None
                joined[link.dst][link.src] = None
        children: dict[str, list[Device]] = defaultdict(list)
        found: set[str] = set()

        def hang(queue: list[Device]) -> None:
            found.update(d.id for d in queue)
            for here in queue:
                below = [d for n in joined[here.id] if n not in found and _may_hang(d := self.topology.by_id[n])]
                found.update(d.id for d in below)
                children[here.id] = below
                queue += [d for d in below if d.kind == "switch"]

        hang([d for d in self.topology.devices if d.kind == "cpu"])
        orphans: list[Device] = []
        for device in self.topology.devices:
            if device.family == "pcie" and device.id not in found:
                orphans.append(device)
                hang([device])
        orphans += [d for d in self.topology.devices if d.kind in ("gpu", "nic") and d.id not in found]
        index = {d.id: i for i, d in enumerate(self.topology.devices)}
        for below in children.values():
            below.sort(key=lambda d: index[d.id])
        return children, orphans

    def _number_buses(self) -> None:
        """PCI addresses: those known and distinct within the topology, else made up in domains from f000 on."""
        known = Counter((d.bus_id or "").lower() for d in self.topology.devices if d.kind != "nic")
        number = 0
        for device in self.topology.devices:
            bus = (device.bus_id or "").lower()
            if bus and (known[bus] <= 1 or device.kind == "nic"):
                self.bus[device.id] = bus
                continue
            while (bus := f"{0xF000 + (number >> 8):04x}:{number & 0xFF:02x}:00.0") in known:
                number += 1
            self.bus[device.id] = bus
            number += 1

    def system(self) -> _Node:
        root = _Node("system", {"version": "2" if self.amd else "1", OWN + "name": self.topology.name})
        if self.nvswitches and self.nvswitches[0] != "nvswitch0":
            root.attributes[OWN + "nvswitch"] = self.nvswitches[0]
        for cpu in self.topology.devices:
            if cpu.kind == "cpu":
                root.children.append(self._cpu(cpu))
        if self.orphans:
            made_up = _Node("cpu", {"numaid": "0", "arch": "x86_64", "vendor": "GenuineIntel", "familyid": "6"})
            made_up.attributes |= {"modelid": "85", OWN + "made_up": "1"}
            made_up.children = self._below(self.orphans, None)
            root.children.append(made_up)
        return root

    def _cpu(self, cpu: Device) -> _Node:
        numa = -1 if cpu.numa_node is None else cpu.numa_node
        node = _Node("cpu", {"numaid": str(numa), **_extra(cpu.extra, "numaid")})
        if cpu.id != f"cpu{numa}":
            node.attributes[OWN + "id"] = cpu.id
        node.children = self._below(self.children[cpu.id], cpu)
        return node

    def _below(self, devices: list[Device], parent: Device | None) -> list[_Node]:
        """Elements of what hangs on one CPU or switch; the ports of one NIC share theirs."""
        nodes: list[_Node] = []
        adapters: dict[str, _Node] = {}
        for device in devices:
            if device.kind == "gpu":
                nodes.append(self._slot(device, parent, self._gpu(device)))
            elif device.kind == "switch":
                nodes.append(self._bridge(device, parent))
            elif device.bus_id is None:
                nodes.append(_Node("nic", {}, [self._net(device)]))
            elif device.bus_id in adapters:
                adapters[device.bus_id].children.append(self._net(device))
            else:
                adapters[device.bus_id] = _Node("nic", {}, [self._net(device)])
                nodes.append(self._slot(device, parent, adapters[device.bus_id]))
        return nodes

    def _slot(self, device: Device, parent: Device | None, child: _Node | None) -> _Node:
        """The pci element of a device, its link as the device's file told it or as close as PCIe comes to the rate."""
        told = device.extra.get("pci")
        facts = _extra(told) if isinstance(told, Mapping) else {}
        default = {"gpu": _AMD_GPU_CLASS if self.amd else _NVIDIA_GPU_CLASS, "nic": _NIC_CLASS}
        attributes = {"busid": self.bus[device.id], "class": default.get(device.kind, _BRIDGE_CLASS)}
        generation, width = self._pcie(device, parent)
        if not facts:
            speed = f"{float(PCIE_GTps[generation]):.1f} GT/s PCIe"
            facts = {"link_speed": speed, "link_width": str(width)}
        node = _Node("pci", {**attributes, **facts}, [] if child is None else [child])
        if device.bus_id is None:
            node.attributes[OWN + "made_up"] = "bus" if parent is not None else "slot"
        return node

    def _pcie(self, device: Device, parent: Device | None) -> tuple[int, int]:
        rate = self.pcie.get((device.id, parent.id)) if parent is not None else None
        fits = ((g, w) for w in _WIDTHS for g in PCIE_GTps if pcie_GBps(g, w) == rate)
        return next(fits, _DEFAULT_SLOT)

    def _bridge(self, switch: Device, parent: Device | None) -> _Node:
        node = self._slot(switch, parent, None)
        if switch.id != f"pci-{node.attributes['busid']}":
            node.attributes[OWN + "id"] = switch.id
        merged = switch.extra.get("flattened")
        if isinstance(merged, list) and len(" ".join(map(str, merged))) <= _LONGEST_VALUE:
            node.attributes[OWN + "flattened"] = " ".join(map(str, merged))
        node.children = self._below(self.children[switch.id], switch)
        for link in self.out[switch.id]:
            if link.extra.get("element") == "pcilink":
                node.children.append(_Node("pcilink", {"target": self.bus[link.dst]}))
        return node

    def _net(self, nic: Device) -> _Node:
        facts = _extra(nic.extra, "net_speed_GBps", "pci", "box")
        node = _Node("net", {"name": facts.pop("name", nic.id), "dev": facts.pop("dev", str(self.nets)), **facts})
        self.nets += 1
        if "speed" not in facts and (speed := self._net_GBps(nic)):
            node.attributes["speed"] = str(int(speed * 8000))
        if nic.id != node.attributes["name"]:
            node.attributes[OWN + "id"] = nic.id
        return node

    def _net_GBps(self, nic: Device) -> Fraction:
        told = nic.extra.get("net_speed_GBps")
        if isinstance(told, (int, float)) and told > 0:
            return Fraction(told)
        return sum((x.bandwidth_GBps for x in self.out[nic.id] if x.kind == "network"), Fraction(0))

    def _gpu(self, gpu: Device) -> _Node:
        facts = _extra(gpu.extra, "rank", "box")
        node = _Node("gpu", {"dev": facts.pop("dev", str(self.rank[gpu.id])), "rank": str(self.rank[gpu.id]), **facts})
        if gpu.id != f"gpu{node.attributes['dev']}":
            node.attributes[OWN + "id"] = gpu.id
        for link in self.out[gpu.id]:
            node.children += self._direct(link)
        return node

    def _direct(self, link: Link) -> Iterator[_Node]:
        """What leaves a GPU otherwise than by PCI, as far as NCCL knows such a link."""
        peer = self.topology.by_id[link.dst]
        tag = "xgmi" if link.kind == "xgmi" else "nvlink"
        if peer.kind == "cpu" and link.kind == "c2c":
            megabytes = round(link.bandwidth_GBps * 1000 / link.count)
            yield _Node("c2c", {"bw": str(megabytes), "count": str(link.count)})
        elif peer.family == "nvswitch" or (peer.kind == "cpu" and link.kind == "nvlink"):
            targets = link.extra.get("targets")
            tclass = NVSWITCH_CLASS if peer.kind == "switch" else CPU_CLASS
            for target, count in (targets if isinstance(targets, Mapping) else {_NO_TARGET: link.count}).items():
                yield _Node(tag, {"target": str(target), "count": str(count), "tclass": tclass})
        elif peer.kind == "gpu" and link.kind in ("nvlink", "xgmi", "link"):
            told = peer.extra.get("pci")
            tclass = str(told.get("class")) if isinstance(told, Mapping) and told.get("class") else ""
            tclass = tclass or (_AMD_GPU_CLASS if self.amd else _NVIDIA_GPU_CLASS)
            yield _Node(tag, {"target": self.bus[peer.id], "count": str(link.count), "tclass": tclass})


def _may_hang(device: Device) -> bool:
    return device.kind in ("gpu", "nic") or device.family == "pcie"


# -- what NCCL's own elements leave unsaid -------------------------------------------------------------------------


def _differences(topology: Topology, told: Topology) -> Iterator[_Node]:
    """Elements that turn what the text tells into `topology`."""
    for device in topology.devices:
        other = told.by_id.get(device.id)
        if other is None or _facts(other) != _facts(device):
            facts = {"id": device.id, "kind": device.kind, "family": device.family or ""}
            facts |= {"can_reduce": str(int(device.can_reduce)), "can_copy": str(int(device.can_copy))}
            if device.numa_node is not None:
                facts["numa_node"] = str(device.numa_node)
            yield _Node(OWN + "device", facts)
    wanted, found = _between(topology), _between(told)
    for src, dst in dict.fromkeys((*wanted, *found)):
        links = wanted.get((src, dst), [])
        if links == found.get((src, dst), []):
            continue
        if not links:
            yield _Node(OWN + "link", {"src": src, "dst": dst, "GBps": "0"})
        for rate, latency, kind, count in links:
            facts = {"src": src, "dst": dst, "GBps": str(rate), "us": str(latency), "kind": kind, "count": str(count)}
            yield _Node(OWN + "link", facts)


def _facts(device: Device) -> tuple[object, ...]:
    return device.kind, device.family, device.can_reduce, device.can_copy, device.numa_node


def _between(topology: Topology) -> dict[tuple[str, str], list[tuple[Fraction, Fraction, str, int]]]:
    links: dict[tuple[str, str], list[tuple[Fraction, Fraction, str, int]]] = defaultdict(list)
    for x in topology.links:
        links[x.src, x.dst].append((x.bandwidth_GBps, x.latency_us, x.kind, x.count))
    return {pair: sorted(rows) for pair, rows in links.items()}
