"""The limits of RCCL on graph files: sizes of its arrays, and how it multiplies channels.

A graph file (NCCL_GRAPH_FILE) lists channels, each a ring or chain through all GPUs of a host. RCCL
doubles a graph's channels where they then fit (graph/connect.cc).
"""

from dataclasses import dataclass

from ....topo.graph import Topology
from ..stock.constants import (
    RCCL_CHANNELS,
    RCCL_CHANNELS_GFX9_4,
    RCCL_FILE_CHILDREN,
    RCCL_FILE_ELEMENTS,
    RCCL_SMALL_PARTS,
    RCCL_USUAL_GFX9_4,
)
from ..stock.nccl_version import NcclVersion
from ..stock.rccl_system import find_architecture


@dataclass(frozen=True)
class RcclVersion(NcclVersion):
    """The version of NCCL that RCCL is based on, with RCCL's limits.

    `usual` is how many channels a graph should have where more cost nothing, and `most` how many it
    can have.
    """

    usual: int
    most: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor} in RCCL"

    def __lt__(self, other: NcclVersion) -> bool:
        return (self.major, self.minor) < (other.major, other.minor)

    @property
    def max_channels(self) -> int:
        """The most channels of a graph in a file."""
        return self.most

    @property
    def max_elements(self) -> int:
        """The most XML elements of a graph file."""
        return RCCL_FILE_ELEMENTS

    @property
    def max_children(self) -> int:
        """The most XML elements below one element."""
        return RCCL_FILE_CHILDREN

    @property
    def knows_p2c(self) -> bool:
        """Whether RCCL knows the path type P2C (NVLink-C2C to a CPU): no."""
        return False


def find_rccl_version(topology: Topology) -> RcclVersion:
    """Return RCCL's limits on graph files for the GPUs of a topology."""
    name = find_architecture(topology).lower().removeprefix("gfx")
    if not name.startswith("94"):
        return RcclVersion(2, 21, RCCL_CHANNELS // 2, RCCL_CHANNELS)
    units = topology.by_id[topology.ranks[0]].extra.get("sm")
    most = next(
        (part for part in RCCL_SMALL_PARTS if str(units) == str(part)), RCCL_CHANNELS_GFX9_4
    )
    return RcclVersion(2, 21, min(RCCL_USUAL_GFX9_4, most // 2), min(RCCL_USUAL_GFX9_4, most))
