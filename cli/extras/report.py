"""topo-report: write an HTML page about a machine or a plan."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from ...synth.extras.report import USUAL_LIMIT_S
from ...topo.errors import InputError
from ...topo.pictures.convert import convert_for, require_converter
from ..shared.common import Example, Parser, run_command
from ..shared.formats import choose_format
from ..shared.outputs import OUTPUT, add_force, check_outputs
from ..shared.progress import ProgressReporter

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
        "topo-report dgx1 -o slides.html --pictures png",
        "its pictures as files too: slides-01-machine.png, slides-02-allreduce.png ...",
    ),
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
    """Run the command with `argv` (default: sys.argv) and return its exit code.

    The code is 0 if done, 130 if interrupted, else that of the error (see topo/errors.py).
    """
    return run_command(PROG, lambda: _report(build_parser().parse_args(argv)))


def build_parser() -> Parser:
    """Return the parser of topo-report's command line."""
    parser = Parser(PROG, EXAMPLES, ABOUT, "TOPOLOGY|PLAN -o FILE [--box BOX] [--pictures F] ...")
    add = parser.add_argument
    add(
        "subject",
        metavar="TOPOLOGY|PLAN",
        help="a preset, a file, or local, as topo-synth --topology takes it; or a plan",
    )
    add("-o", "--output", required=True, **OUTPUT, help="the HTML file to write")
    add(
        "--pictures",
        choices=("svg", "png", "pdf"),
        help="also write each picture of the page to a file beside it: FILE-01-machine.png, ...",
    )
    add_force(parser)
    add(
        "--box",
        metavar="BOX",
        help="what each host is, of files that only say where hosts are: a preset such as "
        "dgx-h100, or a file",
    )
    add(
        "--run",
        metavar="FILE",
        help="with a plan: the output of topo-run PLAN --on-fault replan --json (or --on-slow), "
        "or the file that TOPOPLAN_LOG_FILE named for any run, whose recoveries are listed and "
        "drawn",
    )
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
    choose_format(arguments, {".html": "html", ".htm": "html"}, "html")
    require_converter(arguments.pictures or "")
    check_outputs(arguments, "output")
    from ...synth.extras.report.gather import gather_report, report_plan
    from ...synth.extras.report.page import write_page
    from ...synth.extras.report.recoveries import read_recoveries
    from ...synth.plan import Plan
    from ...topo.files import write_whole
    from ...topo.loader.resolve import resolve

    subject, limit_s = arguments.subject, arguments.time_limit
    progress = ProgressReporter(PROG, arguments)
    with progress.follow("gathering ...", limit_s) as work:
        if _is_plan(subject):
            if arguments.box is not None:
                raise InputError(f"--box with {subject}: a plan has its machine; leave --box out")
            plan = Plan.load(subject)
            # Read first, since the report takes seconds.
            recoveries = arguments.run and read_recoveries(arguments.run, plan)
            report = replace(report_plan(plan, subject, limit_s), recoveries=recoveries)
        else:
            if arguments.run is not None:
                raise InputError(f"--run with {subject}: expected a plan, whose run it is")
            report = gather_report(resolve(subject, arguments.box), limit_s, work.say)
        page = write_page(report)
    pictures = _list_pictures(page, arguments)
    for name in pictures:
        if not arguments.force and Path(name).is_file():
            raise InputError(f"{name}: already exists and was not changed", parameter="overwrite")
    write_whole(arguments.output, page, overwrite=arguments.force)
    progress.tell(f"report written to {arguments.output} ({len(page.encode()) / 1e3:.0f} kB)")
    for name, picture in pictures.items():
        write_whole(name, convert_for(name, picture), overwrite=arguments.force)
    if pictures:
        progress.tell(f"{len(pictures)} pictures written, from {next(iter(pictures))} on")
    return 0


def _list_pictures(page: str, arguments: argparse.Namespace) -> dict[str, str]:
    """Return the pictures that --pictures asks for, as SVG by the names of their files."""
    if arguments.pictures is None:
        return {}
    from ...synth.extras.report.html import list_pictures

    stem = Path(arguments.output).with_suffix("")
    return {
        f"{stem}-{i:02}-{name}.{arguments.pictures}": svg
        for i, (name, svg) in enumerate(list_pictures(page), 1)
    }


def _is_plan(subject: str) -> bool:
    """Return whether an argument names a plan's file, judged by its first bytes."""
    from ...synth.plan_file import FORMAT
    from ...topo.files import read_start

    return f'"format":"{FORMAT}"'.encode() in read_start(subject, 200).replace(b": ", b":")


if __name__ == "__main__":
    sys.exit(main())
