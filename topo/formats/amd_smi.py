"""Read the tables that AMD's tools print: `rocm-smi --showtopo` and `amd-smi topology`.

The tables cover all pairs of GPUs: the kind of link (XGMI or PCIE), the number of hops, and more. A
pair with XGMI and the weight of one hop has links of its own: "hops" is 1 for all GPUs that xGMI
joins, also over others (ROCm/rocm-systems#5763). Rates are only in a table of bandwidths, if there
is one (`rocm-smi --shownodesbw`, amd-smi's NUMA BW): the minimum and maximum in MB/s of each pair,
the rates of one link and of all its links. Otherwise they are assumed, and their source says so.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from pathlib import PurePath

from ..boards import BOARDS, Board, get_board
from ..devices import Device, Link, both_directions
from ..errors import InputError
from ..facts import Fact, Facts, facts_to_json, keys
from ..facts.keys import gpu_subject, xgmi_subject
from ..graph import Topology
from ..hardware import (
    LATENCY_us,
    PcieLink,
    QPI_DATASHEET_GBps,
    pcie_link,
)
from ..names import join_first
from ..notes import Note, assumed
from .gpu_names import GpuNames, find_gpu_names, list_boards

# No machine has as many GPUs; every pair becomes a cell of several tables.
MAX_GPUS = 256
# Five tables of 256 rows take some 1,300 lines. The room for other text is chosen.
MAX_LINES = 100_000
TYPE, HOPS, WEIGHT, BANDWIDTH, OTHER = "link type", "hops", "weight", "bandwidth", ""

_TITLES = (
    (TYPE, re.compile(r"=+ Link Type between two GPUs =+|LINK TYPE TABLE:")),
    (HOPS, re.compile(r"=+ Hops between two GPUs =+|HOPS TABLE:")),
    (WEIGHT, re.compile(r"=+ Weight between two GPUs =+|WEIGHT TABLE:")),
    (BANDWIDTH, re.compile(r"=+ (?:Numa )?Bandwidth.* =+|NUMA BW TABLE:", re.IGNORECASE)),
    (OTHER, re.compile(r"=+ .* =+|[A-Z][A-Z -]{2,40} TABLE:")),
)
_SNIFF = re.compile(
    r"^[ \t>#$]{0,20}(?:=+ (?:Link Type|Hops|Weight) between two GPUs =+"
    r"|(?:LINK TYPE|HOPS|WEIGHT) TABLE:)",
    re.MULTILINE,
)
# Characters at the start of a text in which its format is detected.
_SNIFF_CHARACTERS = 2**20
_NAME = re.compile(r"GPU\d{1,4}|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
_NUMA = re.compile(
    r"GPU ?\[?(\d{1,4})\]?\s{0,20}: \(Topology\) Numa (Node|Affinity): (-?\d{1,6})\s{0,20}"
)
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")
# Two PCIe hops pass through one CPU; three cross to another.
_SAME_CPU_HOPS = 2
# Weight of one xGMI hop; more hops have a multiple of it (amdgpu; ROCm/rocm-systems#7372).
_WEIGHT_OF_A_HOP = 15
# GPUs on an MI300X board, each joined to all others; with fewer links it is taken for an MI250.
_MESH = 8
# Architectures of boards on which eight GPUs are joined pairwise.
_MESHED = ("gfx942", "gfx950")
_UNKNOWN_PCIE = (
    pcie_link(None, None),
    assumed("Gen3 x16, as RCCL takes PCIe links that are not known"),
)
SOURCE = "rocm-smi --showtopo or amd-smi topology"


@dataclass
class AmdOutput:
    """The tables in a text, and the names and NUMA nodes of the GPUs.

    `tables` maps a subject (TYPE, HOPS, WEIGHT, BANDWIDTH) and then (row, column) to a cell's text;
    `nodes` maps a GPU's number to its NUMA node.
    """

    names: tuple[str, ...] = ()
    tables: dict[str, dict[tuple[str, str], str]] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)

    def get_cell(self, table: str, a: str, b: str) -> str:
        """Return a table's text for two GPUs, by name, in either direction, "" if there is none."""
        cells = self.tables.get(table, {})
        return cells.get((a, b)) or cells.get((b, a)) or ""

    def get_number(self, table: str, a: str, b: str) -> int | None:
        """Return a table's number for two GPUs, by name, None if there is none."""
        text = self.get_cell(table, a, b)
        return int(text) if text.isdecimal() and len(text) < 10 else None


def looks_like(text: str) -> bool:
    """Return whether a text's first megabyte contains a table of rocm-smi or amd-smi."""
    return _SNIFF.search(text[:_SNIFF_CHARACTERS]) is not None


def read(text: str, where: str) -> Topology:
    """Read the machine that rocm-smi or amd-smi describes; `extra["notes"]` lists oddities.

    Raise InputError if there is no table of link types, and for rows with more or fewer cells than
    columns.
    """
    output = _parse(text, where)
    if TYPE not in output.tables:
        raise InputError(
            f"{where}: no table of link types; give the whole output of rocm-smi --showtopo or "
            "amd-smi topology"
        )
    notes: list[str] = []
    ids = {name: f"gpu{i}" for i, name in enumerate(output.names)}
    nodes = _find_nodes(output, notes)
    pairs = [(a, b) for a, b in combinations(output.names, 2) if _is_direct(output, a, b)]
    names = find_gpu_names(text)
    model = _choose_model(output, names, pairs)
    links = [
        *_join_xgmi(output, ids, pairs, model, notes),
        *_join_pcie(output, ids, nodes, model.pcie),
    ]
    cpus = [
        Device(f"cpu{node}", "cpu", numa_node=node if output.nodes else None, source=SOURCE)
        for node in dict.fromkeys(nodes.values())
    ]
    gpus = [
        Device(
            ids[name],
            numa_node=nodes.get(name) if output.nodes else None,
            bus_id=_read_bus_id(name),
            source=SOURCE,
            extra={
                "pci": {"vendor": "0x1002"},
                **({"name": names.by_index[i]} if i in names.by_index else {}),
            },
        )
        for i, name in enumerate(output.names)
    ]
    return Topology(
        PurePath(where).stem or where,
        (*gpus, *cpus),
        tuple(links),
        SOURCE,
        {"notes": notes, "facts": facts_to_json(Facts(tuple(_list_facts(output))))},
    )


# -- parsing the text


def _parse(text: str, where: str) -> AmdOutput:
    output = AmdOutput()
    title = OTHER
    columns: tuple[str, ...] = ()
    for number, raw in enumerate(text.splitlines(), 1):
        if number > MAX_LINES:
            raise InputError(
                f"{where}: more than {MAX_LINES} lines; expected what one machine's tool prints"
            )
        line = raw.strip()
        new_title = next((name for name, pattern in _TITLES if pattern.fullmatch(line)), None)
        if new_title is not None:
            title, columns = new_title, ()
        elif numa := _NUMA.fullmatch(line):
            if numa[2] == "Node" or int(numa[1]) not in output.nodes:
                output.nodes[int(numa[1])] = int(numa[3])
        elif title and line:
            columns = _parse_line(output, title, columns, line.split(), f"{where}: line {number}")
    return output


def _parse_line(
    output: AmdOutput, title: str, columns: tuple[str, ...], words: list[str], where: str
) -> tuple[str, ...]:
    """Add a row to a table, or return the columns of a new one."""
    if all(map(_NAME.fullmatch, words)) and not columns:
        if len(words) > MAX_GPUS or len(set(words)) < len(words):
            raise InputError(
                f"{where}: names {len(words)} GPUs, some twice or more than {MAX_GPUS}; expected "
                "one machine"
            )
        if output.names and tuple(words) != output.names:
            raise InputError(
                f"{where}: a table of other GPUs than the first; expected one machine in a file"
            )
        output.names = tuple(words)
        return output.names
    if columns and words[0] in columns:
        if len(words) != len(columns) + 1:
            raise InputError(
                f"{where}: the row of {words[0]} has {len(words) - 1} cells for {len(columns)} "
                "columns; "
                "give the output as the tool printed it"
            )
        cells = output.tables.setdefault(title, {})
        cells |= {(words[0], column): cell for column, cell in zip(columns, words[1:], strict=True)}
    return columns


def _read_bus_id(name: str) -> str | None:
    """Return the PCI address that amd-smi uses as a GPU's name, None for rocm-smi's GPU0."""
    return None if name.upper().startswith("GPU") else name.lower()


# -- inferring links and NUMA nodes


def _is_direct(output: AmdOutput, a: str, b: str) -> bool:
    """Return whether xGMI joins two GPUs without another GPU in between."""
    hops = output.get_number(HOPS, a, b)
    weight = output.get_number(WEIGHT, a, b)
    if weight and weight % _WEIGHT_OF_A_HOP == 0:
        hops = max(hops or 1, weight // _WEIGHT_OF_A_HOP)
    return output.get_cell(TYPE, a, b).upper() == "XGMI" and hops in (None, 1)


@dataclass(frozen=True)
class _Model:
    """The board of the GPUs, how it is known in words, and the others that they can be."""

    board: Board
    how: str
    others: tuple[Board, ...] = ()

    @property
    def pcie(self) -> tuple[PcieLink, str]:
        """The PCIe link, and its source; that of unknown GPUs if the board is only assumed."""
        pcie = self.board.pcie
        if self.others:
            return _UNKNOWN_PCIE
        return pcie, assumed(f"Gen{pcie.generation} x{pcie.width}, {self.how}")


def _choose_model(output: AmdOutput, names: GpuNames, pairs: Sequence[tuple[str, str]]) -> _Model:
    """Return the board of the GPUs: the one that is named, else one with links as in `pairs`."""
    named = names.find(0)
    if named is not None and named[0].gcn:
        return _Model(named[0], f"by the GPUs: {named[1]}")
    most = max(Counter(gpu for pair in pairs for gpu in pair).values(), default=0)
    is_mesh = len(output.names) == _MESH and len(pairs) == _MESH * (_MESH - 1) // 2
    others = tuple(
        board
        for board in BOARDS
        if board.gcn and board.wires >= most
        if (board.gcn in _MESHED) == is_mesh or len(output.names) < _MESH
    )
    board = get_board("MI300X" if is_mesh else "MI250")
    shape = " (eight GPUs, each joined to all others)" if is_mesh else ""
    return _Model(board, f"xGMI links of an {board.name}{shape}", others)


def _join_xgmi(
    output: AmdOutput,
    ids: Mapping[str, str],
    pairs: Sequence[tuple[str, str]],
    model: _Model,
    notes: list[str],
) -> Iterator[Link]:
    rate, reason = model.board.wire_GBps, model.how
    without: list[str] = []
    for a, b in pairs:
        listed = _RANGE.fullmatch(output.get_cell(BANDWIDTH, a, b))
        one_MBps, all_MBps = (int(listed[1]), int(listed[2])) if listed else (0, 0)
        if 0 < one_MBps <= all_MBps:
            total, count, said = (
                Fraction(all_MBps, 1000),
                all_MBps // one_MBps,
                f"{SOURCE}: bandwidth {all_MBps} MB/s",
            )
        else:
            total, count, said = rate, 1, assumed(reason)
            without.append(f"{ids[a]} - {ids[b]}")
        yield from both_directions(
            Link(ids[a], ids[b], total, LATENCY_us["xgmi"], "xgmi", count, said)
        )
    if without and model.others:
        notes.append(
            Note(
                f"no names of GPUs; with these links they can be {list_boards(model.others)}; "
                f"{model.board.name} is assumed; rocm-smi --showproductname beside it says which",
                "board-assumed",
            )
        )
    if without:
        notes.append(
            f"{join_first(without, 3)}: the text has no bandwidths; one xGMI link of "
            f"{float(rate):g} GB/s is assumed for "
            "each; rocm-smi --shownodesbw prints them"
        )


def _find_nodes(output: AmdOutput, notes: list[str]) -> dict[str, int]:
    """Return the NUMA nodes of the GPUs, by name.

    They are as printed, else inferred from PCIe hops; empty if neither gives them.
    """
    if output.nodes:
        return {name: max(output.nodes.get(i, 0), 0) for i, name in enumerate(output.names)}
    if not any(
        output.get_cell(TYPE, *pair).upper() == "PCIE" for pair in combinations(output.names, 2)
    ):
        notes.append(
            "NUMA nodes and PCIe are not listed, so no CPUs are here; rocm-smi --showtopo prints "
            "the nodes"
        )
        return {}
    notes.append(
        "NUMA nodes are not listed; GPUs with at most two PCIe hops between them are taken to be "
        "on one CPU"
    )
    nodes: dict[str, int] = {}
    for name in output.names:
        nodes[name] = next(
            (
                node
                for near, node in nodes.items()
                if (output.get_number(HOPS, name, near) or _SAME_CPU_HOPS) <= _SAME_CPU_HOPS
            ),
            len(set(nodes.values())),
        )
    return nodes


def _join_pcie(
    output: AmdOutput,
    ids: Mapping[str, str],
    nodes: Mapping[str, int],
    pcie: tuple[PcieLink, str],
) -> Iterator[Link]:
    """Yield the links from GPUs to their CPUs, and those between CPUs."""
    for name, node in nodes.items():
        yield from both_directions(
            Link(
                ids[name],
                f"cpu{node}",
                pcie[0].bandwidth_GBps,
                LATENCY_us["pcie"],
                "pcie",
                source=pcie[1],
            )
        )
    for a, b in combinations(dict.fromkeys(nodes.values()), 2):
        yield from both_directions(
            Link(
                f"cpu{a}",
                f"cpu{b}",
                QPI_DATASHEET_GBps,
                LATENCY_us["smp"],
                "smp",
                source=assumed("one QPI link of 9.6 GT/s"),
            )
        )


def _list_facts(output: AmdOutput) -> Iterator[Fact]:
    for i, name in enumerate(output.names):
        if (bus_id := _read_bus_id(name)) is not None:
            yield Fact(gpu_subject(i), keys.GPU_BUS_ID, bus_id, SOURCE)
        if i in output.nodes:
            yield Fact(gpu_subject(i), keys.GPU_NUMA_NODE, output.nodes[i], SOURCE)
    for i, j in combinations(range(len(output.names)), 2):
        listed = _RANGE.fullmatch(output.get_cell(BANDWIDTH, output.names[i], output.names[j]))
        if listed and int(listed[1]) and _is_direct(output, output.names[i], output.names[j]):
            for a, b in ((i, j), (j, i)):
                yield Fact(
                    xgmi_subject(a, b), keys.XGMI_COUNT, int(listed[2]) // int(listed[1]), SOURCE
                )
                yield Fact(xgmi_subject(a, b), keys.XGMI_SPEED_MBps, int(listed[1]), SOURCE)
