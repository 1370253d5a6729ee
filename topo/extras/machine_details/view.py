"""What a topology and its facts say of GPUs in detail: boards, makers, the state of NVLinks.

Facts are what a probe read of a machine: a value, or why it is missing, of a subject such as
`gpu/0`, with its source. A board is a GPU as it is sold, such as H100 PCIe, with its datasheet's
links and rates (topo/boards.py).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from ...boards import BOARDS, Board, find_board, find_by_id, find_mentioned, get_board
from ...devices import Device
from ...facts import Facts, keys
from ...facts.keys import GPU, NVLINK, NVML, gpu_subject, p2p_subject, parse_pair, pci_subject
from ...facts.view import WIRES, MachineView, read_pci_details
from ...grouping import group_by_key
from ...notes import find_board_words
from .p2p_or_memory import DIRECT, find_faster

if TYPE_CHECKING:
    from ...graph import Topology

# Compute capabilities, times ten, of generations without NVLink: Ada, Blackwell of workstations and
# GB10, and the integrated GPUs of Xavier and Orin (NVIDIA's datasheets).
_WITHOUT_NVLINK = (72, 87, 89, 120, 121)
# States of a fabric in which its NVSwitches forward nothing yet.
_NOT_YET = ("not started", "in progress")
# The profile at the end of a vGPU's name: memory in GB and series (vGPU user guide).
_VIRTUAL_GPU = re.compile(r"-\d{1,3}[ABCQ]\s*$")
_MAKERS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
_MAKER_NAMES = {
    "AMD": re.compile(r"\bAMD\b|Instinct|\bMI\d{2,3}X?\b"),
    "NVIDIA": re.compile(r"NVIDIA|Tesla|GeForce|Quadro"),
}
# Tools in the sources of devices.
_MAKER_TOOLS = {"AMD": re.compile(r"rocm-smi|amd-smi"), "NVIDIA": re.compile(r"nvidia-smi|NVML")}


class DetailedView(MachineView):
    """A topology and its facts, looked up by device, and what follows from them for each GPU.

    Whatever values a file has, no look-up raises, but for KeyError where the topology has no such
    device.
    """

    def __init__(self, topology: Topology, facts: Facts) -> None:
        super().__init__(topology, facts)
        self._boards: dict[str, Board | None] = {}

    # -- devices

    @cached_property
    def nics(self) -> tuple[Device, ...]:
        """The NICs in the topology's order."""
        return self.list_devices("nic")

    @cached_property
    def cpus(self) -> tuple[Device, ...]:
        """The devices of kind cpu in the topology's order, one per NUMA node."""
        return self.list_devices("cpu")

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
    def nvlink_subjects(self) -> Mapping[str, tuple[str, ...]]:
        """The subjects of the NVLinks in the facts (`gpu/N/nvlink/L`), by GPU index N."""
        subjects: dict[str, dict[str, None]] = defaultdict(dict)
        for fact in self.facts.items:
            parts = parse_pair(fact.subject, NVLINK)
            if parts is not None:
                subjects[parts[0]][fact.subject] = None
        return {index: tuple(of_gpu) for index, of_gpu in subjects.items()}

    @cached_property
    def nvlinks_dead(self) -> tuple[str, ...]:
        """The ids of GPUs on boards with NVLink (SXM modules and the like) without an active one.

        GPUs in MIG mode, virtual GPUs and those under confidential computing have none by design
        and are not listed, nor those whose NVLinks the driver does not tell.
        """
        return tuple(gpu for gpu, state in self._nvlink_states.items() if state == "inactive")

    @cached_property
    def without_nvlink(self) -> tuple[str, ...]:
        """The GPUs of `nvlinks_dead` if no GPU on such a board has an active NVLink, else none.

        The result is empty if there is only one GPU to list: it may be alone on purpose.
        """
        boards = {
            gpu.id: board
            for gpu in self.gpus
            if (board := self.find_named_board(gpu.id)) is not None
        }
        active = any(
            state == "active" and gpu in boards and not boards[gpu].is_card
            for gpu, state in self._nvlink_states.items()
        )
        return () if active or len(self.nvlinks_dead) < 2 else self.nvlinks_dead

    @cached_property
    def nvlinks_unknown(self) -> tuple[str, ...]:
        """The ids of GPUs that may have NVLinks of which the driver does not tell.

        Its library does not answer, or it fails for the states of their links and none is known
        to be active, or it supports no such question for a board that has NVLink. GPUs of
        generations without NVLink, of other makers, and in MIG mode are not listed.
        """
        return tuple(gpu for gpu, state in self._nvlink_states.items() if state == "unknown")

    @cached_property
    def _nvlink_states(self) -> Mapping[str, str]:
        """Whether each GPU that may have NVLinks has an active one: active, inactive or unknown."""
        states: dict[str, str] = {}
        for gpu in self.gpus:
            index = self.index_of.get(gpu.id)
            if (
                index is None
                or self.facts.get_number(gpu_subject(index), keys.GPU_SM) in _WITHOUT_NVLINK
                or self.find_maker(gpu.id) not in (None, "NVIDIA")
                or self.has_mig(gpu.id)
            ):
                continue
            state = self._find_nvlink_state(gpu.id, index)
            if state is not None:
                states[gpu.id] = state
        return states

    def _find_nvlink_state(self, gpu: str, index: str) -> str | None:
        links = {
            self.facts.get_text(subject, keys.NVLINK_STATE)
            for subject in self.nvlink_subjects.get(index, ())
        }
        if "active" in links:
            return "active"
        if self.facts.get_reason(NVML, keys.NVML_LIBRARY) is not None or None in links:
            return "unknown"
        board = self.find_named_board(gpu)
        if (
            board is None
            or not board.wires
            or board.is_card
            or board.gcn
            or self.is_virtual_gpu(gpu)
            or self.facts.get_text(NVML, keys.NVML_CONFIDENTIAL) == "on"
        ):
            return None
        if links or self._lacks_nvlink_p2p(index):
            return "inactive"
        subject = gpu_subject(index)
        count = self.facts.get_number(subject, keys.GPU_NVLINK_COUNT)
        if count is None and self.facts.get_reason(subject, keys.GPU_NVLINK_COUNT) is None:
            return None  # not asked
        return "inactive" if count == 0 else "unknown"

    def _lacks_nvlink_p2p(self, index: str) -> bool:
        """Return whether the driver says that NVLink joins a GPU to no other GPU."""
        answers = [
            self.facts.get_text(subject, keys.P2P_NVLINK)
            for peer in self.facts.list_names(GPU)
            for subject in (p2p_subject(index, peer), p2p_subject(peer, index))
        ]
        return any(answers) and "ok" not in answers

    def has_mig(self, gpu: str) -> bool:
        """Return whether the GPU with device id `gpu` is in MIG mode."""
        index = self.index_of.get(gpu)
        return self.facts.get_text(gpu_subject(index), keys.GPU_MIG) == "on"

    def is_virtual_gpu(self, gpu: str) -> bool:
        """Return whether a GPU is a virtual one (vGPU), by its name: GRID A100-40C."""
        return _VIRTUAL_GPU.search(self._find_gpu_name(gpu)) is not None

    def find_named_board(self, gpu: str) -> Board | None:
        """Return the board that a GPU's name tells, None if it tells none.

        `find_board` also looks at PCI ids and the compute capability.
        """
        return find_board(self._find_gpu_name(gpu))

    def _find_gpu_name(self, gpu: str) -> str:
        index = self.index_of.get(gpu)
        name = self.topology.by_id[gpu].extra.get("name")
        return str(name or self.facts.get_text(gpu_subject(index), keys.GPU_NAME) or "")

    def describe_pending_fabric(self, gpu: str) -> str | None:
        """Return why NVLink through NVSwitches does not work yet for the GPU with device id `gpu`.

        Its registration with their fabric has not been completed, or has been with an error. None
        if nothing says so.
        """
        subject = gpu_subject(self.index_of.get(gpu))
        state = self.facts.get_text(subject, keys.GPU_FABRIC_STATE)
        if state in _NOT_YET:
            return f"the fabric's state is {state!r}"
        reason = self.facts.get_reason(subject, keys.GPU_FABRIC_STATE) or ""
        return reason if reason.startswith(keys.FABRIC_FAILED) else None

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
        kinds = group_by_key(
            (end, link.kind)
            for link in self.topology.links
            if link.kind in WIRES
            for end in (link.src, link.dst)
        )
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

    @cached_property
    def faster_by_pair(self) -> Mapping[frozenset[str], str]:
        """Which of two measured ways between two GPUs is faster, by the set of their two ids.

        It is DIRECT or THROUGH_MEMORY of p2p_or_memory.py; pairs without both rates, or with rates
        that hardly differ, have no key.
        """
        return find_faster(self.topology)

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

    def find_board_without_p2p(self, a: str, b: str) -> Board | None:
        """Return the board of one of two GPUs that has no P2P over PCIe by its maker's driver.

        `a` and `b` are their ids. It is None if neither has such a board, if P2P between them was
        measured to be the faster way, as with a changed driver, or if NVML was asked: its answer
        counts. Boards that a text only mentions count, too.
        """
        i, j = self.find_gpu_index(a), self.find_gpu_index(b)
        subjects = (p2p_subject(i, j), p2p_subject(j, i))
        if self.faster_by_pair.get(frozenset((a, b))) == DIRECT or any(
            self.facts.get_text(subject, key) is not None
            for subject in subjects
            for key in (keys.P2P_READ, keys.P2P_WRITE)
        ):
            return None
        boards = (self.find_board(gpu) or self._mentioned_boards.get(gpu) for gpu in (a, b))
        return next((board for board in boards if board and not board.has_pcie_p2p), None)

    @cached_property
    def _mentioned_boards(self) -> dict[str, Board]:
        """The boards whose rates links of GPUs have because a text mentions them, by ids."""
        mentioned: dict[str, Board] = {}
        for link in self.topology.links:
            declared = link.extra.get("declared")
            source = declared.get("source") if isinstance(declared, Mapping) else link.source
            names = find_mentioned(find_board_words(str(source or "")))
            if len(names) == 1:
                mentioned |= dict.fromkeys((link.src, link.dst), get_board(*names))
        return mentioned

    @cached_property
    def has_soldered_nics(self) -> bool:
        """Whether all GPUs are GB10: its NICs are fixed, with half the lanes that a port needs."""
        return bool(self.gpus) and all(
            (board := self.find_board(gpu.id)) is not None and not board.has_rdma
            for gpu in self.gpus
        )
