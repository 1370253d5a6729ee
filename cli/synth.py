"""topo-synth: synthesize a plan for a collective on a topology, with its bound.

Each mode is in a module of cli/synthesis: plan, bound, schedule_files. Extras, optional parts of
topoplan, add modes, which do something else with the topology (joint plans), jobs, which do
something else with what is to be planned (Pareto fronts), and formats.
"""

import argparse
import sys
from collections.abc import Callable

from ..extras import JOBS, MODES, Names
from .shared.common import run_command
from .synthesis.added import PLAN, is_of_schedules
from .synthesis.options import PROG, build_parser, check_options, find_job, find_mode


def main(argv: list[str] | None = None) -> int:
    """Run the command with `argv` (default: sys.argv) and return its exit code.

    The code is 0 if done, 130 if interrupted, else that of the error (see topo/errors.py).
    """
    return run_command(PROG, lambda: _run(build_parser().parse_args(argv)))


def _run(args: argparse.Namespace) -> int:
    check_options(args)
    mode = find_mode(args)
    if mode is not None:
        run_mode: Callable[[argparse.Namespace], None] = Names(MODES).find(mode)
        run_mode(args)
        return 0
    from .synthesis.job import make_job

    job = make_job(args)
    # These modules import solvers, which takes a second that --help and wrong names do not need.
    with job.off_the_clock():
        from .synthesis import bound, plan, schedule_files
    bound.check_left(job)
    if args.bound_only:
        run = bound.run_bound
    elif is_of_schedules(args.format):
        run = schedule_files.run
    elif args.format != PLAN:
        run = bound.run_export
    else:
        added = find_job(args)
        run = plan.run if added is None else Names(JOBS).find(added)
    run(job)
    return 0


if __name__ == "__main__":
    sys.exit(main())
