"""topo-synth --bound-only and --format: bounds without a plan, and files for other libraries.

A bound is the bandwidth that no schedule can exceed. A SynthRun, called job, is one run of
topo-synth: the request, and what is found out about it.
"""

import json
import sys
from pathlib import Path

from ...synth.bounds.group_bounds import GroupBounds, find_group_bounds
from ...synth.bounds.in_network import bound_in_network
from ...synth.bounds.multipath import check_connected
from ...synth.bounds.single_path import Bounds, find_bounds
from ...synth.describe import assumption_lines, bounds_text, help_lines
from ...synth.groups.ranks import group_on
from ...synth.library_format import LibraryFormat, LibraryRequest
from ...synth.numeric.effort import Effort
from ...topo.clock import limit_time
from ...topo.derived.degrade import Change, degrade
from ...topo.errors import InfeasibleError
from ...topo.files import write_whole
from ...topo.graph import Topology
from ...topo.loader.resolve import load_for_planning
from ...topo.pictures.cables import describe_rates
from ...topo.printable import printable_lines
from ..shared.outputs import write_requested
from ..shared.progress import Say
from .added import LIBRARY_FORMATS
from .job import SynthRun, bound_json

# With more GPUs, the bound with the help of ranks that were left out takes too long.
_MAX_HELPED_RANKS = 128

# Fields of a plan's JSON that are null without a plan.
_EMPTY = (
    "strategy",
    "chunks",
    "steps",
    "rounds",
    "trees",
    "depth",
    "predicted",
    "gap",
    "gap_any_way",
)


def run_bound(job: SynthRun) -> None:
    """Compute the bounds of a job and print them as text, or as JSON with --json.

    Raise InfeasibleError if its ranks are not connected, TimeLimitError if time is over.
    """
    with job.search() as say, limit_time(job.started, job.args.time_limit, say):
        effort = Effort(job.args.time_limit, began=job.started)
        group: GroupBounds | None = None
        if job.collective.has_all_gpus:
            bounds = find_bounds(job.collective, job.router, effort, say)
        else:
            group = find_group_bounds(job.collective, job.helpers, job.router, effort, say)
            bounds = group.allowed
        usable = job.usable
        job.in_network = bound_in_network(
            usable.collective, usable.router.topology, bounds.multipath, effort
        )
        job.cut_short += effort.cut_short
        find_lost_help(job, say)
    if job.args.json:
        body: dict[str, object] = {
            **job.head_json(),
            **dict.fromkeys(_EMPTY),
            "size_bytes": job.size,
            **_bounds_json(bounds, job.topology),
            **job.help_json(
                bounds.single_path,
                None if group is None else group.alone,
                None if group is None else group.with_helpers,
            ),
            **job.switches_json(),
            "verified": False,
            **job.times_json(),
            "search_complete": not job.cut_short,
        }
        print(json.dumps(body))
        return
    for line in (
        _head_line(job, bounds),
        *(help_lines(job.helpers, group.alone, group.with_helpers) if group else []),
        *job.lost_help_lines(),
        *assumption_lines(bounds, job.topology),
        *job.switch_lines(),
        *describe_rates(job.topology),
        *job.root_lines(),
        *job.cut_lines(),
    ):
        print(printable_lines(line))


def _bounds_json(bounds: Bounds, topology: Topology) -> dict[str, object]:
    return {
        "bound": bound_json(bounds.multipath, topology),
        "bound_one_way": bound_json(bounds.single_path, topology),
    }


def _head_line(job: SynthRun, bounds: Bounds | None) -> str:
    text = f"{job.collective.name} on {job.topology.name}, {job.collective.spelled_ranks}"
    helpers = None if job.collective.has_all_gpus else job.helpers
    return text if bounds is None else f"{text}: {bounds_text(bounds, job.topology, helpers)}"


def check_left(job: SynthRun) -> None:
    """Raise InfeasibleError if the ranks left by --without-rank are not connected."""
    if not job.args.without_rank:
        return
    try:
        check_connected(job.collective, job.topology)
    except InfeasibleError as error:
        raise InfeasibleError(
            f"{error}; the links of the ranks left out are gone: ranks that only have no part in "
            "the collective can carry data for the others (--group)"
        ) from None


def find_lost_help(job: SynthRun, say: Say) -> None:
    """Set the job's `with_help`: the bound if the ranks left out passed on data for the others.

    Nothing is set if none were left out, or on large machines. Links that were changed stay
    changed. Searches that the time limit stops are added to the job's `cut_short`. `say` receives
    progress messages.
    """
    gone = set(job.args.without_rank)
    if not gone or len(job.machine.ranks) > _MAX_HELPED_RANKS:
        return
    links = Change(tuple(job.args.without_link), (), tuple(job.args.scale_link))
    machine, router = load_for_planning(degrade(job.drawn, links) if links else job.drawn)
    members = [rank for rank in range(len(machine.ranks)) if rank not in gone]
    group = group_on(job.collective.name, machine, members, job.given.root)
    effort = Effort(job.args.time_limit, began=job.started)
    job.with_help = find_bounds(group, router, effort, say).single_path
    job.cut_short += effort.cut_short


def run_export(job: SynthRun) -> None:
    """Write the file for another library that --format names to the path of -o, and describe it.

    A format may write a second file beside it. Without -o the file is printed, but with --json only
    the description is. If the format advises against the file, without --no-guard, the reason is
    printed to standard error, and nothing is written.
    """
    args = job.args
    format: LibraryFormat = LIBRARY_FORMATS.find(args.format)
    beside_path: str | None = None
    if args.output and format.beside:
        beside_path = str(Path(f"{args.output}{format.beside}").resolve())
    with job.search() as say:
        effort = Effort(args.time_limit)
        made = format.write(
            LibraryRequest(
                job.collective,
                job.router,
                effort,
                say,
                version=args.nccl_version,
                size_bytes=job.size,
                hosts=args.hosts or 1,
                guard=not args.no_guard,
                measured=args.measured,
                beside_path=beside_path,
            )
        )
        job.cut_short += effort.cut_short
    if made.reason is None:
        done = f"{args.format} written to FILE"
        write_requested(args, "output", job.progress, done, lambda: made.text)
        if made.beside is not None and beside_path is not None:
            write_whole(beside_path, made.beside, overwrite=args.force)
            job.progress.tell(f"{made.beside_what} written to {beside_path}")
    if args.json:
        body = {
            **job.head_json(),
            "format": made.format,
            made.key: made.figures,
            **(_bounds_json(made.bounds, job.topology) if made.bounds is not None else {}),
            **job.times_json(),
            "search_complete": not job.cut_short,
        }
        print(json.dumps(body))
    if made.reason is not None:
        hint = "--no-guard writes it all the same"
        print(printable_lines(f"{made.reason}; {hint}"), file=sys.stderr)
    if args.json or made.reason is not None:
        return
    # Without -o standard output is the file itself, so the description goes to standard error.
    assumed = assumption_lines(made.bounds, job.topology) if made.bounds is not None else []
    lines = [_head_line(job, made.bounds), *assumed, *made.lines, *describe_rates(job.topology)]
    for line in [*lines, *job.cut_lines()]:
        print(printable_lines(line), file=sys.stdout if args.output else sys.stderr)
    if not args.output:
        print(made.text, end="")
