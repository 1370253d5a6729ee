"""A view of a topology and its facts, shared by the doctor and GPUDirect."""

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ..graph import Device, Topology
from . import Facts, keys
from .keys import GPU, NVLINK, gpu_subject, parse_pair

# Kinds of links that join GPUs otherwise than over PCI Express.
WIRES = ("nvlink", "xgmi")

_BOARDS_WITH_NVLINK = re.compile(r"SXM|\bHBM3|\bH20\b|\bH200\b|\bH800\b|\bB[123]00\b|\bGB[123]00\b")
_CARDS = re.compile(r"\b(?:NVL|PCIe)\b", re.IGNORECASE)


class MachineView:
    """A topology and its facts, looked up by device.

    No look-up raises, whatever values a file has.
    """

    def __init__(self, topology: Topology, facts: Facts) -> None:
        self.topology = topology
        self.facts = facts

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
        an active NVLink, or if there is only one GPU to list: it may be alone on purpose.
        """
        dead: list[str] = []
        for gpu in self.gpus:
            index = self.index_of.get(gpu.id)
            name = str(
                gpu.extra.get("name")
                or self.facts.get_text(gpu_subject(index), keys.GPU_NAME)
                or ""
            )
            if index is None or not _BOARDS_WITH_NVLINK.search(name) or _CARDS.search(name):
                continue
            states = [
                self.facts.get_text(s, keys.NVLINK_STATE)
                for s in self.nvlink_subjects.get(index, ())
            ]
            if "active" in states:
                return ()
            if (
                states
                or (self.facts.get_number(gpu_subject(index), keys.GPU_NVLINK_COUNT) or 0) > 0
            ):
                dead.append(gpu.id)
        return tuple(dead) if len(dead) > 1 else ()

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
