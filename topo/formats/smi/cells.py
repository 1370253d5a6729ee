"""Read the cells of a `topo -m` matrix, the labels of each pair of devices, and note oddities.

A label says how two devices are joined, such as NV4 or PIX. `LabelMatrix` (parser.py) is the matrix
as it is printed.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from ...names import join_first
from .parser import GPU_NAME, LabelMatrix

# Labels of routes over PCI Express, the shortest first.
PCIE_LABELS = ("PIX", "PXB", "PHB", "NODE", "SYS")

BONDED = re.compile(r"(NV|XGMI)([1-9][0-9]{0,3})")
_OTHER_LABELS = ("C2C", "LNK", "SW", "NET", "DIS")
# Drives: NVMe0, nvme0n1, SSD1.
_DRIVE = re.compile(r"nvme|ssd", re.IGNORECASE)
_OLD_SYS = "SOC"  # "socket": before drivers distinguished NODE from SYS


@dataclass(frozen=True)
class Cells:
    """A matrix in the order of its columns. Sets of devices are bit masks: bit i is column i.

    `ids` are device ids, `gpus` the set of GPUs. `labels[i][j]` is the label from i to j, or from j
    to i if only that is known, or None if neither is. `with_label[label][i]` is the set of devices
    that have that label with i in either direction; if a pair has two PCI Express labels, the
    nearer counts. `unknown` are the labels that neither nvidia-smi nor topoplan prints.
    """

    ids: tuple[str, ...]
    gpus: int
    labels: list[list[str | None]]
    with_label: Mapping[str, list[int]]
    unknown: tuple[str, ...] = ()

    def find_near(self, i: int, label: str) -> int:
        """Return the set of devices that i reaches over PCI Express by `label` or a nearer one.

        Nearer labels are those before it in PCIE_LABELS.
        """
        return self.find_with(i, *PCIE_LABELS[: PCIE_LABELS.index(label) + 1])

    def find_with(self, i: int, *labels: str) -> int:
        """Return the set of devices that have one of the labels with column i's device."""
        return unite(self.with_label[label][i] for label in labels)

    def find_around(self, group: int, *labels: str) -> int:
        """Return the set of devices that have one of the labels with a device of `group`, a set."""
        return unite(self.find_with(i, *labels) for i in iterate_members(group))

    def find_classes(self, among: int, label: str) -> list[int]:
        """Split the set `among` into the sets whose devices `label` or nearer labels join.

        Two devices are joined directly or through others of `among`; a device that is joined to no
        other is a set of its own. The sets are in the order of their first columns.
        """
        return find_components(among, lambda i: self.find_near(i, label))


def iterate_members(mask: int) -> Iterator[int]:
    """Yield the column numbers of a set's devices, in order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def unite(sets: Iterable[int]) -> int:
    """Return the union of sets."""
    return reduce(or_, sets, 0)


def find_components(among: int, neighbours: Callable[[int], int]) -> list[int]:
    """Return the connected sets in `among`, ordered by their first devices.

    `neighbours` returns the set of devices next to a device.
    """
    components: list[int] = []
    while among:
        component, fresh = 0, among & -among
        while fresh:
            component |= fresh
            fresh = unite(neighbours(i) for i in iterate_members(fresh)) & among & ~component
        components.append(component)
        among &= ~component
    return components


def list_some(names: Iterable[str], limit: int = 6) -> str:
    """Join names for a note: all if there are at most `limit`, else the first ones."""
    return join_first(names, limit)


def split_label(label: str) -> tuple[str, int]:
    """Return a label's family (NV, XGMI, PIX ...) and the number of links that it bonds, else 1."""
    bonded = BONDED.fullmatch(label)
    return (bonded[1], int(bonded[2])) if bonded else (label, 1)


def count_nvlinks(label: str | None) -> int:
    """Return how many NVLinks an NV# label bonds; 0 for any other."""
    family, count = split_label(label or "")
    return count if family == "NV" else 0


def read_cells(table: LabelMatrix, nics: Mapping[str, str], notes: list[str]) -> Cells:
    """Read the cells of a matrix; `nics` maps its NIC columns to their names in the legend.

    Notes on missing and odd cells are added to `notes`.
    """
    ids = _name_devices(table, nics, notes)
    labels, unknown_labels = _read_labels(table, ids, notes)
    size = len(ids)
    with_label = {label: [0] * size for label in (*PCIE_LABELS, *_OTHER_LABELS, "NV", "XGMI")}
    uneven: list[str] = []
    unknown: list[str] = []
    for i in range(size):
        for j in range(i + 1, size):
            # a label counts for both directions if the other is not printed, else each counts
            forth = labels[i][j] = labels[i][j] or labels[j][i]
            back = labels[j][i] = labels[j][i] or forth
            if forth is None or back is None:
                unknown.append(f"{ids[i]} - {ids[j]}")
                continue
            if forth != back:
                uneven.append(f"{ids[i]} -> {ids[j]} is {forth}, {ids[j]} -> {ids[i]} is {back}")
            pair = {split_label(forth)[0], split_label(back)[0]}
            farther = [label for label in PCIE_LABELS if label in pair][1:]
            for label in pair.difference(farther):
                with_label[label][i] |= 1 << j
                with_label[label][j] |= 1 << i
    if uneven:
        notes.append(
            f"the two directions differ: {list_some(uneven, 3)}; of two PCIe routes the nearer is "
            "taken"
        )
    if unknown:
        notes.append(f"the text says nothing about {list_some(unknown, 3)}")
    return Cells(
        ids,
        sum(1 << i for i, name in enumerate(table.names) if GPU_NAME.fullmatch(name)),
        labels,
        with_label,
        unknown_labels,
    )


def leave_out_drives(table: LabelMatrix, notes: list[str]) -> LabelMatrix:
    """Return a matrix without the drives that people add to it, since they carry no traffic.

    A note on them is added to `notes`.
    """
    drives = [name for name in table.names if _DRIVE.match(name)]
    if not drives:
        return table
    notes.append(f"{list_some(drives)}: drives, which GPUs do not send through, are left out")
    kept = [i for i, name in enumerate(table.names) if name not in drives]
    rows = {
        name: replace(row, cells=tuple(row.cells[i] for i in kept))
        for name, row in table.rows.items()
        if name not in drives
    }
    return replace(table, names=tuple(table.names[i] for i in kept), rows=rows, starts=())


def _name_devices(table: LabelMatrix, nics: Mapping[str, str], notes: list[str]) -> tuple[str, ...]:
    """Name GPUs `gpuN`, and NICs as in the legend unless another device has that name."""
    ids = {name: name.lower() for name in table.names if GPU_NAME.fullmatch(name)}
    for name in [name for name in table.names if name not in ids]:
        ident = nics.get(name, name)
        if ident in ids.values():
            notes.append(f"{name} is called {ident}, as another device is; it is listed as {name}")
            ident = name
        while ident in ids.values():
            ident += "'"
        ids[name] = ident
    return tuple(ids[name] for name in table.names)


def _read_labels(
    table: LabelMatrix, ids: tuple[str, ...], notes: list[str]
) -> tuple[list[list[str | None]], tuple[str, ...]]:
    """Return the labels as printed, SOC as SYS, None for a missing or unknown one.

    The second value lists the unknown ones.
    """
    labels_by_row: list[list[str | None]] = []
    absent: list[str] = []
    shifted: list[str] = []
    unknown: dict[str, None] = {}
    for i, name in enumerate(table.names):
        row = table.rows.get(name)
        cells = row.cells if row else ()
        if row is None:
            absent.append(ids[i])
        elif cells[i] not in ("X", None) or "X" in cells[:i] + cells[i + 1 :]:
            # an X outside its own column means that cells are shifted by an unknown amount
            shifted.append(ids[i])
            cells = ()
        labels: list[str | None] = [None] * len(ids)
        for j, cell in enumerate(cells):
            label = "SYS" if cell == _OLD_SYS else cell
            if label in (None, *PCIE_LABELS, *_OTHER_LABELS) or BONDED.fullmatch(label or ""):
                labels[j] = label
            elif label is not None and i != j:
                unknown[label] = None
        labels_by_row.append(labels)
    for names, note in (
        (absent, "no row for {}; the other rows say what is known"),
        (shifted, "the row of {} has its X in another column, so its cells are not read"),
        (unknown, "unknown labels are left out: {}"),
        (table.repeated, "rows that occur twice and differ: {}; the first is read"),
    ):
        if names:
            notes.append(note.format(list_some(names)))
    return labels_by_row, tuple(unknown)
