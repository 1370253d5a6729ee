"""What the cells of a `topo -m` matrix say of each pair of its devices, and what is odd about them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .parser import GPU_NAME, Table

PCIE_LABELS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Ways over PCI Express, the nearest first."""

BONDED = re.compile(r"(NV|XGMI)([1-9][0-9]{0,3})")
_OTHER_LABELS = ("C2C", "LNK", "SW", "NET", "DIS")
_OLD_LABELS = {"SOC": "SYS"}  # "socket": before drivers told NODE from SYS


@dataclass(frozen=True)
class Cells:
    """A matrix in the order of its columns. Sets of devices are bit masks: bit i stands for the device of column i.

    `ids` are device ids, `gpus` the set of GPUs. `told[i][j]` is the label from i to j, from j to i where only that is known,
    None where neither is. `at[label][i]` are the devices that i has that label with, in either direction, where the nearer
    of two PCI Express labels counts.
    """

    ids: tuple[str, ...]
    gpus: int
    told: list[list[str | None]]
    at: Mapping[str, list[int]]

    def near(self, i: int, label: str) -> int:
        """The devices that i reaches over PCI Express as `label` says, or nearer."""
        mask = 0
        for each in PCIE_LABELS[: PCIE_LABELS.index(label) + 1]:
            mask |= self.at[each][i]
        return mask

    def any_of(self, i: int, *labels: str) -> int:
        """The devices that i has one of the labels with."""
        mask = 0
        for label in labels:
            mask |= self.at[label][i]
        return mask


def members(mask: int) -> Iterator[int]:
    """The numbers of a set's devices, in order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def listed(names: Iterable[str], most: int = 6) -> str:
    """Names for a note: all of a few, the first of many."""
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def family(label: str) -> str:
    """The label without its number: NV, XGMI, PIX ..."""
    bonded = BONDED.fullmatch(label)
    return bonded.group(1) if bonded else label


def count(label: str | None) -> int:
    """How many links an NV# or XGMI# label bonds; 0 for any other."""
    bonded = BONDED.fullmatch(label or "")
    return int(bonded.group(2)) if bonded else 0


def nvlinks(label: str | None) -> int:
    """How many NVLinks an NV# label bonds; 0 for any other."""
    return count(label) if label and family(label) == "NV" else 0


def read_cells(table: Table, nics: Mapping[str, str], notes: list[str]) -> Cells:
    """The cells of a matrix whose NIC columns `nics` names; what is missing or odd goes to `notes`."""
    ids = _ids(table, nics, notes)
    told = _told(table, ids, notes)
    size = len(ids)
    at = {label: [0] * size for label in (*PCIE_LABELS, *_OTHER_LABELS, "NV", "XGMI")}
    uneven: list[str] = []
    unknown: list[str] = []
    for i in range(size):
        for j in range(i + 1, size):
            there, back = told[i][j], told[j][i]
            if there is None:
                told[i][j] = there = back
            elif back is None:
                told[j][i] = back = there
            if there is None or back is None:
                unknown.append(f"{ids[i]} - {ids[j]}")
                continue
            if there != back:
                uneven.append(f"{ids[i]} -> {ids[j]} is {there}, {ids[j]} -> {ids[i]} is {back}")
            for label in _both(there, back):
                at[label][i] |= 1 << j
                at[label][j] |= 1 << i
    if uneven:
        notes.append(f"the two directions differ: {listed(uneven, 3)}; of two PCIe ways the nearer is taken")
    if unknown:
        notes.append(f"nothing is said of {listed(unknown, 3)}")
    return Cells(ids, sum(1 << i for i, name in enumerate(table.names) if GPU_NAME.fullmatch(name)), told, at)


def _both(there: str, back: str) -> set[str]:
    """The families of a pair's two labels; one PCI Express label only."""
    pair = {family(there), family(back)}
    ways = [label for label in PCIE_LABELS if label in pair]
    return pair - set(ways[1:])


def _ids(table: Table, nics: Mapping[str, str], notes: list[str]) -> tuple[str, ...]:
    """`gpuN` for GPUs, and the names of NICs by the legend, as long as they are no other device's."""
    ids: list[str] = []
    gpus = {f"gpu{found.group(1)}" for found in map(GPU_NAME.fullmatch, table.names) if found}
    used = set(gpus)
    for name in table.names:
        found = GPU_NAME.fullmatch(name)
        ident = f"gpu{found.group(1)}" if found else nics.get(name, name)
        if not found and ident in used:
            notes.append(f"{name} is called {ident}, as another device is; it is listed as {name}")
            ident = name
        while not found and ident in used:
            ident += "'"
        used.add(ident)
        ids.append(ident)
    return tuple(ids)


def _told(table: Table, ids: tuple[str, ...], notes: list[str]) -> list[list[str | None]]:
    """The labels as printed, SOC as SYS; None where there is none, or none that is known."""
    told: list[list[str | None]] = []
    absent: list[str] = []
    shifted: list[str] = []
    strange: dict[str, None] = {}
    for i, name in enumerate(table.names):
        row = table.rows.get(name)
        cells = list(row.cells) if row else []
        if row is None:
            absent.append(ids[i])
        elif cells[i] not in ("X", None) or "X" in cells[:i] + cells[i + 1 :]:
            shifted.append(ids[i])
            cells = []
        labels = [_OLD_LABELS.get(cell, cell) if cell else None for cell in cells] + [None] * (len(ids) - len(cells))
        for j, label in enumerate(labels):
            known = label is None or label in PCIE_LABELS or label in _OTHER_LABELS or BONDED.fullmatch(label)
            if not known and label is not None:
                strange.update({label: None} if i != j else {})
                labels[j] = None
        told.append(labels)
    if absent:
        notes.append(f"no row for {listed(absent)}; the rows of the others say what is known")
    if shifted:
        notes.append(f"the row of {listed(shifted)} has its X in another column, so its cells are not read")
    if strange:
        notes.append(f"labels that are not known are left out: {listed(strange)}")
    if table.repeated:
        notes.append(f"rows that come twice and differ: {listed(table.repeated)}; the first is read")
    return told
