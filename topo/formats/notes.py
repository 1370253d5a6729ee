"""Notes of a reader's doubts about a file, written in a few lines."""

from collections.abc import Mapping

from ..boards import Board
from ..names import join_first
from ..notes import Note, NoteKind

# Things that one line names; a cluster's file may raise the same doubt about thousands of them.
_MAX_NAMED = 3


class Notes:
    """The doubts that the code which reads a format has about a file, collected as notes.

    The same doubt about several things becomes one line.
    """

    def __init__(self) -> None:
        self._subjects: dict[tuple[str, NoteKind, str], dict[str, None]] = {}

    def add(self, about: str, doubt: str, kind: NoteKind = "text", detail: str = "") -> None:
        """Note a `doubt`, a text, about the thing that `about` names, such as a device's id.

        `kind` and `detail` are for programs; the table in topo/notes.py has their values.
        """
        self._subjects.setdefault((doubt, kind, detail), {})[about] = None

    def add_shared_ports(self, ports: list[str]) -> None:
        """Note that several NICs, by id, are ports of one adapter; do nothing for a single one."""
        if len(ports) > 1:
            self.add(
                " and ".join(ports),
                "ports of one adapter: they share one PCI link, though each is given it all",
            )

    def add_missing_links(self, boards: Mapping[str, Board | None], reason: str) -> None:
        """Note the GPUs that have NVLink or xGMI by their boards, but no such link in a file.

        `boards` has the board of each GPU without such a link in the file, by the GPU's id, None if
        the board is unknown. Only boards that machines always join by such links count. If there is
        just one such GPU, nothing is noted: it may be alone in its machine. `reason` says why a
        file of this format may lack links.
        """
        named = {gpu: b for gpu, b in boards.items() if b is not None and b.has_soldered_links}
        for gpu, board in named.items() if len(named) > 1 else ():
            word = "NVLink" if board.kind == "nvlink" else "xGMI link"
            self.add(
                gpu,
                f"{board.name} boards have {board.wires} {word}s each, of which the file lists "
                f"none ({reason}), so all is judged and planned without them",
                "nvlinks-left-out",
                board.name,
            )

    def format_lines(self) -> list[Note]:
        """Return one note for each doubt; its text names the first few things, its `about` all."""
        return [
            Note(f"{join_first(about, _MAX_NAMED)}: {doubt}", kind, about, detail)
            for (doubt, kind, detail), about in self._subjects.items()
        ]
