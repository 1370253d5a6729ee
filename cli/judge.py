"""topo-judge: compare logs, graph dumps and measurements with the bound of the machine."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ..topo.pictures.fit import wrap_text
from ..topo.printable import printable_lines
from .shared.common import Example, Parser, find_width, name_option, run_command, say_error
from .shared.outputs import OUTPUT, add_csv, add_force, check_outputs, write_rows
from .shared.progress import ProgressReporter, Say

if TYPE_CHECKING:
    from ..synth.judge.machine import Machines
    from ..synth.judge.verdict import FileVerdict

PROG = "topo-judge"
COLLECTIVES = (
    "allreduce",
    "allgather",
    "reduce-scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "alltoall",
)
_FAILED, _USAGE = 1, 2  # exit codes of topo/errors.py

EXAMPLES: tuple[Example, ...] = (
    (
        "topo-judge graph.xml",
        "NCCL_GRAPH_DUMP_FILE's, with NCCL_TOPO_DUMP_FILE's topology beside it",
    ),
    (
        "topo-judge --topology dgx-a100 nccl.log",
        "a log of NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING",
    ),
    (
        "all_reduce_perf -b 1M -e 1G -f 2 -g 8 | topo-judge --topology dgx-a100 -",
        "on a machine with GPUs and nccl-tests (or rccl-tests), whose table is judged",
    ),
    (
        "topo-judge --topology dgx-a100 *.log --least 0.5 --csv shares.csv",
        "a health check: exit code 1 where a share is below; all shares as rows",
    ),
    (
        "topo-judge --topology dgx-a100 nccl.log --prometheus -o topo.prom --force",
        "for node_exporter's text collector, which reads the file anew each time",
    ),
)
ABOUT = """\
Says, for each collective and size, what share of the certified bound was reached, which link
limits the rings and trees that were found, and what a graph file for NCCL, another order of ranks
or a plan would give. Reads NCCL's graph dumps, logs of NCCL and RCCL, tables and JSON of
nccl-tests and rccl-tests, topo-run --json, and the lines of NCCL Inspector, told apart by what is
in them. Rates are in GB/s (1e9 bytes a second).
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code.

    The code is 0 if done, 1 below --least, 2 for bad input, 130 if interrupted.
    """
    parser = build_parser()
    arguments = parser.parse_args(argv)
    return run_command(PROG, lambda: _judge(arguments))


def build_parser() -> Parser:
    """Return the parser of topo-judge's command line."""
    parser = Parser(
        PROG, EXAMPLES, ABOUT, "[--topology T] FILE... [--collective C] [--least F] [-o FILE] ..."
    )
    add = parser.add_argument
    add(
        "files",
        metavar="FILE",
        nargs="+",
        help="a log, graph dump, table or JSON, - for standard input; a topology among them "
        "counts as T",
    )
    add(
        "--topology",
        metavar="T",
        help="the machine, as topo-probe takes it: a file, a preset such as dgx-a100:2, or "
        "local (default: the dump beside the file, else local)",
    )
    add(
        "--collective",
        choices=COLLECTIVES,
        type=_spell_collective,
        metavar="C",
        help="judge this collective only; a table of others is refused",
    )
    add(
        "--least",
        type=_share,
        metavar="F",
        help="exit with code 1 where less than this share of the bound is reached",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="one JSON object on standard output (docs/judge.md)"
    )
    form.add_argument("--prometheus", action="store_true", help="Prometheus' text format")
    add("-o", "--output", **OUTPUT, help="write to FILE, whole or not at all, instead of printing")
    add_csv(parser, "a row for each share of the bound")
    add_force(parser, "--csv")
    return parser


def _spell_collective(text: str) -> str:
    """Return the argument of --collective in topoplan's spelling."""
    from ..synth.ir.collective import spell_collective

    return spell_collective(text)


def _share(text: str) -> float:
    """Return the argument of --least."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a share; expected a number above 0 and up to 1, such as 0.8"
        )
    return value


def _judge(arguments: argparse.Namespace) -> int:
    from ..synth.judge.machine import Machines, is_topology_file
    from ..topo.errors import InputError

    check_outputs(arguments, "output", "csv")
    progress = ProgressReporter(PROG, arguments)
    given = [name for name in arguments.files if is_topology_file(name)]
    files = [name for name in arguments.files if name not in given]
    if len(given) > 1:
        raise InputError(
            f"{', '.join(given[:3])}: several topologies among the files; name one by --topology"
        )
    if not files:
        raise InputError(
            f"{given[0]}: a topology, which says what the machine is; give a graph dump, log or "
            "table with it"
        )
    with progress.follow("judging ...") as work:
        verdicts, refused = _judge_files(
            arguments, files, Machines(arguments.topology, given, "--topology"), work.say
        )
    for _, message in refused:
        say_error(PROG, message)
    if not verdicts:
        return _USAGE
    if arguments.json:
        import json

        from ..synth.judge.report import write_json

        text = json.dumps(write_json(verdicts, arguments.least, refused)) + "\n"
    elif arguments.prometheus:
        from ..synth.judge.prometheus import write_prometheus

        text = write_prometheus(verdicts, arguments.least)
    else:
        from ..synth.judge.report import write_text

        text = printable_lines(write_text(verdicts, arguments.least))
    if arguments.output is None:
        is_table = sys.stdout.isatty() and not (arguments.json or arguments.prometheus)
        sys.stdout.write(wrap_text(text, find_width()) if is_table else text)
    else:
        from ..topo.files import write_whole

        write_whole(arguments.output, text, overwrite=arguments.force)
    if arguments.csv is not None:
        from ..synth.judge.report import list_rows

        write_rows(arguments.csv, list_rows(verdicts), overwrite=arguments.force)
        progress.tell(f"rows written to {arguments.csv}")
    if arguments.least is not None:
        for verdict in verdicts:
            if not verdict.shares:
                where, why = verdict.reading.where, _why_not(verdict)
                say_error(
                    PROG,
                    f"{where}: it has nothing to compare with a bound, so --least is void: {why}",
                )
                refused.append((where, why))
    if refused:
        return _USAGE
    below = [
        share
        for verdict in verdicts
        for _, share in verdict.shares
        if share < (arguments.least or 0)
    ]
    return _FAILED if below else 0


def _judge_files(
    arguments: argparse.Namespace, files: list[str], machines: Machines, say: Say
) -> tuple[list[FileVerdict], list[tuple[str, str]]]:
    """Return the verdicts on the files, and the files that cannot be judged, with reasons."""
    from ..synth.judge.readers.detect import read_file
    from ..topo.errors import InputError

    readings, verdicts = [], []
    refused: list[tuple[str, str]] = []
    for name in files:
        try:
            readings.append(read_file(name, arguments.collective))
        except InputError as error:
            refused.append((name, name_option(error)))
    if not readings:
        return [], refused
    # Solvers take a second to import, so unreadable files are refused before that.
    from ..synth.judge.judging import Judge

    judge = Judge(machines, arguments.collective, say, spell_command)
    for reading in readings:
        try:
            verdicts.append(judge.judge(reading))
        except InputError as error:
            refused.append((reading.where, name_option(error)))
    return verdicts, refused


def spell_command(command: str, *arguments: str, **options: str) -> str:
    """Return a command as a user types it."""
    named = (f"{'-o' if name == 'output' else f'--{name}'} {v}" for name, v in options.items())
    return " ".join([command, *arguments, *named])


def _why_not(verdict: FileVerdict) -> str:
    """Return the reason why a file was not judged."""
    reasons = [m.why_not for m in verdict.measured] + [c.why_not for c in verdict.communicators]
    return next((reason for reason in reasons if reason), verdict.machine.source)


if __name__ == "__main__":
    sys.exit(main())
