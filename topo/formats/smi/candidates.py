"""The boards that a matrix can be of: by the names around it, else by its NVLinks and affinities.

The number of NVLinks tells the generation, except 18, which GPUs of NVLink 4 (25 GB/s each) and
NVLink 5 (50 GB/s) have. Memory of GPUs that is a NUMA node, and CPUs of 72 cores, are those of
Grace (GH200, GB200, GB300). All that is left open is in a note, with the board that is assumed.

Cells (cells.py) are the matrix: its labels, such as NV4 or PIX, by two columns. A GPU is known by
the number of its column, from 0. The affinity of a GPU is the CPUs and NUMA node that its row
names. What is in doubt becomes a line in the lists `notes`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from ...boards import BOARDS, MAX_NVLINKS, Board, get_board
from ...hardware import PcieLink
from ...notes import Note, Source
from ..gpu_names import GpuNames, list_boards
from .cells import Cells, count_nvlinks, iterate_members, list_some
from .inferred import UNKNOWN, Affinity

_UNKNOWN_BOARD = (
    "no names of GPUs and no NVLinks: PCIe{} is taken as Gen3{}, as NCCL does (T4 and V100 have "
    "Gen3; A10, L40S and RTX 4090 Gen4; H100 PCIe, RTX 5090 and RTX PRO 6000 Gen5); the output of "
    "nvidia-smi -L beside the matrix says which"
)
# The commonest board with this number of NVLinks, assumed if a matrix leaves others open.
_ASSUMED = {18: "H100", 12: "A100", 8: "A800", 6: "V100", 4: "RTX A6000", 1: "V100"}
# The cards that bridges join in fours, and the peers that each then has.
_FOUR = ("H200 NVL", 3)
# NVLinks between two modules that are joined without NVSwitches, as on a DGX-1 (one and two), a
# Power9 node (three), or a board of four A100 or of four H100 or H200; few may be in a matrix.
_JOINED_BY = {1: ("V100", "P100"), 2: ("V100",), 3: ("V100",), 4: ("A100",), 6: ("H200", "H100")}
# Peers of a module on a board of four.
_PEERS_OF_FOUR = 3
# NVLinks of a V100 SXM (Tesla V100 whitepaper).
_V100_LINKS = 6
# NVLinks that one bridge between cards carries, from Ampere on and before (their datasheets).
_BRIDGE, _OLD_BRIDGE, _AMPERE = 4, 2, 80
# Cores of a Grace CPU.
_GRACE_CORES = 72
_RANGE = re.compile(r"(\d{1,6})-(\d{1,6})")


def choose_boards(
    cells: Cells,
    names: GpuNames,
    affinities: Mapping[int, Affinity],
    has_own_memory: bool,
    notes: list[str],
) -> tuple[dict[int, Board], str]:
    """Return the board of each GPU, by column, and a text on how the boards are known.

    `names` has what the text around the matrix calls the GPUs; `has_own_memory` is whether GPUs
    have NUMA nodes of their own. Without names the NVLinks and affinities decide: if several boards
    have them, one is assumed, and a note lists them all. If no board has them, no boards are
    returned, and the text is "".
    """
    gpus = list(iterate_members(cells.gpus))
    by_name = {i: known for i in gpus if (known := names.find(int(cells.ids[i][3:])))}
    named = _refuse_wrong(cells, by_name, bool(names.by_index), notes)
    if named:
        words = dict.fromkeys(text for _, text in named.values())
        return {i: board for i, (board, _) in named.items()}, f"by the GPUs: {list_some(words, 2)}"
    if len(names.mentioned) > 1 and not names.by_index:
        notes.append(
            f"the text mentions {list_some(names.mentioned)}; which of them the GPUs are is not "
            "known"
        )
    candidates = _list_candidates(cells, affinities, has_own_memory)
    if not candidates:
        return {}, ""
    most = max(map(count_gpu_nvlinks, cells.labels))
    usual = _ASSUMED.get(most)
    # Else the slowest, for Grace the older one.
    assumed = next((b for b in candidates if b.name == usual), candidates[-1])
    links = f"{most} NVLink{'s' * (most > 1)}" if most else "a Grace CPU"
    if len(candidates) > 1:
        notes.append(
            Note(
                f"no names of GPUs; with {links} they can be {list_boards(candidates)}; "
                f"{assumed.name} is assumed; the output of nvidia-smi -L beside the matrix says "
                "which",
                "board-assumed",
            )
        )
    some = "" if assumed.wires == most or not most else f" of its {assumed.wires}"
    if len(candidates) == 1 and most:  # nothing else has these links
        return dict.fromkeys(gpus, assumed), f"by the GPUs: {assumed.name} by its {links}{some}"
    return dict.fromkeys(gpus, assumed), f"as {assumed.name} has ({links}{some})"


def note_unknown_boards(
    cells: Cells,
    affinities: Mapping[int, Affinity],
    said: Mapping[int, tuple[PcieLink, Source]],
    unread: str,
    notes: list[str],
) -> None:
    """Note what is taken for the PCIe of GPUs whose boards are not known.

    `said` has the PCIe links that the text states for GPUs, by column, with their sources. `unread`
    describes a line of the text that names PCIe but is not followed, "" if there is none.
    """
    gpus = list(iterate_members(cells.gpus))
    unsaid = [i for i in gpus if i not in said or said[i][1].kind == "assumed"]
    is_on_pcie = any(
        cells.find_near(i, "SYS") or affinities.get(i, UNKNOWN) != UNKNOWN for i in gpus
    )
    if unsaid and is_on_pcie:
        of = f" of {list_some(cells.ids[i] for i in unsaid)}" if len(unsaid) < len(gpus) else ""
        width = "" if any(i in said for i in unsaid) else " x16"
        also = f"; {unread}" if unread and len(unsaid) == len(gpus) else ""
        notes.append(Note(_UNKNOWN_BOARD.format(of, width) + also, "board-assumed"))


def _refuse_wrong(
    cells: Cells, by_name: Mapping[int, tuple[Board, str]], is_listed: bool, notes: list[str]
) -> dict[int, tuple[Board, str]]:
    """Return the named boards without those that have fewer NVLinks than the matrix shows.

    Unless the text lists the names of GPUs (`is_listed`), it mentions one board, and then that is
    not followed at all: it is of another machine, or of some of the GPUs.
    """
    wrong = {
        cells.ids[i]: text
        for i, (board, text) in by_name.items()
        if count_gpu_nvlinks(cells.labels[i], board) > (0 if board.gcn else board.wires)
    }
    if not is_listed and (like := _find_namesake(cells, by_name)) is not None:
        name, links, has = like
        notes.append(
            f"each GPU has {links} NVLinks into NVSwitches, as {has} has, so {name}, which the "
            "text mentions, is not followed"
        )
        return {}
    if wrong:
        notes.append(
            f"{list_some(wrong)}: more NVLinks than {list_some(dict.fromkeys(wrong.values()))} "
            "has, so the name is not followed"
        )
    if wrong and not is_listed:
        return {}
    return {i: known for i, known in by_name.items() if cells.ids[i] not in wrong}


def _find_namesake(
    cells: Cells, by_name: Mapping[int, tuple[Board, str]]
) -> tuple[str, int, str] | None:
    """Return a mentioned board's name, the links of each GPU, and the board that has just these.

    It is None unless all GPUs are on NVSwitches with fewer links than that board has, as A800 is
    with those of A100.
    """
    named = {board.name: board for board, _ in by_name.values()}
    labels = {count_nvlinks(label) for row in cells.labels for label in row} - {0}
    if len(named) != 1 or len(labels) != 1:
        return None
    (board,), (links,) = named.values(), labels
    peers = min(mask.bit_count() for mask in cells.with_label["NV"] if mask)
    others = [
        b.name for b in BOARDS if (b.wires, b.sm, b.is_card) == (links, board.sm, board.is_card)
    ]
    if links * peers <= MAX_NVLINKS or links >= board.wires or not others or board.is_card:
        return None
    return board.name, links, list_some(others)


def note_part_bridges(cells: Cells, boards: Mapping[int, Board], notes: list[str]) -> None:
    """Note cards that are joined by fewer NVLinks than their bridges carry: some do not come up."""
    parts: dict[str, list[str]] = {}
    for i, j in combinations(boards, 2):
        board, count = boards[i], count_nvlinks(cells.labels[i][j])
        one = min(board.wires, _BRIDGE if (board.sm or 0) >= _AMPERE else _OLD_BRIDGE)
        if board.is_card and one and count % one:
            of_all = f"{count} NVLinks, though a bridge of {board.name} has {one}"
            parts.setdefault(of_all, []).append(f"{cells.ids[i].lower()} - {cells.ids[j].lower()}")
    notes += [
        f"{list_some(pairs)}: {of_all}: some do not come up; see nvidia-smi nvlink -s and reseat "
        "the bridge"
        for of_all, pairs in parts.items()
    ]


def _list_candidates(
    cells: Cells, affinities: Mapping[int, Affinity], has_own_memory: bool
) -> tuple[Board, ...]:
    """Return the boards that have the NVLinks of the matrix, those with the fastest links first."""
    most = max(map(count_gpu_nvlinks, cells.labels), default=0)
    cpus = [a.cpus for i, a in affinities.items() if cells.gpus >> i & 1 and a.cpus]
    has_grace_cpus = bool(cpus) and all(map(_is_grace, cpus))
    if not most:
        return _choose_graces(BOARDS, cpus) if has_grace_cpus else ()
    peers = max(mask.bit_count() for mask in cells.with_label["NV"])
    of_number = [b for b in BOARDS if b.kind == "nvlink" and b.wires == most]
    # Bridges join two cards, those of H200 NVL up to four; modules with few links have many peers.
    fitting = [
        b
        for b in of_number
        if (b.is_card or most > 4 if peers == 1 else not b.is_card or (b.name, peers) == _FOUR)
    ]
    if peers > 1 and most < _V100_LINKS:
        # P100 have one link to each peer, V100 up to two; few of their peers may be in a matrix.
        doubled = any("NV2" in row for row in cells.labels)
        fitting = [get_board("V100"), *([] if doubled else [get_board("P100")])]
    if not fitting:
        # Labels of more links than any GPU has are taken for the most.
        least = min(max(most, _V100_LINKS), MAX_NVLINKS)
        wires = min(b.wires for b in BOARDS if b.wires >= least and not b.gcn)
        fitting = [b for b in BOARDS if b.wires == wires and not b.is_card and not b.gcn]
    labels = {count_nvlinks(label) for row in cells.labels for label in row} - {0}
    behind = [b for b in BOARDS if labels == {b.wires} and not b.is_card and b.wires >= _V100_LINKS]
    if peers > 1 and behind and most not in labels:
        # Some GPUs behind NVSwitches look like a board without: NV6 is also of H100 in fours.
        boards_of_four = [b for b in fitting if b.wires == _PEERS_OF_FOUR * min(labels)]
        fitting = [*boards_of_four, *(b for b in behind if b not in boards_of_four)]
    if peers < _PEERS_OF_FOUR and len(labels) == 1:
        fitting += [
            board
            for board in map(get_board, _JOINED_BY.get(min(labels), ()))
            if board not in fitting
        ]
    if has_own_memory or has_grace_cpus:
        fitting = [*_choose_graces(fitting, cpus)] or fitting
    elif cpus:
        fitting = [b for b in fitting if not b.c2c_GBps]
    return tuple(sorted(fitting, key=lambda board: -board.wire_GBps))


def _choose_graces(boards: Iterable[Board], cpus: Sequence[str]) -> tuple[Board, ...]:
    """Return the boards with a Grace CPU; only GH200 if each of several GPUs has its own."""
    graces = tuple(b for b in boards if b.c2c_GBps and b.wires)
    if len(cpus) == 1:
        return graces
    one_each = bool(cpus) and len(set(cpus)) == len(cpus)
    return tuple(b for b in graces if (b.name == "GH200") == one_each) or graces


def _is_grace(cpus: str) -> bool:
    """Return whether these are the cores of one Grace CPU, such as 72-143."""
    match = _RANGE.fullmatch(cpus)
    return (
        match is not None
        and int(match[1]) % _GRACE_CORES == 0
        and int(match[2]) - int(match[1]) == _GRACE_CORES - 1
    )


def count_gpu_nvlinks(row: Iterable[str | None], board: Board | None = None) -> int:
    """Return the number of a GPU's NVLinks: the sum over the labels in its row.

    If the sum exceeds the links that its board has, the GPU is on NVSwitches, and the number is
    that of its largest label. If the board is unknown (None), or is a card, whose links lead over
    bridges, the most links of any GPU take the place of the board's.
    """
    counts = [count_nvlinks(label) for label in row]
    limit = board.wires if board is not None and not board.is_card else MAX_NVLINKS
    return sum(counts) if sum(counts) <= limit else max(counts)
