"""topo-judge: compare logs, graph dumps and measurements with the bound of the machine.

A verdict is what a file says by that comparison, with the shares of the bound that were reached. A
floor is the least busbw that a healthy machine reaches, for health checks.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import TYPE_CHECKING

from ...synth.ir.collective import COLLECTIVES, spell_collective
from ...topo.errors import InputError
from ...topo.pictures.fit import wrap_text
from ...topo.printable import printable_lines
from ..shared.common import (
    Example,
    Parser,
    find_width,
    name_option,
    read_number,
    run_command,
    say_error,
)
from ..shared.formats import choose_format
from ..shared.outputs import (
    OUTPUT,
    add_csv,
    add_force,
    check_outputs,
    rows_csv,
    write_output,
    write_requested,
)
from ..shared.progress import ProgressReporter, Say
from ..shared.selections import add_selections, select

if TYPE_CHECKING:
    from ...synth.extras.judge.machine import Machines
    from ...synth.extras.judge.verdict import FileVerdict
    from ...topo.graph import Topology

PROG = "topo-judge"
# What is said of a text that has neither something to judge nor a known cause of trouble.
_NO_SYMPTOM = "; no symptom that is known shows in it either"
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
        "topo-judge --topology dgx-a100 all_reduce_perf.txt --at-least 0.7",
        "a gate for CI: one line of JSON, exit code 1 where a share is below",
    ),
    (
        "topo-judge --topology dgx-a100:2 --box all_reduce_perf.txt",
        "a table of one host of a cluster, whose file describes all",
    ),
    (
        "topo-judge --topology dgx-a100 --thresholds -o floors.sh --force",
        "floors by collective and size for the checks of NHC and nccl-tests, with what each rests "
        "on; floors.json for programs",
    ),
    (
        "topo-judge --topology dgx-a100 nccl.log -o topo.prom --force",
        "Prometheus' text for node_exporter's text collector, which reads the file anew each time",
    ),
)
ABOUT = """\
Says, for each collective and size, what share of the certified bound was reached, which link
limits the rings and trees that were found, and what a graph file for NCCL, another order of ranks
or a plan would give; of runs that hang, fail or are slow, why, as far as a symptom is known. Reads
NCCL's graph dumps, logs of NCCL and RCCL, tables and JSON of nccl-tests and rccl-tests, topo-run
--json, and the lines of NCCL Inspector, told apart by what is in them. Rates are in GB/s (1e9 bytes
a second).
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command with `argv` (default: sys.argv) and return its exit code.

    The code is 0 if done, 1 below --least or --at-least, 2 for bad input, 130 if interrupted.
    """
    return run_command(PROG, lambda: _judge(build_parser().parse_args(argv)))


def build_parser() -> Parser:
    """Return the parser of topo-judge's command line."""
    parser = Parser(
        PROG,
        EXAMPLES,
        ABOUT,
        "[--topology T] FILE...|--thresholds [--collective C] [--at-least F] [-o FILE] ...",
    )
    add = parser.add_argument
    add(
        "files",
        metavar="FILE",
        nargs="*",
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
        type=spell_collective,
        metavar="C",
        help="judge this collective only; a table of others is refused",
    )
    _add_parts_and_floors(parser)
    gate = parser.add_mutually_exclusive_group()
    gate.add_argument(
        "--least",
        type=_share,
        metavar="F",
        help="exit with code 1 where less than this share of the bound is reached",
    )
    gate.add_argument(
        "--at-least",
        type=_share,
        metavar="F",
        help="the same, and print one line of JSON in place of the text",
    )
    add(
        "--rate",
        action="append",
        default=[],
        metavar="KIND=GBps",
        help="rate of links that the topology leaves open, as topo-probe takes it: pcie=48, nic=50 "
        "...; may be repeated",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="one JSON object on standard output (docs/judge.md)"
    )
    form.add_argument("--prometheus", action="store_true", help="Prometheus' text format")
    add(
        "-o",
        "--output",
        **OUTPUT,
        help="write to FILE, whole or not at all, instead of printing; .json and .prom say what",
    )
    add_csv(parser, "a row for each share of the bound")
    add_force(parser, "--csv")
    return parser


def _add_parts_and_floors(parser: Parser) -> None:
    """Add the options that take a part of the machine, and those for its floors."""
    add = parser.add_argument
    add(
        "--box",
        action="store_true",
        help="what is judged ran on one host of T, not on all: take its GPUs alone",
    )
    add_selections(parser)
    add(
        "--thresholds",
        action="store_true",
        help="judge nothing, and write the least that T reaches if it is healthy, by collective "
        "and size, as functions of a shell (--json or .json: as JSON): a share of the bound, or of "
        "what stock reaches on paper where that is less; --at-least F: F of the bound",
    )
    add(
        "--sizes",
        type=_list_sizes,
        metavar="LIST",
        help="the sizes of --thresholds: 64M,1G (default: 16M,256M,1G,8G)",
    )


def _share(text: str) -> float:
    return read_number(text, 1, "a share; expected a number above 0 and up to 1, such as 0.8")


def _list_sizes(text: str) -> list[int]:
    from ...synth.sizes import parse_size

    return [parse_size(part.strip()) for part in text.split(",")]


def _narrow(topology: Topology, arguments: argparse.Namespace) -> Topology:
    """Return the part of a machine that what is judged ran on."""
    from ...synth.extras.judge.machine import select_box

    part = select(topology, arguments)
    return select_box(part) if arguments.box else part


def _write_thresholds(arguments: argparse.Namespace) -> int:
    from ...synth.extras.judge.machine import Machines
    from ...topo.derived.stated import parse_rates

    if arguments.files or arguments.csv or arguments.prometheus:
        raise InputError(
            "--thresholds judges nothing; leave FILE, --csv and --prometheus out, and name the "
            "machine by --topology"
        )
    form = choose_format(
        arguments, {".json": "json", ".sh": "sh"}, "sh", "json" if arguments.json else None
    )
    check_outputs(arguments, "output")
    progress = ProgressReporter(PROG, arguments)
    rates = parse_rates(arguments.rate)
    narrow = partial(_narrow, arguments=arguments)
    machines = Machines(arguments.topology, [], "--topology", rates, narrow=narrow)
    topology = machines.load_named()
    from ...synth.extras.judge import floors

    with progress.follow("finding bounds ...") as work:
        found = floors.find_floors(
            topology,
            floors.USUAL if arguments.collective is None else [arguments.collective],
            arguments.sizes or floors.SIZES_bytes,
            arguments.least or arguments.at_least,
            work.say,
        )
    text = (
        json.dumps(floors.write_json(found)) + "\n" if form == "json" else floors.write_shell(found)
    )
    write_output(arguments, text)
    if all(floor.busbw_GBps is None for floor in found.floors):
        say_error(PROG, f"{topology.name}: no floor: {found.floors[0].why_not}")
        return _USAGE
    return 0


def _judge(arguments: argparse.Namespace) -> int:
    if arguments.thresholds:
        return _write_thresholds(arguments)
    if arguments.sizes is not None:
        raise InputError("--sizes is for --thresholds; give that too")
    if not arguments.files:
        raise InputError("no FILE is given; name a graph dump, log or table, or give --thresholds")
    from ...synth.extras.judge.machine import Machines, is_topology_file
    from ...topo.derived.stated import parse_rates

    given = [name for name in ("json", "prometheus", "at_least") if getattr(arguments, name)]
    form = choose_format(
        arguments, {".json": "json", ".prom": "prometheus"}, "text", given[0] if given else None
    )
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
            arguments,
            files,
            Machines(
                arguments.topology,
                given,
                "--topology",
                parse_rates(arguments.rate),
                narrow=partial(_narrow, arguments=arguments),
            ),
            work.say,
        )
    for _, message in refused:
        say_error(PROG, message)
    if not verdicts:
        return _USAGE
    from ...synth.extras.judge.report import list_rows

    least = arguments.least or arguments.at_least
    void = [(v.contents.where, v.find_reason()) for v in verdicts if least and not v.shares]
    for where, why in void:
        say_error(
            PROG, f"{where}: it has nothing to compare with a bound, so no share can pass: {why}"
        )
    write_output(arguments, _render(arguments, form, verdicts, refused, void))
    write_requested(
        arguments, "csv", progress, "rows written to FILE", lambda: rows_csv(list_rows(verdicts))
    )
    if refused or void:
        return _USAGE
    shares = [share for verdict in verdicts for _, share in verdict.shares]
    return _FAILED if min(shares, default=1.0) < (least or 0) else 0


def _render(
    arguments: argparse.Namespace,
    form: str,
    verdicts: list[FileVerdict],
    refused: list[tuple[str, str]],
    void: list[tuple[str, str]],
) -> str:
    """Return the output; files are `refused` if they cannot be judged, `void` without a share."""
    from ...synth.extras.judge.report import write_gate, write_json, write_prometheus, write_text

    least = arguments.least or arguments.at_least
    if form == "json":
        return json.dumps(write_json(verdicts, least, refused)) + "\n"
    if form == "prometheus":
        return write_prometheus(verdicts, least)
    if arguments.at_least is not None:
        return json.dumps(write_gate(verdicts, arguments.at_least, refused + void)) + "\n"
    to_terminal = arguments.output is None and sys.stdout.isatty()
    text = printable_lines(write_text(verdicts, least, in_full=arguments.verbose))
    return wrap_text(text, find_width() if to_terminal else None)


def _judge_files(
    arguments: argparse.Namespace, files: list[str], machines: Machines, say: Say
) -> tuple[list[FileVerdict], list[tuple[str, str]]]:
    """Return the verdicts on the files, and the files that cannot be judged, with reasons."""
    from ...synth.extras.judge.answers import answer_alone
    from ...synth.extras.judge.file_contents import NothingToJudgeError
    from ...synth.extras.judge.readers.detect import read_file

    all_contents, verdicts = [], []
    refused: list[tuple[str, str]] = []
    for name in files:
        try:
            all_contents.append(read_file(name, arguments.collective))
        except NothingToJudgeError as error:
            if (answered := answer_alone(name, error)) is None:
                refused.append((name, f"{name_option(error)}{_NO_SYMPTOM}"))
            else:
                verdicts.append(answered)
        except InputError as error:
            refused.append((name, name_option(error)))
    if not all_contents:
        return verdicts, refused
    # Solvers take a second to import, so unreadable files are refused before that.
    from ...synth.extras.judge.judging import Judge

    judge = Judge(machines, arguments.collective, say, spell_command)
    for contents in all_contents:
        try:
            verdicts.append(judge.judge(contents))
        except InputError as error:
            refused.append((contents.where, name_option(error)))
    return verdicts, refused


def spell_command(command: str, *arguments: str, **options: str) -> str:
    """Return a command line as a user types it, each of `options` as --NAME VALUE.

    The judge, a part of the library, spells the commands in its advice by it. The option `output`
    becomes -o. Nothing is quoted.
    """
    named = (f"{'-o' if name == 'output' else f'--{name}'} {v}" for name, v in options.items())
    return " ".join([command, *arguments, *named])


if __name__ == "__main__":
    sys.exit(main())
