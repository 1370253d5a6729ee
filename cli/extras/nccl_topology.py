"""NCCL's XML of topo-probe, for any machine (--format nccl-xml) and for virtual ones (--for-vm)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..probing.added import View

if TYPE_CHECKING:
    from ...topo.graph import Topology


def _write(topology: Topology) -> str:
    from ...topo.extras.nccl_topology import write

    return write(topology)


def _write_for_vm(topology: Topology) -> str:
    from ...topo.extras.nccl_topology import write_for_vm

    return write_for_vm(topology)


def _list_vm_notes(topology: Topology) -> list[str]:
    from ...topo.extras.nccl_topology import list_vm_notes

    return list_vm_notes(topology)


NCCL_XML = View(_write)
FOR_VM = View(_write_for_vm, list_notes=_list_vm_notes)
