"""The constants of NCCL 2.30.7 and of RCCL of October 2024, each with its source.

Sources are files of the libraries' repositories. NCCL's name begins without a prefix, RCCL's with
RCCL. Rates by which NCCL counts links that files of topologies have, too, are in `topo.hardware`.
Compute capabilities are times ten, and tables by them have the lowest one of a row, newest first.
"""

from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction

from ....topo.hardware import LOCAL_GBps

# Units of rates. NCCL's rates are whole in kB/s; its search rounds to MB/s.
kBps_PER_GBps, kBps_PER_MBps, MBps_PER_GBps = 10**6, 10**3, 10**3


class PathType(IntEnum):
    """NCCL's types of links and paths, the nearest first (graph/topo.h).

    Inside a GPU (LOC), over NVLink (NVL), another GPU's NVLink (NVB), NVLink-C2C, one PCIe switch
    (PIX), several (PXB), C2C to a CPU (P2C), another GPU to a NIC (PXN), a CPU (PHB), between CPUs
    (SYS), the network (NET), none (DIS).
    """

    LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS, NET, DIS = range(12)


# Collectives that both libraries run over rings; allreduce over trees as well.
OVER_RINGS = ("allreduce", "allgather", "reduce-scatter")

# -- the graph of a host: graph/topo.h and topo.cc

# A link over PCI has the type of a path below one PCI switch.
LINK_PCI = PathType.PIX
# kB/s of what limits nothing, and of the links of CPUs by architecture, vendor and model.
LOCAL_kBps = int(LOCAL_GBps * kBps_PER_GBps)
POWER_kBps, ARM_kBps, AMD_kBps = 32_000_000, 6_000_000, 16_000_000
INTEL_kBps = ((0xCF, 40_000_000), (0x8F, 22_000_000), (0x55, 10_000_000), (0, 6_000_000))
ZHAOXIN_kBps, YONGFENG_kBps = 6_000_000, 9_000_000
# Hundreds of Mb/s of a PCIe link by its width, by the beginning of the speed's text, in the order
# of comparison.
RATES_BY_WIDTH = (
    *(("2.5 GT/s", 15), ("5 GT/s", 30), ("8 GT/s", 60), ("16 GT/s", 120), ("32 GT/s", 240)),
    *(("5.0 GT/s PCIe", 30), ("8.0 GT/s PCIe", 60), ("16.0 GT/s PCIe", 120)),
    *(("32.0 GT/s PCIe", 240), ("64.0 GT/s PCIe", 480)),
)
# The rate by width and the width that NCCL takes where they are unknown: Gen3 x16.
UNKNOWN_RATE, UNKNOWN_WIDTH = 60, 16
# Converts hundreds of Mb/s to kB/s.
kBps_PER_RATE = 12_500
# kB/s of a Mb/s, and the Mb/s of a NIC of unknown speed.
kBps_PER_Mbps, UNKNOWN_NET_Mbps = 125, 10_000

# -- paths: graph/paths.cc

# The farthest path over which a NIC reads and writes a GPU's memory (NCCL_NET_GDR_LEVEL).
GDR_LEVEL = PathType.P2C
# GPUs from this compute capability on are read by NICs beside other PCI traffic.
GDR_READ_SM = 80
# The compute capability from which NVSwitches add data for NCCL (NVLS).
NVLS_SM = 90

# -- the search: graph/search.cc

# The most channels of a communicator (device.h), and of a graph, which NCCL doubles.
MAX_COMM_CHANNELS, MAX_CHANNELS = 64, 32
# Numbers of patterns: a chain whose ends share the network's load, one whose ends are at different
# NICs, a chain, a ring, and two for switches that add. A graph of trees has one of the first three.
BALANCED_TREE, SPLIT_TREE, TREE, RING, NVLS, COLLNET_DIRECT = range(1, 7)
TREES = BALANCED_TREE, SPLIT_TREE, TREE
# MB/s of a channel that NCCL tries inside a host.
SPEEDS_MBps: tuple[tuple[int, tuple[int, ...]], ...] = tuple(
    (sm, tuple(speed * MBps_PER_GBps for speed in speeds))
    for sm, speeds in (
        (100, (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18)),
        (90, (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3)),
        (0, (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3)),
    )
)
# The same between hosts.
_LOW_SPEEDS = (2400, 1200, 240, 120)
HOST_SPEEDS_MBps: tuple[tuple[int, tuple[int, ...]], ...] = (
    (
        100,
        (
            *(96_000, 86_000, 80_000, 48_000, 45_100, 42_000, 40_000, 30_000, 24_000, 22_000),
            *(20_000, 17_500, 15_000, 12_000, 6_000, 3_000, *_LOW_SPEEDS),
        ),
    ),
    (
        90,
        (
            *(48_000, 45_000, 42_000, 40_000, 30_000, 24_000, 22_000, 20_000, 17_500, 15_000),
            *(12_000, 6_000, 3_000, *_LOW_SPEEDS),
        ),
    ),
    (
        0,
        (
            *(48_000, 30_000, 28_000, 24_000, 20_000, 18_000, 15_000, 12_000, 10_000, 9_000),
            *(7_000, 6_000, 5_000, 4_000, 3_000, *_LOW_SPEEDS),
        ),
    ),
)
# Steps of one search, of one that repeats an order, of the first trial of a graph from a NIC in the
# order of the GPUs (which do not count), and of the first pass once it has channels.
STEPS, STEPS_SAME, FIRST_STEPS, STEPS_ALL = 1 << 14, 1 << 8, 1 << 10, 1 << 19
# A lower speed is tried while it is more than this share of the best one, in percent.
LOWEST_SHARE = 49
# MB/s of a channel from which NCCL splits it in two; newer GPUs with many channels need the second.
SPLIT_MBps, SPLIT_MANY_MBps = 25_000, 50_000
SPLIT_MANY_SM, MANY_CHANNELS = 80, 4
# MB/s of the one channel in rank order that NCCL takes if it finds none.
FALLBACK_MBps = 100
# NCCL_CROSS_NIC's default, which repeats searches if there are several NICs.
CROSS_NIC = 2
# From this compute capability on NCCL also tries trees at whose root all network traffic is, and
# needs no trees over the farthest paths to NICs.
PLAIN_TREES_SM = NEAR_NICS_SM = 90
# Shares of a path's speed that NCCL counts on a link. Intel's CPUs pass traffic of GPUs on in small
# packets; GPUs before a compute capability answer what NICs write to them.
WHOLE, INTEL_SHARE, ACKNOWLEDGED, QUIET_SM = Fraction(1), Fraction(6, 5), Fraction(1, 8), 80

# -- the tuner: graph/tuning.cc

# The protocols: 8 bytes with flags, 128 bytes with flags, and plain.
LL, LL128, SIMPLE = range(3)
# Microseconds that a call takes at least, and a step over NVLink, PCI and a network, for each
# protocol.
BASE_us = {"chains": (6.8, 14.0, 8.4), "rings": (6.6, 14.0, 8.4)}
NVLINK_us = {"chains": (0.6, 1.25, 4.0), "rings": (0.6, 1.9, 3.4)}
PCI_us = {"chains": (1.0, 1.9, 4.0), "rings": (1.0, 2.5, 5.7)}
NET_us = {"chains": (5.0, 8.5, 14.0), "rings": (2.7, 4.0, 14.0)}
# Microseconds in which a CPU, AMD's or another, posts to the network; three times as many for
# plain messages.
POST_AMD_us, POST_us, POSTS_OF_SIMPLE = 2.0, 1.0, 3
# Large messages take a ring so much longer between hosts, on GPUs before the compute capability
# and later; a message is large from this many bytes of a rank on a channel.
PLATEAU_OLD, PLATEAU, PLATEAU_SM, LARGE_bytes = 1.9, 1.4, 80, 64


@dataclass(frozen=True)
class Caps:
    """The most GB/s that NCCL expects of a channel, by shape and protocol (LL, LL128, Simple).

    Each tuple is for 1, 2 and more hosts; `chain` is of the protocol Simple. `ll` is of LL on one
    host, and of all channels together, rings or chains.
    """

    ll: float
    ring_ll128: tuple[float, float, float]
    chain_ll128: tuple[float, float, float]
    chain: tuple[float, float, float]


CAPS = (
    (100, Caps(282.0, (40.0,) * 3, (55.6, 31.67, 20.0), (70.0, 42.8, 24.0))),
    (90, Caps(141.0, (36.7,) * 3, (36.7, 36.7, 29.0), (38.7, 41.4, 36.0))),
    (80, Caps(87.7, (20.0,) * 3, (20.0,) * 3, (24.0, 23.6, 17.8))),
    (0, Caps(39.0, (20.0,) * 3, (20.0,) * 3, (26.5, 18.5, 10.0))),
)
# The largest of these for a file's chains, which one block of threads copies: of one host, in whole
# GB/s, and older GPUs like those of compute capability 8.0.
WHOLE_CHAIN_CAPS_GBps = ((100, 70), (90, 38), (0, 24))
# GB/s of all channels with LL on 2 and on more hosts, with AMD's CPUs and others.
LL_AMD_GBps, LL_GBps = (22.5, 19.0), (39.0, 20.4)
# Shares of the modelled rate that NCCL expects of chains, by protocol, for sizes of 64 bytes, 128
# bytes and so on; it expects all of it outside the table.
CHAIN_SHARES = (
    (*(1.0,) * 4, 0.9, 0.8, *(0.7,) * 4, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, *(1.0,) * 4),
    (*(1.0,) * 5, 0.9, 0.8, 0.8, 0.8, 0.7, *(0.6,) * 6, 0.8, *(0.9,) * 4, 1.0, 1.0),
    (*(0.9,) * 7, 0.8, 0.7, 0.6, 0.6, *(0.5,) * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
)
# The size of the table's first share.
SMALLEST_bytes = 64
# Parts of a graph's rate that NCCL expects: of chains, with their protocols and if all have one
# root; of rings with their protocols.
OF_CHAIN, CHAIN_LL, PLAIN_TREE = Fraction(92, 100), 1 / 3.8, 0.85
CHAIN_LL128, CHAIN_LL128_HOSTS = 7 / 9, 120 / 128
RING_LL, RING_LL128 = 0.5, 0.92
# LL128 needs this compute capability, and equal GPUs below the second.
LL128_SM, LL128_MIXED_SM = 70, 90

# -- graph files, by the version of NCCL from which on the numbers hold: device.h, graph/xml.h

# The most channels of a graph: NCCL doubles them, and does not check that they fit its arrays.
FILE_CHANNELS = (((2, 25), MAX_CHANNELS), ((0, 0), 16))
# The most XML elements of a file, and below one element.
FILE_ELEMENTS = (((2, 30), 65536), ((2, 21), 4096), ((0, 0), 1024))
FILE_CHILDREN = (((2, 30), 640), ((2, 21), 128), ((0, 0), 32))
# Types of paths that files name, the nearest first, and the version that knows P2C (NVLink-C2C to a
# CPU); others read it as LOC.
FILE_TYPES = ("LOC", "NVL", "NVB", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
P2C_SINCE = 2, 28

# -- RCCL of October 2024, where it differs

# RCCL gives all of AMD's GPUs this compute capability (graph/topo.cc).
RCCL_SM = 60
# MB/s of a channel that RCCL tries (graph/search.cc).
RCCL_SPEEDS_MBps = (
    *(48_000, 24_000, 20_000, 18_000, 15_000, 12_000, 10_000, 9_000, 7_000, 6_000, 5_000, 4_000),
    *(3_000, 2_400, 1_200, 240, 120),
)
# Its types of paths between GPUs, the nearest first.
RCCL_TYPES = (
    *(PathType.NVL, PathType.NVB, PathType.PIX, PathType.PXB, PathType.PXN, PathType.PHB),
    PathType.SYS,
)
# RCCL has arrays for 128 channels, and doubles those it finds. Machines in its table's style (5 to
# 8 GPUs with xGMI) get few rings from the search.
RCCL_MAX_RINGS, RCCL_MAX_RINGS_WITH_XGMI, RCCL_XGMI_GPUS = 64, 2, range(5, 9)
# The table's machines (graph/rome_models.cc), by GPUs: the numbers of other GPUs to which each has
# xGMI links.
RCCL_TABLE_PEERS = {8: ({2}, {3}), 16: ({3}, {4}, {3, 4})}
# Those with trees that branch have so many CPUs, with equally many GPUs at each.
RCCL_BRANCHING_CPUS = 4
# Machines that the table always decides have eight GPUs, each with xGMI to six or seven others.
RCCL_MESH_GPUS, RCCL_MESH_PEERS = 8, (6, 7)
# EPYC CPUs of the table: from Rome on, as family and least model.
RCCL_EPYC = ((143, 49), (175, 0))
# What RCCL's tuner expects of chains at large sizes, as a share of their rate; of rings all of it
# (graph/tuning.cc). On one host of MI300 it has no chains at large sizes.
RCCL_OF_CHAIN, RCCL_OF_CHAIN_MI300 = Fraction(82, 100), Fraction(0)
# The most channels of a communicator, on MI300 and MI350 and on older GPUs (device.h).
RCCL_CHANNELS_GFX9_4, RCCL_CHANNELS = 128, 32
# Channels of a graph that RCCL itself makes for eight MI300X: it runs twice as many.
RCCL_USUAL_GFX9_4 = 56
# Compute units of parts of an MI300, on which that is also the number of channels.
RCCL_SMALL_PARTS = (80, 38, 20)
# The most XML elements of a graph file, and below one element (graph/xml.h).
RCCL_FILE_ELEMENTS, RCCL_FILE_CHILDREN = 8192, 512
# Sizes of the arrays of GPUs, and of the buffer for the text of a tree (RCCL_TREES).
RCCL_ENV_RANKS, RCCL_TREE_CHARACTERS = 64, 255
# Trees have room for three children, but the kernels read only two (device/common.h).
RCCL_CHILDREN = 2
# With fewer GPUs than this RCCL ignores a number of channels above the second.
RCCL_FEW_GPUS, RCCL_CHANNELS_OF_FEW = 8, 64
