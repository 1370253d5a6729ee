"""A view of a topology and its facts, shared by the doctor and GPUDirect."""

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ..boards import BOARDS, Board, find_board, find_by_id
from ..graph import Device, Topology
from . import Facts, keys
from .keys import GPU, NVLINK, NVML, gpu_subject, parse_pair, pci_subject

# Kinds of links that join GPUs otherwise than over PCI Express.
WIRES = ("nvlink", "xgmi")

# Compute capabilities, times ten, of generations without NVLink: Ada, Blackwell of workstations and
# GB10, and the integrated GPUs of Xavier and Orin (NVIDIA's datasheets).
_WITHOUT_NVLINK = (72, 87, 89, 120, 121)
_MAKERS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
_MAKER_NAMES = {
    "AMD": re.compile(r"\bAMD\b|Instinct|\bMI\d{2,3}X?\b"),
    "NVIDIA": re.compile(r"NVIDIA|Tesla|GeForce|Quadro"),
}
# Tools in the sources of devices.
_MAKER_TOOLS = {"AMD": re.compile(r"rocm-smi|amd-smi"), "NVIDIA": re.compile(r"nvidia-smi|NVML")}


class MachineView:
    """A topology and its facts, looked up by device.

    No look-up raises, whatever values a file has.
    """

    def __init__(self, topology: Topology, facts: Facts) -> None:
        self.topology = topology
        self.facts = facts
        self._boards: dict[str, Board | None] = {}

    # -- devices

    @cached_property
    def gpus(self) -> tuple[Device, ...]:
        """The GPUs in rank order."""
        return self._list_devices("gpu")

    @cached_property
    def nics(self) -> tuple[Device, ...]:
        """The NICs in the topology's order."""
        return self._list_devices("nic")

    @cached_property
    def cpus(self) -> tuple[Device, ...]:
        """The CPUs, one per NUMA node."""
        return self._list_devices("cpu")

    def _list_devices(self, kind: str) -> tuple[Device, ...]:
        return tuple(device for device in self.topology.devices if device.kind == kind)

    @cached_property
    def order(self) -> Mapping[str, int]:
        """The position of each device in the topology, by device id."""
        return {device.id: i for i, device in enumerate(self.topology.devices)}

    # -- GPUs and the facts about them

    @cached_property
    def gpu_of(self) -> Mapping[str, str]:
        """The device id of each GPU in the facts, keyed by its index N in subjects `gpu/N`.

        It is the GPU of the topology at the PCI address of the facts, or else gpuN, which the
        topology may lack.
        """
        ids: dict[str | None, str] = {
            gpu.bus_id: gpu.id for gpu in reversed(self.gpus) if gpu.bus_id
        }
        return {
            i: ids.get(self.facts.get_text(gpu_subject(i), keys.GPU_BUS_ID), f"gpu{i}")
            for i in self.facts.list_names(GPU)
        }

    @cached_property
    def index_of(self) -> Mapping[str, str]:
        """The index N of each GPU in the facts, by device id: the inverse of `gpu_of`.

        GPUs that the topology lacks are left out, and so are those that the facts do not mention.
        """
        return {gpu: index for index, gpu in self.gpu_of.items() if gpu in self.topology.by_id}

    @cached_property
    def _index_at(self) -> Mapping[str | None, str]:
        return {
            bus_id: i
            for i in self.facts.list_names(GPU)
            if (bus_id := self.facts.get_text(gpu_subject(i), keys.GPU_BUS_ID)) is not None
        }

    @cached_property
    def nvlink_subjects(self) -> Mapping[str, tuple[str, ...]]:
        """The subjects of the NVLinks in the facts (`gpu/N/nvlink/L`), by GPU index N."""
        subjects: dict[str, dict[str, None]] = defaultdict(dict)
        for fact in self.facts.items:
            parts = parse_pair(fact.subject, NVLINK)
            if parts is not None:
                subjects[parts[0]][fact.subject] = None
        return {index: tuple(of_gpu) for index, of_gpu in subjects.items()}

    @cached_property
    def without_nvlink(self) -> tuple[str, ...]:
        """The ids of GPUs with no active NVLink in the facts, although their boards have NVLink.

        Such boards are SXM modules and the like. The result is empty if any GPU on such a board has
        an active NVLink, or if there is only one GPU to list: it may be alone on purpose. GPUs
        whose NVLinks the driver does not tell are not listed, nor those in MIG mode, which have
        none.
        """
        dead: list[str] = []
        for gpu in self.gpus:
            index = self.index_of.get(gpu.id)
            name = str(
                gpu.extra.get("name")
                or self.facts.get_text(gpu_subject(index), keys.GPU_NAME)
                or ""
            )
            board = find_board(name)
            if index is None or board is None or not board.wires or board.is_card or board.gcn:
                continue
            if self.facts.get_text(gpu_subject(index), keys.GPU_MIG) == "on":
                continue
            states = [
                self.facts.get_text(s, keys.NVLINK_STATE)
                for s in self.nvlink_subjects.get(index, ())
            ]
            if "active" in states:
                return ()
            if (states and None not in states) or (
                not states
                and (self.facts.get_number(gpu_subject(index), keys.GPU_NVLINK_COUNT) or 0) > 0
            ):
                dead.append(gpu.id)
        return tuple(dead) if len(dead) > 1 else ()

    @cached_property
    def nvlinks_unknown(self) -> tuple[str, ...]:
        """The ids of GPUs that may have NVLinks of which the driver does not tell.

        Its library does not answer, or it fails for the states of their links and none is known
        to be active. GPUs of generations without NVLink, and of other makers, are not listed.
        """
        is_silent = self.facts.get_reason(NVML, keys.NVML_LIBRARY) is not None
        return tuple(
            gpu.id
            for gpu in self.gpus
            if (index := self.index_of.get(gpu.id)) is not None
            and self.facts.get_number(gpu_subject(index), keys.GPU_SM) not in _WITHOUT_NVLINK
            and self.find_maker(gpu.id) in (None, "NVIDIA")
            and (is_silent or self._has_unknown_states(index))
        )

    def _has_unknown_states(self, index: str) -> bool:
        states = [
            self.facts.get_text(s, keys.NVLINK_STATE) for s in self.nvlink_subjects.get(index, ())
        ]
        return None in states and "active" not in states

    def find_maker(self, gpu: str) -> str | None:
        """Return NVIDIA, AMD or Intel, the maker of the GPU with device id `gpu`; None if unknown.

        The PCI vendor decides; else attributes, links and names that only one maker's GPUs have.
        """
        device = self.topology.by_id[gpu]
        vendor = (
            self.facts.get_text(pci_subject(device.bus_id), keys.PCI_VENDOR)
            if device.bus_id
            else None
        )
        return _MAKERS.get(str(vendor or read_pci_details(device).get("vendor"))) or next(
            (
                maker
                for maker, attribute, link in (("AMD", "gcn", "xgmi"), ("NVIDIA", "sm", "nvlink"))
                if attribute in device.extra
                or link in self._wires_of.get(gpu, ())
                or _MAKER_NAMES[maker].search(str(device.extra.get("name", "")))
                or _MAKER_TOOLS[maker].search(str(device.source))
            ),
            None,
        )

    @cached_property
    def _wires_of(self) -> Mapping[str, frozenset[str]]:
        kinds: dict[str, set[str]] = defaultdict(set)
        for link in self.topology.links:
            if link.kind in WIRES:
                kinds[link.src].add(link.kind)
                kinds[link.dst].add(link.kind)
        return {ident: frozenset(of_gpu) for ident, of_gpu in kinds.items()}

    def list_nvlinks(self, gpu: str, state: str | None = None) -> list[str]:
        """Return the subjects (`gpu/N/nvlink/L`) of a GPU's NVLinks in the facts.

        `gpu` is a device id; `state` ("active" or "inactive") selects links, None all. The result
        is empty if the facts do not mention the GPU.
        """
        return [
            subject
            for subject in self.nvlink_subjects.get(self.index_of.get(gpu, ""), ())
            if state in (None, self.facts.get_text(subject, keys.NVLINK_STATE))
        ]

    def find_board(self, gpu: str) -> Board | None:
        """Return the board of the GPU with device id `gpu`, None if nothing tells it.

        Its name decides, else its PCI device id, else a compute capability that one board has.
        """
        if gpu not in self._boards:
            self._boards[gpu] = self._look_up_board(gpu)
        return self._boards[gpu]

    def _look_up_board(self, gpu: str) -> Board | None:
        device, subject = self.topology.by_id[gpu], self.find_subject(gpu)
        name = device.extra.get("name") or self.facts.get_text(subject, keys.GPU_NAME)
        pci_id = read_pci_details(device).get("device")
        if device.bus_id and not pci_id:
            pci_id = self.facts.get_text(pci_subject(device.bus_id), keys.PCI_DEVICE)
        sm = device.extra.get("sm") or self.facts.get_number(subject, keys.GPU_SM)
        of_sm = [b for b in BOARDS if b.sm is not None and str(b.sm) == str(sm)]
        return (
            find_board(str(name or ""))
            or find_by_id(str(pci_id or ""))
            or (of_sm[0] if len(of_sm) == 1 else None)
        )

    @cached_property
    def has_soldered_nics(self) -> bool:
        """Whether all GPUs are GB10: its NICs are fixed, with half the lanes that a port needs."""
        return bool(self.gpus) and all(
            (board := self.find_board(gpu.id)) is not None and not board.has_rdma
            for gpu in self.gpus
        )

    def find_gpu_index(self, gpu: str) -> str:
        """Return the index N, in subjects `gpu/N`, of the GPU with device id `gpu`.

        The facts' PCI addresses decide; if none matches, it is the number in the id. Unlike
        `index_of`, this also answers for GPUs that the facts do not mention.
        """
        return self._index_at.get(self.topology.by_id[gpu].bus_id, gpu.removeprefix("gpu"))

    def find_subject(self, gpu: str) -> str:
        """Return the subject `gpu/N` of the facts about the GPU with device id `gpu`."""
        return gpu_subject(self.find_gpu_index(gpu))


def read_pci_details(device: Device) -> Mapping[str, Any]:
    """Return a device's `extra["pci"]`: PCI attributes from the topology's file, empty if none."""
    details = device.extra.get("pci")
    return details if isinstance(details, Mapping) else {}
