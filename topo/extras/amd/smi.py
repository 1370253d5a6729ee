"""Read the tables of `rocm-smi --showtopo`, `amd-smi topology` (both also in JSON), `amd-smi xgmi`.

The tables cover all pairs of GPUs: the kind of link (XGMI or PCIE), the number of hops, and more. A
pair with XGMI and the weight of one hop has links of its own: "hops" is 1 for all GPUs that xGMI
joins, also over others (ROCm/rocm-systems#5763). Rates are only in a table of bandwidths, if there
is one (`rocm-smi --shownodesbw`, amd-smi's NUMA BW): the minimum and maximum in MB/s of each pair,
the rates of one link and of all its links, 0 for a pair without links of its own. Otherwise they
are assumed, and their source says so.
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, permutations
from pathlib import PurePath

from ...between_cpus import assume_between_cpus, find_cpu, join_cpus
from ...derived.board_size import find_short_boards
from ...devices import Device, Link, both_directions
from ...errors import InputError
from ...facts import Fact, Facts, facts_to_json, keys
from ...facts.keys import HOST, gpu_subject, p2p_subject, xgmi_subject
from ...formats.around import read_around
from ...formats.gpu_names import find_gpu_names, list_boards
from ...formats.pasted import clean
from ...graph import Topology
from ...hardware import LATENCY_us, PcieLink
from ...names import join_first
from ...notes import Note, Source, assumed
from . import json_tables
from .boards import UNKNOWN, Model, check_links, choose_model, find_partition
from .tables import (
    ACCESS,
    BANDWIDTH,
    HOPS,
    RANGE,
    TYPE,
    WEIGHT,
    AmdOutput,
    looks_like,
    parse_tables,
)

__all__ = ["looks_like", "read"]

_TYPES = ("XGMI", "PCIE")
# Two PCIe hops pass through one CPU; three cross to another.
_SAME_CPU_HOPS = 2
# PCIe weighs 20 each way between a GPU and its CPU; between NUMA nodes their distance is added.
_SAME_CPU_WEIGHT = 40
# Weight of one xGMI hop; more hops have a multiple of it (amdgpu; ROCm/rocm-systems#7372).
_WEIGHT_OF_A_HOP = 15
# Of one hop and of two. PCIe weighs 20 each way between a GPU and its CPU, and more between CPUs.
_WEIGHTS_OF_XGMI = (_WEIGHT_OF_A_HOP, 2 * _WEIGHT_OF_A_HOP)
SOURCE = "rocm-smi --showtopo or amd-smi topology"
# In the tables of access of amd-smi and rocm-smi: no access to the other GPU's memory.
_REFUSED = ("DISABLED", "FALSE")


def read(text: str, where: str) -> Topology:
    """Read the machine that rocm-smi or amd-smi describes; `extra["notes"]` lists oddities.

    Raise InputError if there is no table of link types or of weights, if it does not say how two
    GPUs are joined or says two things of it, and for rows with more or fewer cells than columns.
    `where` names the file in errors.
    """
    text = clean(text)
    is_json = json_tables.looks_like(text)
    output = json_tables.parse_json(text, where) if is_json else parse_tables(text, where)
    notes: list[str] = []
    if TYPE not in output.tables:
        _infer_types(output, notes, where)
    _check_types(output, where)
    _check_directions(output, where)
    if output.times > 1:
        notes.append(
            f"the same tables {output.times} times: taken for one machine; if they are of several, "
            "give topo-probe a file for each"
        )
    ids = {name: f"gpu{i}" for i, name in enumerate(output.names)}
    nodes = _find_nodes(output, notes)
    pairs = [(a, b) for a, b in combinations(output.names, 2) if _is_direct(output, a, b)]
    names = find_gpu_names(text)
    model = choose_model(output, names, pairs, find_partition(text, notes))
    check_links(output, pairs, model, where)
    if not model.is_named and not pairs:
        notes.append(UNKNOWN)
    cpu_name, cpu = find_cpu(text) or ("", None)
    between_cpus = assume_between_cpus(model.pcie[0].generation, cpu, cpu_name)
    links = [
        *_join_xgmi(output, ids, pairs, model, notes),
        *_join_pcie(ids, nodes, model.pcie, between_cpus),
    ]
    cpus = [
        Device(
            f"cpu{node}",
            "cpu",
            numa_node=node if node in output.nodes.values() else None,
            source=SOURCE,
            extra=dict(cpu or {}),
        )
        for node in dict.fromkeys(nodes.values())
    ]
    gpus = [
        Device(
            ids[name],
            numa_node=nodes[name] if output.nodes.get(number, -1) >= 0 else None,
            bus_id=_read_bus_id(name),
            source=SOURCE,
            extra={
                "pci": {"vendor": "0x1002"},
                **({"name": names.by_index[number]} if number in names.by_index else {}),
            },
        )
        for name in output.names
        for number in (output.get_number_of(name),)
    ]
    devices = (*gpus, *cpus)
    boards = dict.fromkeys(ids.values(), model.board if model.is_named else None)
    around = read_around(text)
    of_host = (fact for fact in around.facts if fact.subject == HOST)
    short = find_short_boards(Topology("tables", devices, tuple(links)), boards)
    notes += [*(board.describe() for board in short), *around.list_settings((), has_p2p=True)]
    return Topology(
        PurePath(where).stem or where,
        devices,
        tuple(links),
        SOURCE,
        {
            "notes": notes,
            "facts": facts_to_json(Facts((*_list_facts(output), *of_host))),
        },
    )


def _infer_types(output: AmdOutput, notes: list[str], where: str) -> None:
    """Take the types of links from the weights, with a note, if the text is cut before their table.

    Raise InputError if a weight is missing, too, or if the table has a title and no rows.
    """
    if output.types_line:
        raise InputError(
            f"{where}: line {output.types_line}: the table of link types has no rows that can be "
            "read; are they wrapped, or cut? expected a line for each GPU, as the tool printed it"
        )
    weights = {pair: output.get_number(WEIGHT, *pair) for pair in combinations(output.names, 2)}
    if not weights or any(weight is None for weight in weights.values()):
        raise InputError(
            f"{where}: no table of link types (LINK TYPE TABLE, or Link Type between two GPUs): "
            "the text is cut before it, or the command printed other tables; give the whole output "
            "of amd-smi topology or rocm-smi --showtopo"
        )
    output.tables[TYPE] = {
        pair: "XGMI" if weight in _WEIGHTS_OF_XGMI else "PCIE" for pair, weight in weights.items()
    }
    notes.append(
        "no table of link types, so the text is cut; they are assumed by the weights: a hop of "
        f"xGMI weighs {_WEIGHT_OF_A_HOP}, PCIe 40 or more"
    )


def _check_types(output: AmdOutput, where: str) -> None:
    """Raise InputError for a pair of GPUs whose link type is missing or not known to the tool."""
    unknown = [
        f"{a} - {b} ({output.get_cell(TYPE, a, b) or 'missing'})"
        for a, b in combinations(output.names, 2)
        if output.get_cell(TYPE, a, b).upper() not in _TYPES
    ]
    if unknown:
        raise InputError(
            f"{where}: the table of link types does not say how GPUs are joined: "
            f"{join_first(unknown, 3)}; expected XGMI or PCIE, which the tool prints where it may "
            "read the driver's topology"
        )


def _check_directions(output: AmdOutput, where: str) -> None:
    """Raise InputError if what tells the links of two GPUs differs by direction.

    Those are the link types and, for xGMI, hops and weights.
    """
    for a, b in combinations(output.names, 2):
        is_xgmi = output.get_cell(TYPE, a, b).upper() == "XGMI"
        for name in (TYPE, HOPS, WEIGHT) if is_xgmi else (TYPE,):
            cells = output.tables.get(name, {})
            one, other = (cells.get(pair, "").upper() for pair in ((a, b), (b, a)))
            if one and other and one != other:
                raise InputError(
                    f"{where}: the table of {name} has {one} for {a} - {b} and {other} for {b} - "
                    f"{a}; expected the same in both directions, as the tool prints it"
                )


def _read_bus_id(name: str) -> str | None:
    """Return the PCI address that amd-smi uses as a GPU's name, None for rocm-smi's GPU0."""
    return None if name.upper().startswith("GPU") else name.lower()


def _is_direct(output: AmdOutput, a: str, b: str) -> bool:
    """Return whether xGMI joins two GPUs without another GPU in between."""
    hops = output.get_number(HOPS, a, b)
    weight = output.get_number(WEIGHT, a, b)
    if weight and weight % _WEIGHT_OF_A_HOP == 0:
        hops = max(hops or 1, weight // _WEIGHT_OF_A_HOP)
    if output.has_rates and output.get_cell(BANDWIDTH, a, b) == "0-0":
        return False
    return output.get_cell(TYPE, a, b).upper() == "XGMI" and hops in (None, 1)


def _join_xgmi(
    output: AmdOutput,
    ids: Mapping[str, str],
    pairs: Sequence[tuple[str, str]],
    model: Model,
    notes: list[str],
) -> Iterator[Link]:
    wires = model.board.pair_wires
    rate, reason = wires * model.board.wire_GBps, model.how
    without: list[str] = []
    for a, b in pairs:
        listed = RANGE.fullmatch(output.get_cell(BANDWIDTH, a, b))
        one_MBps, all_MBps = (int(listed[1]), int(listed[2])) if listed else (0, 0)
        if 0 < one_MBps <= all_MBps:
            total, count, said = (
                Fraction(all_MBps, 1000),
                all_MBps // one_MBps,
                f"{SOURCE}: bandwidth {all_MBps} MB/s",
            )
        else:
            total, count, said = rate, wires, assumed(reason)
            without.append(f"{ids[a]} - {ids[b]}")
        yield from both_directions(
            Link(ids[a], ids[b], total, LATENCY_us["xgmi"], "xgmi", count, said)
        )
    if without and model.others:
        notes.append(
            Note(
                f"no names of GPUs; with these links they can be {list_boards(model.others)}; "
                f"{model.board.name} is assumed; rocm-smi --showproductname beside it says which",
                "board-assumed",
            )
        )
    if without:
        notes.append(
            f"{join_first(without, 3)}: the text has no bandwidths; "
            f"{'one xGMI link' if wires == 1 else f'a bundle of {wires} xGMI links'} of "
            f"{float(model.board.wire_GBps):g} GB/s is assumed for each; rocm-smi --shownodesbw "
            "prints them"
        )


def _find_nodes(output: AmdOutput, notes: list[str]) -> dict[str, int]:
    """Return the NUMA nodes of the GPUs, by name.

    They are as printed, else inferred from PCIe hops, or from weights where those are not listed;
    empty if nothing gives them.
    """
    if output.nodes:
        unknown = [
            name for name in output.names if output.nodes.get(output.get_number_of(name), -1) < 0
        ]
        if unknown:
            notes.append(
                f"{join_first(unknown, 3)}: no NUMA node is printed, or -1, which is none; taken "
                "to be on the CPU of node 0"
            )
        return {
            name: max(output.nodes.get(output.get_number_of(name), 0), 0) for name in output.names
        }
    if not any(
        output.get_cell(TYPE, *pair).upper() == "PCIE" for pair in combinations(output.names, 2)
    ):
        notes.append(
            "NUMA nodes and PCIe are not listed, so no CPUs are here; rocm-smi --showtopo prints "
            "the nodes"
        )
        return {}
    ways = {
        HOPS: (_SAME_CPU_HOPS, "GPUs with at most two PCIe hops between them are"),
        WEIGHT: (_SAME_CPU_WEIGHT, "GPUs with a PCIe weight of at most 40 between them are"),
    }
    table = next((name for name in ways if name in output.tables), HOPS)
    most, near = ways[table]
    notes.append(
        f"NUMA nodes are not listed; {near} taken to be on one CPU"
        if table in output.tables
        else "neither NUMA nodes nor hops are listed; all GPUs are taken to be on one CPU"
    )
    nodes: dict[str, int] = {}
    for name in output.names:
        nodes[name] = next(
            (
                node
                for other, node in nodes.items()
                if (output.get_number(table, name, other) or most) <= most
            ),
            len(set(nodes.values())),
        )
    return nodes


def _join_pcie(
    ids: Mapping[str, str],
    nodes: Mapping[str, int],
    pcie: tuple[PcieLink, str],
    between_cpus: tuple[Fraction, Source],
) -> Iterator[Link]:
    """Yield the links from GPUs to their CPUs, and those between CPUs."""
    for name, node in nodes.items():
        yield from both_directions(
            Link(
                ids[name],
                f"cpu{node}",
                pcie[0].bandwidth_GBps,
                LATENCY_us["pcie"],
                "pcie",
                source=pcie[1],
            )
        )
    for a, b in combinations(dict.fromkeys(nodes.values()), 2):
        yield from join_cpus(f"cpu{a}", f"cpu{b}", between_cpus)


def _list_facts(output: AmdOutput) -> Iterator[Fact]:
    for i, name in enumerate(output.names):
        if (bus_id := _read_bus_id(name)) is not None:
            yield Fact(gpu_subject(i), keys.GPU_BUS_ID, bus_id, SOURCE)
        if (number := output.get_number_of(name)) in output.nodes:
            yield Fact(gpu_subject(i), keys.GPU_NUMA_NODE, output.nodes[number], SOURCE)
    for (i, name), (j, other) in permutations(enumerate(output.names), 2):
        cell = output.tables.get(ACCESS, {}).get((name, other), "")
        if cell.upper() in _REFUSED:
            for key in (keys.P2P_READ, keys.P2P_WRITE):
                yield Fact(p2p_subject(i, j), key, "not supported", f"{SOURCE}: access {cell}")
    for i, j in combinations(range(len(output.names)), 2):
        listed = RANGE.fullmatch(output.get_cell(BANDWIDTH, output.names[i], output.names[j]))
        if listed and int(listed[1]) and _is_direct(output, output.names[i], output.names[j]):
            for a, b in ((i, j), (j, i)):
                yield Fact(
                    xgmi_subject(a, b), keys.XGMI_COUNT, int(listed[2]) // int(listed[1]), SOURCE
                )
                yield Fact(xgmi_subject(a, b), keys.XGMI_SPEED_MBps, int(listed[1]), SOURCE)
