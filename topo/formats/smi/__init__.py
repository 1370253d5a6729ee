"""What nvidia-smi prints of a machine: `topo -m`, `topo -p2p`, `nvlink -s` and `nvlink -R`, read and written.

A label is not a bandwidth: every rate of a topology read from such a text is assumed, and says so.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import Any

from ...errors import InputError
from ...facts import Fact, Facts, facts_to_json
from ...graph import Device, Topology
from ...matrix import Ways
from .cells import Cells, listed, read_cells
from .facts import MOST_PAIRS, SOURCE, affinities, is_p2p, matrix_facts, p2p_facts
from .nvlink_output import REMOTE, STATUS, join_links, lane, link_facts, peers
from .other_links import join_direct
from .parser import GPU_NAME, LinkTable, Parts, Table, looks_like, parts
from .pcie_tree import Draft, hang, placed
from .writer import write

__all__ = ["looks_like", "read", "write"]

_MOST_CHECKED = 10_000_000  # devices times links
_SAME = {"C2C": "LNK"}  # a label of nvidia-smi that topo/matrix.py has another word for


def read(text: str, where: str) -> Topology:
    """The machine that nvidia-smi describes in `text`, which may stand in a document; `where` names it in errors.

    A matrix of `topo -m` gives devices and links (see pcie_tree.py and other_links.py for how), `-p2p` matrices of the same
    GPUs give facts, `nvlink -R` the ends of NVLinks, `nvlink -s` their rate; what is odd or assumed is in `extra["notes"]`.
    Without a matrix of ways, `nvlink -R` alone is read: GPUs and their NVLinks.

    Raises InputError where there is neither: a run that failed, `-p2p` matrices or `nvlink -s` alone (they do not say what
    is joined to what), matrices of two machines, a matrix without a row, or of more than 1024 devices.
    """
    found = parts(text, where)
    tables = [table for table in found.tables if table.rows]
    ways = [table for table in tables if not is_p2p(table)]
    p2p = [table for table in tables if is_p2p(table)]
    if not ways:
        return _without_matrix(found, p2p, where)
    table = _only(ways, where)
    if not any(GPU_NAME.fullmatch(name) for name in table.rows):
        raise InputError(f"{where}: the matrix of line {table.line} has no row of a GPU; is the text whole?")
    return _from_matrix(table, found, p2p, where)


def _only(ways: list[Table], where: str) -> Table:
    """The matrix, which may stand there more than once."""
    first = ways[0]
    for other in ways[1:]:
        if (other.names, other.rows) != (first.names, first.rows):
            raise InputError(
                f"{where}: two matrices that differ, at lines {first.line} and {other.line}; "
                "expected one machine in a file: leave the one you want"
            )
    return first


def _without_matrix(found: Parts, p2p: list[Table], where: str) -> Topology:
    if found.failed is not None:
        raise InputError(
            f"{where}: line {found.failed}: nvidia-smi failed to run its matrix, so nothing is known; run "
            "topo-probe on the machine: it asks for one fact at a time and keeps those that are answered"
        )
    if found.link_tables:
        return _from_links(found, where)
    if p2p:
        raise InputError(
            f"{where}: line {p2p[0].line}: a -p2p matrix says what GPUs may do to each other, not how they are joined; "
            "add the output of nvidia-smi topo -m of the same machine to the file"
        )
    if found.tables:
        raise InputError(f"{where}: the matrix of line {found.tables[0].line} has no row of a GPU; is the text whole?")
    if found.stray is not None:
        raise InputError(
            f"{where}: line {found.stray}: a row of a matrix without a heading above it; "
            "expected the whole output of nvidia-smi topo -m, from the line that names GPU0, GPU1 and so on"
        )
    raise InputError(f"{where}: no matrix found; expected the output of nvidia-smi topo -m")


def _from_matrix(table: Table, found: Parts, p2p: list[Table], where: str) -> Topology:
    notes: list[str] = []
    cells = read_cells(table, found.nics, notes)
    draft = Draft(cells, affinities(table, notes), SOURCE, notes=notes)
    tables = _of_matrix(found.link_tables, cells, notes)
    switched = peers(tables) is None if any(t.remote for t in tables.values()) else None
    hang(draft, where)
    join_direct(draft, lane(tables), switched)
    facts = [*matrix_facts(table, cells), *p2p_facts(p2p, frozenset(table.names), notes), *link_facts(tables)]
    if len(table.names) > MOST_PAIRS:
        notes.append(f"more than {MOST_PAIRS} devices: facts of pairs are not kept")
    devices = [*(_named(device, tables) for device in placed(draft)), *draft.devices]
    topology = Topology(PurePath(where).stem or where, tuple(devices), tuple(draft.links), _source(tables, p2p, True))
    notes += _unlike(topology, cells)
    return _with(topology, [*notes, _not_rates(tables)], facts)


def _of_matrix(link_tables: dict[int, LinkTable], cells: Cells, notes: list[str]) -> dict[int, LinkTable]:
    """The links of the GPUs of the matrix; those of other GPUs are of another machine."""
    strangers = [f"gpu{gpu}" for gpu in link_tables if f"gpu{gpu}" not in cells.ids]
    if strangers:
        notes.append(f"nvidia-smi nvlink lists {listed(strangers)}, which the matrix does not have; left out")
    return {} if strangers else link_tables


def _named(device: Device, tables: dict[int, LinkTable]) -> Device:
    """A GPU with what the lists of its links call it."""
    index = device.id.removeprefix("gpu")
    table = tables.get(int(index)) if device.kind == "gpu" and str(int(index)) == index else None
    if table is None:
        return device
    known: dict[str, Any] = {"name": table.name, "uuid": table.uuid}
    return replace(device, extra={**device.extra, **{key: text for key, text in known.items() if text}})


def _from_links(found: Parts, where: str) -> Topology:
    notes: list[str] = []
    devices, links = join_links(found, where, notes)
    source = _source(found.link_tables, [], False)
    topology = Topology(PurePath(where).stem or where, tuple(devices), tuple(links), source)
    return _with(topology, [*notes, _not_rates(found.link_tables)], link_facts(found.link_tables))


def _source(tables: dict[int, LinkTable], p2p: list[Table], matrix: bool) -> str:
    status = any(table.speed for table in tables.values())
    remote = any(table.remote for table in tables.values())
    told = ((matrix, SOURCE), (bool(p2p), "topo -p2p"), (remote, REMOTE), (status, STATUS))
    return ", ".join(name for there, name in told if there)


def _with(topology: Topology, notes: list[str], facts: list[Fact]) -> Topology:
    return replace(topology, extra={"notes": notes, "facts": facts_to_json(Facts(tuple(facts)))})


def _not_rates(tables: dict[int, LinkTable]) -> str:
    told = any(speed for table in tables.values() for speed in table.speed.values())
    which = "all rates but those of NVLinks" if told else "all rates"
    return f"labels are not bandwidths: {which} are assumed; topo-probe --measure finds the real ones"


def _unlike(topology: Topology, cells: Cells) -> list[str]:
    """Pairs whose way in the topology is not what the text calls it: labels that no hierarchy of switches gives."""
    if len(cells.ids) * len(topology.links) > _MOST_CHECKED:
        return ["too many devices and links to check that each way comes out as the text calls it"]
    ways = Ways(topology)
    odd: list[str] = []
    for i, a in enumerate(cells.ids):
        for j, b in enumerate(cells.ids):
            label = cells.told[i][j]
            if i == j or label is None:
                continue
            here = ways.way(a, b).label
            if here != _SAME.get(label, label) and not _two_ways(label, cells.told[j][i]):
                odd.append(f"{a} - {b} ({label}, here {here})")
    if not odd:
        return []
    return [
        f"the labels are no hierarchy of switches and CPUs; the nearest is taken, which differs in {listed(odd, 3)}"
    ]


def _two_ways(label: str, back: str | None) -> bool:
    """Whether the two directions of a pair differ, which has a note of its own."""
    return back is not None and label != back
