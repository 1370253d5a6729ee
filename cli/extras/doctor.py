"""topo-probe --check: what is wrong with the machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...topo.printable import printable
from ..probing.added import Review

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...topo.graph import Topology


def _write(topology: Topology, columns: int | None, named: Sequence[str]) -> str:
    from ...topo.extras.doctor import examine, report
    from ...topo.pictures.fit import wrap_text

    examination = examine(topology)
    lines = report(examination, *([] if columns is None else [columns]))
    lines += _list_answers(named, [finding.what for finding in examination.findings])
    text = "\n".join(map(printable, lines)) + "\n"
    return text if columns is None else wrap_text(text, columns)


def _list_answers(named: Sequence[str], findings: Sequence[str] = ()) -> list[str]:
    """Return lines on why runs hang, fail or are slow, by texts that are named and by findings."""
    from ...topo.answers import Question, ask, describe_answers

    return describe_answers(ask(Question("\n".join(map(_read, named)), tuple(findings))))


def _read(name: str) -> str:
    """Return a file's text; none of what is not a text."""
    from ...topo.answers import cut_text
    from ...topo.errors import InputError
    from ...topo.loader.resolve import is_archive, read_text

    path = Path(name)
    try:
        return "" if not path.is_file() or is_archive(path) else cut_text(read_text(path))
    except InputError:
        return ""


def _explain(named: Sequence[str]) -> str:
    return "".join(f"{printable(line)}\n" for line in _list_answers(named))


def _list_errors(topology: Topology) -> list[str]:
    from ...topo.extras.doctor import examine

    return [x.message for x in examine(topology).findings if x.severity == "error"]


CHECK = Review(_write, _list_errors, _explain)
