"""The topology that is inferred from a matrix, and the rates that are assumed for its links.

A matrix gives no rates; the number of NVLinks reveals the generation of the GPUs. V100 have 6
NVLinks and PCIe Gen3, A100 12 and Gen4, H100 and B200 18 and Gen5 (NVIDIA's datasheets). Machines
are built with NICs that match their GPUs: HDR InfiniBand (200 Gb/s) in DGX A100, NDR (400 Gb/s) in
DGX H100 and B200. H100 PCIe and NVL cards with bridges also have 12 NVLinks; they are taken for
A100, which a PCIe rate given by the user (48 GB/s) corrects.
"""

from dataclasses import dataclass, field
from fractions import Fraction

from ...graph import Device, Link, both_directions
from ...hardware import NVLINK_LINKS_PER_GPU, PcieLink, pcie_link
from ...notes import assumed
from .cells import Cells, count_nvlinks, iterate_members

# No GPU has more NVLinks than this.
MAX_NVLINKS = max(NVLINK_LINKS_PER_GPU.values())


@dataclass(frozen=True)
class AssumedRates:
    """The assumed PCIe link and GB/s per NIC (None if unknown), each with its source."""

    pcie: PcieLink
    pcie_source: str
    nic_GBps: Fraction | None = None
    nic_source: str = ""


# Assumed for GPUs with more NVLinks than the first number.
_BY_NVLINKS = (
    (
        12,
        AssumedRates(
            PcieLink(5, 16),
            assumed("Gen5 x16 (32 GT/s), by the GPUs (H100 and later: 18 NVLinks)"),
            Fraction(50),
            "400 Gb/s, by the GPUs (H100 and later: 18 NVLinks)",
        ),
    ),
    (
        6,
        AssumedRates(
            PcieLink(4, 16),
            assumed("Gen4 x16 (16 GT/s), by the GPUs (A100: 12 NVLinks)"),
            Fraction(25),
            "200 Gb/s, by the GPUs (A100: 12 NVLinks)",
        ),
    ),
)
# Assumed if NVLinks reveal nothing.
UNKNOWN_RATES = AssumedRates(
    pcie_link(None, None), assumed("Gen3 x16, as NCCL takes PCIe links that are not known")
)


def assume_rates(cells: Cells) -> AssumedRates:
    """Return the rates to assume for a machine, by the largest number of NVLinks of any GPU."""
    most = max((_count_gpu_nvlinks(row) for row in cells.labels), default=0)
    return next((rates for fewer, rates in _BY_NVLINKS if most > fewer), UNKNOWN_RATES)


def _count_gpu_nvlinks(row: list[str | None]) -> int:
    """Return the number of a GPU's NVLinks: the sum over its labels.

    A sum that exceeds the links of any GPU means NVSwitches; then the largest label counts.
    """
    counts = [count_nvlinks(label) for label in row]
    return sum(counts) if sum(counts) <= MAX_NVLINKS else max(counts)


@dataclass(frozen=True)
class Affinity:
    """CPUs (`0-19,40-59`) and NUMA node near a GPU; None if its row does not give them."""

    cpus: str | None = None
    numa_node: int | None = None

    @property
    def key(self) -> int | str | None:
        """The identity of the NUMA node: its number, else its CPUs, None if both are unknown."""
        return self.cpus if self.numa_node is None else self.numa_node


# The affinity of a row with `N/A` for both.
UNKNOWN = Affinity()


@dataclass
class InferredTopology:
    """Devices and links inferred so far; sets of devices are bit masks over the columns.

    `affinities`, `node` and `root` map a column to its GPU's affinity, or to its device's NUMA node
    and root complex. `source` is that of all devices. `overruled` holds pairs of columns whose
    labels were not followed, which a note explains; `unplaced` is the set of NICs whose CPU is a
    guess. `has_nic_rows` is whether the matrix has rows of NICs, not only columns.
    """

    cells: Cells
    affinities: dict[int, Affinity]
    source: str
    devices: list[Device] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rates: AssumedRates = UNKNOWN_RATES
    node: dict[int, int] = field(default_factory=dict)
    root: dict[int, str] = field(default_factory=dict)
    overruled: set[frozenset[int]] = field(default_factory=set)
    has_nic_rows: bool = True
    unplaced: int = 0

    def pick_id(self, stem: str, number: int | None = None) -> str:
        """Return an unused id: `stem` with `number`, else with the first free number."""
        used = {*self.cells.ids, *(device.id for device in self.devices)}
        if number is not None and f"{stem}{number}" not in used:
            return f"{stem}{number}"
        return next(name for n in range(len(used) + 1) if (name := f"{stem}{n}") not in used)

    def join(self, link: Link) -> None:
        """Add a link in both directions."""
        self.links += both_directions(link)

    def get_names(self, mask: int) -> list[str]:
        """Return the ids of a set's devices."""
        return [self.cells.ids[i] for i in iterate_members(mask)]
