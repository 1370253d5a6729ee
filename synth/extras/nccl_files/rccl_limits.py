"""What RCCL takes of a graph file: sizes of its arrays, and how many channels it makes of them.

RCCL doubles a graph's channels where they then fit. From its sources of October 2024 (device.h,
xml.h, graph/connect.cc).
"""

from dataclasses import dataclass

from ....topo.graph import Topology
from ..stock.nccl_version import NcclVersion
from ..stock.rccl_system import find_architecture

# The most channels of a communicator, on MI300 and MI350 and on older GPUs.
_MAX_CHANNELS_GFX9_4, _MAX_CHANNELS = 128, 32
# Channels of a graph that RCCL itself makes for eight MI300X: it runs twice as many.
_USUAL_GFX9_4 = 56
# Compute units of parts of an MI300, on which that is also the number of channels.
_SMALL_PARTS = (80, 38, 20)


@dataclass(frozen=True)
class RcclVersion(NcclVersion):
    """The NCCL that RCCL is made of, with RCCL's limits.

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
        return 8192

    @property
    def max_children(self) -> int:
        """The most XML elements below one element."""
        return 512

    @property
    def knows_p2c(self) -> bool:
        """Whether the path type P2C is known."""
        return False


def find_rccl_version(topology: Topology) -> RcclVersion:
    """Return the limits of RCCL for the GPUs of a topology."""
    name = find_architecture(topology).lower().removeprefix("gfx")
    if not name.startswith("94"):
        return RcclVersion(2, 21, _MAX_CHANNELS // 2, _MAX_CHANNELS)
    units = topology.by_id[topology.ranks[0]].extra.get("sm")
    most = next((part for part in _SMALL_PARTS if str(units) == str(part)), _MAX_CHANNELS_GFX9_4)
    return RcclVersion(2, 21, min(_USUAL_GFX9_4, most // 2), min(_USUAL_GFX9_4, most))
