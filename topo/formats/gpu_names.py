"""Find the names of GPUs in text around a matrix: lists, tables and logs of several tools."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from ..boards import Board, find_board, find_by_id, find_mentioned, get_board

# Lines that are searched, in less than a second; people paste some hundred.
_MAX_LINES = 5_000
# Longer lines are no sentences.
_MAX_CHARACTERS = 400
# The row or heading of a matrix, which has labels or other devices only.
_ROW = re.compile(
    r"[\s>|#]{0,40}(?:(?:NIC|mlx5_)\d{1,6}\s|GPU\d{1,6}\s[\s|]{0,40}"
    r"(?:X|NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|OK|CNS|GNS|TNS|NS|XGMI|PCIE|\d|GPU\d))"
)
# A name that a table shortens behind a digit, which may be followed by more.
_CUT_OFF = re.compile(r"\w{1,40}(?<=\d)\.\.\.")
_INDEXED = (
    # nvidia-smi -L, PyTorch's and vLLM's environment reports; SGLang's has "GPU 0,1,2,3: ..."
    re.compile(r"\s{0,40}GPU (\d{1,4}(?:,\d{1,4}){0,255}): (\S.{0,100}?)(?: \(UUID: .{0,80})?\s*"),
    # nvidia-smi's table
    re.compile(r"\s{0,40}\|\s{1,6}(\d{1,4})\s{1,4}(\S.{0,60}?)\s{2,40}(?:On|Off|N/A)\s{0,9}\|.*"),
    # nvidia-smi --query-gpu=index,name --format=csv
    re.compile(r"\s{0,40}(\d{1,4}), ([A-Za-z].{2,60}?)(?:,.*)?"),
    # rocm-smi --showproductname
    re.compile(
        r"\s{0,40}GPU\[(\d{1,4})\]\s{0,20}: Card (?:[Ss]eries|[Mm]odel):\s{0,20}(\S.{0,80})"
    ),
    # lists and tables in prose
    re.compile(
        r"[\s>|*-]{0,40}GPU ?#?(\d{1,4})\s{0,20}[|:=]\s{0,20}([A-Za-z][^|(,]{2,60}?)\s{0,20}"
        r"(?:[|(,].{0,200})?"
    ),
    # nccl-tests
    re.compile(r".{0,40}#\s{1,4}Rank\s.{0,160}device\s{1,4}(\d{1,4}) \[.{1,20}\] (\S.{2,60})"),
)


@dataclass
class GpuNames:
    """The names in a text: of single GPUs by number, or boards that the text mentions.

    `by_index` has names that are in the table of boards; `mentioned` maps a board's name to the
    first line with it, if no single GPU is named.
    """

    by_index: dict[int, str] = field(default_factory=dict)
    mentioned: dict[str, int] = field(default_factory=dict)

    def find(self, index: int) -> tuple[Board, str] | None:
        """Return the board of a GPU and the words that name it, None if it is not known.

        A GPU without a name of its own is of the board of the others, if all are of one. Boards
        with the same links, such as MI250X and MI250, count as one.
        """
        names = {index: self.by_index[index]} if index in self.by_index else self.by_index
        boards = {name: board for name in names.values() if (board := _look_up(name))}
        if len({board.name for board in boards.values()}) == 1:
            name, board = next(iter(boards.items()))
            return board, name
        if len({_list_rates(get_board(name)) for name in self.mentioned}) == 1:
            name, line = next(iter(self.mentioned.items()))
            return get_board(name), f"{name}, which line {line} mentions"
        return None


def find_gpu_names(text: str) -> GpuNames:
    """Return the names of GPUs in a text; only those that the table of boards has."""
    names = GpuNames()
    for number, line in enumerate(text.split("\n", _MAX_LINES)[:_MAX_LINES], 1):
        if len(line) > _MAX_CHARACTERS or _ROW.match(line):
            continue
        indexed = dict(_read_indexed(line))
        names.by_index = {**indexed, **names.by_index}
        if not indexed:
            for name in sorted(find_mentioned(_CUT_OFF.sub(" ", line))):
                names.mentioned.setdefault(name, number)
    for name in list(names.mentioned):
        # "H100 NVL" and "H100" are one board, by its whole name
        if any(other.startswith(f"{name} ") for other in names.mentioned):
            del names.mentioned[name]
    return names


def list_boards(boards: Iterable[Board]) -> str:
    """List boards with the rate of one of their links: "B300, B200 (50 GB/s a link)"."""
    return "; ".join(
        f"{', '.join(board.name for board in group)} ({rate:g} GB/s a link)"
        for rate, group in groupby(boards, key=lambda board: float(board.wire_GBps))
    )


def _read_indexed(line: str) -> Iterator[tuple[int, str]]:
    plain = line.rstrip("\r").replace("**", "").replace("`", "")  # Markdown's emphasis
    for pattern in _INDEXED:
        match = pattern.fullmatch(plain)
        if match and _look_up(match[2]):
            yield from ((int(index), match[2].strip()) for index in match[1].split(","))
            return


def _list_rates(board: Board) -> tuple[object, ...]:
    return board.pcie, board.kind, board.wires, board.wire_GBps, board.c2c_GBps, board.nic_Gbps


def _look_up(name: str) -> Board | None:
    """Return the board of a name or PCI id; None for a name cut off where it may go on.

    nvidia-smi's table shortens names: `RTX 6000...` can be Quadro RTX 6000 or RTX 6000 Ada.
    """
    if name.startswith("0x"):
        return find_by_id(name)
    start = name.removesuffix("...")
    if start != name and find_board(f"{start}0") is not find_board(start):
        return None
    return find_board(start)
