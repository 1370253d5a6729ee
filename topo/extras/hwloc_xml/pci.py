"""Find the PCI devices that matter in an hwloc file: GPUs, NICs, NVSwitches, and their bridges.

hwloc writes the raw rate of a link at the time of writing. Several pairs of generation and width
have nearly the same rate. They count the same, so the widest of the nearest is taken.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from ...boards import Board, find_board, find_by_id
from ...facts import Fact, Facts, keys
from ...facts.keys import pci_subject
from ...facts.slots import PciNode, list_slots
from ...formats.safe_xml import Element
from ...hardware import PCIE_GTps, PcieLink, pcie_link
from ...notes import Source, assumed
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
# Makers of the display adapters that hypervisors emulate and that servers' management controllers
# have (PCI ID repository). hwloc may put a GPU's OpenCL device on one of them by mistake.
_EMULATED_OR_BMC: Mapping[str, str] = {
    "0x1013": "Cirrus Logic, as QEMU emulates",
    "0x102b": "Matrox",
    "0x1234": "QEMU",
    "0x126f": "Silicon Motion",
    "0x1414": "Microsoft Hyper-V",
    "0x15ad": "VMware",
    "0x18ca": "XGI",
    "0x19e5": "Huawei iBMC",
    "0x1a03": "ASPEED",
    "0x1af4": "virtio",
    "0x1b36": "QEMU",
    "0x1d0f": "Amazon",
    "0x5333": "S3",
    "0x80ee": "VirtualBox",
}
# ATI chips on server boards without PCI Express (PCI ID repository: ES1000, RN50, Rage XL, Radeon
# 7000).
_OLD_ATI = ("0x515e", "0x5969", "0x4752", "0x5159", "0x4c59")
# GPUs in AMD's processors (PCI ID repository: Raven, Picasso, Renoir, Lucienne, Cezanne, Barcelo,
# Rembrandt, Raphael, Mendocino, Phoenix, Hawk Point, Granite Ridge, Strix, Strix Halo, Krackan).
_AMD_INTEGRATED = frozenset(
    f"0x{number}"
    for number in (
        *("15dd", "15d8", "1636", "164c", "1638", "15e7", "1681", "164e", "1506", "15bf", "15c8"),
        *("1900", "1901", "13c0", "150e", "1586", "1114"),
    )
)
_INTEL = "0x8086"
# Sorts a GPU without a number in any tool after those with one.
_UNLISTED = 10**7
# GPUs that a note names.
_MAX_NAMED = 8


@dataclass(frozen=True)
class HwlocGpu:
    """A GPU in an hwloc file: its device's id in the topology, and its PCI function.

    `names` are those that tools give it, such as nvml0 and cuda0; `infos` are all <info> values
    that they have about it.
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
    """An RDMA device (`is_rdma`) or network interface in an hwloc file, on its PCI function.

    `interfaces` are the network interfaces of the same function as an RDMA device, else empty.
    `infos` are its <info> values.
    """

    name: str
    is_rdma: bool
    function: PciFunction
    interfaces: tuple[str, ...]
    infos: dict[str, str]


def find_gpus(machine: HwlocMachine) -> list[HwlocGpu]:
    """Return the GPUs in the order of their tools (NVML, ROCm SMI, CUDA), else by address.

    A display adapter that no tool lists counts as a GPU if its vendor is NVIDIA or AMD, unless the
    vendor's tool lists others. GPUs in processors count if there are no others. Doubtful cases are
    noted in `machine.notes`. Raise InputError for more than MAX_DEVICES.
    """
    # a vendor's tool that lists any GPU lists all: that vendor's other display adapters are no GPUs
    listed_names = [n for f in (*machine.functions, *machine.loose) for n in f.osdev_names]
    listing_vendors = {
        vendor
        for vendor, tool in _DRIVER.items()
        if any(re.match(tool + "[0-9]", name) for name in listed_names)
    }
    functions = [f for f in machine.functions if _is_gpu(machine, f, listing_vendors)]
    functions = _leave_out_integrated(machine, functions)
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
    tools = {
        m[1]
        for osdev in function.osdevs
        if (m := _COMPUTE.fullmatch(osdev.get("name") or "")) and not _is_cpu(osdev)
    }
    is_display = function.has_class(*_GPU_CLASSES)
    vendor = function.ids.get("vendor")
    maker = _EMULATED_OR_BMC.get(vendor or "") if is_display else None
    if maker is None and (tools - {"opencl"} or (tools and is_display)):
        return True
    if not is_display or (vendor not in _DRIVER and not (maker and tools)):
        return False
    if maker is not None:
        doubt = f"a display adapter of a hypervisor or management controller ({maker})"
    elif vendor in listing:
        doubt = f"a display adapter or GPU that {_DRIVER[vendor].upper()} does not list"
    elif vendor == AMD and function.has_class(_VGA) and _is_off_pcie(machine, function):
        doubt = "a display adapter of AMD (ATI) without PCI Express"
    else:
        return True
    machine.notes.add(str(function.bus_id), f"{doubt}; it is no rank")
    return False


def _leave_out_integrated(machine: HwlocMachine, functions: list[PciFunction]) -> list[PciFunction]:
    """Return the GPUs without those in the processor if there are others; note what is left out."""
    integrated = [f for f in functions if _is_integrated(f)]
    if len(integrated) == len(functions):
        return functions
    for function in integrated:
        machine.notes.add(str(function.bus_id), "the processor's own GPU; it is no rank")
    return [f for f in functions if f not in integrated]


def _is_integrated(function: PciFunction) -> bool:
    """Return whether a GPU is in a processor: Intel's are on the root bus, AMD's have own ids."""
    vendor, device = function.ids.get("vendor"), function.ids.get("device")
    return (vendor == AMD and device in _AMD_INTEGRATED) or (
        vendor == _INTEL and not function.bridges and (function.bus_id or "").endswith(":00:02.0")
    )


def _is_cpu(osdev: Element) -> bool:
    """Return whether a device of OpenCL or Level Zero is a CPU or another thing but a GPU."""
    infos = read_infos(osdev)
    return any(
        infos.get(f"{backend}DeviceType", "GPU") != "GPU" for backend in ("OpenCL", "LevelZero")
    )


def find_gpu_board(gpu: HwlocGpu) -> Board | None:
    """Return the board of a GPU, by the name that a tool gives it, else by its PCI device id.

    A board is a GPU as it is sold, with its datasheet's links; None if neither is known.
    """
    by_id = find_by_id(gpu.function.ids.get("device", ""))
    return find_board(gpu.infos.get("GPUModel", "")) or by_id


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
    """Return network cards by address: the RDMA devices of a function, else its interfaces.

    Raise InputError for more than MAX_DEVICES.
    """
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


def find_slots(
    machine: HwlocMachine, gpus: list[HwlocGpu], nics: list[HwlocNic]
) -> tuple[list[PciNode], Mapping[str, Source]]:
    """Return the PCI tree's switches, GPUs and NICs, parents before what is below them.

    Each has the narrowest link between it and its parent. The second value has the source of the
    link of each, by address, that was at rest (idle, at 2.5 GT/s) when hwloc ran: its rate is then
    not in the file. Such links, and GPUs' links declared as 2.5 GT/s x1 (a placeholder of virtual
    machines), are noted in `machine.notes`. Raise InputError if two have one address.
    """
    leaves = {gpu.key: gpu.function for gpu in gpus} | {
        nic.function.bus_id or "": nic.function for nic in nics
    }
    _refuse_shared_addresses([*(gpu.function for gpu in gpus), *(nic.function for nic in nics)])
    speeds = _SpeedReader(machine, gpus)
    facts: list[Fact] = []
    first_leaf: dict[str, str] = {}
    for key, function in leaves.items():
        chain = {read_bus_id(bridge): bridge for bridge in function.bridges}
        facts.append(Fact(pci_subject(key), keys.PCI_BRIDGES, tuple(chain), SOURCE))
        if function.bus_id is not None:
            facts += speeds.read(key, function.element)
        for address, bridge in chain.items():
            if first_leaf.setdefault(address, key) == key:  # each bridge once
                facts += speeds.read(address, bridge)
    return list(list_slots(Facts(tuple(facts)), leaves)), speeds.resting


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


class _SpeedReader:
    """Reader of the links above PCI functions, which knows links at rest.

    An idle GPU clocks its link down to 2.5 GT/s, and the bridges above it too. Such a rate says
    nothing about the link, so the GPU's board says what it can do, else NCCL's default. `resting`
    has the source that replaces the file's, by the address of the GPU or bridge.
    """

    def __init__(self, machine: HwlocMachine, gpus: list[HwlocGpu]) -> None:
        self.machine = machine
        self.boards = {gpu.key: find_gpu_board(gpu) for gpu in gpus}
        self.resting: dict[str, Source] = {}
        # The oldest link that a GPU below a bridge can have, by the bridge's address.
        self.below: dict[str, PcieLink] = {}
        for gpu in gpus:
            link = find_link(read_link_GBps(gpu.function.element))
            if link is None:
                continue
            best = self._find_slot(gpu.key)[0] if _is_at_rest(link) else link
            for address in map(read_bus_id, gpu.function.bridges):
                oldest = min(self.below.get(address, best), best, key=lambda x: x.generation)
                self.below[address] = oldest

    def _find_slot(self, gpu: str) -> tuple[PcieLink, str]:
        """Return the link that a GPU's board can have, and whose it is, in words."""
        board = self.boards[gpu]
        if board is None:
            return pcie_link(None, None), "Gen3 x16, as NCCL does"
        return (
            board.pcie,
            f"Gen{board.pcie.generation} x{board.pcie.width}, by the GPU: {board.name}",
        )

    def read(self, key: str, element: Element) -> Iterator[Fact]:
        """Yield the facts of the link above a PCI function; note placeholders and idle links."""
        raw_GBps = read_link_GBps(element)
        link = find_link(raw_GBps)
        if link is None:
            if raw_GBps:
                self.machine.notes.add(
                    key,
                    f"pci_link_speed {float(raw_GBps):g} GB/s is none of PCIe's; left out of "
                    "account",
                )
            return
        if key in self.boards and link == PcieLink(1, 1):
            self.machine.notes.add(
                key, "declares 2.5 GT/s x1, a placeholder of virtual machines; left out of account"
            )
            return
        if _is_at_rest(link):
            link = self._replace_resting(key, link)
        elif key in self.boards and link.generation == 2:
            self.machine.notes.add(
                key,
                f"its PCIe link was at {link} when hwloc ran; idle GPUs clock down, so it may be "
                "faster",
            )
        yield Fact(
            pci_subject(key),
            keys.PCI_MAX_LINK_SPEED,
            f"{float(PCIE_GTps[link.generation]):g} GT/s",
            SOURCE,
        )
        yield Fact(pci_subject(key), keys.PCI_MAX_LINK_WIDTH, link.width, SOURCE)

    def _replace_resting(self, key: str, link: PcieLink) -> PcieLink:
        """Return what the link of a GPU, or above GPUs, at rest can do; another link unchanged."""
        if key in self.boards:
            best, how = self._find_slot(key)
        elif key in self.below:
            best, how = self.below[key], "the link of a GPU below"
        else:
            return link
        if best.generation == 1:
            return link
        self.machine.notes.add(
            key,
            f"its PCIe link was at rest when hwloc ran ({link}), which is no rate of a GPU; taken "
            f"as {how}",
        )
        self.resting[key] = assumed(f"a link at rest, taken as {how}")
        return PcieLink(best.generation, max(best.width, link.width))


def _is_at_rest(link: PcieLink) -> bool:
    """Return whether a link runs at 2.5 GT/s, as those of idle GPUs do; x1 is a placeholder."""
    return link.generation == 1 and link.width > 1
