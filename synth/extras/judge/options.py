"""The bounds of a collective on a machine, and the alternatives that the machine could run.

Alternatives are a graph file for NCCL, one ring in the best rank order, and a plan. A graph file
gives NCCL its rings and trees. Helpers are GPUs of the machine that take no part in a collective
and forward data for it. Each search has TIME_LIMIT_S seconds, that of a graph file a minute.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from ....topo.errors import InfeasibleError, TopoplanError
from ....topo.graph import Device, Link, Topology
from ....topo.routes import Router
from ...bounds.assumptions import Assumption, find_links, list_assumptions
from ...bounds.certificate import Bound
from ...bounds.group_bounds import SubMachine
from ...bounds.in_network import (
    bound_in_network,
    describe_assumption,
    describe_possible,
    list_possible,
)
from ...bounds.single_path import find_bounds
from ...ir.collective import Collective
from ...numeric.effort import Effort
from ...plan import Plan
from ...planner.synthesize import synthesize
from ...request import Request
from ..nccl_files.offer import offer_graph_file
from ..place.job import WHOLE
from ..place.placing import place
from ..stock.constants import OVER_RINGS
from .machine import count_hosts
from .rates import rate_rings

# Time limit of each search: a log names few collectives, and a person waits for the answer.
TIME_LIMIT_S = 20.0
# Most GPUs for a search of channels: one node, since a graph file describes a node.
_MAX_CHANNEL_RANKS = 16
# Most GPUs for rank orders and plans, which take seconds; topo-place and topo-synth do more.
_MAX_ORDERED_RANKS = _MAX_PLAN_RANKS = 64
# Longest rank order, in GPUs, to list in full.
_MAX_NAMED = 16

# Share of the rate of its channels, or of the links, from which a measurement counts as reaching
# it: latency and protocol take the rest even at large sizes.
NEAR = 0.85
# The same of links at datasheet rates that carry data in packets of their own: NCCL itself counts
# four fifths of an NVLink or xGMI link (20 of 25 GB/s on an A100).
_NEAR_DATASHEET = 0.8 * NEAR
_DATASHEET_KINDS = ("nvlink", "xgmi")

# Share of an NVSwitch link's datasheet rate that allreduces by NVLS reach: .52 to .61 in published
# results of 6 to 8 H200 and B200 (benchmarks/published.py).
_NVLS_SHARE = 0.6
# Multiple of the bound without sums in switches from which NVLS is worth it on one host: NCCL takes
# it from 5 H200 or 6 B200 on, and 4 have 1.5.
_WORTH_NVLS = Fraction(3, 2)

# Multiple of a bound from which a measurement counts as above it: tables round rates to two digits.
ROUNDING = 1.005
# The same of links at NCCL's count: PCIe Gen3 x16 carries up to 15.75 GB/s and counts as 12, an
# NVLink 25 and counts as 20.
_ABOVE_COUNTED = {"pcie": 15.75 / 12, "nvlink": 25 / 20}

# Largest denominator of a rate that an export states as a float.
_MAX_DENOMINATOR = 10**4

GRAPH_FILE, RANK_ORDER, PLAN = "graph-file", "rank-order", "plan"
# With more GPUs, the help that those could give which take no part is not computed.
_MAX_HELPED_RANKS = 32


@dataclass(frozen=True)
class Limits:
    """The bounds of a collective on a machine, as algbw in GB/s.

    `one_way_GBps` is the single-path bound, `any_way_GBps` the multipath bound, and
    `in_network_GBps` the bound with all switches adding that could (None if none could).
    `assumption` states in words what the first two assume, `rates` the links that the single-path
    bound depends on, and `possible` the switches that could add. `assumes` has what the single-path
    bound depends on that nothing states. `kind` is that of the single-path bound's certificate.
    `is_assumed` is whether no source states the rate of one of its links. Measurements count as
    reaching the bound from the share `near` on, and as exceeding it from `most`: the rates that
    NCCL counts are below those of the links. If a search for a bound was cut short
    (`is_cut_short`), the true limit may be lower, and shares of it higher.

    `nvls_GBps` is the bound if NVSwitches add and no others do, None if there are none that could.
    With `counts_nvls` measurements are held against it, as NCCL is faster by NVLS there; they count
    as reaching it from the share `nvls_near` on.

    If the machine has more GPUs than take part, `alone_GBps` is the single-path bound without the
    others' help, None if there is none without it, and `helped_GBps` that with the help of
    `helpers`: the ranks that did help, for which the other bounds hold too, or else of all others.
    """

    one_way_GBps: Fraction
    any_way_GBps: Fraction
    in_network_GBps: Fraction | None
    assumption: str
    rates: str
    possible: str
    kind: str
    is_assumed: bool = False
    assumes: tuple[Assumption, ...] = ()
    near: float = NEAR
    most: float = ROUNDING
    alone_GBps: Fraction | None = None
    helped_GBps: Fraction | None = None
    helpers: tuple[int, ...] = ()
    is_cut_short: bool = False
    nvls_GBps: Fraction | None = None
    nvls_near: float = NEAR
    counts_nvls: bool = False

    @property
    def guesses(self) -> tuple[str, ...]:
        """What the bound depends on that is guessed: neither stated nor a named board's rate.

        No verdict rests on a bound that depends on guesses.
        """
        return tuple(each.what for each in self.assumes if each.is_guess)


@dataclass(frozen=True)
class Option:
    """An alternative to what a file shows: its name, algbw in GB/s at large sizes, and description.

    Names are "graph-file", "rank-order" and "plan". `settings` has variables that a graph file
    needs.
    """

    name: str
    algbw_GBps: Fraction
    what: str
    settings: str = ""


@dataclass(frozen=True)
class Options:
    """The alternatives for a collective, the plan among them.

    `plan` is None if there is none; `missing` holds the reasons why alternatives are missing.
    """

    options: tuple[Option, ...]
    plan: Plan | None
    missing: tuple[str, ...]

    def best(self, name: str) -> Option | None:
        """Return the fastest option of a name; None if there is none."""
        named = (option for option in self.options if option.name == name)
        return max(named, key=lambda option: option.algbw_GBps, default=None)


def find_limits(collective: Collective, router: Router) -> Limits:
    """Return the bounds of a collective. Raise InfeasibleError if GPUs are not connected."""
    topology, effort = router.topology, Effort(TIME_LIMIT_S)
    bounds = find_bounds(collective, router, effort)
    in_network = bound_in_network(collective, topology, bounds.multipath, effort)
    nvls = _find_nvls_bound(collective, topology, bounds.multipath, effort, in_network)
    one_way = bounds.single_path.algbw_GBps
    links = find_links(bounds.single_path.certificate, topology)
    is_datasheet = any(x.kind in _DATASHEET_KINDS and not x.counted_by for x in links)
    return Limits(
        one_way,
        bounds.multipath.algbw_GBps,
        None if in_network is None else in_network.algbw_GBps,
        f"a single path per pair of GPUs, {describe_assumption(topology)}, the topology's rates",
        describe_links(links, topology),
        describe_possible(topology),
        bounds.single_path.kind,
        any(link.is_assumed for link in links),
        list_assumptions(bounds.single_path, topology),
        _NEAR_DATASHEET if is_datasheet else NEAR,
        max((_find_room(link) for link in links), default=ROUNDING),
        is_cut_short=bool(effort.cut_short),
        nvls_GBps=nvls,
        nvls_near=NEAR if nvls is None else _find_near_by_nvls(nvls, topology),
        counts_nvls=nvls is not None
        and nvls > one_way * (1 if count_hosts(topology) > 1 else _WORTH_NVLS),
    )


def _is_nvls_switch(device: Device) -> bool:
    return device.family == "nvswitch" and device.in_network is not None


def _find_nvls_bound(
    collective: Collective,
    topology: Topology,
    limit: Bound,
    effort: Effort,
    in_network: Bound | None,
) -> Fraction | None:
    """Return the bound in GB/s of an allreduce if NVSwitches add, and no other switch does.

    `limit` is the multipath bound, `in_network` that with all switches adding that could. None if
    no NVSwitch could add, or the collective is another: NVLS gains little for those.
    """
    possible = list_possible(topology)
    by_nvls = [device for device in possible if _is_nvls_switch(device)]
    if collective.name != "allreduce" or in_network is None or not by_nvls:
        return None
    if len(by_nvls) == len(possible):
        return in_network.algbw_GBps
    others = {device.id for device in possible} - {device.id for device in by_nvls}
    devices = (replace(d, in_network=None) if d.id in others else d for d in topology.devices)
    alone = replace(topology, devices=tuple(devices))
    found = bound_in_network(collective, alone, limit, effort)
    return None if found is None else found.algbw_GBps


def _find_near_by_nvls(bound_GBps: Fraction, topology: Topology) -> float:
    """Return the share of the bound with NVLS from which a measurement counts as reaching it.

    Inside hosts NVLS reaches a part of the datasheet's rate; other links may limit more.
    """
    switches = {device.id for device in topology.devices if _is_nvls_switch(device)}
    inside: defaultdict[str, Fraction] = defaultdict(Fraction)
    for (src, dst), rate in topology.capacity_GBps.items():
        if dst in switches and src in topology.ranks:
            inside[src] += rate
    reached = min(float(bound_GBps), _NVLS_SHARE * float(min(inside.values(), default=bound_GBps)))
    return NEAR * reached / float(bound_GBps)


def find_part_limits(
    collective: Collective, router: Router, members: Sequence[int], helpers: Sequence[int]
) -> Limits:
    """Return the bounds of some GPUs of a machine, with the help of others, or without.

    `collective` is over the members alone, and the router that of the whole machine. Raise
    InfeasibleError if the GPUs are not connected.
    """
    name, root, everyone = collective.name, collective.root, range(len(router.topology.ranks))
    group = Collective(name, len(members), None if root is None else members[root], members)
    alone = SubMachine.of(group, router, members)
    if not helpers:
        limits = find_limits(alone.collective, alone.router)
        limits = replace(limits, alone_GBps=limits.one_way_GBps)
        if len(everyone) > _MAX_HELPED_RANKS:
            return limits
        whole = SubMachine.of(group, router, everyone)
        helped = whole.find_bounds(Effort(TIME_LIMIT_S)).single_path
        return limits if helped.is_cut_short else replace(limits, helped_GBps=helped.algbw_GBps)
    usable = SubMachine.of(group, router, (*members, *helpers))
    limits = find_limits(usable.collective, usable.router)
    try:
        without = alone.find_bounds(Effort(TIME_LIMIT_S)).single_path.algbw_GBps
    except InfeasibleError:
        without = None
    return replace(
        limits, alone_GBps=without, helped_GBps=limits.one_way_GBps, helpers=tuple(helpers)
    )


def find_helped_options(
    collective: Collective, router: Router, members: Sequence[int], helpers: Sequence[int]
) -> Options:
    """Return the plan for some GPUs of a machine with the help of others, as the only option.

    Arguments are those of `find_part_limits`. The plan is missing, with the reason, if none is
    found.
    """
    root = None if collective.root is None else members[collective.root]
    group = Collective(collective.name, len(members), root, members)
    try:
        made = synthesize(
            Request(
                group,
                router.topology,
                Effort(TIME_LIMIT_S),
                router=router,
                strategy="packing",
                helpers=tuple(helpers),
            )
        )
    except TopoplanError as error:
        return Options((), None, (f"plan: {error}",))
    what = "a plan by topoplan with the same helpers (topo-synth, topo-run)"
    return Options(_rate_plan(made.plan, what), made.plan, ())


def _find_room(link: Link) -> float:
    """Return the multiple of a link's rate up to which it may carry data."""
    is_counted = link.counted_by or (link.kind == "pcie" and link.is_assumed)
    return _ABOVE_COUNTED.get(link.kind, ROUNDING) if is_counted else ROUNDING


def describe_links(links: list[Link], topology: Topology) -> str:
    """List links by kind and rate: "8 x pcie 12 GB/s (...)"."""
    counts: Counter[tuple[str, Fraction]] = Counter()
    sources: dict[tuple[str, Fraction], str] = {}
    for link in links:
        key = link.kind, topology.capacity_GBps[link.src, link.dst]
        counts[key] += 1
        if link.source:
            sources.setdefault(key, f" ({link.source})")
    listed = [
        f"{count} x {key[0]} {float(key[1]):g} GB/s{sources.get(key, '')}"
        for key, count in sorted(counts.items(), key=lambda item: -item[1])
    ]
    return ", ".join(listed[:3]) + (" ..." if len(listed) > 3 else "")


def find_options(collective: Collective, router: Router) -> Options:
    """Return the alternatives on a machine, and the reason for each that is missing."""
    options: list[Option] = []
    missing: list[str] = []

    def attempt(what: str, find: Callable[[], Option]) -> None:
        try:
            options.append(find())
        except TopoplanError as error:
            missing.append(f"{what}: {error}")

    if collective.name in OVER_RINGS:
        if count_hosts(router.topology) > 1:
            missing.append(
                "graph files say what happens inside a node; give the topology of one to see what "
                "they would do"
            )
        elif collective.ranks > _MAX_CHANNEL_RANKS:
            missing.append(f"rings and chains are searched for at most {_MAX_CHANNEL_RANKS} GPUs")
        else:
            attempt("graph file", lambda: _find_graph_file(collective, router))
        if collective.ranks > _MAX_ORDERED_RANKS:
            missing.append(
                f"rank orders are searched for at most {_MAX_ORDERED_RANKS} GPUs (topo-place "
                "finds them for more)"
            )
        else:
            attempt("rank order", lambda: _find_rank_order(collective, router))
    # The plan also predicts the times of all sizes of a table.
    plan = None
    if collective.ranks > _MAX_PLAN_RANKS:
        missing.append(
            f"plans are made for at most {_MAX_PLAN_RANKS} GPUs (topo-synth makes them for more)"
        )
    else:
        try:
            effort = Effort(TIME_LIMIT_S)
            wanted = Request(collective, router.topology, effort, router=router, strategy="packing")
            plan = synthesize(wanted).plan
        except TopoplanError as error:
            missing.append(f"plan: {error}")
    if plan is not None:
        options += _rate_plan(plan, "a plan by topoplan (topo-synth, topo-run)")
    return Options(tuple(options), plan, tuple(missing))


def _rate_plan(plan: Plan, what: str) -> tuple[Option, ...]:
    """Return a plan as an option at its highest rate; none if no entry of it has a limit."""
    limits = [limit for e in plan.entries if (limit := plan.limit_GBps(e)) is not None]
    return (Option(PLAN, max(limits), what),) if limits else ()


def _find_graph_file(collective: Collective, router: Router) -> Option:
    """Return the file that topo-synth writes, on NCCL's routes at the rates of the topology.

    Raise InfeasibleError if it writes none, since stock NCCL is as good by the model of it.
    """
    figures = (made := offer_graph_file(collective, router)).figures
    rates = {
        name: Fraction(rate).limit_denominator(_MAX_DENOMINATOR)
        for name, rate in figures["algbw_GBps"].items()
        if rate
    }
    picked = figures.get("picked") or max(rates, key=lambda name: rates[name])
    if collective.name != "allreduce":
        picked = "rings"
    count = figures["channels"]
    return Option(
        GRAPH_FILE,
        rates[picked],
        f"{count} {picked if count > 1 else picked[:-1]} through all GPUs",
        "".join(f" {name}={value}" for name, value in made.environment.items()),
    )


def _find_rank_order(collective: Collective, router: Router) -> Option:
    """Return one ring in the best rank order, as found by topo-place, with its algbw."""
    placed = place(
        router.topology, traffic=f"{WHOLE}={collective.name}:1G", time_limit_s=TIME_LIMIT_S
    )
    try:
        rate = rate_rings(collective.name, [placed.order], router)
    except InfeasibleError:
        raise InfeasibleError(
            "every ring through all GPUs has neighbours connected through other GPUs only"
        ) from None
    named = len(placed.gpus) <= _MAX_NAMED
    order = f"the order {', '.join(placed.gpus)}" if named else "the best order of ranks"
    return Option(RANK_ORDER, rate.algbw_GBps, f"one ring in {order}")
