"""Train on real data, serially and with several systems on several ranks, and compare."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from topoplan.cli.shared.common import Example, Parser, run_command
from topoplan.cli.shared.formats import check_pictures, choose_format
from topoplan.cli.shared.outputs import (
    OUTPUT,
    add_csv,
    add_force,
    check_outputs,
    rows_csv,
    write_requested,
)
from topoplan.cli.shared.progress import ProgressReporter

if TYPE_CHECKING:
    from .page import LabReport

PROG = "python -m examples.lab"
# Width in characters of a table if the output is not a terminal.
WIDTH = 140
# Columns of the table to omit on a narrow terminal, in this order.
_LEAVE_OUT = ("epoch 1 s", "MB/epoch", "schedule", "vs serial")
EXAMPLES: tuple[Example, ...] = (
    (
        "python -m examples.lab -o report.md",
        "digits, serially and on 2 and 4 ranks, loopback and a slow network: minutes",
    ),
    (
        "python -m examples.lab --dataset examples/mine.npz --epochs 20 --ranks 2",
        "arrays x (one sample per row) and y (integers)",
    ),
    (
        "python -m examples.lab --dataset examples/mine.csv --hidden 64 --network loopback",
        "the last column is the label; one small hidden layer",
    ),
    (
        "python -m examples.lab --network dgx1 --slowest 50Mbit --systems stock,plan",
        "8 ranks on an emulated DGX-1",
    ),
    ("python -m examples.lab --systems all --ranks 4 --network slow", "all systems side by side"),
    (
        "python -m examples.lab --network loopback --ranks 2 --json > report.json",
        "all figures, for other programs",
    ),
    (
        "python -m examples.lab --network loopback --systems stock,plan --csv rows.csv",
        "the table as rows",
    ),
)
ABOUT = """\
Networks: loopback (this host's memory), slow (two hosts with half of the ranks each, joined by
one link at the rate of --slowest, and links of four times that rate inside), or any topology,
whose GPUs are then the ranks. All but loopback are emulated, which needs root; without it these
networks are skipped, and the report says so.
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code.

    The code is 0 if done, 1 if a training run failed, 130 if interrupted, else that of the error
    (an exception's `exit_code`).
    """
    return run_command(PROG, lambda: _run(build_parser().parse_args(argv)))


def build_parser() -> Parser:
    """Return the parser of the lab's command line."""
    parser = Parser(
        PROG, EXAMPLES, ABOUT, "[--dataset D] [--systems LIST] [--network LIST] [-o FILE] ..."
    )
    add = parser.add_argument
    add(
        "--dataset",
        default="digits",
        metavar="D",
        help="digits (default, from scikit-learn), FILE.npz or FILE.csv",
    )
    add(
        "--systems",
        metavar="LIST",
        help="systems to compare, or all (default: serial, stock, ring, plan, plan-fp16 and "
        "plan-int8)",
    )
    add(
        "--network",
        action="append",
        metavar="LIST",
        help="networks to train on (default loopback,slow); may be repeated",
    )
    add(
        "--ranks",
        default="2,4",
        metavar="LIST",
        help="numbers of ranks on loopback and slow (default 2,4)",
    )
    add(
        "--slowest",
        default="100Mbit",
        metavar="RATE",
        help="rate of an emulated network's slowest link (default 100Mbit)",
    )
    add("--epochs", type=int, default=8, metavar="N", help="passes over the data (default 8)")
    add(
        "--batch",
        type=int,
        default=128,
        metavar="N",
        help="samples per step on all ranks together (default 128)",
    )
    add(
        "--learning-rate",
        type=float,
        default=0.2,
        metavar="R",
        help="initial learning rate, which falls to zero (default 0.2)",
    )
    add(
        "--hidden",
        default="512,512",
        metavar="LIST",
        help="widths of the hidden layers, or none (default 512,512)",
    )
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of the split, the weights and the order (default 0)",
    )
    add(
        "-o",
        "--output",
        **OUTPUT,
        help="write the report to this file: Markdown, or JSON if the name ends in .json",
    )
    add("--plot", **OUTPUT, help="write a bar chart of the epochs' times: .svg, .png or .pdf")
    add_csv(parser, "the table's rows")
    add_force(parser, "--plot", "--csv")
    add(
        "--json",
        action="store_true",
        help="print one JSON object to standard output instead of the table",
    )
    return parser


def _run(args: argparse.Namespace) -> int:
    from .networks import LOOPBACK, SLOW, list_sites, parse_ranks
    from .runs import Lab
    from .settings import Settings, parse_hidden
    from .systems import DEFAULT, parse_systems
    from .training.dataset import load

    settings = Settings(
        args.epochs, args.batch, args.learning_rate, parse_hidden(args.hidden), args.seed
    )
    systems = parse_systems(args.systems if args.systems is not None else ",".join(DEFAULT))
    networks = ",".join(args.network or [LOOPBACK, SLOW]).split(",")
    sites = list_sites(list(map(str.strip, networks)), parse_ranks(args.ranks), args.slowest)
    choose_format(args, {".md": "markdown", ".json": "json"}, "markdown")
    check_pictures(args, "plot")
    check_outputs(args, "output", "plot", "csv")
    progress = ProgressReporter(PROG, args)
    from .environment import describe_environment  # needs torch: fail before training

    dataset = load(args.dataset, args.seed)
    with progress.follow("training ...") as work:
        rows = Lab(dataset, settings, systems, sites, work.advance).run()
    from .page import LabReport, draw_bars

    report = LabReport(rows, settings, dataset, describe_environment(sites), _repeat_command(args))
    if args.json:
        print(json.dumps(report.json()))
    else:
        _print(report)
    for option, what, text in (
        ("output", "report", lambda: report.text(args.output)),
        ("plot", "bars", lambda: draw_bars(f"Lab report: {dataset.name}", rows, alone=True)),
        ("csv", "rows", lambda: rows_csv(report.json()["rows"])),
    ):
        write_requested(args, option, progress, f"{what} written to FILE", text)
    return 1 if report.failed else 0


def _repeat_command(args: argparse.Namespace) -> str:
    """Return the command line that repeats the report, with files as bare names."""
    parts = PROG.split()
    defaults = vars(build_parser().parse_args([]))
    for name, value in vars(args).items():
        if value != defaults[name] and name not in (
            "output",
            "plot",
            "csv",
            "force",
            "json",
            "verbose",
            "quiet",
        ):
            for text in map(str, value if isinstance(value, list) else [value]):
                parts += [
                    f"--{name.replace('_', '-')}",
                    Path(text).name if Path(text).exists() else text,
                ]
    return shlex.join(parts)


def _print(report: LabReport) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from topoplan.topo.pictures.console import SafeConsole
    from topoplan.topo.pictures.fit import choose_columns

    from .page import HEAD

    console = SafeConsole(
        width=None if sys.stdout.isatty() else WIDTH, highlight=False, markup=False
    )
    console.print(report.task)
    lines = report.cells()
    shown = choose_columns(HEAD, lines, _LEAVE_OUT if console.is_terminal else (), console.width)
    table = Table(box=SIMPLE, pad_edge=False)
    for number in shown:
        table.add_column(
            HEAD[number], justify="left" if number in (0, 2, 3) else "right", no_wrap=True
        )
    for _, group in groupby(zip(report.rows, lines, strict=True), lambda pair: pair[0].site):
        table.add_section()
        for _, cells in group:
            table.add_row(*(cells[number] for number in shown))
    console.print(table)
    environment = (f"{key}: {value}" for key, value in report.environment.items())
    for line in (*(f"- {finding}" for finding in report.findings), "", *environment):
        console.print(line)
