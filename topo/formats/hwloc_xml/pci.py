"""Find the PCI devices that matter in an hwloc file: GPUs, NICs, NVSwitches, and their bridges.

hwloc writes the raw rate of a link at the time of writing. Several pairs of generation and width
have nearly the same rate. They count the same, so the widest of the nearest is taken.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from ...facts import Fact, Facts, keys
from ...facts.keys import pci_subject
from ...facts.slots import PciNode, list_slots
from ...hardware import PCIE_GTps, PcieLink
from ..safe_xml import Element
from .objects import (
    AMD,
    NVIDIA,
    HwlocMachine,
    PciFunction,
    is_osdev,
    read_bus_id,
    read_infos,
    read_link_GBps,
)

SOURCE = "hwloc XML"
# Upper bound on the GPUs, and on the network devices, of one machine.
MAX_DEVICES = 4096
# Lanes of PCIe links, common widths first: if rates are equally near, the first counts.
_WIDTHS = (16, 8, 4, 2, 1, 32, 12)
_COMPUTE = re.compile(r"(nvml|rsmi|cuda|ze|opencl)([0-9]{1,6}).*")
_DRIVER = {NVIDIA: "nvml", AMD: "rsmi"}
_GPU_CLASSES, _NIC_CLASSES, _NVSWITCH_CLASS = ("0x03", "0x12"), ("0x02", "0x0c06"), "0x0680"
_VGA = "0x0300"
# ATI chips on server boards without PCI Express (PCI ID repository: ES1000, RN50, Rage XL, Radeon
# 7000).
_OLD_ATI = ("0x515e", "0x5969", "0x4752", "0x5159", "0x4c59")
# Sorts a GPU without a number in any tool after those with one.
_UNLISTED = 10**7
# GPUs that a note names.
_MAX_NAMED = 8


@dataclass(frozen=True)
class HwlocGpu:
    """A GPU: its device's id and its PCI function.

    `names` are those that tools give it, such as nvml0 and cuda0; `infos` are all of theirs about
    it.
    """

    id: str
    function: PciFunction
    names: tuple[str, ...]
    infos: dict[str, str]

    @property
    def key(self) -> str:
        """The key of the GPU in the PCI tree: its address, or its id if it has none."""
        return self.function.bus_id or self.id


@dataclass(frozen=True)
class HwlocNic:
    """An RDMA device (`is_rdma`) or network interface, its PCI function and infos.

    `interfaces` are the network interfaces of the same function as an RDMA device, else empty.
    """

    name: str
    is_rdma: bool
    function: PciFunction
    interfaces: tuple[str, ...]
    infos: dict[str, str]


def find_gpus(machine: HwlocMachine) -> list[HwlocGpu]:
    """Return the GPUs in the order of their tools (NVML, ROCm SMI, CUDA), else by address.

    A display adapter that no tool lists counts as a GPU if its vendor is NVIDIA or AMD, unless the
    vendor's tool lists others.
    """
    # a vendor's tool that lists any GPU lists all: that vendor's other display adapters are no GPUs
    listed_names = [n for f in (*machine.functions, *machine.loose) for n in f.osdev_names]
    listing_vendors = {
        vendor
        for vendor, tool in _DRIVER.items()
        if any(re.match(tool + "[0-9]", name) for name in listed_names)
    }
    functions = [f for f in machine.functions if _is_gpu(machine, f, listing_vendors)]
    # version 1 may list GPUs outside the PCI tree as well; those that are also in it count once
    names_on_pci = {name for f in functions for name in f.osdev_names}
    tools = ("nvml", "rsmi") if listing_vendors else ("cuda",)
    functions += [
        f
        for f in machine.loose
        if f.osdev_names[0].startswith(tools)
        and _COMPUTE.fullmatch(f.osdev_names[0])
        and f.osdev_names[0] not in names_on_pci
    ]
    if len(functions) > MAX_DEVICES:
        raise machine.element.make_error(
            f"has {len(functions)} GPUs; more than {MAX_DEVICES} are refused"
        )
    functions.sort(key=_sort_key)
    gpus = []
    for i, function in enumerate(functions):
        names = tuple(name for name in function.osdev_names if _COMPUTE.fullmatch(name))
        gpu_infos: dict[str, str] = {}
        for osdev in sorted(function.osdevs, key=lambda osdev: _rank_tool(osdev.get("name"))):
            gpu_infos = read_infos(osdev) | gpu_infos
        gpus.append(HwlocGpu(f"{machine.prefix}gpu{i}", function, names, gpu_infos))
        _note_oddities(machine, gpus[-1])
    if len({gpu.function.ids.get("vendor") for gpu in gpus} - {None}) > 1:
        listed = ", ".join(
            f"{gpu.id} ({gpu.function.ids.get('vendor')})" for gpu in gpus[:_MAX_NAMED]
        )
        machine.notes.add(
            listed, "GPUs of different makers: neither NCCL nor RCCL makes one allreduce of them"
        )
    return gpus


def _is_gpu(machine: HwlocMachine, function: PciFunction, listing: set[str]) -> bool:
    """Return whether a PCI function is a GPU that can be a rank; note adapters that are not."""
    tools = {m[1] for name in function.osdev_names if (m := _COMPUTE.fullmatch(name))}
    is_display = function.has_class(*_GPU_CLASSES)
    if tools - {"opencl"} or (tools and is_display):
        return True
    vendor = function.ids.get("vendor")
    if not is_display or vendor not in _DRIVER:
        return False
    if vendor in listing:
        doubt = f"a display adapter or GPU that {_DRIVER[vendor].upper()} does not list"
    elif vendor == AMD and function.has_class(_VGA) and _is_off_pcie(machine, function):
        doubt = "a display adapter of AMD (ATI) without PCI Express"
    else:
        return True
    machine.notes.add(str(function.bus_id), f"{doubt}; it is no rank")
    return False


def _is_off_pcie(machine: HwlocMachine, function: PciFunction) -> bool:
    """Return whether a function has no PCI Express link.

    Below a bridge, a device whose number is not 0 is no PCI Express endpoint. A file written
    without privileges has no speeds at all.
    """
    if function.ids.get("device") in _OLD_ATI or (
        function.bridges and ":00." not in (function.bus_id or ":00.")[4:]
    ):
        return True
    return find_link(read_link_GBps(function.element)) is None and any(
        read_link_GBps(f.element) for f in machine.functions
    )


def _rank_tool(name: str | None) -> tuple[int, int]:
    """Return the sort key of a tool's device: NVML, ROCm SMI, CUDA, Level Zero, then its number."""
    match = _COMPUTE.fullmatch(name or "")
    if match is None or match[1] == "opencl":
        return 9, _UNLISTED
    return ("nvml", "rsmi", "cuda", "ze").index(match[1]), int(match[2])


def _sort_key(function: PciFunction) -> tuple[tuple[int, int], tuple[int, str]]:
    """Return the sort key of a GPU: its tools' numbers, then its address."""
    first_tool = min(map(_rank_tool, function.osdev_names), default=(9, _UNLISTED))
    return first_tool, function.address_key


def _note_oddities(machine: HwlocMachine, gpu: HwlocGpu) -> None:
    """Note a GPU without an address, and several devices of one tool on one GPU."""
    if gpu.function.bus_id is None:
        machine.notes.add(gpu.id, "the file does not say where on PCI it is; its link is assumed")
    for tool in ("nvml", "rsmi"):
        names = [name for name in gpu.names if name.startswith(tool)]
        if len(names) > 1:
            machine.notes.add(gpu.id, f"{', '.join(names)} are parts of one GPU; taken as one")


def find_nics(machine: HwlocMachine) -> list[HwlocNic]:
    """Return network cards by address: the RDMA devices of a function, else its interfaces."""
    nics: list[HwlocNic] = []
    for function in machine.functions:
        if not function.has_class(*_NIC_CLASSES):
            continue
        rdma, nets = (
            [
                osdev
                for osdev in function.osdevs
                if is_osdev(osdev, machine.version, kind) and osdev.get("name")
            ]
            for kind in ("openfabrics", "network")
        )
        nics += [
            HwlocNic(
                str(osdev.get("name")),
                bool(rdma),
                function,
                tuple(str(net.get("name")) for net in nets) if rdma else (),
                read_infos(osdev),
            )
            for osdev in rdma or nets
        ]
    if len(nics) > MAX_DEVICES:
        raise machine.element.make_error(
            f"has {len(nics)} network devices; more than {MAX_DEVICES} are refused"
        )
    return sorted(nics, key=lambda nic: (nic.function.address_key, nic.name))


def find_nvswitches(machine: HwlocMachine) -> list[PciFunction]:
    """Return NVSwitches by address: functions that hwloc names so, and NVIDIA's other bridges."""
    return sorted(
        (
            f
            for f in machine.functions
            if f.element.get("subtype") == "NVSwitch"
            or (f.has_class(_NVSWITCH_CLASS) and f.ids.get("vendor") == NVIDIA)
        ),
        key=lambda f: f.address_key,
    )


# -- the tree


# The part of a lane's bits that are data, by generation: hwloc's rates take off the encoding, but
# not the overhead of packets.
_ENCODING = {
    **dict.fromkeys((1, 2), Fraction(8, 10)),
    **dict.fromkeys((3, 4, 5), Fraction(128, 130)),
    6: Fraction(242, 256),
}
_RAW_GBps = {
    PcieLink(g, width): PCIE_GTps[g] * _ENCODING[g] / 8 * width
    for width in _WIDTHS
    for g in PCIE_GTps
}


@lru_cache(maxsize=1024)
def find_link(raw_GBps: Fraction) -> PcieLink | None:
    """Return the PCIe link nearest to a rate of `read_link_GBps`, None if none is within 2 %."""
    near = {
        link: abs(raw_GBps - rate)
        for link, rate in _RAW_GBps.items()
        if abs(raw_GBps - rate) * 50 <= rate
    }
    return min(near, key=lambda link: near[link], default=None)


def find_slots(machine: HwlocMachine, gpus: list[HwlocGpu], nics: list[HwlocNic]) -> list[PciNode]:
    """Return the PCI tree's switches, GPUs and NICs, parents before what is below them.

    Each has the narrowest link between it and its parent. Raise InputError if two have one address.
    """
    leaves = {gpu.key: gpu.function for gpu in gpus} | {
        nic.function.bus_id or "": nic.function for nic in nics
    }
    _refuse_shared_addresses([*(gpu.function for gpu in gpus), *(nic.function for nic in nics)])
    facts: list[Fact] = []
    first_leaf: dict[str, str] = {}
    gpu_keys = {gpu.key for gpu in gpus}
    least_generation = _find_least_generations(gpus)
    for key, function in leaves.items():
        chain = {read_bus_id(bridge): bridge for bridge in function.bridges}
        facts.append(Fact(pci_subject(key), keys.PCI_BRIDGES, tuple(chain), SOURCE))
        if function.bus_id is not None:
            facts += _read_speed(machine, key, function.element, is_gpu=key in gpu_keys)
        for address, bridge in chain.items():
            if first_leaf.setdefault(address, key) == key:  # each bridge once
                facts += _read_speed(
                    machine, address, bridge, below=least_generation.get(address, 0)
                )
    return list(list_slots(Facts(tuple(facts)), leaves))


def _refuse_shared_addresses(functions: list[PciFunction]) -> None:
    """Raise InputError if two GPUs, NICs or bridges above them have the same PCI address."""
    element_at: dict[str, Element] = {}
    for function in functions:
        itself = [function.element] if function.bus_id is not None else []
        for element in (*function.bridges, *itself):
            address = read_bus_id(element)
            if element_at.setdefault(address, element) is not element:
                raise element.make_error(
                    f"pci_busid={address}: another device has this address; expected one of its own"
                )


def _read_speed(
    machine: HwlocMachine, key: str, element: Element, *, is_gpu: bool = False, below: int = 0
) -> Iterator[Fact]:
    """Yield the facts of the link above a PCI function; note placeholders and idle links.

    `below` is the lowest generation of the GPUs below a bridge: GPUs report their best speed,
    bridges the current one.
    """
    raw_GBps = read_link_GBps(element)
    link = find_link(raw_GBps)
    if link is None:
        if raw_GBps:
            machine.notes.add(
                key,
                f"pci_link_speed {float(raw_GBps):g} GB/s is none of PCIe's; left out of account",
            )
        return
    if is_gpu and link == PcieLink(1, 1):
        machine.notes.add(
            key, "declares 2.5 GT/s x1, a placeholder of virtual machines; left out of account"
        )
        return
    if is_gpu and link.generation <= 2:
        machine.notes.add(
            key,
            f"its PCIe link was at {link} when hwloc ran; idle GPUs clock down, so it may be "
            "faster",
        )
    if 1 == link.generation < below and link.width > 1:
        machine.notes.add(
            key,
            f"its PCIe link was at {link} when hwloc ran, and GPUs below declare "
            f"{float(PCIE_GTps[below]):g} GT/s; idle GPUs clock down, so it may be faster",
        )
    yield Fact(
        pci_subject(key),
        keys.PCI_MAX_LINK_SPEED,
        f"{float(PCIE_GTps[link.generation]):g} GT/s",
        SOURCE,
    )
    yield Fact(pci_subject(key), keys.PCI_MAX_LINK_WIDTH, link.width, SOURCE)


def _find_least_generations(gpus: list[HwlocGpu]) -> dict[str, int]:
    """Return the lowest generation of the GPUs below each bridge, by its address."""
    least: dict[str, int] = {}
    for gpu in gpus:
        if link := find_link(read_link_GBps(gpu.function.element)):
            for address in map(read_bus_id, gpu.function.bridges):
                least[address] = min(least.get(address, link.generation), link.generation)
    return least
