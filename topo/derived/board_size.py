"""Find GPUs that are fewer than their board has: seven behind NVSwitches, where boards have eight.

Modules that are joined by NVSwitches, or all by xGMI, are sold on boards of 4, 8 or 16 (datasheets
of HGX and DGX, and of AMD's Universal Baseboard), and cloud machines have a power of two of them.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ..boards import Board
from ..graph import Topology
from ..grouping import group_by_key

# The largest board: two of eight V100 each, joined (DGX-2).
_MOST = 16
# Each of an eight-GPU board of AMD has a link to all others.
_MESH_WIRES = 7


@dataclass(frozen=True)
class ShortBoard:
    """GPUs of one host, by id, whose board should have `size` of them.

    `board` is their row in the table of boards, None if unknown. `how` says how they are joined,
    such as "behind NVSwitches"; `places` how many are near each NUMA node, "" if a node is unknown
    or there is only one.
    """

    gpus: tuple[str, ...]
    board: Board | None
    size: int
    how: str
    places: str

    def describe(self) -> str:
        """Return one line for notes and findings, without the GPUs' ids."""
        name = self.board.name if self.board is not None else "such GPUs"
        near = f", {self.places}" if self.places else ""
        missing = self.size - len(self.gpus)
        return (
            f"{len(self.gpus)} GPUs {self.how}{near}: boards of {name} have {self.size}; "
            f"{missing} may be lost, or hidden from this process"
        )


def find_short_boards(
    topology: Topology, boards: Mapping[str, Board | None]
) -> tuple[ShortBoard, ...]:
    """Return the groups of GPUs of one host that are fewer than their board has.

    `boards` has the GPUs to look at, by id, with their boards, None if unknown; if only one board
    is known, it is that of all.
    """
    known = {board for board in boards.values() if board is not None}
    if len(known) == 1:
        boards = dict.fromkeys(boards, known.pop())
    switches = {d.id for d in topology.devices if d.family == "nvswitch"}
    peers = {
        gpu: {x for x in topology.out_neighbours[gpu] if x in switches or x in boards}
        for gpu in boards
    }
    # One that lost its links counts too: it is there.
    groups = group_by_key((board, gpu) for gpu, board in boards.items())
    short: list[ShortBoard] = []
    for board, gpus in groups.items():
        ways = (_find_how(gpu, board, peers[gpu], switches, len(boards)) for gpu in gpus)
        how = next(filter(None, ways), None)
        size = _next_power(len(gpus))
        if how is not None and len(gpus) < size <= _MOST:
            places = _describe_places(topology, gpus)
            short.append(ShortBoard(tuple(gpus), board, size, how, places))
    return tuple(short)


def _find_how(
    gpu: str, board: Board | None, peers: set[str], switches: set[str], count: int
) -> str | None:
    """Return how a GPU on a board is joined to the others; None if it need not be on a board."""
    if peers & switches and (board is None or not board.is_card):
        return "behind NVSwitches"
    is_mesh = board is not None and board.gcn and board.wires == _MESH_WIRES
    return "all joined by xGMI" if is_mesh and len(peers - {gpu}) == count - 1 else None


def _next_power(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _describe_places(topology: Topology, gpus: list[str]) -> str:
    """Return "3 near node 0 and 4 near node 1", "" if a node is unknown or there is only one."""
    nodes = Counter(topology.by_id[gpu].numa_node for gpu in gpus)
    if None in nodes or len(nodes) < 2:
        return ""
    return " and ".join(f"{n} near node {node}" for node, n in sorted(nodes.items()))
