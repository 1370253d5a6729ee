"""Read and write the XML files of NCCL and RCCL that describe a machine.

The libraries dump such a file (NCCL_TOPO_DUMP_FILE) and load one (NCCL_TOPO_FILE). There are two
dialects: NCCL's, version 1, with `nvlink` elements; RCCL's, version 2, with `xgmi` elements and
`gcn` attributes. Links get the rates that the library itself counts. Doubts about a file are in the
topology's `extra["notes"]`, a line each.

`write` adds `topoplan_*` attributes and elements for properties that the format cannot express
(other rates, other switches, names). NCCL skips elements and ignores attributes that it does not
know, and `read` uses them: `read(write(t))` has the devices, ranks and links of `t`. A topology
that the library would not load is refused.

`write(t, for_vm=True)` is for NCCL_TOPO_FILE on a virtual machine: it writes the PCI tree alone,
with plausible speeds instead of placeholders (`list_vm_notes` lists them). `fill_skeleton` reads
such files on the machine they are for.
"""

from ...graph import Topology
from .reader import read
from .skeleton import fill_skeleton, is_skeleton
from .vm_writer import list_vm_notes, write_for_vm
from .writer import build_elements, is_amd, write_all

__all__ = [
    "build_elements",
    "fill_skeleton",
    "is_amd",
    "is_skeleton",
    "list_vm_notes",
    "read",
    "write",
]


def write(topology: Topology, for_vm: bool = False) -> str:
    """Write the topology as XML text, for NCCL_TOPO_FILE on a virtual machine if `for_vm`.

    With `for_vm` the text has only the PCI tree of one host; without it, `read` restores the
    devices, links and ranks. Raise InputError if there are no GPUs, if the library would not load
    the text (too large, values too long), and, with `for_vm`, if a GPU has no PCI address or there
    are several hosts.
    """
    return write_for_vm(topology) if for_vm else write_all(topology)
