"""Read the XML files of NCCL and RCCL that describe a machine.

The libraries dump such a file (NCCL_TOPO_DUMP_FILE) and load one (NCCL_TOPO_FILE). There are two
dialects: NCCL's, version 1, with `nvlink` elements; RCCL's, version 2, with `xgmi` elements and
`gcn` attributes. Links get the rates that the library itself counts. Doubts about a file are in the
topology's `extra["notes"]`, a line each. Files that topoplan wrote have `topoplan_*` attributes and
elements for properties that the format cannot express; they are read, too.
"""

from .reader import read

__all__ = ["read"]
