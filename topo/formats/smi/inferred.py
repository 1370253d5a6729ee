"""The topology that is inferred from a matrix, and the rates that are assumed for its links.

A matrix gives no rates: the boards that its GPUs are, or can be, decide (candidates.py). Devices
are known by the numbers of their columns, from 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from ...between_cpus import assume_between_cpus
from ...boards import Board
from ...graph import Device, Link, both_directions
from ...hardware import LATENCY_us, PcieLink, pcie_link
from ...notes import Source, assumed
from .cells import Cells, iterate_members

# Assumed for GPUs of which nothing is known.
UNKNOWN_PCIE = pcie_link(None, None)


@dataclass(frozen=True)
class AssumedRates:
    """The assumed rates of PCIe, of one NVLink, of a NIC (GB/s, None if unknown), and between CPUs.

    Each has its source. `boards` are those of the GPUs that are known, by column; `how` is a text
    on how they are known, for sources. `said` has the PCIe links that the text states for GPUs and
    NICs, by column, with their sources.
    """

    pcie: PcieLink = UNKNOWN_PCIE
    pcie_source: str = assumed("Gen3 x16, as NCCL takes PCIe links that are not known")
    nvlink_GBps: Fraction = Fraction(25)
    nvlink_source: str = assumed("25 GB/s an NVLink, as in most generations")
    between_cpus: tuple[Fraction, Source] = assume_between_cpus(None)
    nic_GBps: Fraction | None = None
    nic_source: str = ""
    boards: Mapping[int, Board] = field(default_factory=dict)
    how: str = ""
    said: Mapping[int, tuple[PcieLink, Source]] = field(default_factory=dict)


def assume_rates(
    boards: Mapping[int, Board],
    how: str,
    cpu: tuple[str, dict[str, str]] | None = None,
    generation: int | None = None,
) -> AssumedRates:
    """Return the rates to assume for a machine with these boards, by column; `how` is in sources.

    Of several boards the fastest PCIe and the slowest NVLink count. `cpu` is the result of
    `find_cpu` for the text. `generation` is the newest PCIe generation of the GPUs if the text
    states it for all of them, else None. If no boards are given, it is that of the PCIe rate, with
    16 lanes. The rate between CPUs, if no model of theirs gives it, is by the PCIe generation of
    the boards, or by `generation` if that is older.
    """
    name, model = cpu or ("", None)
    if not boards:
        between_cpus = assume_between_cpus(generation, model, name)
        if generation is None:
            return AssumedRates(between_cpus=between_cpus)
        link = PcieLink(generation, 16)
        source = assumed(f"{_describe(link)}, of the generation that the text states for the GPUs")
        return AssumedRates(link, source, between_cpus=between_cpus)
    fastest = max(boards.values(), key=lambda board: board.pcie.bandwidth_GBps)
    era = min(fastest.pcie.generation, generation or fastest.pcie.generation)
    wired = [board.wire_GBps for board in boards.values() if board.wires]
    rates = AssumedRates(
        fastest.pcie,
        assumed(f"{_describe(fastest.pcie)}, {how}"),
        boards=boards,
        how=how,
        between_cpus=assume_between_cpus(era, model, name),
    )
    if wired:
        rates = replace(
            rates,
            nvlink_GBps=min(wired),
            nvlink_source=assumed(f"{float(min(wired)):g} GB/s an NVLink, {how}"),
        )
    if Gbps := fastest.nic_Gbps:
        rates = replace(rates, nic_GBps=Fraction(Gbps, 8), nic_source=f"{Gbps} Gb/s, {how}")
    return rates


def _describe(link: PcieLink) -> str:
    return f"Gen{link.generation} x{link.width}"


@dataclass(frozen=True)
class Affinity:
    """CPUs (`0-19,40-59`) and NUMA node near a GPU; None if its row does not give them.

    `is_of_several_nodes` is whether the row lists further NUMA nodes.
    """

    cpus: str | None = None
    numa_node: int | None = None
    is_of_several_nodes: bool = False

    @property
    def key(self) -> int | str | None:
        """The identity of the NUMA node: its number, else its CPUs, None if both are unknown."""
        return self.cpus if self.numa_node is None else self.numa_node


# The affinity of a row with `N/A` for both.
UNKNOWN = Affinity()


@dataclass
class InferredTopology:
    """Devices and links inferred so far; sets of devices are bit masks over the columns.

    `cells` are the matrix that they are inferred from. `affinities`, `node` and `root` map a column
    to its GPU's affinity, or to its device's NUMA node and root complex. `source` is that of all
    devices. `overruled` holds pairs of columns whose labels were not followed, which a note
    explains; `unplaced` maps NICs whose CPU is a guess to the number of their group, from 1, whose
    members are near each other.
    """

    cells: Cells
    affinities: dict[int, Affinity]
    source: str
    devices: list[Device] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rates: AssumedRates = field(default_factory=AssumedRates)
    node: dict[int, int] = field(default_factory=dict)
    root: dict[int, str] = field(default_factory=dict)
    overruled: set[frozenset[int]] = field(default_factory=set)
    unplaced: dict[int, int] = field(default_factory=dict)

    def pick_id(self, stem: str, number: int | None = None) -> str:
        """Return an unused id: `stem` with `number`, else with the first free number."""
        used = {*self.cells.ids, *(device.id for device in self.devices)}
        if number is not None and f"{stem}{number}" not in used:
            return f"{stem}{number}"
        return next(name for n in range(len(used) + 1) if (name := f"{stem}{n}") not in used)

    def join(self, link: Link) -> None:
        """Add a link in both directions."""
        self.links += both_directions(link)

    def join_pcie(self, below: str, above: str, to_cpu: bool = False) -> None:
        """Join a device to the switch or CPU above it, both by their ids, over PCIe.

        With `to_cpu` a GPU whose board has NVLink-C2C is joined by that.
        """
        rates = self.rates
        column = self.cells.ids.index(below) if below in self.cells.ids else -1
        board = rates.boards.get(column)
        if board is not None and board.c2c_GBps and to_cpu:
            by = assumed(f"{float(board.c2c_GBps):g} GB/s of NVLink-C2C, {rates.how}")
            self.join(Link(below, above, board.c2c_GBps, LATENCY_us["c2c"], "c2c", source=by))
            return
        pcie = rates.pcie if board is None else board.pcie
        source = rates.pcie_source
        if pcie != rates.pcie:
            source = assumed(f"{_describe(pcie)}, {rates.how}")
        pcie, source = rates.said.get(column, (pcie, source))
        rate = pcie.bandwidth_GBps
        self.join(Link(below, above, rate, LATENCY_us["pcie"], "pcie", source=source))

    def get_names(self, mask: int) -> list[str]:
        """Return the ids of a set's devices."""
        return [self.cells.ids[i] for i in iterate_members(mask)]
