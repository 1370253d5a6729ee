"""What extras add to topo-run: checks and preparations, files beside the table, other measurements.

An extra is an optional part of topoplan; the groups by which they add these are in extras.py at the
root. Options of topo-run have the names that they have there. topo-run measures plans over a
transport, which joins the ranks; its table has a row for each size of buffer.
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
    """The options of another tool, such as nccl-tests, that topo-run's command line understands."""

    def add_options(self, parser: Parser, /) -> None:
        """Add the tool's options to topo-run's parser, and answers to those that topo-run lacks."""

    def read_ranks(self, args: argparse.Namespace, /) -> tuple[int, str] | None:
        """Return the number of ranks to start, and the options that say so; None if none does.

        Raise InputError for options that topo-run cannot follow.
        """

    def list_remarks(self, args: argparse.Namespace, /) -> list[str]:
        """Return remarks for users on options that are given and change nothing."""


class RunOthers(Protocol):
    """How ranks that do not call a plan's collective (helpers, idle ranks) get the measured rows.

    The ranks that call it are the plan's members.
    """

    def hand_out_rows(
        self, communicator: Communicator, transport: Transport, rows: Sequence[BenchRow], /
    ) -> None:
        """On a member: end the others' waiting, and send the rows to all ranks of the transport."""

    def await_rows(self, communicator: Communicator, transport: Transport, /) -> list[BenchRow]:
        """On another rank: help until the members have measured, and return their rows."""


@dataclass(frozen=True)
class RunFile:
    """What `topo-run PLAN --NAME FILE` writes beside the table.

    `make` returns the file's text on rank 0, and None elsewhere; all ranks must call it. The file's
    name ends in `suffix`. `remark` is printed when it is written, with FILE replaced by its name.
    """

    make: Callable[[BenchSettings, Communicator], str | None]
    suffix: str
    remark: str


@dataclass(frozen=True)
class RunMode:
    """What `topo-run PLAN --NAME` measures in place of the table.

    `measure` returns the plan's topology with what was measured, for the file of -o; all ranks must
    call it, and its last argument is called with lines of progress. `remark` is printed when that
    is written, with FILE replaced by its name.
    """

    measure: Callable[[Communicator, Transport, Say], Topology]
    remark: str


def list_dialects() -> list[Dialect]:
    """Return the other tools whose options topo-run understands."""
    added = Names(DIALECTS)
    return [added.find(name) for name in added.describe()]


def find_others(plan: Plan) -> RunOthers | None:
    """Return how ranks that are no members of a plan get the rows; None if all are members.

    Raise InputError if the extra for them is not installed.
    """
    return None if plan.collective.has_all_gpus else Names(OTHERS).find("rows")


def list_files(args: argparse.Namespace) -> dict[str, RunFile]:
    """Return the files beside the table that the parsed arguments ask for, by option."""
    return {name: FILES.find(name) for name in FILES.list_all() if getattr(args, name)}


def name_mode(args: argparse.Namespace) -> str | None:
    """Return the option that asks for another measurement than the table, None if there is none."""
    return next((name for name in MODES.list_all() if getattr(args, name)), None)


def check_run(options: BenchOptions, collective: Collective, ranks: int, *, on_gpus: bool) -> None:
    """Raise InputError if an extra finds that a collective cannot be measured with the options.

    `ranks` is the number of its ranks on this host; `on_gpus` says whether tensors are on GPUs.
    """
    checks = Names(RUN_CHECKS)
    for name in checks.describe():
        check: RunCheck = checks.find(name)
        check(options, collective, ranks, on_gpus)


def prepare_run(communicator: Communicator, transport: Transport, say: Say) -> None:
    """Let extras prepare a plan's communicator, such as by measuring costs. Collective.

    `say` is called with each line of progress.
    """
    preparations = Names(PREPARATIONS)
    for name in preparations.describe():
        prepare: Preparation = preparations.find(name)
        prepare(communicator, transport, say)
