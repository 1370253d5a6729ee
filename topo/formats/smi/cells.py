"""Read what the cells of a `topo -m` matrix say of each pair of its devices, and what is odd about
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...names import join_first
from .parser import GPU_NAME, LabelMatrix

# Labels of paths over PCI Express, the shortest first.
PCIE_LABELS = ("PIX", "PXB", "PHB", "NODE", "SYS")

BONDED = re.compile(r"(NV|XGMI)([1-9][0-9]{0,3})")
_OTHER_LABELS = ("C2C", "LNK", "SW", "NET", "DIS")
_OLD_LABELS = {"SOC": "SYS"}  # "socket": before drivers told NODE from SYS


@dataclass(frozen=True)
class Cells:
    """A matrix in the order of its columns. Sets of devices are bit masks: bit i stands for the
    device of column i.

    `ids` are device ids, `gpus` the set of GPUs. `labels[i][j]` is the label from i to j, from j to
    i where only that is known, None where neither is. `with_label[label][i]` is the set of devices
    that i has that label with, in either direction, where the nearer of two PCI Express labels
    counts.
    """

    ids: tuple[str, ...]
    gpus: int
    labels: list[list[str | None]]
    with_label: Mapping[str, list[int]]

    def find_near(self, i: int, label: str) -> int:
        """Return the set of devices that i reaches over PCI Express as `label` says, or nearer."""
        mask = 0
        for each in PCIE_LABELS[: PCIE_LABELS.index(label) + 1]:
            mask |= self.with_label[each][i]
        return mask

    def find_with(self, i: int, *labels: str) -> int:
        """Return the set of devices that i has one of the labels with."""
        mask = 0
        for label in labels:
            mask |= self.with_label[label][i]
        return mask


def iterate_members(mask: int) -> Iterator[int]:
    """Yield the column numbers of a set's devices, in order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def unite(sets: Iterable[int]) -> int:
    """Return the union of sets."""
    union = 0
    for mask in sets:
        union |= mask
    return union


def find_components(among: int, neighbours: Callable[[int], int]) -> list[int]:
    """Return the sets that `neighbours` (the set of those next to a device) connects, by their
    first devices.
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


def list_some(names: Iterable[str], most: int = 6) -> str:
    """Return names for a note: all of a few, the first of many."""
    return join_first(names, most)


def find_family(label: str) -> str:
    """Return the label without its number: NV, XGMI, PIX ..."""
    bonded = BONDED.fullmatch(label)
    return bonded.group(1) if bonded else label


def count_bonded(label: str | None) -> int:
    """Return how many links an NV# or XGMI# label bonds; 0 for any other."""
    bonded = BONDED.fullmatch(label or "")
    return int(bonded.group(2)) if bonded else 0


def count_nvlinks(label: str | None) -> int:
    """Return how many NVLinks an NV# label bonds; 0 for any other."""
    return count_bonded(label) if label and find_family(label) == "NV" else 0


def read_cells(table: LabelMatrix, nics: Mapping[str, str], notes: list[str]) -> Cells:
    """Return the cells of a matrix whose NIC columns `nics` names; what is missing or odd goes to
    `notes`.
    """
    ids = _name_devices(table, nics, notes)
    labels = _read_labels(table, ids, notes)
    size = len(ids)
    with_label = {label: [0] * size for label in (*PCIE_LABELS, *_OTHER_LABELS, "NV", "XGMI")}
    # one direction stands for both where the other is not printed; where both are, each label
    # counts for both
    uneven: list[str] = []
    unknown: list[str] = []
    for i in range(size):
        for j in range(i + 1, size):
            forth, back = labels[i][j], labels[j][i]
            if forth is None:
                labels[i][j] = forth = back
            elif back is None:
                labels[j][i] = back = forth
            if forth is None or back is None:
                unknown.append(f"{ids[i]} - {ids[j]}")
                continue
            if forth != back:
                uneven.append(f"{ids[i]} -> {ids[j]} is {forth}, {ids[j]} -> {ids[i]} is {back}")
            for label in _combine_directions(forth, back):
                with_label[label][i] |= 1 << j
                with_label[label][j] |= 1 << i
    if uneven:
        notes.append(
            f"the two directions differ: {list_some(uneven, 3)}; of two PCIe ways the nearer is "
            "taken"
        )
    if unknown:
        notes.append(f"nothing is said of {list_some(unknown, 3)}")
    return Cells(
        ids,
        sum(1 << i for i, name in enumerate(table.names) if GPU_NAME.fullmatch(name)),
        labels,
        with_label,
    )


def _combine_directions(forth: str, back: str) -> set[str]:
    """Return the families of a pair's two labels, of two PCI Express labels only the nearer."""
    pair = {find_family(forth), find_family(back)}
    ways = [label for label in PCIE_LABELS if label in pair]
    return pair - set(ways[1:])


def _name_devices(table: LabelMatrix, nics: Mapping[str, str], notes: list[str]) -> tuple[str, ...]:
    """Return `gpuN` for GPUs, and for NICs the names of the legend, unless another device is called
    so.
    """
    ids: list[str] = []
    gpus = {f"gpu{match.group(1)}" for match in map(GPU_NAME.fullmatch, table.names) if match}
    used = set(gpus)
    for name in table.names:
        match = GPU_NAME.fullmatch(name)
        ident = f"gpu{match.group(1)}" if match else nics.get(name, name)
        if not match and ident in used:
            notes.append(f"{name} is called {ident}, as another device is; it is listed as {name}")
            ident = name
        while not match and ident in used:
            ident += "'"
        used.add(ident)
        ids.append(ident)
    return tuple(ids)


def _read_labels(
    table: LabelMatrix, ids: tuple[str, ...], notes: list[str]
) -> list[list[str | None]]:
    """Return the labels as printed, SOC as SYS; None where there is none, or none that is known."""
    labels_by_row: list[list[str | None]] = []
    absent: list[str] = []
    shifted: list[str] = []
    unknown: dict[str, None] = {}
    for i, name in enumerate(table.names):
        # the X of a row must stand in its own column, or its cells are shifted and say nothing
        row = table.rows.get(name)
        cells = list(row.cells) if row else []
        if row is None:
            absent.append(ids[i])
        elif cells[i] not in ("X", None) or "X" in cells[:i] + cells[i + 1 :]:
            shifted.append(ids[i])
            cells = []
        labels = [_OLD_LABELS.get(cell, cell) if cell else None for cell in cells] + [None] * (
            len(ids) - len(cells)
        )
        for j, label in enumerate(labels):
            known = (
                label is None
                or label in PCIE_LABELS
                or label in _OTHER_LABELS
                or BONDED.fullmatch(label)
            )
            if not known and label is not None:
                unknown.update({label: None} if i != j else {})
                labels[j] = None
        labels_by_row.append(labels)
    if absent:
        notes.append(f"no row for {list_some(absent)}; the rows of the others say what is known")
    if shifted:
        notes.append(
            f"the row of {list_some(shifted)} has its X in another column, so its cells are not "
            "read"
        )
    if unknown:
        notes.append(f"labels that are not known are left out: {list_some(unknown)}")
    if table.repeated:
        notes.append(
            f"rows that come twice and differ: {list_some(table.repeated)}; the first is read"
        )
    return labels_by_row
