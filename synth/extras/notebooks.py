"""What notebooks show of plans, schedules and Pareto fronts: HTML with tables, or a picture."""

from ...topo.notebook import Renderer
from ...topo.printable import quote
from ..bounds.in_network import describe_assumption
from ..bounds.single_path import Bounds
from ..cost.transfer_times import time_steps
from ..describe import assumption_lines, bounds_text, help_lines
from ..ir.schedule import Schedule
from ..pictures.drawing import STYLE
from ..pictures.plan_curves import draw_plan_alone
from ..plan import Plan
from .exact.front import ParetoFront
from .exact.picture import draw_front
from .exact.text import TITLES, least_ratio_text, list_cells
from .report.html import make_details, make_figure, make_paragraph, make_table
from .report.plans import draw_schedule, list_entries
from .traces.timeline import MAX_ROWS, draw_timeline

# Most transfers of a timeline: more are a matter of seconds, for a picture that nothing shows in.
_MAX_TRANSFERS = 60_000
_GB = 10**9
# Notebooks have a background of their own, whatever colours the system prefers.
_STYLE = f"""<style>{STYLE}.tp{{background:var(--paper)}}
.topoplan .grid{{display:flex;flex-wrap:wrap;gap:8px}}.topoplan .scroll{{overflow-x:auto}}
.topoplan th,.topoplan td{{padding:2px 12px 2px 0;text-align:left}}
.topoplan .n{{text-align:right}}.topoplan figure{{margin:8px 0}}
.topoplan svg{{display:block;max-width:100%;height:auto}}</style>"""


def show_plan(plan: Plan) -> str:
    """Return a plan as HTML: its bounds, curves, entries, and how large buffers travel."""
    helpers = None if plan.collective.has_all_gpus else plan.helpers
    limits = Bounds(plan.bound, plan.bound_one_way)
    bounds = bounds_text(limits, plan.topology, helpers)
    helped = help_lines(helpers or (), plan.bound_alone, plan.bound_with_helpers)
    assumption = describe_assumption(plan.topology)
    return _join(
        f"{plan.collective} on {plan.topology.name}",
        *map(
            make_paragraph,
            (
                *bounds.split("\n"),
                *assumption_lines(limits, plan.topology),
                *helped,
                f"That assumes: {assumption}.",
            ),
        ),
        make_figure(draw_plan_alone(plan), "predicted algbw against the size of the buffer"),
        list_entries(plan),
        make_details("trees and timeline", *draw_schedule(plan)),
    )


def draw_schedule_svg(schedule: Schedule) -> str | None:
    """Return a schedule's steps as an SVG file; None if it has too many transfers to see."""
    if len(schedule.transfers) > _MAX_TRANSFERS:
        return None
    times = time_steps(schedule, _GB)
    return draw_timeline(f"steps of {schedule.strategy}", times, schedule.rank_limit, alone=True)


def show_schedule(schedule: Schedule) -> str:
    """Return a schedule as HTML: its steps in a picture, and its first transfers."""
    figures, _, transfers = schedule.describe().partition("\n")
    picture = draw_schedule_svg(schedule)
    caption = "what each rank sends, with 1 GB in one segment and no latency"
    if schedule.rank_limit > MAX_ROWS:
        caption += f"; the first {MAX_ROWS} of {schedule.rank_limit} ranks"
    return _join(
        figures,
        "" if picture is None else make_figure(picture, caption),
        make_details("the first transfers", f"<pre>{quote(transfers)}</pre>"),
    )


def draw_front_svg(front: ParetoFront) -> str:
    """Return a Pareto front as an SVG file."""
    title = f"{front.collective.name} on {front.topology.name}"
    return draw_front(title, front.rows, front.least_ratio)


def show_front(front: ParetoFront) -> str:
    """Return a Pareto front as HTML: its picture, its rows, and the bounds."""
    bounds = bounds_text(Bounds(front.bound, front.bound_one_way), front.topology)
    rows = [list_cells(row) for row in front.rows]
    return _join(
        f"{front.collective} on {front.topology.name}",
        make_figure(draw_front_svg(front), least_ratio_text(front)),
        make_table(TITLES, rows, right=(0, 1, 2, 3, 8)),
        *map(make_paragraph, bounds.split("\n")),
    )


def _join(title: str, *parts: str) -> str:
    body = "\n".join([_STYLE, f"<h4>{quote(title)}</h4>", *parts])
    return f'<div class="topoplan">{body}</div>'


# What topo/notebook.py asks for, by the class of the object: a picture, then HTML.
PLAN = Renderer(draw_plan_alone, show_plan)
SCHEDULE = Renderer(draw_schedule_svg, show_schedule)
FRONT = Renderer(draw_front_svg, show_front)
