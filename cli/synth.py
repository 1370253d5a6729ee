"""topo-synth: synthesize a plan for a collective on a topology, with its bound.

Each mode is a module of cli/synthesis: plan, bound, front, export, explain.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .shared.common import run_command
from .synthesis.options import PLAN, PROG, build_parser, check_options

if TYPE_CHECKING:
    import argparse


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(PROG, lambda: _run(build_parser().parse_args(argv)))


def _run(args: argparse.Namespace) -> int:
    check_options(args)
    # These modules import solvers, which --help and errors in options do not need.
    from .synthesis import bound, explain, export, front, plan
    from .synthesis.job import make_job

    if args.bound_only:
        run = bound.run
    elif args.format != PLAN:
        run = export.run
    elif args.pareto or args.instance:
        run = front.run
    else:
        run = explain.run if args.explain else plan.run
    run(make_job(args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
