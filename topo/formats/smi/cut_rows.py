"""Rows of a matrix that break off in their affinities: `24-47,` where others have `24-47,72-95`.

Affinities are the CPUs and the NUMA node near a GPU, which end its row. Copied text often ends
there, and terminals cut lines. What is missing is taken from the rows that begin alike, if those do
not differ.
"""

import re

from .parser import CPU, GPU_NAME, GPU_NUMA, NUMA, RANGES, LabelMatrix

# A list of CPUs up to any of its characters.
_STARTED = re.compile(r"[0-9]{1,7}(?:[-,][0-9]{1,7}){0,4096}[-,]?")


def is_whole(cpus: str) -> bool:
    """Return whether a text is a list of CPUs: `0-19,40-59`.

    A range that ends before it starts lost its last digits.
    """
    if not RANGES.fullmatch(cpus):
        return False
    ranges = [[int(end) for end in part.split("-")] for part in cpus.split(",")]
    return all(part[-1] >= part[0] for part in ranges)


def find_cut_rows(table: LabelMatrix) -> dict[str, str]:
    """Return, for the name of each GPU whose row is cut, the name of a GPU to complete it from.

    Its affinities are whole and begin as the cut ones do. The name is "" if there is no such GPU,
    or if there are several whose affinities differ.
    """
    rows = {name: row.affinities for name, row in table.rows.items() if GPU_NAME.fullmatch(name)}
    wholes: dict[tuple[str, str], str] = {}
    for name, row in rows.items():
        if is_whole(row.get(CPU, "")) and (NUMA in row or NUMA not in table.columns):
            wholes.setdefault((row[CPU], row.get(NUMA, "")), name)
    last = next(reversed(table.rows), "")
    found = {}
    for name, row in rows.items():
        if NUMA in row or GPU_NUMA in row or not _STARTED.fullmatch(row.get(CPU, "")):
            continue
        alike = [
            other
            for (cpus, numa), other in wholes.items()
            if cpus.startswith(row[CPU]) and (numa or cpus != row[CPU])
        ]
        if not is_whole(row[CPU]) or (alike and _is_cut(table, row[CPU], name == last)):
            found[name] = alike[0] if len(alike) == 1 else ""
    return found


def _is_cut(table: LabelMatrix, cpus: str, is_last: bool) -> bool:
    """Return whether a list of CPUs with which others begin is cut, though it looks whole."""
    if NUMA in table.columns:
        return True  # every GPU has a NUMA node
    numbers = [int(number) for number in re.split("[-,]", cpus)]
    if numbers != sorted(numbers):
        return True  # 0-23,4 of 0-23,48-71
    times = sum(other.affinities.get(CPU) == cpus for other in table.rows.values())
    # a single number may be a CPU of its own: 1 beside 16-31
    return is_last and times == 1 and len(numbers) > 1
