"""Turn matrices of `nvidia-smi topo` into facts, under the names of docs/facts.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ...facts import Fact, keys
from ...facts.keys import gpu_subject, p2p_subject
from .cells import PCIE_LABELS, Cells, find_family
from .parser import CPU, GPU_NAME, GPU_NUMA, NUMA, RANGES, LabelMatrix
from .pcie_tree import Affinity

SOURCE = "nvidia-smi topo -m"
# What the cells of a `-p2p` matrix mean; None where nvidia-smi does not know.
STATUSES = {
    "OK": "ok",
    "CNS": "chipset not supported",
    "GNS": "gpu not supported",
    "TNS": "topology not supported",
    "DR": "disabled by registry key",
    "NS": "not supported",
    "U": None,
}

# Facts of pairs are kept for up to this many GPUs; with 1024 there would be a million.
MOST_PAIRS = 256

_KEYS = {
    "r": (keys.P2P_READ,),
    "w": (keys.P2P_WRITE,),
    "rw": (keys.P2P_READ, keys.P2P_WRITE),
    "a": (keys.P2P_ATOMICS,),
    "n": (keys.P2P_NVLINK,),
    "p": (keys.P2P_PCIE,),
}
_COLUMNS = (
    (keys.GPU_CPU_AFFINITY, CPU),
    (keys.GPU_NUMA_NODE, NUMA),
    (keys.GPU_OWN_NUMA_NODE, GPU_NUMA),
)
_NODE = re.compile(r"[0-9]{1,6}")


def is_p2p(table: LabelMatrix) -> bool:
    """Return whether a matrix is one of `-p2p`: its cells are statuses."""
    cells = {cell for row in table.rows.values() for cell in row.cells} - {"X", None}
    return cells <= STATUSES.keys() if cells else table.flag is not None


def read_affinities(table: LabelMatrix, notes: list[str]) -> dict[int, Affinity]:
    """Return where the GPUs are, by column. Without a column for NUMA nodes, distinct CPU
    affinities are numbered.
    """
    rows = [
        (i, name, table.rows[name].affinities)
        for i, name in enumerate(table.names)
        if name in table.rows
    ]
    cpus = {
        i: _match_or_none(RANGES, row.get(CPU)) for i, name, row in rows if GPU_NAME.fullmatch(name)
    }
    nodes = {i: _read_node(row.get(NUMA)) for i, name, row in rows if i in cpus}
    near_several = [
        name for i, name, row in rows if i in cpus and not _NODE.fullmatch(row.get(NUMA, "0"))
    ]
    near_several = [name for name in near_several if nodes[table.names.index(name)] is not None]
    if near_several:
        notes.append(
            f"{', '.join(near_several[:6])}: near several NUMA nodes; counted with the first"
        )
    if NUMA not in table.columns:
        numbers = {
            text: n for n, text in enumerate(dict.fromkeys(text for text in cpus.values() if text))
        }
        nodes = {i: numbers[text] if text else None for i, text in cpus.items()}
        if numbers:
            notes.append("no NUMA nodes are listed; distinct CPU affinities are numbered from 0")
    printed = {i for i, _, row in rows if row}
    return {i: Affinity(cpus[i], nodes[i]) for i in cpus if i in printed}


def _match_or_none(pattern: re.Pattern[str], text: str | None) -> str | None:
    """Return a text that matches a pattern, None for any other."""
    return text if text is not None and pattern.fullmatch(text) else None


def _read_node(text: str | None) -> int | None:
    """Return the first NUMA node of `0`, `0-1` or `0,2`; None for `N/A`."""
    ranges = _match_or_none(RANGES, text)
    return int(re.split("[-,]", ranges)[0]) if ranges else None


def build_matrix_facts(table: LabelMatrix, cells: Cells) -> Iterator[Fact]:
    """Yield the affinities of the GPUs, and the ways between them as PIX, NV4, ..."""
    for name, gpu in _iterate_gpus(table):
        row = table.rows.get(name)
        for key, column in _COLUMNS:
            if column not in table.columns:
                continue
            text = _match_or_none(RANGES, row.affinities.get(column) if row else None)
            value = int(text) if text and key != keys.GPU_CPU_AFFINITY and text.isdigit() else text
            yield Fact(gpu_subject(gpu), key, value, SOURCE, None if text else "not told")
    for i, name in enumerate(table.names) if len(table.rows) <= MOST_PAIRS else ():
        if GPU_NAME.fullmatch(name):
            yield from _build_way_facts(table, cells, i)


def _build_way_facts(table: LabelMatrix, cells: Cells, i: int) -> Iterator[Fact]:
    """Yield the ways from a GPU to the others as facts."""
    for j, label in enumerate(cells.labels[i]):
        if (
            label is not None
            and cells.gpus >> j & 1
            and (label in PCIE_LABELS or find_family(label) == "NV")
        ):
            subject = p2p_subject(_get_index(table.names[i]), _get_index(table.names[j]))
            yield Fact(subject, keys.P2P_ANCESTOR, label, SOURCE)


def build_p2p_facts(
    tables: Iterable[LabelMatrix], gpus: frozenset[str], notes: list[str]
) -> Iterator[Fact]:
    """Yield what `-p2p` matrices say of the GPUs of the matrix of ways.

    Matrices of other GPUs, of another machine, are noted and left out.
    """
    for table in tables:
        if not set(table.names) <= gpus or len(table.names) > MOST_PAIRS:
            notes.append(
                f"the -p2p matrix of line {table.line} is of other GPUs than the matrix of ways; "
                "left out"
            )
            continue
        flag_keys = _KEYS.get(table.flag or "")
        if flag_keys is None:
            flag_keys = _KEYS["rw"]
            notes.append(
                f"no -p2p flag stands before line {table.line}; taken as what GPUs may read and "
                "write"
            )
        source = (
            f"nvidia-smi topo -p2p {table.flag}" if table.flag in _KEYS else "nvidia-smi topo -p2p"
        )
        for name, row in table.rows.items():
            for other, cell in zip(table.names, row.cells, strict=True):
                if cell in STATUSES and name != other and cell is not None:
                    status = STATUSES[cell]
                    subject = p2p_subject(_get_index(name), _get_index(other))
                    for key in flag_keys:
                        yield Fact(subject, key, status, source, None if status else "unknown")


def _iterate_gpus(table: LabelMatrix) -> Iterator[tuple[str, str]]:
    """Return an iterator over the GPUs of a matrix: their names and their numbers as text."""
    return ((name, _get_index(name)) for name in table.names if GPU_NAME.fullmatch(name))


def _get_index(name: str) -> str:
    """Return the number in a GPU's name as text."""
    return name.removeprefix("GPU")
