"""Write the sections of a report on each collective.

A section has the bound and bottleneck, plans by size, curves, trees and a timeline.
"""

from dataclasses import replace

from ....topo.errors import TopoplanError
from ....topo.graph import Topology
from ...bounds.assumptions import explain_assumptions, join_assumptions, list_assumptions
from ...bounds.in_network import describe_assumption, describe_possible
from ...cost.affine import rounds
from ...cost.host_costs import describe_host, host_of
from ...cost.segmentation import reroute
from ...cost.transfer_times import predict_times
from ...describe import help_lines, help_text, limit_text, why_text
from ...pictures.plan_curves import draw_plan_curves, list_sizes, predict_algbw_GBps
from ...plan import Plan
from ...sizes import show_size
from ..explain.explain import SIZES, Explanation, Lever
from ..stock.curve import make_curve
from ..stock.stock_ring import StockRing
from ..traces.timeline import MAX_ROWS, draw_links, draw_timeline
from .gather import Section
from .html import make_beside, make_details, make_figure, make_paragraph, make_section, make_table
from .trees import MAX_GPUS, draw_flow, list_flows

# Size in bytes at which trees and the timeline are shown.
SHOWN_SIZE = 1 << 28
# Most segments, so that single messages remain visible.
_SHOWN_SEGMENTS = 4
# Most pictures of flows, and most transfers of a timeline.
_MAX_FLOWS, _MAX_SHOWN = 6, 60_000
# Sizes in bytes at which plan and stock are compared.
_COMPARED = tuple(1 << bits for bits in (12, 16, 20, 24, 28, 30))
# Pixels: a timeline that fits beside another.
_BESIDE_WIDTH = 650
# Ranges of a plan that begin at more bytes are not listed: nobody sends as much in a call.
_LARGEST_LISTED = 1 << 34
# Most links to improve to list.
_MAX_LEVERS = 6


def write_section(section: Section, topology: Topology, *, with_pictures: bool) -> str:
    """Return the HTML of one collective's section; `with_pictures` adds trees and timelines.

    `topology` is the machine that was planned for.
    """
    name, bounds = section.collective.name, _write_bounds(section, topology)
    parts = bounds
    if section.plan is not None:
        entries = ["<h3>The plan, by size</h3>", list_entries(section.plan)]
        compared, beside = _compare(section, section.plan), [_draw_curves(section)]
        if section.explanation is not None:
            compared.append(_list_strategies(section.explanation))
            beside.append(_list_levers(section.explanation) if section.explanation.levers else "")
        parts = [make_beside([*bounds, *entries, *compared], beside, "wider")]
        if with_pictures:
            parts += draw_schedule(section.plan)
    elif section.stock is not None:
        parts = [make_beside(bounds, [_draw_curves(section)], "wider")]
    if section.missing is not None:
        parts.append(make_paragraph(f"no plan here: {section.missing}"))
    if section.cut_short:
        text = (
            f"searches cut short by the report's time limit: {', '.join(section.cut_short)}; "
            "topo-synth, or a time limit of 60 s, may find more"
        )
        parts.append(make_paragraph(text, soft=True))
    return make_section(name, name, *parts)


def _write_bounds(section: Section, topology: Topology) -> list[str]:
    bounds = section.bounds
    if bounds is None:
        return []
    limit, how, more = limit_text(bounds.single_path), ", whatever the schedule", ""
    plan = section.plan
    is_group = plan is not None and not plan.collective.has_all_gpus
    helped = f" {help_text(plan.helpers or ())}" if plan is not None and is_group else ""
    if bounds.single_path != bounds.multipath:
        how = " with a single path per pair of GPUs, as hardware sends"
        more = (
            "If senders could divide data over all paths, "
            f"{limit_text(bounds.multipath)}: {why_text(bounds.multipath)}. "
        )
    assumed = list_assumptions(bounds.single_path, topology)
    how += join_assumptions(assumed)
    text = f"At most {limit} GB/s algbw{helped}{how}: {why_text(bounds.single_path)}. {more}"
    text += f"That assumes: {describe_assumption(topology)}."
    text += "".join(f" {x[0].upper()}{x[1:]}." for x in explain_assumptions(assumed))
    if section.in_network is not None:
        limit = limit_text(section.in_network)
        text += f" {describe_possible(topology)}; then the bound is {limit} GB/s."
    parts = [make_paragraph(text)]
    if plan is not None and is_group:
        who = f"{plan.collective.spelled_ranks} of {len(topology.ranks)} take part"
        parts.insert(0, make_paragraph(f"{who[0].upper()}{who[1:]}."))
        lines = help_lines(plan.helpers or (), plan.bound_alone, plan.bound_with_helpers)
        parts += [make_paragraph(f"{line[0].upper()}{line[1:]}.") for line in lines]
    if section.explanation is None:
        return parts
    return [*parts, make_paragraph(f"The bottleneck: {section.explanation.bottleneck}.")]


def _list_levers(explanation: Explanation) -> str:
    rows = [
        (
            f"{x.a} - {x.b}",
            f"{float(x.bandwidth_GBps):.4g}",
            str(x.alike),
            f"{float(x.gain_GBps):.4g}" if x.helps_alone else "none alone",
            "not computed" if x.wider_GBps is None else f"{float(x.wider_GBps):.5g}",
            "" if x.together_GBps is None else f"{float(x.together_GBps):.5g}{_count_peers(x)}",
        )
        for x in explanation.levers[:_MAX_LEVERS]
    ]
    titles = (
        "links to improve first",
        "GB/s",
        "alike",
        "bound rises per GB/s",
        "with 10 % more",
        "all alike with 10 % more",
    )
    return make_table(titles, rows, right=range(1, 6))


def _count_peers(lever: Lever) -> str:
    return "" if lever.peers == lever.alike else f" (all {lever.peers})"


def list_entries(plan: Plan) -> str:
    """Return the HTML table of a plan's entries: sizes, schedules, costs, and gaps to the bound.

    Entries for the largest buffers are only counted.
    """
    listed = [entry for entry in plan.entries if entry.min_bytes <= _LARGEST_LISTED]
    rows = []
    for entry in listed:
        schedule, limit = entry.schedule, plan.limit_GBps(entry)
        is_last = entry is listed[-1] or entry.max_bytes is None
        size = max(SHOWN_SIZE << 2 if is_last else (entry.max_bytes or 0) - 1, entry.min_bytes)
        number = rounds(schedule, plan.router)
        rows.append(
            (
                show_size(entry.min_bytes),
                "and larger" if is_last else show_size(size + 1),
                schedule.label, f"{len(schedule.chunks):,}", f"{schedule.steps}",
                "" if number is None else f"{float(number):.4g}", str(schedule.trees or ""),
                show_number(float(plan.cost_of(entry).alpha_us), 3),
                "" if limit is None else f"{float(limit):.4g}",
                f"{max(0.0, float(plan.gap_of(entry))):.1%}",
                f"{predict_algbw_GBps(plan, size):.4g}",
                *([] if plan.collective.has_all_gpus else [str(len(schedule.helpers) or "")]),
            )
        )  # fmt: skip
    titles = (
        *("from", "to", "schedule", "chunks", "steps", "rounds", "trees", "latency us"),
        *("GB/s at most", "gap", "predicted GB/s"),
        *([] if plan.collective.has_all_gpus else ["helpers"]),
    )
    table = make_table(titles, rows, right={*range(12)} - {2})
    text = f"Predicted at the end of each range, of the last at {show_size(size)}."
    left = plan.entries[len(listed) :]
    if left:
        what = f"{len(left)} more {'range' if len(left) == 1 else 'ranges'}"
        text += f" From {show_size(left[0].min_bytes)} on the plan has {what}, "
        text += f"to {left[-1].schedule.label}."
    return f"{table}\n{make_paragraph(text, soft=True)}"


def _compare(section: Section, plan: Plan) -> list[str]:
    bound = float(plan.bound_one_way.algbw_GBps)
    rows = []
    for size in _COMPARED:
        entry = plan.entry_for(size)
        time_s, algbw = plan.time_s(entry, size), predict_algbw_GBps(plan, size)
        busbw = algbw * float(section.collective.bus_factor())
        row = [show_size(size), entry.schedule.label, show_number(time_s * 1e6)]
        row += [f"{algbw:.4g}", f"{busbw:.4g}", f"{algbw / bound:.1%}"]
        if section.stock is not None:
            stock_s = section.stock.time_s(size)
            row += [show_number(stock_s * 1e6), f"{stock_s / time_s:.2f}x" if time_s else ""]
        rows.append(row)
    titles = ["size", "schedule", "plan, us", "algbw, GB/s", "busbw, GB/s", "of the bound"]
    text = f"All times are predicted. Host costs: {describe_host(plan.topology)}."
    if section.stock is not None:
        titles += [f"{section.stock.name}, us", f"{section.stock.name} / plan"]
    table = make_table(titles, rows, right=(0, 2, 3, 4, 5, 6, 7))
    caveat = [] if section.stock is None else [make_paragraph(_explain_stock(section.stock))]
    # What the last columns claim is no louder than what they are worth.
    return [*caveat, table, make_paragraph(text, soft=True)]


def _explain_stock(stock: StockRing) -> str:
    """Say what the plan is compared with, and what that leaves open."""
    if stock.is_modelled:
        assumes = f" That assumes: {'; '.join(stock.assumes)}." if stock.assumes else ""
        return (
            f"Compared with {stock.name} on paper: {stock.what}, at this machine's rates.{assumes} "
            "Neither side is measured; topo-run measures both."
        )
    return (
        f"Compared with {stock.what}, which ignores the machine. This is no gain over NCCL or "
        "RCCL, which search several rings and trees of their own and are often faster; what they "
        f"do here is not modelled: {stock.reason}. topo-run measures it."
    )


def _list_strategies(explanation: Explanation) -> str:
    rows = [
        (name, *(f"{value:.3g}" for value in reached))
        for name, reached in sorted(explanation.reached.items(), key=lambda item: -item[1][-1])
    ]
    titles = ("strategy", *map(show_size, SIZES))
    return make_details(
        "algbw in GB/s by strategy and size",
        make_table(titles, rows, right=range(1, len(SIZES) + 1)),
    )


def show_number(value: float, digits: int = 4) -> str:
    """Format a number without an exponent: with few digits, or as an integer if it is large."""
    return f"{value:,.0f}" if value >= 10**digits else f"{value:.{digits}g}"


def _draw_curves(section: Section) -> str:
    limit = None if section.bounds is None else section.bounds.single_path
    caption = "predicted algbw against the size of the buffer; dashed, the single-path bound"
    caption += "" if section.stock is None else f"; {section.stock.what}, predicted"
    stock = section.stock
    if stock is not None and stock.needs_adding:
        caption += ", with switches that add; the bound is that without"
    beside = [] if stock is None else [make_curve(stock, list_sizes(section.plan))]
    picture = draw_plan_curves(section.collective, section.plan, beside, limit)
    return make_figure(picture, caption, "curve")


def draw_schedule(plan: Plan) -> list[str]:
    """Return HTML with pictures of the plan's schedule for large buffers: its trees and timelines.

    These are the parts of a section, in order. Flows of chunks that are not trees are drawn in the
    same way. With many GPUs a line says that nothing is drawn.
    """
    topology, whole = plan.topology, plan.entry_for(SHOWN_SIZE).schedule
    # Fewer segments keep transfers visible.
    schedule = replace(whole, segments=min(whole.segments, _SHOWN_SEGMENTS))
    parts = [f"<h3>How {show_size(SHOWN_SIZE)} travel: {schedule.strategy}</h3>"]
    if len(topology.ranks) > MAX_GPUS:
        text = f"with more than {MAX_GPUS} GPUs trees and timeline are not drawn"
        return [*parts, make_paragraph(text, soft=True)]
    sent = reroute(schedule.uncut, plan.router)
    flows = list_flows(sent)
    drawn = "".join(f"<figure>{draw_flow(topology, x)}</figure>" for x in flows[:_MAX_FLOWS])
    more = f"; {len(flows) - _MAX_FLOWS} more are not drawn" if len(flows) > _MAX_FLOWS else ""
    text = (
        f"how chunks flow between GPUs ({len(flows)} different flows{more}): dashed, data that is "
        "added; solid, copies; with two heads, sums go in one direction and come back in the "
        "other; earlier steps are stronger"
    )
    parts += [f'<div class="grid">{drawn}</div>', make_paragraph(text, soft=True)]
    if len(sent.transfers) * schedule.segments > _MAX_SHOWN:
        return parts
    try:
        times = predict_times(schedule, topology, SHOWN_SIZE, host_of(topology))
    except TopoplanError as error:
        return [*parts, make_paragraph(f"no timeline: {error}", soft=True)]
    caption = f"what each rank sends, predicted, for {show_size(SHOWN_SIZE)}"
    if whole.segments > schedule.segments:
        caption += (
            f"; in {schedule.segments} segments instead of {whole.segments}, so that single "
            "messages can be seen"
        )
    if len(topology.ranks) > MAX_ROWS:
        caption += f"; the first {MAX_ROWS} of {len(topology.ranks)} ranks"
    timeline = make_figure(
        draw_timeline(
            f"timeline of {schedule.label}", times, len(topology.ranks), width=_BESIDE_WIDTH
        ),
        f"{caption}. topo-synth writes it as a trace for Perfetto",
        "curve",
    )
    links = make_figure(
        draw_links(f"links of {schedule.label}", times, topology, width=_BESIDE_WIDTH),
        f"the same link by link, the busiest {MAX_ROWS} at most, with the share of the time for "
        "which each is full",
        "curve",
    )
    return [*parts, make_beside([timeline], [links])]
