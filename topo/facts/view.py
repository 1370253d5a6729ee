"""Look up the devices of a topology and the facts about them.

A fact is a value about a subject, such as `gpu/0`, with its source, or why it is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..devices import Device
from . import Facts, keys
from .keys import GPU, gpu_subject

if TYPE_CHECKING:
    from ..graph import Topology

# Kinds of links that join GPUs otherwise than over PCI Express.
WIRES = ("nvlink", "xgmi")


class MachineView:
    """A topology and its facts, looked up by device.

    It is for one host, such as a part that `split_hosts` returns: facts about `host0/gpu/3` are not
    found for the GPU `host0/gpu3`. A look-up raises KeyError for an id that no device of the
    topology has, and nothing else, whatever values a file has.
    """

    def __init__(self, topology: Topology, facts: Facts) -> None:
        self.topology = topology
        self.facts = facts

    @cached_property
    def gpus(self) -> tuple[Device, ...]:
        """The GPUs in rank order."""
        return self.list_devices("gpu")

    def list_devices(self, kind: str) -> tuple[Device, ...]:
        """Return the devices of a kind in the topology's order, in that of ranks for GPUs."""
        return tuple(device for device in self.topology.devices if device.kind == kind)

    @cached_property
    def _index_at(self) -> Mapping[str | None, str]:
        return {
            bus_id: i
            for i in self.facts.list_names(GPU)
            if (bus_id := self.facts.get_text(gpu_subject(i), keys.GPU_BUS_ID)) is not None
        }

    def find_gpu_index(self, gpu: str) -> str:
        """Return the index N, in subjects `gpu/N`, of the GPU with device id `gpu`, as text.

        The facts' PCI addresses decide. If none is that of the device, it is the id without a
        leading "gpu": 3 for `gpu3`, and the whole of any other id, such as `host0/gpu3`, about
        which there are no facts `gpu/N`. Raise KeyError if the topology has no such device.
        """
        return self._index_at.get(self.topology.by_id[gpu].bus_id, gpu.removeprefix("gpu"))

    def find_subject(self, gpu: str) -> str:
        """Return the subject `gpu/N` of the facts about the GPU with device id `gpu`.

        N is that of `find_gpu_index`. Raise KeyError if the topology has no such device.
        """
        return gpu_subject(self.find_gpu_index(gpu))


def read_pci_details(device: Device) -> Mapping[str, Any]:
    """Return a device's `extra["pci"]`: PCI attributes from the topology's file, empty if none."""
    details = device.extra.get("pci")
    return details if isinstance(details, Mapping) else {}
