"""Read and write the output of nvidia-smi that describes a machine.

That is `topo -m`, `topo -p2p`, `nvlink -s` and `nvlink -R`. A label is the cell of a matrix that
says how two devices are joined, such as NV4 or PIX. It is not a bandwidth: every rate of a topology
read from such a text is assumed, and its source says so.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import PurePath

from ...between_cpus import find_cpu
from ...boards import Board
from ...derived.board_size import find_short_boards
from ...derived.hosts import join_hosts
from ...errors import InputError
from ...facts import Fact, Facts, facts_to_json, keys, load_facts
from ...facts.keys import HOST, gpu_subject
from ...graph import Device, Link, Topology
from ...hardware import ASSUMED_PLACE
from ...matrix import LABELS, ConnectionFinder, collect_links
from ...notes import Note
from ..around import Around, StatedLink, read_around
from ..gpu_names import GpuNames, find_gpu_names
from ..pasted import clean
from .candidates import choose_boards, note_part_bridges, note_unknown_boards
from .cells import (
    Cells,
    count_nvlinks,
    iterate_members,
    leave_out_drives,
    list_some,
    read_cells,
)
from .facts import (
    MAX_PAIRED,
    SOURCE,
    build_matrix_facts,
    build_p2p_facts,
    has_own_memory,
    is_p2p,
    list_gpu_numbers,
    read_affinities,
    tells_access,
)
from .inferred import InferredTopology, assume_rates
from .nvlink_output import (
    REMOTE,
    STATUS,
    build_nvlink_facts,
    choose_nvlink_rate,
    join_nvlinks,
    match_peers,
    note_other_counts,
)
from .other_links import join_other_links
from .parser import (
    DOTS,
    GPU_NAME,
    RANGES,
    LabelMatrix,
    NvlinkListing,
    SmiOutput,
    looks_like,
    parse_output,
)
from .pcie_tree import infer_pcie_tree, list_matrix_devices

__all__ = ["looks_like", "read", "write"]

# Devices of all hosts in one text: joining more is slow, and few people paste more by hand.
_MAX_DEVICES = 1024
# Devices times links up to which every label is compared with the topology, about a second.
_MAX_CHECKED = 10_000_000
_NO_NVLINKS = Note(
    "nvidia-smi topo -mp leaves NVLinks out, so none are here, whatever the machine has; give "
    "topo -m",
    "nvlinks-left-out",
)
# Labels of nvidia-smi for which topo/matrix.py has another word.
_LABEL_OF_SMI = {"C2C": "LNK"}
_LEGEND = {
    "X": "Self",
    "SYS": "Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., "
    "QPI/UPI)",
    "NODE": "Connection traversing PCIe as well as the interconnect between PCIe Host Bridges "
    "within a NUMA node",
    "PHB": "Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)",
    "PXB": "Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)",
    "PIX": "Connection traversing at most a single PCIe bridge",
    "NV#": "Connection traversing a bonded set of # NVLinks",
}
_GPU_ID = re.compile(r"gpu(\d{1,6})")


def read(text: str, where: str) -> Topology:
    """Read the machine that nvidia-smi describes in `text`, a document that contains its output.

    `where` names the file in errors. A matrix of `topo -m` gives devices and links (pcie_tree.py
    and other_links.py infer them), `-p2p` matrices of the same GPUs give facts, `nvlink -R` the
    ends of NVLinks, `nvlink -s` their rate; `extra["notes"]` lists odd and assumed values. Without
    a matrix of `topo -m`, `nvlink -R` alone gives GPUs and their NVLinks. If the same matrix occurs
    several times, each represents a host of its own, unless the prompts before them name one host.

    Raise InputError if there is neither: a run that failed, `-p2p` matrices or `nvlink -s` alone
    (they do not contain connections), matrices of different machines, a matrix without a GPU's row,
    without the label of a pair of GPUs or with too many devices, and rows with more or fewer cells
    than columns.
    """
    return _read(clean(text), where, GpuNames())


def _read(text: str, where: str, others: GpuNames, elsewhere: Around | None = None) -> Topology:
    """Read as `read` does.

    `others` are the names elsewhere, `elsewhere` what is said there; both are used if the text
    itself has none.
    """
    output, names = parse_output(text, where), find_gpu_names(text)
    names = names if names.by_index or names.mentioned else others
    around = read_around(text, elsewhere)
    tables = [table for table in output.tables if table.rows]
    p2p = [table for table in tables if is_p2p(table)]
    matrices = [table for table in tables if not is_p2p(table)]
    of_pcie = [m for m in matrices if not m.has_nvlinks]
    matrices = [m for m in matrices if m.has_nvlinks] or matrices  # -m includes all labels of -mp
    if not matrices:
        return _read_without_matrix(output, p2p, where)
    table = matrices[0]
    for other in (*matrices, *of_pcie):
        if other.has_nvlinks == table.has_nvlinks:
            is_alike = (other.names, other.rows) == (table.names, table.rows)
        else:
            is_alike = _has_labels_of(other, table)
        if not is_alike:
            raise InputError(
                f"{where}: two matrices that differ, at lines {table.line} and {other.line}; "
                "expected one machine in a file, or several that are alike: give topo-probe a "
                "file for each"
            )
    hosts = {matrix.host for matrix in matrices}
    if len(matrices) > 1 and (None in hosts or len(hosts) > 1):
        return _read_hosts(text, matrices, names, around, where)
    if not any(GPU_NAME.fullmatch(name) for name in table.rows):
        raise _make_rowless_error(table, where)
    return _read_matrix(table, output, p2p, names, around, find_cpu(text), where)


def _has_labels_of(pcie: LabelMatrix, table: LabelMatrix) -> bool:
    """Return whether a matrix of `-mp` can be of the machine of one of `-m`, which has NV# too."""
    return pcie.names == table.names and all(
        label == below or None in (label, below) or count_nvlinks(label) > 0
        for name, row in pcie.rows.items()
        if name in table.rows
        for label, below in zip(table.rows[name].cells, row.cells, strict=False)
    )


def _make_rowless_error(table: LabelMatrix, where: str) -> InputError:
    if table.numbers:
        return InputError(
            f"{where}: line {table.numbers}: a row of numbers in the matrix of line {table.line}; "
            "expected labels such as PIX or NV4, of nvidia-smi topo -m, or the tables of "
            "rocm-smi --showtopo with their titles (=== Link Type between two GPUs ===)"
        )
    return InputError(
        f"{where}: the matrix of line {table.line} has no row of a GPU; is the text complete?"
    )


def _read_hosts(
    text: str, matrices: list[LabelMatrix], names: GpuNames, around: Around, where: str
) -> Topology:
    """Read and join hosts with equal matrices; the text after a matrix belongs to its host."""
    if len(matrices) * len(matrices[0].names) > _MAX_DEVICES:
        raise InputError(
            f"{where}: the same matrix {len(matrices)} times, with more than {_MAX_DEVICES} "
            "devices together; give topo-probe one host, or a file for each"
        )
    stem = PurePath(where).stem or where
    lines, cuts = text.split("\n"), [0, *(matrix.start - 1 for matrix in matrices[1:]), None]
    hosts = [
        replace(
            _read("\n".join(lines[start:end]), where, names, around),
            name=matrix.host or f"{stem} {i}",
        )
        for i, (matrix, (start, end)) in enumerate(zip(matrices, pairwise(cuts), strict=True))
    ]
    joined = join_hosts(hosts, name=stem)
    notes = [
        f"the same matrix {len(matrices)} times: taken for {len(matrices)} hosts; if all are of "
        "one machine, keep only one",
        *joined.extra["notes"],
    ]
    return replace(joined, extra={**joined.extra, "notes": notes})


def _read_without_matrix(output: SmiOutput, p2p: list[LabelMatrix], where: str) -> Topology:
    """Read NVLinks alone.

    Raise InputError that names the missing output if there are none.
    """
    if output.failed is not None:
        raise InputError(
            f"{where}: line {output.failed}: nvidia-smi failed to run its matrix, so nothing is "
            "known; run topo-probe on the machine: it asks for one fact at a time and keeps those "
            "that are answered"
        )
    if cut := [gpu for gpu, x in output.nvlinks_by_gpu.items() if x.is_cut and x.remote]:
        raise InputError(
            f"{where}: the links of GPU {cut[0]} break off; give the whole output of nvidia-smi "
            "nvlink -R, or nvidia-smi topo -m"
        )
    if output.nvlinks_by_gpu:
        return _build(where, *join_nvlinks(output, where), output.nvlinks_by_gpu)
    if p2p:
        raise InputError(
            f"{where}: line {p2p[0].line}: a -p2p matrix says what GPUs may do to each other, not "
            "how they are joined; add the output of nvidia-smi topo -m of the same machine to the "
            "file"
        )
    if output.tables:
        raise _make_rowless_error(output.tables[0], where)
    if output.stray is not None and output.odd in DOTS:
        raise InputError(
            f"{where}: line {output.stray}: a heading that leaves columns out ({output.odd}), so "
            "which GPUs there are is not known; give the whole output of nvidia-smi topo -m"
        )
    if output.stray is not None and output.odd:
        raise InputError(
            f"{where}: line {output.stray}: a heading with the column {output.odd[:40]!r}, which "
            "nvidia-smi topo -m does not print; expected its output as it is"
        )
    if output.stray is not None:
        raise InputError(
            f"{where}: line {output.stray}: a row of a matrix without a heading above it; "
            "expected the whole output of nvidia-smi topo -m, from the line that names GPU0, GPU1 "
            "and so on"
        )
    raise InputError(f"{where}: no matrix found; expected the output of nvidia-smi topo -m")


def _read_matrix(
    table: LabelMatrix,
    output: SmiOutput,
    p2p: list[LabelMatrix],
    names: GpuNames,
    around: Around,
    cpu: tuple[str, dict[str, str]] | None,
    where: str,
) -> Topology:
    """Read a matrix of `topo -m`, completed from the other parts of the output and the text.

    `cpu` is what `find_cpu` finds in the text.
    """
    notes: list[str] = [] if table.has_nvlinks else [_NO_NVLINKS]
    table = leave_out_drives(table, notes)
    cells = read_cells(table, output.nics, notes)
    _check_pairs(table, cells, where)
    listings = output.nvlinks_by_gpu
    strangers = [
        f"gpu{gpu}"
        for gpu, listing in listings.items()
        if (listing.remote or listing.speed) and f"gpu{gpu}" not in cells.ids
    ]
    if strangers:
        listings, names = {}, GpuNames()  # all listings are of another machine
        notes.append(
            f"nvidia-smi nvlink lists {list_some(strangers)}, which the matrix does not have; "
            "left out"
        )
    if cut := [gpu for gpu, listing in listings.items() if listing.is_cut]:
        listings = {
            gpu: NvlinkListing(x.name, x.uuid) if x.is_cut else x for gpu, x in listings.items()
        }
        notes.append(
            f"the links of {list_some(f'gpu{gpu}' for gpu in cut)} break off in the text; left out"
        )
    if table.has_nvlinks and cells.gpus.bit_count() > 1:
        note_other_counts(listings, cells, notes)
    affinities = read_affinities(table, notes)
    boards, how = choose_boards(cells, names, affinities, has_own_memory(table, notes), notes)
    said_links = _find_said(around, cells, boards, how.startswith("by"), notes)
    if how.startswith("by"):
        note_part_bridges(cells, boards, notes)
    if not boards:
        note_unknown_boards(cells, affinities, said_links, around.unread, notes)
    stated = [
        link.generation
        for i, (link, source) in said_links.items()
        if cells.gpus >> i & 1 and source.kind == "rated"
    ]
    newest = max(stated, default=None) if len(stated) == cells.gpus.bit_count() else None
    rates = replace(assume_rates(boards, how, cpu, newest), said=said_links)
    inferred = InferredTopology(cells, affinities, SOURCE, notes=notes, rates=rates)
    switched = match_peers(listings) is None if any(x.remote for x in listings.values()) else None
    infer_pcie_tree(inferred, where)
    join_other_links(inferred, choose_nvlink_rate(listings, inferred.rates), switched)
    facts = [
        *build_matrix_facts(table, cells),
        *build_p2p_facts(p2p, frozenset(table.names), notes),
        *(() if any(map(tells_access, p2p)) else around.build_p2p_facts(list_gpu_numbers(table))),
        *(f for f in around.facts if f.subject.replace("gpu/", "GPU") in (HOST, *table.names)),
    ]
    if len(table.names) > MAX_PAIRED:
        notes.append(f"more than {MAX_PAIRED} devices: facts of pairs are left out")
    identities = {f"gpu{gpu}": {"name": name} for gpu, name in names.by_index.items()}
    identities |= {f"gpu{gpu}": listing.identity for gpu, listing in listings.items()}
    model = cpu[1] if cpu is not None else {}
    devices = [
        *list_matrix_devices(inferred, identities),
        *(
            replace(d, extra={**d.extra, **model}) if d.kind == "cpu" else d
            for d in inferred.devices
        ),
    ]
    labelled = Topology("labels", tuple(devices), tuple(inferred.links))
    notes += _find_mismatches(labelled, inferred)
    gpus = {cells.ids[i]: boards.get(i) for i in iterate_members(cells.gpus)}
    notes += [short.describe() for short in find_short_boards(labelled, gpus)]
    names_of_nics = dict.fromkeys(name for other in output.tables for name in other.names)
    notes += around.list_settings(
        [output.nics.get(name, name) for name in names_of_nics],
        has_p2p=any(map(is_p2p, output.tables)),
    )
    return _build(
        where,
        devices,
        inferred.links,
        notes,
        listings,
        facts,
        [SOURCE, "topo -p2p"] if p2p else [SOURCE],
    )


def _find_said(
    around: Around,
    cells: Cells,
    boards: Mapping[int, Board],
    is_sure: bool,
    notes: list[str],
) -> dict[int, StatedLink]:
    """Return the PCIe links of GPUs and NICs that the text states, by column.

    `is_sure` is False for boards that are only assumed.
    """
    columns = {int(cells.ids[i][3:]): i for i in iterate_members(cells.gpus)}
    slots = {number: boards[i].pcie if i in boards else None for number, i in columns.items()}
    of_gpus = around.find_gpu_links(slots, notes, is_sure=is_sure)
    links = {columns[number]: link for number, link in of_gpus.items()}
    nics = [i for i in range(len(cells.ids)) if not cells.gpus >> i & 1]
    if of_nics := around.find_nic_link(len(nics), notes):
        links |= dict.fromkeys(nics, of_nics)
    return links


def _check_pairs(table: LabelMatrix, cells: Cells, where: str) -> None:
    """Raise InputError if nothing says how two GPUs are joined, since any link may be missing."""
    unknown = [
        f"{cells.ids[i]} - {cells.ids[j]}"
        for i, j in combinations(iterate_members(cells.gpus), 2)
        if cells.labels[i][j] is None
    ]
    if unknown and cells.unknown:
        raise InputError(
            f"{where}: the matrix of line {table.line} joins {list_some(unknown, 3)} by "
            f"{list_some(cells.unknown, 3)}, which nvidia-smi does not print; expected NV#, PIX, "
            "PXB, PHB, NODE or SYS: other makers' tools are not read, only those of NVIDIA and AMD"
        )
    if unknown:
        raise InputError(
            f"{where}: the matrix of line {table.line} does not say how {list_some(unknown, 3)} "
            "are joined; give the whole output of nvidia-smi topo -m"
        )


def _build(
    where: str,
    devices: list[Device],
    links: list[Link],
    notes: list[str],
    listings: dict[int, NvlinkListing],
    facts: Sequence[Fact] = (),
    sources: Sequence[str] = (),
) -> Topology:
    """Build the topology, with the facts and sources of the `nvlink` listings added.

    A last note lists the assumed rates.
    """
    has_rates = any(any(listing.speed.values()) for listing in listings.values())
    notes.append(
        f"labels are not bandwidths: all rates{' but those of NVLinks' if has_rates else ''} are "
        "assumed; topo-probe can measure the real ones"
    )
    remote = (REMOTE for listing in listings.values() if listing.remote)
    status = (STATUS for listing in listings.values() if listing.speed)
    return Topology(
        PurePath(where).stem or where,
        tuple(devices),
        tuple(links),
        ", ".join(dict.fromkeys((*sources, *remote, *status))),
        {
            "notes": notes,
            "facts": facts_to_json(Facts((*facts, *build_nvlink_facts(listings)))),
        },
    )


def _find_mismatches(topology: Topology, inferred: InferredTopology) -> list[str]:
    """Return a note on pairs whose label in the topology differs from the printed one.

    That happens if no tree of switches and CPUs gives the printed labels.
    """
    cells = inferred.cells
    if len(cells.ids) * len(topology.links) > _MAX_CHECKED:
        return ["too many devices and links to check each pair's label against the topology"]
    connections = ConnectionFinder(topology)
    odd = [
        f"{a} - {b} ({label}, here {computed})"
        for i, a in enumerate(cells.ids)
        for j, b in enumerate(cells.ids)
        if (label := cells.labels[i][j]) is not None
        and i != j
        and frozenset((i, j)) not in inferred.overruled
        and cells.labels[j][i] in (label, None)  # a pair with two labels is noted already
        and (computed := connections.find(a, b).label) != _LABEL_OF_SMI.get(label, label)
    ]
    return odd and [
        "the labels are no hierarchy of switches and CPUs; the nearest is taken, which differs in "
        f"{list_some(odd, 3)}"
    ]


def write(topology: Topology) -> str:
    """Write the topology as `nvidia-smi topo -m` prints a machine: labels, affinities, legends.

    GPUs have the numbers in their ids if all are `gpuN`, else their ranks. For routes without a
    label of nvidia-smi, topo/matrix.py has labels (XGMI#, LNK, SW, NET, DIS), which the legend
    explains. `read` restores the properties for which the format has room: writing the topology
    that it reads gives the same text.
    """
    connections, facts = ConnectionFinder(topology), load_facts(topology.extra, topology.name)
    names = {ident: f"GPU{rank}" for rank, ident in enumerate(topology.ranks)}
    if all(_GPU_ID.fullmatch(ident) for ident in names):
        names = {ident: ident.upper() for ident in names}
    nics = [device.id for device in topology.devices if device.kind == "nic"]
    names |= {nic: f"NIC{i}" for i, nic in enumerate(nics)}
    group_of = {device.id: device.extra.get(ASSUMED_PLACE) for device in topology.devices}
    links = collect_links(topology)
    sort_of = {
        d.id: d.id if d.kind == "gpu" else (links[d.id], d.extra.get("root"), group_of[d.id])
        for d in topology.devices
        if d.id in names
    }
    known: dict[object, str] = {}

    def find_label(src: str, dst: str) -> str:
        # NICs with equal links, like virtual functions, have equal labels.
        sorts = (sort_of[src], sort_of[dst], src == dst)
        if sorts not in known:
            label = connections.find(src, dst).label
            # A NIC whose CPU is assumed was SYS from all but its own group.
            is_far = label in ("PHB", "NODE") and group_of[src] != group_of[dst]
            known[sorts] = "SYS" if is_far else label
        return known[sorts]

    labels = {src: [find_label(src, dst) for dst in names] for src in names}
    lines = ["\t".join(("", *names.values(), "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"))]
    for ident, name in names.items():
        cells = [f" {label} " if label == "X" else label for label in labels[ident]]
        if ident not in nics:
            cells += _write_affinities(topology, connections, facts, topology.by_id[ident])
        lines.append("\t".join((name, *cells)))
    own = {re.sub(r"\d+$", "#", x) for row in labels.values() for x in row} - _LEGEND.keys()
    legend = _LEGEND | {x: f"{LABELS[x]} (a label of topoplan)" for x in LABELS if x in own}
    lines += ["", "Legend:", ""]
    lines += [f"  {label:4} = {meaning}" for label, meaning in legend.items()]
    if nics:
        lines += ["", "NIC Legend:", ""]
        lines += [f"  {names[nic]}: {' '.join(nic.split())}" for nic in nics]
    return "\n".join(lines) + "\n"


def _write_affinities(
    topology: Topology, connections: ConnectionFinder, facts: Facts, gpu: Device
) -> tuple[str, ...]:
    """Return a GPU's CPU affinity, NUMA affinity, an empty field, and its memory's NUMA node.

    nvidia-smi aligns the columns with the empty field.
    """
    match = _GPU_ID.fullmatch(gpu.id)
    subject = gpu_subject(match.group(1)) if match else ""
    cpu = _find_nearest_cpu(topology, connections, gpu)
    return (
        _choose_first(
            facts.get_text(subject, keys.GPU_CPU_AFFINITY),
            gpu.extra.get("cpus"),
            cpu and cpu.extra.get("cpus"),
        ),
        _choose_first(
            facts.get_text(subject, keys.GPU_NUMA_NODE), gpu.numa_node, cpu and cpu.numa_node
        ),
        "",
        _choose_first(facts.get_text(subject, keys.GPU_OWN_NUMA_NODE)),
    )


def _choose_first(*values: object) -> str:
    """Return the first value that is a number or a list of ranges, N/A if there is none."""
    texts = ("".join(str(value).split()) for value in values if value is not None)
    return next((text for text in texts if RANGES.fullmatch(text)), "N/A")


def _find_nearest_cpu(
    topology: Topology, connections: ConnectionFinder, gpu: Device
) -> Device | None:
    """Return the CPU that a GPU reaches over the fewest links, else the one of its NUMA node.

    None if there is neither.
    """
    cpus = [device for device in topology.devices if device.kind == "cpu"]
    lengths = {
        cpu.id: len(route)
        for cpu in cpus
        if (route := connections.router.find_route(gpu.id, cpu.id)) is not None
    }
    if lengths:
        return topology.by_id[min(lengths, key=lambda ident: lengths[ident])]
    return next(
        (cpu for cpu in cpus if cpu.numa_node is not None and cpu.numa_node == gpu.numa_node), None
    )
