"""topo-synth --bound-only: print the bounds of a collective on a machine, without a plan."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ...synth.describe import bounds_text
from ...topo.pictures.cables import describe_rates
from ...topo.printable import printable_lines
from .job import bound_json

if TYPE_CHECKING:
    from ...synth.bounds.single_path import Bounds
    from .job import SynthRun

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


def run(job: SynthRun) -> None:
    """Compute the bounds and print them as text, or as JSON with --json."""
    from ...synth.bounds.in_network import bound_in_network
    from ...synth.bounds.single_path import find_bounds
    from ...synth.numeric.effort import Effort

    with job.search() as say:
        effort = Effort(job.args.time_limit)
        bounds = find_bounds(job.collective, job.router, effort, say)
        job.in_network = bound_in_network(job.collective, job.topology, bounds.multipath, effort)
        job.cut_short += effort.cut_short
    if job.args.json:
        body = job.head_json() | dict.fromkeys(_EMPTY) | {"size_bytes": job.size}
        body |= bounds_json(bounds) | job.switches_json() | {"verified": False}
        body |= {"synthesis_s": job.seconds, "search_complete": not job.cut_short}
        print(json.dumps(body))
        return
    lines = [*job.switch_lines(), *describe_rates(job.topology), *job.root_lines()]
    for line in [head_line(job, bounds), *lines, *job.cut_lines()]:
        print(printable_lines(line))


def bounds_json(bounds: Bounds) -> dict[str, object]:
    """Return the multipath and single-path bounds, with their certificates, as JSON data."""
    return {"bound": bound_json(bounds.multipath), "bound_one_way": bound_json(bounds.single_path)}


def head_line(job: SynthRun, bounds: Bounds | None) -> str:
    """Return a line with the collective, the machine and, if given, the bounds."""
    text = f"{job.collective.name} on {job.topology.name}, {job.collective.ranks} ranks"
    return text if bounds is None else f"{text}: {bounds_text(bounds)}"
