"""The screen of `topoplan worth`: the machine, its bottleneck, stock, the plan, and what to use."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ....topo.pictures.cables import FAMILY_NAMES, format_rate
from ...bounds.assumptions import explain_assumptions, find_links, list_assumptions
from ...describe import limit_text
from ...sizes import show_size
from .worth import BACKEND, FILE, HOOK, KEEP, NEVER_TIMED, Worth

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...plan import Plan

# Links of the bottleneck that are named; more are counted.
_MAX_NAMED = 2


def list_rows(
    plan: Plan, worth: Worth, subject: str, prepare: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Return the rows of the screen, each a label, such as "bottleneck", and a line of text.

    `worth` is the plan beside the stock library (what NCCL or RCCL does by itself). `subject` names
    the topology in the commands that the screen shows to be copied; the lines `prepare` come before
    them, if there are any.
    """
    rows = [
        ("machine", _describe_machine(plan)),
        ("bottleneck", _describe_bottleneck(plan)),
        ("stock", _describe_stock(worth)),
        ("plan", _describe_plan(plan, worth)),
        ("answer", worth.verdict if worth.advice or worth.ratio else "none without stock's rate"),
    ]
    steps = _list_steps(plan, worth, subject)
    rows += [("do", line) for line in (*(prepare if steps else ()), *steps)]
    return rows + [("rests on", line) for line in _list_grounds(plan, worth)]


def join_plural(noun: str, number: int) -> str:
    """Return a noun in the number: "link", "links", "switches"."""
    ending = "es" if noun.endswith("ch") else "s"
    return noun if number == 1 else noun + ending


def _describe_machine(plan: Plan) -> str:
    topology = plan.topology
    others = Counter(
        FAMILY_NAMES[d.family] if d.family else d.kind.upper()
        for d in topology.devices
        if d.kind != "gpu"
    )
    listed = ", ".join(f"{number} {join_plural(kind, number)}" for kind, number in others.items())
    gpus = f"{len(topology.ranks)} GPUs"
    return f"{topology.name}: {gpus}{f', {listed}' if listed else ''}"


def _describe_bottleneck(plan: Plan) -> str:
    bound = plan.bound_one_way
    links = find_links(bound.certificate, plan.topology)
    named = ", ".join(
        f"{link.src} -> {link.dst} ({link.kind} {format_rate(link.bandwidth_GBps)})"
        for link in links[:_MAX_NAMED]
    )
    left = len(links) - _MAX_NAMED
    more = f" and {left} more {join_plural('link', left)}" if left > 0 else ""
    of_gpus = " in which GPUs add" if plan.collective.reduces else ""
    return (
        f"{named}{more}: no {plan.collective.name}{of_gpus} is faster than "
        f"{limit_text(bound)} GB/s algbw with one route per pair of GPUs (proved)"
    )


def _describe_stock(worth: Worth) -> str:
    if worth.stock_GBps is None:
        return f"not known: {worth.reason}"
    most = "at most " * worth.is_limit
    return f"{worth.stock_name} {most}{worth.stock_GBps:.4g} GB/s: {worth.stock_basis}"


def _describe_plan(plan: Plan, worth: Worth) -> str:
    entry = plan.entry_for(worth.size_bytes)
    share = worth.plan_GBps / float(plan.bound_one_way.algbw_GBps)
    ratio = ""
    if worth.ratio is not None:
        ratio = f"{'at least ' * worth.is_limit}{worth.ratio:.2f}x stock, "
    return (
        f"{worth.plan_GBps:.4g} GB/s predicted at {show_size(worth.size_bytes)}{worth.condition}: "
        f"{ratio}{share:.1%} of that bound ({entry.schedule.strategy})"
    )


def _list_steps(plan: Plan, worth: Worth, subject: str) -> list[str]:
    name = plan.collective.name
    synth = f"topo-synth {name} {subject}"
    if worth.advice is None or worth.advice == KEEP:
        return []
    if worth.advice == FILE:
        return [
            f"{synth} --format nccl-graph -o graph.xml; it names the settings that the file needs",
            "then NCCL_GRAPH_FILE=graph.xml for the job",
            'without a file: the DDP hook (topoplan.ddp_hook("plan.json")) or the backend '
            '(init_process_group("topo"))',
        ]
    backend = 'init_process_group("topo") with TOPOPLAN_PLANS=auto: DDP, FSDP and plain calls'
    hook = (
        f"{synth} -o plan.json, then model.register_comm_hook(None, "
        'topoplan.ddp_hook("plan.json")): DDP alone'
    )
    return {HOOK: [hook, backend], BACKEND: [backend]}[worth.advice]


def _list_grounds(plan: Plan, worth: Worth) -> list[str]:
    bounds = (plan.bound_one_way, plan.bound)
    assumed = (x for bound in bounds for x in list_assumptions(bound, plan.topology))
    lines = [*dict.fromkeys(explain_assumptions(assumed)), *worth.assumes]
    if worth.stock_GBps is not None:
        lines.append(f"models of the library and of the plan, {NEVER_TIMED}; compare before use")
    return lines
