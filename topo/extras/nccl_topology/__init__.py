"""Topology files for NCCL and RCCL: written, also for virtual machines, and skeletons filled in.

`write` adds `topoplan_*` attributes and elements for properties that the format cannot express
(other rates, other switches, names). NCCL skips elements and ignores attributes that it does not
know, and `read` of topo/formats/nccl_xml uses them: `read(write(t))` has the devices, ranks and
links of `t`. A topology that the library would not load is refused.

`write_for_vm` is for NCCL_TOPO_FILE on a virtual machine: it writes the PCI tree alone, with
plausible speeds instead of placeholders (`list_vm_notes` lists them). `fill_skeleton` reads such
files on the machine they are for.
"""

from .skeleton import fill_skeleton, is_skeleton
from .vm_writer import list_vm_notes, write_for_vm
from .writer import build_elements, is_amd, write

__all__ = [
    "build_elements",
    "fill_skeleton",
    "is_amd",
    "is_skeleton",
    "list_vm_notes",
    "write",
    "write_for_vm",
]
