"""The second half of a report: for each collective its bound and what limits it, plans by size,
curves, trees, a timeline.
"""

from __future__ import annotations

from ...topo.errors import TopoplanError
from ...topo.graph import Topology
from ...topo.pictures.cables import format_rate
from ..bounds.in_network import describe_assumption, describe_possible
from ..cost.affine import rounds
from ..cost.host_costs import describe_host, host_of
from ..cost.segmentation import as_sent
from ..cost.transfer_times import predict_times
from ..describe import limit_text, why_text
from ..explain import SIZES, Explanation, Part
from ..pictures.timeline import MOST_ROWS, draw_links, draw_timeline
from ..pictures.trees import MOST_GPUS, draw_way, list_ways
from ..plan import Plan
from ..sizes import show_size
from .curves import draw_plan_curves
from .gather import Section, shown_schedule
from .html import make_details, make_figure, make_paragraph, make_section, make_table

# Bytes at which trees and the timeline are shown.
SHOWN_SIZE = 1 << 28
_SHOWN_SEGMENTS = 4
_MOST_WAYS = 6
# Transfers of a schedule that is drawn as a timeline.
_MOST_SHOWN = 60_000
_COMPARED = tuple(1 << bits for bits in (12, 16, 20, 24, 28, 30))
_MOST_LEVERS, _MOST_NAMED = 6, 8


def write_section(section: Section, topology: Topology, *, with_pictures: bool) -> str:
    """Return the section of one collective; with pictures, its trees and a timeline as well."""
    name = section.collective.name
    parts = [*_write_bounds(section, topology)]
    if section.plan is not None:
        parts += [
            "<h3>The plan, by size</h3>",
            _list_entries(section.plan),
            *_compare(section, section.plan),
        ]
        parts.append(_draw_curves(section))
        if section.explanation is not None:
            parts.append(_list_strategies(section.explanation))
        if with_pictures:
            parts += _draw_schedule(section.plan)
    elif section.stock is not None:
        parts.append(_draw_curves(section))
    if section.missing is not None:
        parts.append(make_paragraph(f"no plan here: {section.missing}"))
    if section.cut_short:
        parts.append(
            make_paragraph(
                f"searches cut short by the report's time limit: {', '.join(section.cut_short)}; "
                "topo-synth, or "
                "--time-limit 60, may find more",
                soft=True,
            )
        )
    return make_section(name, name, *parts)


# -- the bound
# -----------------------------------------------------------------------------------------------------


def _write_bounds(section: Section, topology: Topology) -> list[str]:
    bounds = section.bounds
    if bounds is None:
        return []
    said = [
        f"At most {limit_text(bounds.single_path)} GB/s algbw, whatever the schedule: "
        f"{why_text(bounds.single_path)}."
    ]
    if bounds.single_path != bounds.multipath:
        said[0] = (
            f"At most {limit_text(bounds.single_path)} GB/s algbw with one way a pair of GPUs, as "
            "hardware sends: "
            f"{why_text(bounds.single_path)}."
        )
        said.append(
            f"Could senders divide data over all ways, {limit_text(bounds.multipath)}: "
            f"{why_text(bounds.multipath)}."
        )
    said.append(f"That assumes: {describe_assumption(topology)}.")
    if section.in_network is not None:
        said.append(
            f"{describe_possible(topology)}; then the bound is {limit_text(section.in_network)} "
            "GB/s."
        )
    parts = [make_paragraph(" ".join(said))]
    if section.explanation is not None:
        parts.append(make_paragraph(f"The bottleneck: {_say_bottleneck(section.explanation)}."))
        parts.append(_list_levers(section.explanation))
    return parts


def _name(members: tuple[str, ...]) -> str:
    more = f" ... {len(members)} in all" if len(members) > _MOST_NAMED else ""
    return ", ".join(members[:_MOST_NAMED]) + more


def _say_bottleneck(explanation: Explanation) -> str:
    parts = explanation.parts
    if explanation.kind == "cut":
        what = f"the cut from {_name_part(parts[0])} to {_name_part(parts[1])}"
    elif len(parts) > 1 and all(len(part.gpus) == 1 for part in parts):
        what = f"the links between all {len(parts)} GPUs, each of which must be reached"
    elif len(parts) < 2:
        what = "the priced links"
    else:
        listed = "; ".join(_name_part(part) for part in parts[:4])
        what = f"the links between {listed}" + (" ..." if len(parts) > 4 else "")
    ways = "in the directions that have a price" if explanation.directed else "one way"
    return f"{what}; together they carry {format_rate(explanation.across_GBps)} GB/s {ways}"


def _name_part(part: Part) -> str:
    return f"{{{_name(part.gpus or part.others)}}}"


def _list_levers(explanation: Explanation) -> str:
    rows = []
    for x in explanation.levers[:_MOST_LEVERS]:
        gain = f"{float(x.gain_GBps):.4g}" if x.helps_alone else "none alone"
        wider = "not computed" if x.wider_GBps is None else f"{float(x.wider_GBps):.5g}"
        together = (
            "" if x.together_GBps is None else f"{float(x.together_GBps):.5g} (all {x.peers})"
        )
        rows.append(
            (
                f"{x.a} - {x.b}",
                f"{float(x.bandwidth_GBps):.4g}",
                str(x.alike),
                gain,
                wider,
                together,
            )
        )
    titles = (
        "links to improve first",
        "GB/s",
        "alike",
        "bound rises per GB/s",
        "with 10 % more",
        "all alike with 10 % more",
    )
    return make_table(titles, rows, right=range(1, 6))


# -- plans by size
# -------------------------------------------------------------------------------------------------


def _list_entries(plan: Plan) -> str:
    rows = []
    for entry in plan.entries:
        schedule, limit = entry.schedule, plan.limit_GBps(entry)
        size = SHOWN_SIZE << 2 if entry.max_bytes is None else entry.max_bytes - 1
        size = max(size, entry.min_bytes)
        time_s, number = plan.time_s(entry, size), rounds(schedule, plan.router)
        rows.append(
            (
                show_size(entry.min_bytes), "" if entry.max_bytes is None else show_size(entry.max_bytes), schedule.label,
                f"{len(schedule.chunks):,}", f"{schedule.steps}", "" if number is None else f"{float(number):g}",
                str(schedule.trees or ""), show_number(float(plan.cost_of(entry).alpha_us), 3),
                "" if limit is None else f"{float(limit):.4g}", f"{max(0.0, float(plan.gap_of(entry))):.1%}",
                f"{size / time_s / 1e9 if time_s else 0.0:.4g} at {show_size(size)}",
            )
        )  # fmt: skip
    titles = (
        "from",
        "to",
        "schedule",
        "chunks",
        "steps",
        "rounds",
        "trees",
        "latency us",
        "GB/s at most",
        "gap",
        "predicted GB/s",
    )
    numbers = (0, 1, 3, 4, 5, 6, 7, 8, 9, 10)
    return make_table(titles, rows, right=numbers)


def _compare(section: Section, plan: Plan) -> list[str]:
    """Return the table of the plan beside stock's ring at some sizes."""
    bound = float(plan.bound_one_way.algbw_GBps)
    rows = []
    for size in _COMPARED:
        entry = plan.entry_for(size)
        time_s = plan.time_s(entry, size)
        algbw = size / time_s / 1e9 if time_s else 0.0
        row = [show_size(size), entry.schedule.label, show_number(time_s * 1e6), f"{algbw:.4g}",
               f"{algbw * float(section.collective.bus_factor()):.4g}", f"{algbw / bound:.1%}"]  # fmt: skip
        if section.stock is not None:
            stock_s = section.stock.time_s(size)
            row += [show_number(stock_s * 1e6), f"{stock_s / time_s:.2f}x" if time_s else ""]
        rows.append(row)
    titles = ["size", "schedule", "plan, us", "algbw, GB/s", "busbw, GB/s", "of the bound"]
    if section.stock is not None:
        titles += ["stock's ring, us", "ring / plan"]
    said = f"All times are predicted. Host costs: {describe_host(plan.topology)}."
    if section.stock is not None:
        said += (
            f" Stock is a model too: one {section.stock.what}, costed as the plan is. It is what "
            "a library does that "
            "does not look at the machine; NCCL searches several rings and trees of its own and "
            "is often faster than that: "
            "topo-run measures it."
        )
    return [make_table(titles, rows, right=(0, 2, 3, 4, 5, 6, 7)), make_paragraph(said, soft=True)]


def _list_strategies(explanation: Explanation) -> str:
    rows = [
        (name, *(f"{value:.3g}" for value in reached))
        for name, reached in sorted(explanation.reached.items(), key=lambda item: -item[1][-1])
    ]
    titles = ("strategy", *(show_size(size) for size in SIZES))
    return make_details(
        "algbw in GB/s by strategy and size",
        make_table(titles, rows, right=range(1, len(SIZES) + 1)),
    )


# -- pictures
# ------------------------------------------------------------------------------------------------------


def show_number(value: float, digits: int = 4) -> str:
    """Return a number without an exponent: a few digits where it is small, whole where it is
    large.
    """
    return f"{value:,.0f}" if value >= 10**digits else f"{value:.{digits}g}"


def _draw_curves(section: Section) -> str:
    limit = None if section.bounds is None else section.bounds.single_path
    picture = draw_plan_curves(section.collective, section.plan, section.stock, limit)
    return make_figure(picture, _say_what_curves_are(section), "curve")


def _say_what_curves_are(section: Section) -> str:
    said = "predicted algbw against the size of the buffer; dashed, the bound with one way a pair of GPUs"
    return said + ("" if section.stock is None else f"; stock: {section.stock.what}, predicted")


def _draw_schedule(plan: Plan) -> list[str]:
    """Return the trees (or other ways of chunks) of the plan's schedule for large buffers, and its
    timeline.
    """
    topology = plan.topology
    schedule = shown_schedule(plan, SHOWN_SIZE, _SHOWN_SEGMENTS)
    parts = [f"<h3>How {show_size(SHOWN_SIZE)} travel: {schedule.strategy}</h3>"]
    if len(topology.ranks) > MOST_GPUS:
        parts.append(
            make_paragraph(
                f"with more than {MOST_GPUS} GPUs trees and timeline are not drawn", soft=True
            )
        )
        return parts
    sent = as_sent(schedule.uncut, plan.router)
    ways = list_ways(sent)
    drawn = "".join(f"<figure>{draw_way(topology, way)}</figure>" for way in ways[:_MOST_WAYS])
    more = f"; {len(ways) - _MOST_WAYS} more are not drawn" if len(ways) > _MOST_WAYS else ""
    said = (
        f"the ways that chunks take between GPUs ({len(ways)} different ones{more}): dashed, what "
        "is added; whole, what "
        "it keeps; with two heads, sums go one way and come back the other; earlier steps are "
        "stronger"
    )
    parts.append(f'<div class="grid">{drawn}</div>')
    parts.append(make_paragraph(said, soft=True))
    if len(sent.transfers) * schedule.segments > _MOST_SHOWN:
        return parts
    try:
        entry = plan.entry_for(SHOWN_SIZE).schedule
        times = predict_times(
            shown_schedule(plan, SHOWN_SIZE, _SHOWN_SEGMENTS),
            topology,
            SHOWN_SIZE,
            host_of(topology),
        )
    except TopoplanError as error:
        return [*parts, make_paragraph(f"no timeline: {error}", soft=True)]
    said = f"what each rank sends, predicted, for {show_size(SHOWN_SIZE)}"
    if entry.segments > schedule.segments:
        said += f"; in {schedule.segments} segments instead of {entry.segments}, so that single messages can be seen"
    if len(topology.ranks) > MOST_ROWS:
        said += f"; the first {MOST_ROWS} of {len(topology.ranks)} ranks"
    picture = draw_timeline(f"timeline of {schedule.label}", times, len(topology.ranks))
    parts.append(make_figure(picture, f"{said}. topo-synth --trace writes it for Perfetto"))
    links = draw_links(f"links of {schedule.label}", times, topology)
    listed = f"the same link by link, the busiest {MOST_ROWS} at most, with the share of the time for which each is full"
    parts.append(make_figure(links, listed))
    return parts
