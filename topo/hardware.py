"""Rates and latencies of links, each constant with its source.

Datasheet rates are those that the vendor prints; presets use them. Counted rates are those of
NCCL's and RCCL's own models, about four fifths of the datasheet; files in their XML dialect are
read with these, since the library itself interprets the file that way. All rates are GB/s (1e9
bytes per second) in one direction.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from .devices import InNetwork

# GB/s of one NVLink in one direction, by NVLink generation.
NVLINK_DATASHEET_GBps: Mapping[int, Fraction] = {
    1: Fraction(20),  # Tesla P100 whitepaper: 40 GB/s per link, both directions together
    2: Fraction(25),  # Tesla V100 whitepaper: 6 links, 300 GB/s both directions together
    3: Fraction(25),  # A100 whitepaper: 12 links, 600 GB/s both directions together
    4: Fraction(25),  # H100 whitepaper: 18 links, 900 GB/s both directions together
    5: Fraction(50),  # Blackwell architecture brief: 18 links, 1.8 TB/s both directions together
}

# NVLink generation of NVSwitches by PCI device id (PCI ID repository: GV100, GA100 and GH100).
NVSWITCH_GENERATIONS: Mapping[str, int] = {"1ac1": 2, "1ac2": 2, "1af1": 3, "22a3": 4}


def nvswitch_adding(
    generation: int | None = None, links_per_gpu: int | None = None
) -> InNetwork | None:
    """Return whether NVSwitches can add data, None if unknown.

    Decided by the NVLink generation, or else by the number of links a GPU has to them (18: Hopper
    and later, 12: A100, 6: V100). The third NVSwitch, of NVLink 4, is the first with engines for
    sums and multicast (NVLink SHARP; NVIDIA H100 Tensor Core GPU architecture whitepaper,
    "Third-generation NVSwitch"). NCCL calls it NVLS.
    """
    if generation is None:
        generation = {6: 2, 12: 3, 18: 4}.get(links_per_gpu or 0)
    if generation is None:
        return None
    if generation < 4:
        return InNetwork("no", f"the NVSwitch of NVLink {generation} has no NVLink SHARP")
    return InNetwork(
        "possible",
        "NVSwitch 3 and later have NVLink SHARP (NVIDIA H100 whitepaper); NCCL uses it as NVLS",
    )


# Whether the InfiniBand switches of DGX clusters could add.
QUANTUM_ADDING = InNetwork(
    "possible",
    "InfiniBand switches for HDR and NDR have SHARP (NVIDIA Quantum datasheets); NCCL uses it as "
    "CollNet",
)

_NVLINK_COUNTED_GBps: tuple[tuple[int, Fraction], ...] = (
    (100, Fraction(401, 10)),
    (90, Fraction(103, 5)),
    (80, Fraction(20)),
    (70, Fraction(20)),
    (60, Fraction(18)),
)
_SM_WITH_BRIDGES = 86  # its NVLinks are slower ones, on bridges between cards


def nvlink_counted_GBps(sm: int | None) -> Fraction:
    """Return GB/s of one NVLink in one direction in NCCL's model (NCCL 2.30, graph/topo.h).

    `sm` is the compute capability times ten; unknown and older ones count as sm 80, as in NCCL.
    """
    if sm == _SM_WITH_BRIDGES:
        return Fraction(12)
    return next((rate for least, rate in _NVLINK_COUNTED_GBps if (sm or 0) >= least), Fraction(20))


def c2c_GBps(bw: int, count: int) -> Fraction:
    """Return GB/s of an NVLink-C2C port: `count` links of `bw` MB/s (NCCL 2.30, graph/topo.cc)."""
    return Fraction(bw * count, 1000)


_XGMI_COUNTED_GBps: tuple[tuple[re.Pattern[str], Fraction], ...] = (
    (re.compile(r"(gfx)?9[45]\w"), Fraction(48)),  # MI300 and MI350: GFX94X, GFX95X
    (re.compile(r"910|(gfx)?90a"), Fraction(36)),  # MI200
)


def xgmi_counted_GBps(gcn: str) -> Fraction:
    """Return GB/s of one xGMI link in one direction in RCCL's model (graph/topo.h).

    `gcn` is the architecture: 906, 910, gfx942.
    """
    name = gcn.split(":")[0].strip().lower()
    fitting = (rate for pattern, rate in _XGMI_COUNTED_GBps if pattern.fullmatch(name))
    return next(fitting, Fraction(24))  # Vega and MI100


# Most links of a pair with each rate: NVLinks of P100, of V100 to the first NCCLs with H100, of
# cards, H100 and B200; xGMI of Vega, MI200 and MI300.
_MOST_LINKS: Mapping[str, Mapping[Fraction, int]] = {
    "nvlink": {
        Fraction(18): 4,
        Fraction(20): 18,
        Fraction(12): 4,
        Fraction(103, 5): 18,
        Fraction(401, 10): 18,
    },
    "xgmi": {Fraction(24): 4, Fraction(36): 4, Fraction(48): 4},
}


def count_links(kind: str, total_GBps: Fraction) -> int | None:
    """Return the one number of NVLink or xGMI links that have this rate together, else None.

    `kind` is nvlink or xgmi, `total_GBps` the rate in one direction. The number is by NCCL's and
    RCCL's model: 370.8 GB/s can only be 18 NVLinks of 20.6; 36 GB/s are 2 of a P100 or 3 of cards.
    """
    counts = {
        count.numerator
        for rate, most in _MOST_LINKS.get(kind, {}).items()
        if (count := total_GBps / rate).denominator == 1 and 1 <= count <= most
    }
    return counts.pop() if len(counts) == 1 else None


# Transfer rate of a lane in GT/s, by PCI Express generation (PCI Express base specifications).
PCIE_GTps: Mapping[int, Fraction] = {
    1: Fraction(5, 2),
    2: Fraction(5),
    3: Fraction(8),
    4: Fraction(16),
    5: Fraction(32),
    6: Fraction(64),
}

_PCIE_LANE_HUNDRED_Mbps: Mapping[int, int] = {1: 15, 2: 30, 3: 60, 4: 120, 5: 240, 6: 480}
_SPEED = re.compile(r"\s*(\d{1,3}(?:\.\d{1,3})?)\s*GT/s(?:\s+PCIe)?\s*")


def pcie_GBps(generation: int, width: int) -> Fraction:
    """Return GB/s of a PCIe link in one direction in NCCL's model (NCCL 2.30, graph/topo.cc).

    The rate is width x {15, 30, 60, 120, 240, 480} / 80: 12 GB/s for Gen3 x16, which is the
    datasheet's 15.75 less packet headers.
    """
    return Fraction(width * _PCIE_LANE_HUNDRED_Mbps[generation], 80)


def pcie_generation(speed: str | None) -> int | None:
    """Return the PCIe generation of a speed as Linux prints it ("16.0 GT/s PCIe"), or None."""
    match = _SPEED.fullmatch(speed or "")
    if match is None:
        return None
    return next((g for g, GTps in PCIE_GTps.items() if GTps == Fraction(match[1])), None)


@dataclass(frozen=True)
class PcieLink:
    """A PCIe link of `width` lanes, with the bandwidth that NCCL's model gives it.

    `assumed` has a sentence for each value that was unknown, so that a default was taken.
    """

    generation: int
    width: int
    assumed: tuple[str, ...] = ()

    @property
    def bandwidth_GBps(self) -> Fraction:
        """GB/s in one direction."""
        return pcie_GBps(self.generation, self.width)

    def __str__(self) -> str:
        return f"{float(PCIE_GTps[self.generation]):g} GT/s x{self.width}"


def pcie_link(speed: str | None, width: int | None) -> PcieLink:
    """Return the link of a speed and width, with NCCL's defaults (graph/topo.cc) for unknown ones.

    `speed` is as Linux prints it ("16.0 GT/s PCIe"), `width` the number of lanes. An unknown speed
    counts as Gen3, a width of None or 0 as 16 lanes; the link's `assumed` says so.
    """
    assumed: list[str] = []
    generation = pcie_generation(speed)
    if generation is None:
        doubt = f"{speed[:40]!r} is unknown" if speed else "not given"
        assumed.append(f"link_speed {doubt}; taken as Gen3 (8 GT/s), as NCCL does")
    if not width:
        doubt = "not given" if width is None else "is 0"
        assumed.append(f"link_width {doubt}; taken as 16 lanes, as NCCL does")
    return PcieLink(generation or 3, width or 16, tuple(assumed))


# Rate in NCCL's model of a connection that limits nothing (LOC_BW in graph/topo.h).
LOCAL_GBps = Fraction(5000)

# GB/s of one Intel QPI link in one direction: 9.6 GT/s x 2 bytes (Xeon E5 v4 datasheet).
QPI_DATASHEET_GBps = Fraction(96, 5)

# By the lowest model number.
_INTEL_GBps: tuple[tuple[int, Fraction], ...] = (
    (0xCF, Fraction(40)),  # Emerald Rapids
    (0x8F, Fraction(22)),  # Sapphire Rapids
    (0x55, Fraction(10)),  # Skylake, Cascade Lake
)


def inter_cpu_GBps(
    arch: str | None, vendor: str | None, family: int | None, model: int | None
) -> Fraction:
    """Return GB/s between two CPUs of a machine in NCCL's model (graph/topo.h and topo.cc).

    The rate is chosen by architecture (x86_64, arm64, ppc64), CPUID vendor string, family and
    model. AMD counts 16 whatever its family, as in NCCL 2.30; later versions (`between_cpus`) count
    24 for Zen 3 and 4, and 32 for Zen 5. An unknown CPU limits nothing.
    """
    match arch, vendor:
        case "ppc64", _:
            return Fraction(32)
        case "arm64", _:
            return Fraction(6)
        case _, "AuthenticAMD":
            return Fraction(16)
        case _, "CentaurHauls" | "  Shanghai  ":  # Zhaoxin; model 91 of family 7 is Yongfeng
            return Fraction(9 if (family, model) == (7, 0x5B) else 6)
        case _, "GenuineIntel":
            number = model if family == 6 and model is not None else 0
            # Granite Rapids and Sierra Forest count as Emerald Rapids, despite lower numbers.
            newest = _INTEL_GBps[0][0] if number in (0xAD, 0xAE, 0xAF) else number
            rates = (rate for least, rate in _INTEL_GBps if newest >= least)
            return next(rates, Fraction(6))  # Broadwell and older
    return LOCAL_GBps


def inter_cpu_GBps_of(cpu: Mapping[str, object]) -> Fraction:
    """Return `inter_cpu_GBps` for a CPU device's `extra`: arch, vendor, familyid and modelid."""
    arch, vendor = (str(cpu[key]) if key in cpu else None for key in ("arch", "vendor"))
    family, model = (
        int(text)
        if (text := str(cpu.get(key))).isascii() and text.isdigit() and len(text) < 10
        else None
        for key in ("familyid", "modelid")
    )
    return inter_cpu_GBps(arch, vendor, family, model)


# Fields of a NIC whose rate its file does not give: the GB/s assumed when hosts are joined, and the
# reason.
ASSUMED_SPEED, ASSUMED_BY = "assumed_speed_GBps", "assumed_speed_by"
# Field of a device whose file does not tell which CPU it is below: true, or the number of a group
# of NICs that are near each other.
ASSUMED_PLACE = "assumed_place"

# Microseconds that one link takes, by kind.
#
# From NCCL's tuning model (graph/tuning.cc, hwLat, low-latency protocol, ring): 0.6 from GPU to GPU
# over NVLink, 1.0 over PCI, 2.7 over a network. These apply to whole paths, so a link to a switch
# (nvswitch, pcie, network) counts half. xGMI and C2C count as NVLink, links between sockets as PCI.
LATENCY_us: Mapping[str, Fraction] = {
    "nvlink": Fraction(3, 5),
    "xgmi": Fraction(3, 5),
    "c2c": Fraction(3, 5),
    "nvswitch": Fraction(3, 10),
    "pcie": Fraction(1, 2),
    "smp": Fraction(1, 2),
    "network": Fraction(27, 20),
}
