"""topo-worth: is a plan worth it on a machine, and what to turn on, on one screen.

It compares what stock NCCL or RCCL and a plan of topoplan reach by models, and advises to keep the
library as it is, to give it a graph file (--format nccl-graph), or to run the plan.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys

from ...synth.strategy_names import AUTO
from ...topo.output_head import output_head
from ..shared.common import Example, Parser, run_command
from ..shared.progress import ProgressReporter

PROG = "topo-worth"
EXAMPLES: tuple[Example, ...] = (
    ("topo-worth pcie-2socket", "a preset: stock, a plan, and what to turn on"),
    (
        "topo-worth matrix.txt --rate pcie=24",
        "your machine, by its nvidia-smi topo -m, with the rate that the text leaves open",
    ),
    ("topo-worth dgx-a100:2 --collective allgather", "what FSDP's gathers gain"),
)
ABOUT = """\
Compares a plan with stock NCCL or RCCL, both by models at the machine's rates: nothing runs. It
says to keep the library where a plan gains less than 5 %. On several hosts stock is given the most
that its rings and trees could carry, so the plan's gain is the least one.
"""
# Columns of the screen in a file or a pipe.
_WIDTH = 160
# Seconds for the search for a plan.
_LIMIT_s = 20.0


def main(argv: list[str] | None = None) -> int:
    """Run the command with `argv` (default: sys.argv) and return its exit code.

    The code is 0 if done, 130 if interrupted, else that of the error (see topo/errors.py).
    """
    return run_command(PROG, lambda: _run(build_parser().parse_args(argv)))


def build_parser() -> Parser:
    """Return the parser of topo-worth's command line."""
    parser = Parser(PROG, EXAMPLES, ABOUT, "TOPOLOGY [--collective C] [--size BYTES] [--json] ...")
    add = parser.add_argument
    add("topology", metavar="TOPOLOGY", help="a preset, a file, or local, as for topo-synth")
    add(
        "--collective",
        default="allreduce",
        metavar="C",
        help="allreduce (default, DDP), allgather or reduce-scatter (FSDP), broadcast, reduce",
    )
    add("--size", default="1G", metavar="BYTES", help="the buffer, as for topo-synth (default 1G)")
    add(
        "--rate",
        action="append",
        default=[],
        metavar="KIND=GBps",
        help="rate of links that the topology leaves open, as topo-probe takes it: pcie=24",
    )
    add(
        "--time-limit",
        type=float,
        default=_LIMIT_s,
        metavar="SECONDS",
        help=f"limit on the search for a plan (default {_LIMIT_s:g})",
    )
    add("--json", action="store_true", help="print one JSON object on standard output")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from ...synth.extras.worth.screen import list_rows
    from ...synth.extras.worth.worth import find_worth
    from ...synth.ir.collective import collective_on
    from ...synth.numeric.effort import Effort
    from ...synth.planner.synthesize import synthesize
    from ...synth.request import Request
    from ...synth.sizes import parse_size
    from ...topo.derived.stated import parse_rates, state_rates
    from ...topo.loader.resolve import load_for_planning, resolve

    size = parse_size(arguments.size)
    machine = resolve(arguments.topology)
    if arguments.rate:
        machine = state_rates([machine], parse_rates(arguments.rate))[0]
    topology, router = load_for_planning(machine)
    progress = ProgressReporter(PROG, arguments)
    with progress.follow("planning ...", arguments.time_limit) as work:
        request = Request(
            collective_on(arguments.collective, topology),
            topology,
            Effort(arguments.time_limit),
            work.say,
            router=router,
            strategy=AUTO,
        )
        plan = synthesize(request).plan
        work.say("comparing with the library ...")
        worth = find_worth(plan, size)
    if arguments.json:
        out = output_head("topoplan-worth") | {
            "topology": topology.name,
            "collective": plan.collective.name,
            "size_bytes": size,
            "bound_one_way_GBps": float(plan.bound_one_way.algbw_GBps),
            "worth": worth.to_json(),
        }
        print(json.dumps(out))
        return 0
    subject, prepare = arguments.topology, []
    if arguments.rate:
        rates = "".join(f" --rate {rate}" for rate in arguments.rate)
        subject, prepare = "machine.json", [f"topo-probe {subject}{rates} -o machine.json"]
    _print(list_rows(plan, worth, subject, prepare))
    return 0


def _print(rows: list[tuple[str, str]]) -> None:
    """Print rows as two columns; a question that stands in several rows is printed once."""
    from ...topo.pictures.fit import wrap_text

    columns = shutil.get_terminal_size((_WIDTH, 24)).columns
    before, margin = "", max(len(name) for name, _ in rows) + 2
    for name, text in rows:
        lines = wrap_text(text, max(40, columns - margin)).splitlines()
        for number, line in enumerate(lines):
            head = name if number == 0 and name != before else ""
            print(f"{head:{margin}}{line}".rstrip())
        before = name


if __name__ == "__main__":
    sys.exit(main())
