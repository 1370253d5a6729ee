"""topo-synth --explain: print the bottleneck, the links to improve first, and what extras add.

The bottleneck is what proves the bound, such as a cut. Extras are optional parts of topoplan.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...extras import EXPLANATIONS, Names
from ...synth.describe import show_us
from ...synth.extras.explain.explain import SIZES, Explanation, explain
from ...synth.extras.explain.worth import HelpersWorth, find_worth
from ...synth.numeric.effort import Effort
from ...synth.sizes import show_size
from ...topo.pictures.fit import print_table
from ...topo.printable import printable
from ..synthesis.job import SynthRun, print_lines
from ..synthesis.plan import report, synthesize_job

if TYPE_CHECKING:
    from rich.console import Console

    from ...synth.bounds.certificate import Bound
    from ...synth.extras.explain.part import Explain, ExplanationPart

# Most links to improve to list: about a screenful.
_MAX_LISTED = 8


def run(job: SynthRun) -> None:
    """Synthesize a plan with every strategy, print it, and explain its limits.

    These are the bottleneck, the links to improve first, what helpers are worth if only some GPUs
    make the call, and what extras have to say. The requested files are written.
    """
    with job.search() as say:
        result, healthy = synthesize_job(job, say, thorough=True)
        effort = Effort(job.started + job.args.time_limit - time.monotonic())
        usable = job.usable
        explanation = explain(
            usable.collective, usable.router, result.plan.bound_one_way, result.candidates, effort
        )
        worth = None
        if not job.collective.has_all_gpus:
            worth = find_worth(result.plan, result.candidates, job.size, effort, say)
        parts = dict(_explain_more(job, result.plan.bound_one_way, effort))
        job.cut_short += effort.cut_short
    fields = explanation.to_json()
    if worth is not None:
        fields["helpers"] = worth.to_json()
    fields |= {name: part.to_json() for name, part in parts.items()}

    def section(console: Console) -> None:
        print_lines(console, f"bottleneck: {explanation.bottleneck}")
        _print_levers(console, explanation)
        _print_reached(console, explanation)
        if worth is not None:
            print_lines(console, *_list_worth(worth, has_helpers=bool(result.plan.helpers)))
        for part in parts.values():
            print_lines(console, *part.list_lines())

    report(job, result, healthy, with_forests=True, more_json={"explain": fields}, more=section)


def _explain_more(
    job: SynthRun, bound: Bound, effort: Effort
) -> Iterator[tuple[str, ExplanationPart]]:
    """Yield what extras have to say of the job, by name."""
    added = Names(EXPLANATIONS)
    for name in added:
        explain_part: Explain = added.find(name)
        part = explain_part(job.topology, job.collective, bound, effort)
        if part is not None:
            yield name, part


def _list_worth(worth: HelpersWorth, *, has_helpers: bool) -> list[str]:
    """Return lines on what helpers are worth."""
    helped, alone = float(worth.helped_GBps), worth.alone_GBps
    who = "helpers" if has_helpers else "all other GPUs as helpers, which this plan may not use,"
    if alone is None:
        lines = [f"{who} are what connects the members: at most {helped:.4g} GB/s algbw with them"]
    elif worth.ratio is None:
        lines = ["what helpers are worth is not known: the search for a bound was cut short"]
    else:
        lines = [
            f"{who} are worth {float(worth.ratio):.3g} times the bound: at most "
            f"{float(alone):.4g} GB/s algbw without help, {helped:.4g} with it"
        ]
    if worth.from_bytes is not None and worth.time_alone_s is not None:
        lines.append(
            f"schedules with help are predicted faster from {show_size(worth.from_bytes)} on; at "
            f"{show_size(worth.size_bytes)} {show_us(worth.time_s)} us instead of "
            f"{show_us(worth.time_alone_s)}"
        )
    elif has_helpers and worth.time_alone_s is not None:
        lines.append("schedules with help are predicted faster at no size")
    losses = sorted(worth.without.items(), key=lambda item: (item[1] or 0, item[0]))
    listed = (
        f"{rank}: {'none' if bound is None else f'{float(bound):.4g}'}" for rank, bound in losses
    )
    if losses:
        lines.append(f"the bound in GB/s without one of the helpers, by rank: {', '.join(listed)}")
    return lines


def _print_levers(console: Console, explanation: Explanation) -> None:
    from rich.markup import escape

    levers = explanation.levers[:_MAX_LISTED]
    if not levers:
        return
    # The last column appears only if some links help together.
    titles = (
        "link",
        "GB/s",
        "alike",
        "bound rises per GB/s more",
        "bound with 10 % more",
        "all alike with 10 % more",
    )
    columns = titles if any(x.together_GBps is not None for x in levers) else titles[:-1]
    cells = (
        (
            escape(printable(f"{x.a} - {x.b}")),
            f"{float(x.bandwidth_GBps):.4g}",
            str(x.alike),
            f"{float(x.gain_GBps):.4g}" if x.helps_alone else "none alone",
            "" if x.wider_GBps is None else f"{float(x.wider_GBps):.5g}",
            "" if x.together_GBps is None else f"{float(x.together_GBps):.5g} (all {x.peers})",
        )
        for x in levers
    )
    print_table(
        console,
        columns,
        [(row[: len(columns)], None) for row in cells],
        (titles[3], titles[2], titles[5]),
        ("link",),
        title="links to improve first",
    )


def _print_reached(console: Console, explanation: Explanation) -> None:
    """Print the rate that each strategy reaches at each size, the best of each size in green."""
    reached: dict[str, Any] = explanation.reached
    best = [max((row[i] for row in reached.values()), default=0.0) for i in range(len(SIZES))]
    lines: list[tuple[Sequence[str], None]] = []
    for name, row in sorted(reached.items(), key=lambda item: -item[1][-1]):
        figures = [
            f"[green]{x:.3g}[/green]" if x == most else f"{x:.3g}"
            for x, most in zip(row, best, strict=True)
        ]
        lines.append(((name, *figures), None))
    sizes = [show_size(size).replace(" ", "") for size in SIZES]
    titles = ("strategy", *sizes)
    print_table(console, titles, lines, sizes[1:-1:2], titles[:1], "algbw in GB/s by size")
