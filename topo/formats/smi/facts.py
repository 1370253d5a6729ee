"""Turn matrices of `nvidia-smi topo` into facts, under the names of docs/facts.md.

`LabelMatrix` (parser.py) is a matrix as it is printed, `Cells` (cells.py) its labels by two
columns. The affinities of a GPU are the CPUs and the NUMA node that its row names behind the
labels.
"""

import re
from collections.abc import Iterable, Iterator

from ...facts import Fact, keys
from ...facts.keys import TOPO_P2P, gpu_subject, p2p_subject
from .cells import PCIE_LABELS, Cells, list_some, split_label
from .cut_rows import find_cut_rows, is_whole
from .inferred import Affinity
from .parser import CPU, GPU_NAME, GPU_NUMA, NUMA, LabelMatrix

SOURCE = "nvidia-smi topo -m"
# The meanings of the cells of a `-p2p` matrix; None if nvidia-smi does not know the status.
STATUSES = {
    "OK": "ok",
    "CNS": "chipset not supported",
    "GNS": "gpu not supported",
    "TNS": "topology not supported",
    "DR": "disabled by registry key",
    "NS": "not supported",
    "U": None,
}

# Devices of the largest matrix whose pairs become facts: 1024 would give a million facts.
MAX_PAIRED = 256

# Facts by the flag of `-p2p`.
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


def is_p2p(table: LabelMatrix) -> bool:
    """Return whether a matrix is one of `-p2p`: its cells are statuses."""
    cells = {cell for row in table.rows.values() for cell in row.cells} - {"X", None}
    return cells <= STATUSES.keys() if cells else table.flag is not None


def read_affinities(table: LabelMatrix, notes: list[str]) -> dict[int, Affinity]:
    """Return the affinities of the GPUs that have a row, by the number of their column.

    If there is no column for NUMA nodes, distinct CPU affinities are numbered from 0 instead. Rows
    that break off, are near several nodes or have an unclear end are noted in `notes`.
    """
    rows = {
        i: table.rows[name].affinities
        for i, name in enumerate(table.names)
        if name in table.rows and GPU_NAME.fullmatch(name)
    }
    unplaced = {name: row.unplaced for name, row in table.rows.items() if row.unplaced}
    for texts in dict.fromkeys(unplaced.values()):
        names = [name for name, others in unplaced.items() if others == texts]
        notes.append(
            f"{list_some(names)}: the row ends in {' '.join(texts)[:60]}, fewer affinities than "
            "columns; which are empty is not known, so none is read"
        )
    cpus = {i: _get_ranges(row, CPU) for i, row in rows.items()}
    numa = {i: _get_ranges(row, NUMA) for i, row in rows.items()}
    for name, like in find_cut_rows(table).items():
        i, text = table.names.index(name), table.rows[name].affinities[CPU]
        j = table.names.index(like) if like else None
        known = "what follows is not known"
        if j is not None:
            cpus[i], numa[i] = cpus[j], numa[j]
            known = f"taken to be those of {like} ({cpus[j]})"
        notes.append(f"the row of {name} breaks off in its affinities ({text}); {known}")
    # the first NUMA node of `0`, `0-1` or `0,2`; None for `N/A`
    nodes = {i: int(re.split("[-,]", text)[0]) if text else None for i, text in numa.items()}
    several = {i for i, text in numa.items() if text and not text.isdigit()}
    if several:
        near_several = [table.names[i] for i in numa if i in several]
        notes.append(
            f"{', '.join(near_several[:6])}: near several NUMA nodes; counted with the first"
        )
    if NUMA not in table.columns:
        numbers = {
            text: number for number, text in enumerate(dict.fromkeys(filter(None, cpus.values())))
        }
        nodes = {i: numbers[text] if text else None for i, text in cpus.items()}
        if numbers:
            notes.append("no NUMA nodes are listed; distinct CPU affinities are numbered from 0")
    return {i: Affinity(cpus[i], nodes[i], i in several) for i, row in rows.items() if row}


def has_own_memory(table: LabelMatrix, notes: list[str]) -> bool:
    """Return whether GPUs have NUMA nodes of their own, as those with a Grace CPU do.

    Return False if one of these nodes is also the node of CPUs in the matrix: then it is not a
    GPU's memory, and a note says so.
    """
    rows = [row.affinities for row in table.rows.values()]
    own = {text for row in rows if (text := _get_ranges(row, GPU_NUMA))}
    of_cpus = own & {row.get(NUMA) for row in rows}
    if of_cpus:
        notes.append(
            f"GPU NUMA ID {list_some(sorted(of_cpus))} is a node of CPUs, too, so GPUs are not "
            "taken to have memory of their own there"
        )
    return bool(own) and not of_cpus


def _get_ranges(affinities: dict[str, str], column: str) -> str | None:
    """Return an affinity that consists of numbers and ranges, None for any other text."""
    text = affinities.get(column, "")
    return text if is_whole(text) else None


def build_matrix_facts(table: LabelMatrix, cells: Cells) -> Iterator[Fact]:
    """Yield facts: the affinities of the GPUs, and the labels between them such as PIX or NV4.

    With more than MAX_PAIRED rows, labels are left out.
    """
    cut = find_cut_rows(table)
    for name in filter(GPU_NAME.fullmatch, table.names):
        row = table.rows.get(name)
        for key, column in _COLUMNS:
            if column not in table.columns:
                continue
            text = _get_ranges(row.affinities, column) if row else None
            if like := cut.get(name):  # its CPUs are whole if they are those of the other row
                text = text if text == table.rows[like].affinities.get(column) else None
            value = int(text) if text and key != keys.GPU_CPU_AFFINITY and text.isdigit() else text
            yield Fact(
                gpu_subject(_get_index(name)), key, value, SOURCE, None if text else "not reported"
            )
    if len(table.rows) > MAX_PAIRED:
        return
    for i, name in enumerate(table.names):
        for j, label in enumerate(cells.labels[i]):
            if (
                label is not None
                and cells.gpus >> i & cells.gpus >> j & 1
                and (label in PCIE_LABELS or split_label(label)[0] == "NV")
            ):
                yield Fact(
                    p2p_subject(_get_index(name), _get_index(table.names[j])),
                    keys.P2P_ANCESTOR,
                    label,
                    SOURCE,
                )


def build_p2p_facts(
    tables: Iterable[LabelMatrix], gpus: frozenset[str], notes: list[str]
) -> Iterator[Fact]:
    """Yield the facts in `-p2p` matrices about `gpus`, the columns of the matrix of `-m`.

    Matrices with other GPUs, taken for those of another machine, or with more than MAX_PAIRED
    devices are left out and noted.
    """
    for table in tables:
        is_other = not set(table.names) <= gpus
        if is_other or len(table.names) > MAX_PAIRED:
            why = "other GPUs than the matrix of -m" if is_other else f"more than {MAX_PAIRED} GPUs"
            notes.append(f"the -p2p matrix of line {table.line} has {why}; left out")
            continue
        source = TOPO_P2P
        if table.flag in _KEYS:
            source += f" {table.flag}"
        else:
            notes.append(
                f"no -p2p flag stands before line {table.line}; taken as what GPUs may read and "
                "write"
            )
        for name, row in table.rows.items():
            for other, cell in zip(table.names, row.cells, strict=True):
                if cell is None or cell not in STATUSES or name == other:
                    continue
                status = STATUSES[cell]
                subject = p2p_subject(_get_index(name), _get_index(other))
                for key in _KEYS.get(table.flag or "", _KEYS["rw"]):
                    yield Fact(subject, key, status, source, None if status else "unknown")


def tells_access(table: LabelMatrix) -> bool:
    """Return whether a `-p2p` matrix says what GPUs may read or write, as CUDA's samples do."""
    return not {keys.P2P_READ, keys.P2P_WRITE}.isdisjoint(_KEYS.get(table.flag or "", _KEYS["rw"]))


def list_gpu_numbers(table: LabelMatrix) -> tuple[str, ...]:
    """Return the numbers of a matrix's GPUs, as facts have them; of too many, none."""
    names = [_get_index(name) for name in table.names if GPU_NAME.fullmatch(name)]
    return tuple(names) if len(names) <= MAX_PAIRED else ()


def _get_index(name: str) -> str:
    return name.removeprefix("GPU")
