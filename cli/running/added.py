"""What extras add to topo-run: checks and preparations, files beside the table, other measurements.

They are in groups of extras.py at the root; its options have the names that they have there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ...extras import DIALECTS, OTHERS, PREPARATIONS, RUN_CHECKS, RUN_FILES, RUN_MODES, Names
from ..shared.progress import Say

if TYPE_CHECKING:
    import argparse

    from ...runtime.communicator import Communicator
    from ...runtime.measuring.bench import BenchRow
    from ...runtime.measuring.bench_data import BenchSettings
    from ...runtime.measuring.bench_options import BenchOptions
    from ...runtime.ranks.transport import Transport
    from ...synth.ir.collective import Collective
    from ...synth.plan import Plan
    from ...topo.graph import Topology
    from ..shared.common import Parser

FILES, MODES = Names(RUN_FILES), Names(RUN_MODES)
# Raises InputError if a collective cannot be measured with some options: given the number of its
# ranks on this host, and whether each of them has a GPU.
RunCheck = Callable[["BenchOptions", "Collective", int, bool], None]
# Gets a plan's communicator ready to be measured, over the transport of all ranks. Collective.
Preparation = Callable[["Communicator", "Transport", Say], object]


class Dialect(Protocol):
    """Options of another tool on topo-run's command line."""

    def add_options(self, parser: Parser, /) -> None:
        """Add them to topo-run's parser, and answers to those that it lacks."""

    def read_ranks(self, args: argparse.Namespace, /) -> tuple[int, str] | None:
        """Return the ranks to start, and the options that say so; None if none of them does.

        Raise InputError for options that topo-run cannot heed.
        """

    def list_remarks(self, args: argparse.Namespace, /) -> list[str]:
        """Return remarks for users on options that change nothing."""


class RunOthers(Protocol):
    """How ranks that are no members of a plan, helpers among them, get the rows of the members."""

    def hand_out_rows(
        self, communicator: Communicator, transport: Transport, rows: Sequence[BenchRow], /
    ) -> None:
        """Let the others go, and give the rows to all ranks of the transport."""

    def await_rows(self, communicator: Communicator, transport: Transport, /) -> list[BenchRow]:
        """Do the part of a rank that is no member, and return the members' rows."""


@dataclass(frozen=True)
class RunFile:
    """What `topo-run PLAN --NAME FILE` writes beside the table.

    `make` returns the file's text on rank 0, and None elsewhere; it is collective. The file's name
    ends in `suffix`. `remark` is said when it is written, FILE standing for its name.
    """

    make: Callable[[BenchSettings, Communicator], str | None]
    suffix: str
    remark: str


@dataclass(frozen=True)
class RunMode:
    """What `topo-run PLAN --NAME` measures in place of the table.

    `measure` returns the plan's topology with what was measured, for the file of -o; it is
    collective. `remark` is said when that is written, FILE standing for its name.
    """

    measure: Callable[[Communicator, Transport, Say], Topology]
    remark: str


def list_dialects() -> list[Dialect]:
    """Return the other tools whose options topo-run understands."""
    added = Names(DIALECTS)
    return [added.find(name) for name in added.describe()]


def find_others(plan: Plan) -> RunOthers | None:
    """Return what other ranks than a plan's members do, None if all are members."""
    return None if plan.collective.has_all_gpus else Names(OTHERS).find("rows")


def list_files(args: argparse.Namespace) -> dict[str, RunFile]:
    """Return the files that the arguments ask for, by the names of their options."""
    return {name: FILES.find(name) for name in FILES.list_all() if getattr(args, name)}


def name_mode(args: argparse.Namespace) -> str | None:
    """Return the option that asks for another measurement than the table, None without one."""
    return next((name for name in MODES.list_all() if getattr(args, name)), None)


def check_run(options: BenchOptions, collective: Collective, ranks: int, *, on_gpus: bool) -> None:
    """Raise InputError if a collective cannot be measured; `ranks` of it are on this host."""
    checks = Names(RUN_CHECKS)
    for name in checks.describe():
        check: RunCheck = checks.find(name)
        check(options, collective, ranks, on_gpus)


def prepare_run(communicator: Communicator, transport: Transport, say: Say) -> None:
    """Get a plan's communicator ready to be measured. Collective."""
    preparations = Names(PREPARATIONS)
    for name in preparations.describe():
        prepare: Preparation = preparations.find(name)
        prepare(communicator, transport, say)
