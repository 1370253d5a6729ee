"""Files of several plans, which topo-run runs at once.

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
    """What was measured, for people and for --json, and whether a result was wrong."""

    text: str
    figures: dict[str, Any]
    is_wrong: bool


class LoadedSet(Protocol):
    """The verified plans of a file."""

    @property
    def ranks(self) -> int:
        """The number of ranks that run them: one for each GPU of the topology."""

    def measure(
        self, options: BenchOptions, transport: Transport, say: Callable[[str], None]
    ) -> Outcome:
        """Make the calls of all plans on this rank, and return what was measured on all ranks.

        `say` is told what is being done. Collective over the transport's ranks.
        """


def load_set(args: argparse.Namespace) -> LoadedSet | None:
    """Return the file of several plans that the arguments name; None if they name none.

    Raise InputError for options that it has no use for, or if what reads it is not installed.
    """
    from ...synth.plan_file import FORMAT, HEAD_BYTES, find_format

    for name in args.plans:
        form = find_format(read_start(name, HEAD_BYTES))
        if form is not None and form != FORMAT:
            load: Callable[[argparse.Namespace], LoadedSet] = Names(RUNS).find(form)
            return load(args)
    return None
