"""Find the board that AMD's tables are of: by the names beside them, else by their xGMI links.

A board is a GPU as it is sold, such as MI300X, with its datasheet's links and rates
(topo/boards.py).
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...boards import BOARDS, MAX_XGMI_LINKS, MESH, NOT_MESHED, Board, get_board, is_mesh_of_dies
from ...errors import InputError
from ...formats.gpu_names import GpuNames
from ...hardware import PcieLink, pcie_link
from ...notes import Note, assumed
from .tables import AmdOutput

# Architectures of boards on which MESH GPUs are joined pairwise; with fewer links, eight GPUs are
# taken for dies of MI250.
_MESHED = ("gfx942", "gfx950")
# MI300A are joined in fours (CDNA 3 white paper).
_IN_FOURS = "MI300A"
# What rocm-smi --showcomputepartition says, of GPUs that can be partitioned (all meshed ones).
_PARTITION = re.compile(r"\bCompute Partition: (SPX|DPX|TPX|QPX|CPX)\b")
UNKNOWN = Note(
    "no names of GPUs and no xGMI links: PCIe is taken as Gen3 x16, as RCCL does (MI25 has Gen3; "
    "MI100, MI210 and W7900 Gen4; MI300X and R9700 Gen5); rocm-smi --showproductname beside the "
    "tables says which",
    "board-assumed",
)


@dataclass(frozen=True)
class Model:
    """The board of a machine's GPUs, and how it was recognized.

    `how` says that in words. `others` are all boards that fit the tables, `board` among them; empty
    if the text names the board.
    """

    board: Board
    how: str
    others: tuple[Board, ...] = ()

    @property
    def is_named(self) -> bool:
        """Whether the text names the board."""
        return not self.others

    @property
    def pcie(self) -> tuple[PcieLink, str]:
        """The PCIe link of the GPUs, and the source that says how it was found.

        It is the board's. If the board is only assumed and another that fits has a slower one, it
        is RCCL's default, Gen3 x16, unless all that fit are gfx942 or gfx950.
        """
        pcie = self.board.pcie
        if self.is_named or {board.gcn for board in self.others} <= set(_MESHED):
            return pcie, assumed(f"Gen{pcie.generation} x{pcie.width}, {self.how}")
        if all(b.pcie.bandwidth_GBps >= pcie.bandwidth_GBps for b in self.others):
            return pcie, assumed(f"Gen{pcie.generation} x{pcie.width}, as {self.board.name} has")
        return pcie_link(None, None), assumed(
            "Gen3 x16, as RCCL takes PCIe links that are not known"
        )


def find_partition(text: str, notes: list[str]) -> str | None:
    """Return the compute partition (such as CPX) that a text states, None without one.

    If a GPU is divided into several, add a line to `notes`.
    """
    modes = dict.fromkeys(_PARTITION.findall(text))
    if parts := [mode for mode in modes if mode != "SPX"]:
        notes.append(
            f"the text says that GPUs are partitioned ({', '.join(parts)}): what it lists as GPUs "
            "are parts, of which several share the links of one; rates are those of whole GPUs"
        )
    return next(iter(modes), None)


def choose_model(
    output: AmdOutput, names: GpuNames, pairs: Sequence[tuple[str, str]], partition: str | None
) -> Model:
    """Return the board of the GPUs: the one that is named, else one with links as in `pairs`.

    `output` has the tables, `names` the GPUs' names in the text around them. `pairs` are the GPUs
    that xGMI joins, by their names in the tables. Only some boards can have a `partition`, the mode
    that `find_partition` returns, None if unknown.
    """
    named = names.find(0)
    if named is not None and named[0].gcn:
        return Model(named[0], f"by the GPUs: {named[1]}")
    most = _count_most(pairs)
    is_mesh = len(output.names) == MESH and len(pairs) == MESH * (MESH - 1) // 2
    others = tuple(
        board
        for board in BOARDS
        if board.gcn and board.wires >= most
        if (board.gcn in _MESHED) == is_mesh
        or len(output.names) < MESH
        or (board.gcn == NOT_MESHED and not output.tells_direct)
        if board.name != _IN_FOURS or len(output.names) <= 4
    )
    board = get_board("MI300X" if is_mesh else "MI250")
    if partition is not None:
        others = tuple(b for b in others if b.gcn in _MESHED) or others
    if pairs and output.has_type("PCIE"):
        # Modules of one machine are all joined by xGMI; bridges join two to four cards.
        others = tuple(b for b in others if b.is_card) or others
    others = tuple(b for b in others if b.wire_GBps >= output.link_GBps) or others
    if others and board not in others:
        board = min(reversed(others), key=lambda b: b.wire_GBps)
    shape = " (eight GPUs, each joined to all others)" if is_mesh else ""
    return Model(board, f"xGMI links of an {board.name}{shape}", others)


def _count_most(pairs: Sequence[tuple[str, str]]) -> int:
    """Return the number of pairs of the GPU that is in most of them."""
    return max(Counter(gpu for pair in pairs for gpu in pair).values(), default=0)


def check_links(
    output: AmdOutput, pairs: Sequence[tuple[str, str]], model: Model, where: str
) -> None:
    """Raise InputError if a GPU of the board cannot have all these xGMI links.

    Also raise it if these seem to be more than the board has, since the tables do not show which
    GPUs xGMI joins directly. `pairs` are the GPUs that xGMI joins, by name; `where` names the file.
    """
    most = _count_most(pairs)
    if most > MAX_XGMI_LINKS:
        raise InputError(
            f"{where}: xGMI joins a GPU to {most} others, and none has more than "
            f"{MAX_XGMI_LINKS} links; these are partitions of GPUs (CPX, DPX, QPX), which share "
            "its links, or the tables lack weights: give rocm-smi --showtopo in mode SPX"
        )
    if (
        model.is_named
        and not output.tells_direct
        and is_mesh_of_dies(model.board, len(output.names), most)
    ):
        raise InputError(
            f"{where}: the tables do not say which {model.board.name} have links of their own and "
            "which are joined over others; give the whole output of rocm-smi --showtopo, with its "
            "weights"
        )
