"""topo-probe --check: what is wrong with the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...topo.printable import printable
from ..probing.added import Review

if TYPE_CHECKING:
    from ...topo.graph import Topology


def _write(topology: Topology, columns: int | None) -> str:
    from ...topo.extras.doctor import examine, report
    from ...topo.pictures.fit import wrap_text

    lines = report(examine(topology), *([] if columns is None else [columns]))
    text = "\n".join(map(printable, lines)) + "\n"
    return text if columns is None else wrap_text(text, columns)


def _list_errors(topology: Topology) -> list[str]:
    from ...topo.extras.doctor import examine

    return [x.message for x in examine(topology).findings if x.severity == "error"]


CHECK = Review(_write, _list_errors)
