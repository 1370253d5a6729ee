"""The facts that matrices of `nvidia-smi topo` state, as docs/facts.md names them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ...facts import Fact
from .cells import PCIE_LABELS, Cells, family
from .parser import CPU, GPU_NAME, GPU_NUMA, NUMA, Table
from .pcie_tree import Affinity

SOURCE = "nvidia-smi topo -m"
STATUSES = {
    "OK": "ok",
    "CNS": "chipset not supported",
    "GNS": "gpu not supported",
    "TNS": "topology not supported",
    "DR": "disabled by registry key",
    "NS": "not supported",
    "U": None,
}
"""What the cells of a `-p2p` matrix mean; None where nvidia-smi does not know."""

MOST_PAIRS = 256
"""Facts of pairs are kept for so many GPUs; the labels of more would be a million."""

_KEYS = {"r": ("read",), "w": ("write",), "rw": ("read", "write"), "a": ("atomics",), "n": ("nvlink",), "p": ("pcie",)}
_RANGES = re.compile(r"[0-9]{1,7}(?:[-,][0-9]{1,7}){0,4096}")
_NODE = re.compile(r"[0-9]{1,6}")


def is_p2p(table: Table) -> bool:
    """Whether a matrix is one of `-p2p`: its cells are statuses."""
    cells = {cell for row in table.rows.values() for cell in row.cells} - {"X", None}
    return cells <= STATUSES.keys() if cells else table.flag is not None


def affinities(table: Table, notes: list[str]) -> dict[int, Affinity]:
    """Where the GPUs are, by column. Without a column for NUMA nodes, distinct CPU affinities are numbered."""
    told = [(i, name, table.rows[name].affinities) for i, name in enumerate(table.names) if name in table.rows]
    cpus = {i: _match(_RANGES, row.get(CPU)) for i, name, row in told if GPU_NAME.fullmatch(name)}
    nodes = {i: _node(row.get(NUMA)) for i, name, row in told if i in cpus}
    several = [name for i, name, row in told if i in cpus and not _NODE.fullmatch(row.get(NUMA, "0"))]
    several = [name for name in several if nodes[table.names.index(name)] is not None]
    if several:
        notes.append(f"{', '.join(several[:6])}: near several NUMA nodes; counted with the first")
    if NUMA not in table.columns:
        numbers = {text: n for n, text in enumerate(dict.fromkeys(text for text in cpus.values() if text))}
        nodes = {i: numbers[text] if text else None for i, text in cpus.items()}
        if numbers:
            notes.append("no NUMA nodes are listed; distinct CPU affinities are numbered from 0")
    printed = {i for i, _, row in told if row}
    return {i: Affinity(cpus[i], nodes[i]) for i in cpus if i in printed}


def _match(pattern: re.Pattern[str], text: str | None) -> str | None:
    return text if text is not None and pattern.fullmatch(text) else None


def _node(text: str | None) -> int | None:
    """The first NUMA node of `0`, `0-1` or `0,2`; None for `N/A`."""
    found = _match(_RANGES, text)
    return int(re.split("[-,]", found)[0]) if found else None


def matrix_facts(table: Table, cells: Cells) -> Iterator[Fact]:
    """Affinities and ways of the GPUs; the ways as PIX, NV4, ..."""
    for name, gpu in _gpus(table):
        row = table.rows.get(name)
        for key, column in (("cpu_affinity", CPU), ("numa_node", NUMA), ("gpu_numa_id", GPU_NUMA)):
            if column not in table.columns:
                continue
            text = _match(_RANGES, row.affinities.get(column) if row else None)
            value = int(text) if text and key != "cpu_affinity" and text.isdigit() else text
            yield Fact(f"gpu/{gpu}", key, value, SOURCE, None if text else "not told")
    for i, name in enumerate(table.names) if len(table.rows) <= MOST_PAIRS else ():
        if GPU_NAME.fullmatch(name):
            yield from _ancestors(table, cells, i)


def _ancestors(table: Table, cells: Cells, i: int) -> Iterator[Fact]:
    for j, label in enumerate(cells.told[i]):
        if label is not None and cells.gpus >> j & 1 and (label in PCIE_LABELS or family(label) == "NV"):
            yield Fact(f"gpu/{_index(table.names[i])}/p2p/{_index(table.names[j])}", "ancestor", label, SOURCE)


def p2p_facts(tables: Iterable[Table], gpus: frozenset[str], notes: list[str]) -> Iterator[Fact]:
    """What `-p2p` matrices say of the GPUs of the matrix; those of other GPUs, of another machine, are noted and left out."""
    for table in tables:
        if not set(table.names) <= gpus or len(table.names) > MOST_PAIRS:
            notes.append(f"the -p2p matrix of line {table.line} is of other GPUs than the matrix of ways; left out")
            continue
        keys = _KEYS.get(table.flag or "")
        if keys is None:
            keys = _KEYS["rw"]
            notes.append(f"no -p2p flag stands before line {table.line}; taken as what GPUs may read and write")
        source = f"nvidia-smi topo -p2p {table.flag}" if table.flag in _KEYS else "nvidia-smi topo -p2p"
        for name, row in table.rows.items():
            for other, cell in zip(table.names, row.cells, strict=True):
                if cell in STATUSES and name != other and cell is not None:
                    status = STATUSES[cell]
                    subject = f"gpu/{_index(name)}/p2p/{_index(other)}"
                    for key in keys:
                        yield Fact(subject, key, status, source, None if status else "unknown")


def _gpus(table: Table) -> Iterator[tuple[str, str]]:
    return ((name, _index(name)) for name in table.names if GPU_NAME.fullmatch(name))


def _index(name: str) -> str:
    return name.removeprefix("GPU")
