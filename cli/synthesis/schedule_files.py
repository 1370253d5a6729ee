"""topo-synth --format: a schedule of the plan for other programs, in a format of an extra."""

import json
import sys

from ...synth.bounds.single_path import Bounds
from ...synth.describe import assumption_lines, bounds_text
from ...synth.schedule_format import ScheduleFormat, export_schedule
from ...topo.errors import InputError
from ...topo.files import write_whole
from ...topo.pictures.cables import describe_rates
from ...topo.printable import printable_lines
from ..shared.outputs import check_output
from .added import SCHEDULE_FORMATS
from .job import SynthRun, bound_json
from .plan import synthesize_job


def run(job: SynthRun) -> None:
    """Plan, and write the schedule for the size of --size in the format of --format.

    It goes to the files of -o. Without -o it is printed, but with --json only its description is.
    Raise InputError if the format needs -o, or if a file exists and --force is not given.
    """
    args = job.args
    format: ScheduleFormat = SCHEDULE_FORMATS.find(args.format)
    suffixes = format.list_suffixes(job.collective.ranks)
    if args.output is None and suffixes != [""]:
        raise InputError(
            f"--format {args.format} writes a file for each rank: give -o traces/allreduce, for "
            f"traces/allreduce{suffixes[0]} and so on"
        )
    if args.output:
        for suffix in suffixes:
            check_output(f"{args.output}{suffix}", overwrite=args.force)
    with job.search() as say:
        plan = synthesize_job(job, say)[0].plan
        plan.verify()
    made = export_schedule(format, plan, job.size)
    if args.output:
        for suffix, content in made.files.items():
            write_whole(f"{args.output}{suffix}", content, overwrite=args.force)
        shown = f"{args.output}{suffixes[0]}"
        if len(suffixes) > 1:
            shown += f" to {args.output}{suffixes[-1]}"
        job.progress.tell(f"{args.format} written to {shown}")
    if args.json:
        body = {
            **job.head_json(),
            "format": args.format,
            args.format.replace("-", "_"): made.figures,
            "bound": bound_json(plan.bound, plan.topology),
            "bound_one_way": bound_json(plan.bound_one_way, plan.topology),
            **job.times_json(),
            "search_complete": not job.cut_short,
        }
        print(json.dumps(body))
        return
    limits = Bounds(plan.bound, plan.bound_one_way)
    bounds = bounds_text(limits, plan.topology)
    head = f"{job.collective.name} on {job.topology.name}, {job.collective.ranks} ranks: {bounds}"
    # Without -o standard output is the file itself, so the description goes to standard error.
    assumed = assumption_lines(limits, plan.topology)
    for line in (head, *assumed, *made.lines, *describe_rates(job.topology), *job.cut_lines()):
        print(printable_lines(line), file=sys.stdout if args.output else sys.stderr)
    if not args.output:
        print(made.files[""], end="")
