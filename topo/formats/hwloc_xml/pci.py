"""The PCI devices of an hwloc file that matter: GPUs, NICs and the bridges above them, with what their links carry.

hwloc writes the raw rate of a link as it was at that moment. A rate stands for several pairs of generation and width;
they count alike, so of the nearest the widest is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from ... import fact_keys as keys
from ...fact_keys import pci_subject
from ...facts import Fact, Facts
from ...hardware import PCIE_GTps
from ...probe.pcie import Slot, list_slots
from ..safe_xml import Element
from .objects import AMD, NVIDIA, Function, Machine, bus_id, infos, link_GBps, osdev_is

SOURCE = "hwloc XML"
MAX_DEVICES = 4096
_WIDTHS = (16, 8, 4, 2, 1, 32, 12)
_COMPUTE = re.compile(r"(nvml|rsmi|cuda|ze|opencl)([0-9]{1,6}).*")
_DRIVER = {NVIDIA: "nvml", AMD: "rsmi"}
_GPU_CLASSES, _NIC_CLASSES, _NVSWITCH_CLASS = ("0x03", "0x12"), ("0x02", "0x0c06"), "0x0680"
_VGA = "0x0300"
_UNLISTED = 10**7


@dataclass(frozen=True)
class Gpu:
    """A GPU: its device's id, its PCI function, and what its tools call and tell of it."""

    id: str
    function: Function
    names: tuple[str, ...]
    told: dict[str, str]

    @property
    def key(self) -> str:
        """What stands for its address in the tree: the address, or a name where it has none."""
        return self.function.bus_id or self.id


@dataclass(frozen=True)
class Nic:
    """A network card's device: its name, its PCI function, the interfaces of an RDMA device, and what is told of it."""

    name: str
    is_rdma: bool
    function: Function
    interfaces: tuple[str, ...]
    told: dict[str, str]


def find_gpus(machine: Machine) -> list[Gpu]:
    """The GPUs in the order of their tools (NVML, ROCm SMI, CUDA), else by address.

    A display adapter that no tool lists counts as GPU if NVIDIA or AMD made it, and its vendor's tool lists no other.
    """
    everything = [osdev.get("name") or "" for f in machine.functions for osdev in f.osdevs]
    everything += [f.element.get("name") or "" for f in machine.loose]
    listing = {vendor for vendor, tool in _DRIVER.items() if any(re.match(tool + "[0-9]", n) for n in everything)}
    found = [f for f in machine.functions if _is_gpu(machine, f, listing)]
    on_pci = {name for f in found for osdev in f.osdevs for name in [osdev.get("name") or ""]}
    tools = ("nvml", "rsmi") if listing else ("cuda",)
    found += [
        f
        for f in machine.loose
        if (name := f.element.get("name") or "").startswith(tools) and _COMPUTE.fullmatch(name) and name not in on_pci
    ]
    if len(found) > MAX_DEVICES:
        raise machine.element.error(f"has {len(found)} GPUs; more than {MAX_DEVICES} are refused")
    found.sort(key=_order)
    gpus = []
    for i, function in enumerate(found):
        names = tuple(osdev.get("name") or "" for osdev in function.osdevs if _compute(osdev.get("name")))
        told: dict[str, str] = {}
        for osdev in sorted(function.osdevs, key=lambda osdev: _rank(osdev.get("name"))):
            told = infos(osdev) | told
        gpus.append(Gpu(f"{machine.prefix}gpu{i}", function, names, told))
        _note_oddities(machine, gpus[-1])
    return gpus


def _compute(name: str | None) -> re.Match[str] | None:
    return _COMPUTE.fullmatch(name or "")


def _is_gpu(machine: Machine, function: Function, listing: set[str]) -> bool:
    if any((match := _compute(osdev.get("name"))) and match.group(1) != "opencl" for osdev in function.osdevs):
        return True
    vendor = function.ids.get("vendor")
    if not function.has_class(*_GPU_CLASSES):
        return False
    if any(_compute(osdev.get("name")) for osdev in function.osdevs):
        return True
    if vendor not in _DRIVER:
        return False
    if vendor in listing:
        machine.notes.add(
            str(function.bus_id),
            f"a display adapter or GPU that {_DRIVER[vendor].upper()} does not list; it is no rank",
        )
        return False
    if vendor == AMD and function.has_class(_VGA) and _is_off_pcie(machine, function):
        machine.notes.add(str(function.bus_id), "a display adapter of AMD (ATI) without PCI Express; it is no rank")
        return False
    return True


def _is_off_pcie(machine: Machine, function: Function) -> bool:
    """Whether a function has no PCI Express link, as far as the file tells: one read without privileges has no speeds."""
    return lanes(link_GBps(function.element)) is None and any(link_GBps(f.element) for f in machine.functions)


def _rank(name: str | None) -> tuple[int, int]:
    match = _compute(name)
    if match is None or match.group(1) == "opencl":
        return 9, _UNLISTED
    return ("nvml", "rsmi", "cuda", "ze").index(match.group(1)), int(match.group(2))


def _order(function: Function) -> tuple[tuple[int, int], tuple[int, str]]:
    address = function.bus_id or ""
    return min((_rank(o.get("name")) for o in function.osdevs), default=(9, _UNLISTED)), (len(address), address)


def _note_oddities(machine: Machine, gpu: Gpu) -> None:
    if gpu.function.bus_id is None:
        machine.notes.add(gpu.id, "the file does not say where on PCI it is; its link is assumed")
    for tool in ("nvml", "rsmi"):
        twice = [name for name in gpu.names if name.startswith(tool)]
        if len(twice) > 1:
            machine.notes.add(gpu.id, f"{', '.join(twice)} are parts of one GPU; taken as one")


def find_nics(machine: Machine) -> list[Nic]:
    """Network cards by address: the RDMA devices of a function where there are any, else its interfaces."""
    found: list[Nic] = []
    for function in machine.functions:
        if not function.has_class(*_NIC_CLASSES):
            continue
        rdma, nets = (
            [osdev for osdev in function.osdevs if osdev_is(osdev, machine.version, kind) and osdev.get("name")]
            for kind in ("openfabrics", "network")
        )
        interfaces = tuple(str(osdev.get("name")) for osdev in nets) if rdma else ()
        for osdev in rdma or nets:
            found.append(Nic(str(osdev.get("name")), bool(rdma), function, interfaces, infos(osdev)))
    if len(found) > MAX_DEVICES:
        raise machine.element.error(f"has {len(found)} network devices; more than {MAX_DEVICES} are refused")
    return sorted(found, key=lambda nic: (len(nic.function.bus_id or ""), nic.function.bus_id or "", nic.name))


def find_nvswitches(machine: Machine) -> list[Function]:
    """NVSwitches by address: hwloc says so, or they are other bridges of NVIDIA."""
    found = [
        f
        for f in machine.functions
        if f.element.get("subtype") == "NVSwitch" or (f.has_class(_NVSWITCH_CLASS) and f.ids.get("vendor") == NVIDIA)
    ]
    return sorted(found, key=lambda f: (len(f.bus_id or ""), f.bus_id or ""))


# -- the tree ------------------------------------------------------------------------------------------------------


def _raw_lane_GBps(generation: int) -> Fraction:
    """GB/s of a lane in one direction as hwloc counts it: after 8b/10b, 128b/130b or FLIT encoding, before packets."""
    encoding = Fraction(8, 10) if generation <= 2 else Fraction(128, 130) if generation <= 5 else Fraction(242, 256)
    return PCIE_GTps[generation] * encoding / 8


_RAW_GBps = {(g, width): _raw_lane_GBps(g) * width for width in _WIDTHS for g in PCIE_GTps}


@lru_cache(maxsize=1024)
def lanes(raw_GBps: Fraction) -> tuple[int, int] | None:
    """Generation and width whose raw rate is nearest, within 2 % (hwloc's encoding overheads have varied); else None."""
    near = {pair: abs(raw_GBps - rate) for pair, rate in _RAW_GBps.items() if abs(raw_GBps - rate) * 50 <= rate}
    return min(near, key=lambda pair: near[pair], default=None)


def tree(machine: Machine, gpus: list[Gpu], nics: list[Nic]) -> list[Slot]:
    """The switches, GPUs and NICs of the PCI tree, parents before children, with the narrowest link of each chain."""
    leaves = {gpu.key: gpu.function for gpu in gpus} | {nic.function.bus_id or "": nic.function for nic in nics}
    _refuse_shared_addresses([*(gpu.function for gpu in gpus), *(nic.function for nic in nics)])
    facts: dict[str, tuple[Fact, ...]] = {}
    is_gpu = {gpu.key for gpu in gpus}
    awake = _generations(gpus)
    for key, function in leaves.items():
        chain = tuple(bus_id(bridge) for bridge in function.bridges)
        facts[key] = (
            Fact(pci_subject(key), keys.PCI_BRIDGES, chain, SOURCE),
            *_speed(machine, key, function, key in is_gpu),
        )
        for bridge, address in zip(function.bridges, chain, strict=True):
            facts.setdefault(address, tuple(_port(machine, address, link_GBps(bridge), awake.get(address, 0))))
    return list(list_slots(Facts(tuple(fact for told in facts.values() for fact in told)), leaves))


def _refuse_shared_addresses(functions: list[Function]) -> None:
    """InputError where two GPUs, NICs or bridges above them have one PCI address."""
    there: dict[str, Element] = {}
    for function in functions:
        own = [function.element] if function.bus_id is not None else []
        for element in (*function.bridges, *own):
            address = bus_id(element)
            if there.setdefault(address, element) is not element:
                raise element.error(f"pci_busid={address}: another device has this address; expected one of its own")


def _speed(machine: Machine, key: str, function: Function, is_gpu: bool) -> Iterator[Fact]:
    raw_GBps = link_GBps(function.element) if function.bus_id is not None else Fraction(0)
    pair = lanes(raw_GBps)
    if is_gpu and pair == (1, 1):
        machine.notes.add(key, "declares 2.5 GT/s x1, a placeholder of virtual machines; left out of account")
        return
    if is_gpu and pair is not None and pair[0] <= 2:
        told = f"{float(PCIE_GTps[pair[0]]):g} GT/s x{pair[1]}"
        machine.notes.add(
            key, f"its PCIe link was at {told} when hwloc looked; idle GPUs clock down, so it may be faster"
        )
    yield from _speed_of(machine, key, raw_GBps)


def _generations(gpus: list[Gpu]) -> dict[str, int]:
    """The least generation that the GPUs below a bridge declare, by the bridge's address."""
    found: dict[str, int] = {}
    for gpu in gpus:
        pair = lanes(link_GBps(gpu.function.element))
        if pair is None:
            continue
        for address in map(bus_id, gpu.function.bridges):
            found[address] = min(found.get(address, pair[0]), pair[0])
    return found


def _port(machine: Machine, key: str, raw_GBps: Fraction, below: int) -> Iterator[Fact]:
    """A bridge's speed, noted where it is at rest: tools tell what a GPU can do, hwloc what a bridge did."""
    pair = lanes(raw_GBps)
    if pair is not None and 1 == pair[0] < below and pair[1] > 1:
        told = f"2.5 GT/s x{pair[1]} when hwloc looked, and GPUs below declare {float(PCIE_GTps[below]):g} GT/s"
        machine.notes.add(key, f"its PCIe link was at {told}; idle GPUs clock down, so it may be faster")
    yield from _speed_of(machine, key, raw_GBps)


def _speed_of(machine: Machine, key: str, raw_GBps: Fraction) -> Iterator[Fact]:
    pair = lanes(raw_GBps)
    if pair is None:
        if raw_GBps:
            machine.notes.add(key, f"pci_link_speed {float(raw_GBps):g} GB/s is none of PCIe's; left out of account")
        return
    generation, width = pair
    yield Fact(pci_subject(key), keys.PCI_MAX_LINK_SPEED, f"{float(PCIE_GTps[generation]):g} GT/s", SOURCE)
    yield Fact(pci_subject(key), keys.PCI_MAX_LINK_WIDTH, width, SOURCE)
