"""topo-synth --format: files for NCCL and RCCL in place of a plan."""

from __future__ import annotations

import json
import sys

from ...topo.pictures.cables import describe_rates
from ...topo.printable import printable_lines
from .bound import bounds_json, head_line
from .job import SynthRun


def run(job: SynthRun) -> None:
    """Write the file in the format of --format to the path of -o, or print it."""
    from ...synth.export.formats import export
    from ...synth.export.nccl_version import NEWEST, parse_nccl_version
    from ...synth.numeric.effort import Effort

    args = job.args
    version = parse_nccl_version(args.nccl_version) if args.nccl_version else NEWEST
    with job.search() as say:
        effort = Effort(args.time_limit)
        made = export(
            args.format,
            job.collective,
            job.router,
            effort,
            say,
            version=version,
            measured=args.measured,
        )
        job.cut_short += effort.cut_short
    job.write(args.output, lambda: made.text, f"{args.format} written to {args.output}")
    if args.json:
        body = job.head_json() | {"format": made.format, made.key: made.figures}
        body |= bounds_json(made.bounds) if made.bounds is not None else {}
        body |= {"synthesis_s": job.seconds, "search_complete": not job.cut_short}
        print(json.dumps(body))
        return
    # Without -o standard output is the file itself, so the description goes to standard error.
    lines = [head_line(job, made.bounds), *made.lines, *describe_rates(job.topology)]
    for line in [*lines, *job.cut_lines()]:
        print(printable_lines(line), file=sys.stdout if args.output else sys.stderr)
    if not args.output:
        print(made.text, end="")
