"""The XML in which NCCL and RCCL write down a machine (NCCL_TOPO_DUMP_FILE) and have it told (NCCL_TOPO_FILE).

Two dialects: NCCL's, version 1, with `nvlink` elements; RCCL's, version 2, with `xgmi` elements and `gcn` attributes.
Links get the rates that the library itself counts. What a file leaves in doubt is listed, a line each, in the
topology's `extra["notes"]`.

`write` adds `topoplan_*` attributes and elements for what the format cannot say (other rates, other switches, names).
NCCL skips elements and ignores attributes that it does not know, and `read` uses them: `read(write(t))` has the
devices, ranks and links of `t`.
"""

from __future__ import annotations

from .nccl_xml_read import read
from .nccl_xml_write import write

__all__ = ["read", "write"]
