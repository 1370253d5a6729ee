"""Files of several plans, which topo-run runs at the same time.

Extras add the function that loads one to the group `runs` (extras.py at the root), by the format
that the file names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ...extras import RUNS, Names
from ...topo.files import read_start

if TYPE_CHECKING:
    import argparse

    from ...runtime.measuring.bench_options import BenchOptions
    from ...runtime.ranks.transport import Transport


@dataclass(frozen=True)
class Outcome:
    """What was measured: `text` for people, `figures` for --json.

    `is_wrong` says whether a result was wrong.
    """

    text: str
    figures: dict[str, Any]
    is_wrong: bool


class LoadedSet(Protocol):
    """The verified plans of a file, ready to be measured."""

    @property
    def ranks(self) -> int:
        """The number of ranks to start: one for each GPU of the plans' topology."""

    def measure(
        self, options: BenchOptions, transport: Transport, say: Callable[[str], None]
    ) -> Outcome:
        """Make the calls of all plans on this rank, and return what was measured on all ranks.

        `say` is called with each line of progress. Collective over the transport's ranks.
        """


def load_set(args: argparse.Namespace) -> LoadedSet | None:
    """Return the file of several plans that the parsed arguments name; None if they name none.

    Raise InputError for options that do not apply to it, or if the extra that reads it is missing.
    """
    from ...synth.plan_file import FORMAT, HEAD_BYTES, find_format

    for name in args.plans:
        form = find_format(read_start(name, HEAD_BYTES))
        if form is not None and form != FORMAT:
            load: Callable[[argparse.Namespace], LoadedSet] = Names(RUNS).find(form)
            return load(args)
    return None
