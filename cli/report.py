"""topo-report: write an HTML page about a machine or a plan."""

import argparse
import sys
from contextlib import suppress
from pathlib import Path

from ..synth.report import USUAL_LIMIT_S
from ..topo.errors import InputError
from .shared.common import Example, Parser, run_command
from .shared.outputs import OUTPUT, add_force, check_outputs
from .shared.progress import ProgressReporter

PROG = "topo-report"
EXAMPLES: tuple[Example, ...] = (
    (
        "topo-report dgx-a100:2 -o a100.html",
        "a preset: the machine, findings, bounds, plans, curves, trees, timeline",
    ),
    (
        "topo-report topo.xml -o topo.html",
        "a machine from a file of NCCL, RCCL, hwloc, nvidia-smi or topoplan",
    ),
    ("topo-synth allreduce topo.xml -o plan.json", "a plan ..."),
    ("topo-report plan.json -o plan.html", "... and the page about it, on its machine"),
    (
        "topo-report dgx1 -o dgx1.html --time-limit 60",
        "searches go on as long as those of topo-synth",
    ),
    (
        "topo-report local -o local.html",
        "this machine, as topo-probe finds it; without GPUs there is nothing to plan",
    ),
)
ABOUT = (
    "Writes one page that needs no network and no other file. Its times are predicted; "
    "topo-run measures."
)


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code.

    The code is 0 if done, 130 if interrupted, else that of the error (see topo/errors.py).
    """
    return run_command(PROG, lambda: _report(build_parser().parse_args(argv)))


def build_parser() -> Parser:
    """Return the parser of topo-report's command line."""
    parser = Parser(PROG, EXAMPLES, ABOUT, "TOPOLOGY|PLAN -o FILE [--time-limit SECONDS] [--force]")
    add = parser.add_argument
    add(
        "subject",
        metavar="TOPOLOGY|PLAN",
        help="a preset, a file, or local, as topo-synth --topology takes it; or a plan",
    )
    add("-o", "--output", required=True, **OUTPUT, help="the HTML file to write")
    add_force(parser)
    add(
        "--time-limit",
        type=float,
        default=USUAL_LIMIT_S,
        metavar="SECONDS",
        help=f"limit on all searches together (default {USUAL_LIMIT_S:g})",
    )
    return parser


def _report(arguments: argparse.Namespace) -> int:
    if not arguments.time_limit > 0:
        raise InputError(f"--time-limit is {arguments.time_limit:g}; expected seconds above 0")
    check_outputs(arguments, "output")
    from ..synth.plan import Plan
    from ..synth.report.gather import gather_report, report_plan
    from ..synth.report.page import write_page
    from ..topo.files import write_whole
    from ..topo.loader.resolve import resolve

    subject, limit_s = arguments.subject, arguments.time_limit
    progress = ProgressReporter(PROG, arguments)
    with progress.follow("gathering ...", limit_s) as work:
        if _is_plan(subject):
            report = report_plan(Plan.load(subject), subject, limit_s)
        else:
            report = gather_report(resolve(subject), limit_s, work.say)
        page = write_page(report)
    write_whole(arguments.output, page, overwrite=arguments.force)
    progress.tell(f"report written to {arguments.output} ({len(page.encode()) / 1e3:.0f} kB)")
    return 0


def _is_plan(subject: str) -> bool:
    """Return whether an argument names a plan's file, judged by its first bytes."""
    from ..synth.plan_file import FORMAT

    path = Path(subject)
    with suppress(OSError, ValueError):
        if path.is_file():  # not a pipe, whose beginning would be lost
            with path.open("rb") as file:
                return f'"format":"{FORMAT}"'.encode() in file.read(200).replace(b": ", b":")
    return False


if __name__ == "__main__":
    sys.exit(main())
