"""What to do about a verdict, in plain sentences."""

from __future__ import annotations

from fractions import Fraction

from ..place.job import WHOLE
from .found import Finding
from .options import GRAPH_FILE, PLAN, RANK_ORDER, Options
from .places import Placed, count_hosts
from .rates import RINGS, TREES, Rate
from .verdict import Channelled, Measured, Verdict

# Of how much a gain is worth a word.
_GAIN = 1.05
# From which share on what was measured counts as what its channels, or links, can do.
_NEAR = 0.85


def advise(verdict: Verdict) -> list[Finding]:
    """Return findings on a verdict's shares, each with what to do."""
    findings: list[Finding] = []
    for channelled in verdict.channelled:
        findings += _advise_on_transports(channelled)
        for name in channelled.rates:
            findings += _advise_on_channels(channelled, name, verdict)
    for measured in verdict.measured:
        findings += _advise_on_measurement(measured, verdict)
    return list(dict.fromkeys(findings))


def gbps(value: Fraction | float) -> str:
    """Return a rate for people: four digits."""
    return f"{float(value):.4g}"


def percent(share: float) -> str:
    """Return a share for people."""
    return f"{share * 100:.3g} %"


def describe_limit(rate: Rate) -> str:
    """Return which link limits channels, and how often they cross it."""
    counts = sorted({count for count in rate.crossings if count})
    times = " or ".join(
        {1: "once", 2: "twice"}.get(count, f"{count} times") for count in counts[:3]
    )
    crossing = rate.crossing_channels
    who = (
        f"by {'each of ' if crossing == rate.channels and crossing > 1 else ''}{crossing} of "
        f"{rate.channels} channels"
        if crossing != rate.channels
        else ("by its one channel" if crossing == 1 else f"by each of its {crossing} channels")
    )
    others = rate.alike - 1
    more = (
        f"; {others} more {'link is' if others == 1 else 'links are'} as busy" if others > 0 else ""
    )
    return f"limited by {rate.link[0]} -> {rate.link[1]} ({gbps(rate.link_GBps)} GB/s{more}), crossed {times} {who}"


def _advise_on_transports(channelled: Channelled) -> list[Finding]:
    """Return findings on how GPUs of one host reach each other."""
    transports = channelled.communicator.transports
    shared, direct = (
        transports.get("SHM", 0),
        sum(n for name, n in transports.items() if name.startswith("P2P")),
    )
    if not shared:
        return []
    some = (
        f"{shared} of {shared + direct} connections inside hosts"
        if direct
        else "connections between GPUs of a host"
    )
    return [
        Finding(
            "shared-memory",
            f"{some} go through host memory (SHM), not GPU to GPU",
            "look whether P2P is refused: topo-probe --check names ACS, the IOMMU or the driver; "
            "the bound here supposes that "
            "GPUs reach each other directly",
        )
    ]


def _advise_on_channels(channelled: Channelled, collective: str, verdict: Verdict) -> list[Finding]:
    """Return what the channels of a communicator leave, and what gives more."""
    taken, limits = channelled.judged(collective), channelled.limits[collective]
    options = channelled.options[collective]
    share = channelled.share(collective)
    if taken is None or share is None:
        return []
    findings = []
    rings, trees = channelled.rate(collective, RINGS), channelled.rate(collective, TREES)
    other = trees if taken is rings else rings
    if channelled.taken.startswith("NVLS") and collective == "allreduce":
        added = f", up to {gbps(limits.in_network_GBps)} GB/s" if limits.in_network_GBps else ""
        findings.append(
            Finding(
                f"nvls-{collective}",
                f"NCCL takes NVLS for large {collective}s: switches add{added}; its rings and "
                "trees are "
                "what is left without it",
                "nothing: leave it alone, and hold measurements against the bound for switches "
                "that add",
            )
        )
        return findings
    if (
        other is not None
        and channelled.taken in ("RING", "TREE")
        and other.algbw_GBps > taken.algbw_GBps * Fraction(_GAIN)
    ):
        name = "Tree" if other.shape == TREES else "Ring"
        findings.append(
            Finding(
                f"tuner-{collective}",
                f"the tuner takes {taken.shape} ({gbps(taken.algbw_GBps)} GB/s), and "
                f"{other.shape} would reach "
                f"{gbps(other.algbw_GBps)} GB/s",
                f"a graph file with true speeds lets the tuner choose by size; NCCL_ALGO={name} "
                "forces it at all sizes",
            )
        )
    findings += _offer(
        collective,
        taken.algbw_GBps,
        f"what {taken.shape} reach",
        share,
        options,
        verdict,
        channelled.placed,
    )
    return findings


def _offer(
    collective: str,
    now: Fraction,
    what: str,
    share: float,
    options: Options,
    verdict: Verdict,
    placed: Placed | None,
) -> list[Finding]:
    """Return what would give more than `now`, or that nothing would; `placed`: where the ranks
    run.
    """
    file, plan, order = options.best(GRAPH_FILE), options.best(PLAN), options.best(RANK_ORDER)
    name, machine = f"offer-{collective}", verdict.machine.argument
    better = Fraction(_GAIN)
    in_order = None if order is None or order.algbw_GBps <= now * better else order
    if file is not None and file.algbw_GBps > now * better:
        command = f"topo-synth --collective {collective} --topology {machine} --format nccl-graph -o graph.xml"
        text = (
            f"a graph file ({file.what}) would reach {gbps(file.algbw_GBps)} GB/s, "
            f"{float(file.algbw_GBps / now):.2f} times "
            f"{what}"
        )
        if in_order is not None:
            text += f"; {in_order.what} alone would reach {gbps(in_order.algbw_GBps)}"
        return [Finding(name, text, f"{command}; then run with NCCL_GRAPH_FILE=graph.xml")]
    findings = []
    if in_order is not None and placed is not None and count_hosts(placed.topology) > 1:
        times = f"{float(in_order.algbw_GBps / now):.2f} times"
        text = f"{in_order.what} would reach {gbps(in_order.algbw_GBps)} GB/s, {times} {what}"
        findings.append(
            Finding(
                f"order-{collective}",
                text,
                f"start ranks in that order: {_place(collective, verdict, placed)}",
            )
        )
    if plan is not None and plan.algbw_GBps > now * better:
        return [
            *findings,
            Finding(
                name,
                f"a plan would reach {gbps(plan.algbw_GBps)} GB/s, "
                f"{float(plan.algbw_GBps / now):.2f} times {what}; no rings "
                "or chains found here would",
                f"topo-synth --collective {collective} --topology {machine} -o plan.json; then "
                "topo-run plan.json, or the "
                "hook",
            ),
        ]
    if findings:
        return findings
    if share >= 1 / _GAIN:
        return [
            Finding(
                name,
                f"{what} is {percent(min(share, 1.0))} of the bound",
                "nothing: leave it alone",
            )
        ]
    return [
        Finding(name, f"nothing was found that reaches {_GAIN:.2f} times {what}", "leave it alone")
    ]


def _place(collective: str, verdict: Verdict, placed: Placed) -> str:
    """Return the topo-place command that finds an order of a file's ranks, against the one that
    they have.
    """
    machine = verdict.machine.topology
    numbers = {gpu: i for i, gpu in enumerate(machine.ranks)} if machine is not None else {}
    present = [numbers[placed.topology.ranks[gpu]] for gpu in placed.gpu_of]
    free = sorted(set(numbers.values()) - set(present))
    words = ["topo-place", verdict.machine.argument]
    if collective != "allreduce":
        words += ["--traffic", f"{WHOLE}={collective}:1G"]
    if free:
        words += ["--reserve", ",".join(map(str, free))]
    if present != sorted(present):
        words += ["--order", ",".join(map(str, present))]
    return " ".join(words)


def _advise_on_measurement(measured: Measured, verdict: Verdict) -> list[Finding]:
    """Return what a measurement says beside its bound, and beside what its channels could carry."""
    limits, peak = measured.limits, measured.peak
    if limits is None or peak.share is None:
        return []
    name, algbw = measured.collective, peak.measured.algbw_GBps
    if measured.is_above:
        return [_explain_above(measured)]
    findings = []
    rates = [
        rate
        for c in verdict.channelled
        if c.communicator.ranks == measured.ranks
        and (rate := c.judged(name)) is not None
        and not c.taken.startswith("NVLS")
    ]
    if rates:
        most = max(rates, key=lambda rate: rate.algbw_GBps)
        part = algbw / float(most.algbw_GBps)
        if part < _NEAR:
            findings.append(
                Finding(
                    f"below-channels-{name}",
                    f"{name} was measured at {gbps(algbw)} GB/s, {percent(part)} of the "
                    f"{gbps(most.algbw_GBps)} GB/s that its "
                    f"{most.shape} could carry on these links",
                    "what is found is not what is reached: look for slow links (topo-probe "
                    "--measure), P2P through host "
                    "memory, other jobs, and whether the largest size was large enough",
                )
            )
        return findings
    if measured.options is not None and peak.share < _NEAR:
        return _offer(name, Fraction(algbw).limit_denominator(10**6) or Fraction(1, 10**6), "what was measured",
                      peak.share, measured.options, verdict, measured.placed)  # fmt: skip
    if peak.share >= _NEAR:
        findings.append(
            Finding(
                f"near-bound-{name}",
                f"{name} was measured at {percent(peak.share)} of the bound",
                "leave it alone",
            )
        )
    return findings


def _explain_above(measured: Measured) -> Finding:
    """Return that more was measured than the bound allows, and which assumption is probably
    wrong.
    """
    limits, peak = measured.limits, measured.peak
    assert limits is not None and peak.share is not None
    algbw = peak.measured.algbw_GBps
    text = (
        f"{measured.collective} was measured at {gbps(algbw)} GB/s, {percent(peak.share)} of the "
        "bound of "
        f"{gbps(limits.one_way_GBps)} GB/s: an assumption of the bound is wrong"
    )
    if (
        limits.in_network_GBps is not None
        and algbw <= float(limits.in_network_GBps) * 1.005
        and (limits.in_network_GBps > limits.any_way_GBps)
    ):
        why = (
            "probably that no switch adds: NVLS lets NVSwitches add, and then the bound is "
            f"{gbps(limits.in_network_GBps)} "
            f"GB/s ({percent(algbw / float(limits.in_network_GBps))} of it); {limits.possible}"
        )
    elif algbw <= float(limits.any_way_GBps) * 1.005 and limits.any_way_GBps > limits.one_way_GBps:
        why = (
            "probably that a pair of GPUs has one way: for any use of the links the bound is "
            f"{gbps(limits.any_way_GBps)} GB/s"
        )
    else:
        why = (
            f"probably a rate of the topology, taken too low: {limits.rates}; or the topology is "
            "another machine's. Measure "
            "the links with topo-probe --measure"
        )
        if limits.in_network_GBps is not None:
            why += (
                f" (even with switches that add the bound is {gbps(limits.in_network_GBps)} GB/s)"
            )
    return Finding(f"above-bound-{measured.collective}", text, why)
