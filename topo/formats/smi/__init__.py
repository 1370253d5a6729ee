"""Read and write what nvidia-smi prints of a machine: `topo -m`, `topo -p2p`, `nvlink -s` and
`nvlink -R`.

A label is not a bandwidth: every rate of a topology read from such a text is assumed, and says so.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import Any

from ...derived.hosts import join_hosts
from ...errors import InputError
from ...facts import Fact, Facts, facts_to_json
from ...graph import Device, Topology
from ...matrix import ConnectionFinder
from ...notes import Note
from .assumed_rates import assume_rates
from .cells import Cells, list_some, read_cells
from .facts import MOST_PAIRS, SOURCE, build_matrix_facts, build_p2p_facts, is_p2p, read_affinities
from .nvlink_output import (
    REMOTE,
    STATUS,
    build_nvlink_facts,
    choose_lane_rate,
    join_nvlinks,
    match_peers,
)
from .other_links import join_other_links
from .parser import GPU_NAME, LabelMatrix, NvlinkListing, SmiOutput, looks_like, parse_output
from .pcie_tree import InferredTopology, infer_pcie_tree, list_matrix_devices
from .writer import write

__all__ = ["looks_like", "read", "write"]

_MOST_DEVICES = 1024  # of several hosts in one text
_MOST_CHECKED = 10_000_000  # devices times links
_NO_NVLINKS = Note(
    "nvidia-smi topo -mp leaves NVLinks out, so none are here, whatever the machine has; give topo -m",
    "nvlinks-left-out",
)
_LABEL_OF_SMI = {"C2C": "LNK"}  # a label of nvidia-smi that topo/matrix.py has another word for


def read(text: str, where: str) -> Topology:
    """Return the machine that nvidia-smi describes in `text`, which may stand in a document;
    `where` names it in errors.

    A matrix of `topo -m` gives devices and links (see pcie_tree.py and other_links.py for how),
    `-p2p` matrices of the same GPUs give facts, `nvlink -R` the ends of NVLinks, `nvlink -s` their
    rate; what is odd or assumed is in `extra["notes"]`. Without such a matrix, `nvlink -R` alone is
    read: GPUs and their NVLinks. A matrix that stands there several times is that of so many hosts
    that are alike, unless the prompts before them name one host.

    Raises InputError where there is neither: a run that failed, `-p2p` matrices or `nvlink -s`
    alone (they do not say what is joined to what), matrices of machines that differ, one without a
    row or of too many devices, and where the cells of a row are not as many as the columns.
    """
    output = parse_output(text, where)
    tables = [table for table in output.tables if table.rows]
    ways = [table for table in tables if not is_p2p(table)]
    ways = [table for table in ways if table.has_nvlinks] or ways  # -m says all that -mp does
    p2p = [table for table in tables if is_p2p(table)]
    if not ways:
        return _read_without_matrix(output, p2p, where)
    table = _check_same(ways, where)
    named = [way.host for way in ways]
    if len(ways) > 1 and (None in named or len(set(named)) > 1):
        return _read_hosts(text, ways, where)
    if not any(GPU_NAME.fullmatch(name) for name in table.rows):
        raise InputError(
            f"{where}: the matrix of line {table.line} has no row of a GPU; is the text whole?"
        )
    return _read_matrix(table, output, p2p, where)


def _check_same(ways: list[LabelMatrix], where: str) -> LabelMatrix:
    """Return the matrix of ways, of which there may be several that are equal. Raises InputError
    where two differ.
    """
    first = ways[0]
    for other in ways[1:]:
        if (other.names, other.rows) != (first.names, first.rows):
            raise InputError(
                f"{where}: two matrices that differ, at lines {first.line} and {other.line}; "
                "expected one machine in a file, or several that are alike: give topo-probe a "
                "file for each"
            )
    return first


def _read_hosts(text: str, ways: list[LabelMatrix], where: str) -> Topology:
    """Return the hosts that a text has equal matrices of, joined; what follows a matrix belongs to
    it.
    """
    if len(ways) * len(ways[0].names) > _MOST_DEVICES:
        raise InputError(
            f"{where}: the same matrix {len(ways)} times, with more than {_MOST_DEVICES} devices "
            "together; give topo-probe "
            "one host, or a file for each"
        )
    lines, starts = text.split("\n"), [way.start - 1 for way in ways]
    pieces = [
        "\n".join(lines[a:b]) for a, b in zip([0, *starts[1:]], [*starts[1:], None], strict=True)
    ]
    stem = PurePath(where).stem or where
    hosts = [
        replace(read(piece, where), name=way.host or f"{stem} {i}")
        for i, (piece, way) in enumerate(zip(pieces, ways, strict=True))
    ]
    joined = join_hosts(hosts, name=stem)
    said = f"the same matrix {len(ways)} times: taken for {len(ways)} hosts; if it is one machine's, leave one of them"
    return replace(joined, extra={**joined.extra, "notes": [said, *joined.extra["notes"]]})


def _read_without_matrix(output: SmiOutput, p2p: list[LabelMatrix], where: str) -> Topology:
    """Return the topology of NVLinks alone. Raises InputError, saying what is missing, where there
    are none.
    """
    if output.failed is not None:
        raise InputError(
            f"{where}: line {output.failed}: nvidia-smi failed to run its matrix, so nothing is "
            "known; run "
            "topo-probe on the machine: it asks for one fact at a time and keeps those that are "
            "answered"
        )
    if output.nvlinks_by_gpu:
        return _read_nvlinks_alone(output, where)
    if p2p:
        raise InputError(
            f"{where}: line {p2p[0].line}: a -p2p matrix says what GPUs may do to each other, not "
            "how they are joined; "
            "add the output of nvidia-smi topo -m of the same machine to the file"
        )
    if output.tables:
        raise InputError(
            f"{where}: the matrix of line {output.tables[0].line} has no row of a GPU; is the "
            "text whole?"
        )
    if output.stray is not None:
        raise InputError(
            f"{where}: line {output.stray}: a row of a matrix without a heading above it; "
            "expected the whole output of nvidia-smi topo -m, from the line that names GPU0, GPU1 "
            "and so on"
        )
    raise InputError(f"{where}: no matrix found; expected the output of nvidia-smi topo -m")


def _read_matrix(
    table: LabelMatrix, output: SmiOutput, p2p: list[LabelMatrix], where: str
) -> Topology:
    """Return the topology of a matrix of ways, with what the other parts of the output add to
    it.
    """
    notes: list[str] = [] if table.has_nvlinks else [_NO_NVLINKS]
    cells = read_cells(table, output.nics, notes)
    inferred = InferredTopology(
        cells, read_affinities(table, notes), SOURCE, notes=notes, rates=assume_rates(cells)
    )
    inferred.has_nic_rows = any(not GPU_NAME.fullmatch(name) for name in table.rows)
    listings = _select_listings(output.nvlinks_by_gpu, cells, notes)
    switched = match_peers(listings) is None if any(t.remote for t in listings.values()) else None
    infer_pcie_tree(inferred, where)
    join_other_links(inferred, choose_lane_rate(listings), switched)
    facts = [
        *build_matrix_facts(table, cells),
        *build_p2p_facts(p2p, frozenset(table.names), notes),
        *build_nvlink_facts(listings),
    ]
    if len(table.names) > MOST_PAIRS:
        notes.append(f"more than {MOST_PAIRS} devices: facts of pairs are not kept")
    devices = [
        *(_name_gpu(device, listings) for device in list_matrix_devices(inferred)),
        *inferred.devices,
    ]
    topology = Topology(
        PurePath(where).stem or where,
        tuple(devices),
        tuple(inferred.links),
        _describe_source(listings, p2p, True),
    )
    notes += _find_mismatches(topology, inferred)
    return _add_extra(topology, [*notes, _note_rates(listings)], facts)


def _select_listings(
    nvlinks_by_gpu: dict[int, NvlinkListing], cells: Cells, notes: list[str]
) -> dict[int, NvlinkListing]:
    """Return the NVLinks of the matrix's GPUs, none where some are of other GPUs: these are of
    another machine.
    """
    strangers = [f"gpu{gpu}" for gpu in nvlinks_by_gpu if f"gpu{gpu}" not in cells.ids]
    if strangers:
        notes.append(
            f"nvidia-smi nvlink lists {list_some(strangers)}, which the matrix does not have; "
            "left out"
        )
    return {} if strangers else nvlinks_by_gpu


def _name_gpu(device: Device, listings: dict[int, NvlinkListing]) -> Device:
    """Return a GPU with the name and UUID that the list of its links gives."""
    index = device.id.removeprefix("gpu")
    listing = (
        listings.get(int(index)) if device.kind == "gpu" and str(int(index)) == index else None
    )
    if listing is None:
        return device
    known: dict[str, Any] = {"name": listing.name, "uuid": listing.uuid}
    return replace(
        device, extra={**device.extra, **{key: text for key, text in known.items() if text}}
    )


def _read_nvlinks_alone(output: SmiOutput, where: str) -> Topology:
    """Return the topology of the NVLinks that -R lists."""
    notes: list[str] = []
    devices, links = join_nvlinks(output, where, notes)
    source = _describe_source(output.nvlinks_by_gpu, [], False)
    topology = Topology(PurePath(where).stem or where, tuple(devices), tuple(links), source)
    return _add_extra(
        topology,
        [*notes, _note_rates(output.nvlinks_by_gpu)],
        build_nvlink_facts(output.nvlinks_by_gpu),
    )


def _describe_source(
    listings: dict[int, NvlinkListing], p2p: list[LabelMatrix], matrix: bool
) -> str:
    """Return the names of the outputs that a topology was read from."""
    status = any(table.speed for table in listings.values())
    remote = any(table.remote for table in listings.values())
    parts = ((matrix, SOURCE), (bool(p2p), "topo -p2p"), (remote, REMOTE), (status, STATUS))
    return ", ".join(name for present, name in parts if present)


def _add_extra(topology: Topology, notes: list[str], facts: list[Fact]) -> Topology:
    """Return a topology with notes and facts."""
    return replace(topology, extra={"notes": notes, "facts": facts_to_json(Facts(tuple(facts)))})


def _note_rates(listings: dict[int, NvlinkListing]) -> str:
    """Return the note that the rates are assumed."""
    has_nvlink_rates = any(speed for table in listings.values() for speed in table.speed.values())
    which = "all rates but those of NVLinks" if has_nvlink_rates else "all rates"
    return (
        f"labels are not bandwidths: {which} are assumed; topo-probe --measure finds the real ones"
    )


def _find_mismatches(topology: Topology, inferred: InferredTopology) -> list[str]:
    """Return a note on pairs whose way in the topology is not what the text calls it: labels that
    no hierarchy gives.
    """
    cells = inferred.cells
    if len(cells.ids) * len(topology.links) > _MOST_CHECKED:
        return ["too many devices and links to check that each way comes out as the text calls it"]
    ways = ConnectionFinder(topology)
    odd: list[str] = []
    for i, a in enumerate(cells.ids):
        for j, b in enumerate(cells.ids):
            label = cells.labels[i][j]
            if i == j or label is None or frozenset((i, j)) in inferred.overruled:
                continue
            computed = ways.find(a, b).label
            if computed != _LABEL_OF_SMI.get(label, label) and not _differs_by_direction(
                label, cells.labels[j][i]
            ):
                odd.append(f"{a} - {b} ({label}, here {computed})")
    if not odd:
        return []
    return [
        "the labels are no hierarchy of switches and CPUs; the nearest is taken, which differs "
        f"in {list_some(odd, 3)}"
    ]


def _differs_by_direction(label: str, back: str | None) -> bool:
    """Return whether the two directions of a pair differ, which has a note of its own."""
    return back is not None and label != back
