"""Advice on a verdict, in plain sentences."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from ..place.job import WHOLE
from .machine import RankMap, count_hosts
from .options import GRAPH_FILE, PLAN, RANK_ORDER, Options
from .rates import RINGS, TREES, Rate
from .reading import FileFinding
from .verdict import ABOVE, ChannelVerdict, FileVerdict, MeasuredVerdict

# Smallest speedup worth reporting: below it, differences between runs are as large.
_MIN_GAIN = Fraction("1.05")
# Share of the rate of its channels, or of the links, from which a measurement counts as reaching
# it: latency and protocol take the rest even at large sizes.
_NEAR = 0.85

# Formats a command from its name, positional arguments and options, as a user would type it.
Spell = Callable[..., str]


def name_command(command: str, *arguments: str, **options: str) -> str:
    """Name a command with its parameters: "topo-synth (collective allreduce, topology dgx1)"."""
    named = (f"{name} {value}" for name, value in options.items())
    return f"{command} ({', '.join([*arguments, *named])})"


def advise(verdict: FileVerdict, spell: Spell = name_command) -> list[FileFinding]:
    """Return findings on a verdict's shares of the bound, each with what to do about it.

    `spell` formats commands that the advice names.
    """
    adviser = _Adviser(verdict, spell)
    findings: list[FileFinding] = []
    for channels in verdict.communicators:
        findings += _advise_on_transports(channels)
        for name in channels.rates:
            findings += adviser.advise_on_channels(channels, name)
    for measured in verdict.measured:
        findings += adviser.advise_on_measurement(measured)
    return list(dict.fromkeys(findings))


def gbps(value: Fraction | float) -> str:
    """Format a rate in GB/s with four digits."""
    return f"{float(value):.4g}"


def percent(share: float) -> str:
    """Format a share as a percentage."""
    return f"{share * 100:.3g} %"


def describe_limit(rate: Rate) -> str:
    """Describe the link that limits channels, and how often they cross it."""
    counts = sorted(set(rate.crossings) - {0})[:3]
    times = " or ".join({1: "once", 2: "twice"}.get(n, f"{n} times") for n in counts)
    crossing, others = rate.crossing_channels, rate.alike - 1
    channels = "its one channel" if crossing == 1 else f"each of its {crossing} channels"
    if crossing != rate.channels:
        channels = f"{crossing} of {rate.channels} channels"
    more = f"; {others} more {'link is' if others == 1 else 'links are'} as busy" if others else ""
    return (
        f"limited by {rate.link[0]} -> {rate.link[1]} ({gbps(rate.link_GBps)} GB/s{more}), "
        f"crossed {times} by {channels}"
    )


def _advise_on_transports(channels: ChannelVerdict) -> list[FileFinding]:
    transports = channels.communicator.transports
    shared = transports.get("SHM", 0)
    direct = sum(count for name, count in transports.items() if name.startswith("P2P"))
    if not shared:
        return []
    of_all = f"{shared} of {shared + direct} connections inside hosts"
    return [
        FileFinding(
            "shared-memory",
            f"{of_all if direct else 'connections between GPUs of a host'} go through host memory "
            "(SHM), not GPU to GPU",
            "check whether P2P is refused: topo-probe's check names ACS, the IOMMU or the driver; "
            "the bound assumes that GPUs reach each other directly",
        )
    ]


@dataclass(frozen=True)
class _Adviser:
    verdict: FileVerdict
    spell: Spell

    def advise_on_channels(self, channels: ChannelVerdict, collective: str) -> list[FileFinding]:
        """Report how far a communicator's channels are from the bound, and any faster option."""
        taken, share = channels.judged(collective), channels.share(collective)
        if taken is None or share is None:
            return []
        if channels.taken.startswith("NVLS") and collective == "allreduce":
            in_network = channels.limits[collective].in_network_GBps
            up_to = f", up to {gbps(in_network)} GB/s" if in_network else ""
            return [
                FileFinding(
                    f"nvls-{collective}",
                    f"NCCL uses NVLS for large {collective}s: switches add{up_to}; rings and trees "
                    "are what remains without it",
                    "nothing: leave it alone, and compare measurements with the bound for "
                    "switches that add",
                )
            ]
        findings = []
        shape, name = (TREES, "Tree") if taken.shape == RINGS else (RINGS, "Ring")
        other = channels.rate(collective, shape)
        is_sure = channels.taken in ("RING", "TREE")
        if is_sure and other is not None and other.algbw_GBps > taken.algbw_GBps * _MIN_GAIN:
            findings.append(
                FileFinding(
                    f"tuner-{collective}",
                    f"the tuner takes {taken.shape} ({gbps(taken.algbw_GBps)} GB/s), and {shape} "
                    f"would reach {gbps(other.algbw_GBps)} GB/s",
                    "a graph file with true speeds lets the tuner choose by size; "
                    f"NCCL_ALGO={name} forces it at all sizes",
                )
            )
        return findings + self._offer(
            collective,
            taken.algbw_GBps,
            f"what {taken.shape} reach",
            share,
            channels.options[collective],
            channels.rank_map,
        )

    def _offer(
        self,
        collective: str,
        now: Fraction,
        what: str,
        share: float,
        options: Options,
        rank_map: RankMap | None,
    ) -> list[FileFinding]:
        """Return the options that exceed `now`, in GB/s, or a finding that none does."""
        named = (options.best(name) for name in (GRAPH_FILE, PLAN, RANK_ORDER))
        file, plan, order = (o if o and o.algbw_GBps > now * _MIN_GAIN else None for o in named)

        def write(
            finding: str, option: str, algbw: Fraction, more: str, advice: str
        ) -> FileFinding:
            return FileFinding(
                f"{finding}-{collective}",
                f"{option} would reach {gbps(algbw)} GB/s, {float(algbw / now):.2f} times {what}"
                f"{more}",
                advice,
            )

        synth = {"collective": collective, "topology": self.verdict.machine.argument}
        if file is not None:
            command = self.spell("topo-synth", **synth, format="nccl-graph", output="graph.xml")
            more = f"; {order.what} alone would reach {gbps(order.algbw_GBps)}" if order else ""
            advice = f"{command}; then run with NCCL_GRAPH_FILE=graph.xml"
            return [write("offer", f"a graph file ({file.what})", file.algbw_GBps, more, advice)]
        findings = []
        # Inside a host NCCL chooses its own rings whatever the rank order.
        if order is not None and rank_map is not None and count_hosts(rank_map.topology) > 1:
            advice = f"start ranks in that order: {self._place(collective, rank_map)}"
            findings.append(write("order", order.what, order.algbw_GBps, "", advice))
        if plan is not None:
            command = self.spell("topo-synth", **synth, output="plan.json")
            more = "; no rings or chains that were tried would"
            advice = f"{command}; then topo-run plan.json, or the hook"
            findings.append(write("offer", "a plan", plan.algbw_GBps, more, advice))
        if findings:
            return findings
        text, advice = f"no option reaches {float(_MIN_GAIN):.2f} times {what}", "leave it alone"
        if share >= 1 / _MIN_GAIN:
            text = f"{what} is {percent(min(share, 1.0))} of the bound"
            advice = "nothing: leave it alone"
        return [FileFinding(f"offer-{collective}", text, advice)]

    def _place(self, collective: str, rank_map: RankMap) -> str:
        """Return the topo-place command that improves on the present rank order."""
        machine = self.verdict.machine.topology
        numbers = {gpu: i for i, gpu in enumerate(machine.ranks)} if machine is not None else {}
        present = [numbers[rank_map.topology.ranks[gpu]] for gpu in rank_map.gpu_of]
        options = {
            "traffic": f"{WHOLE}={collective}:1G" if collective != "allreduce" else "",
            "reserve": ",".join(map(str, sorted(set(numbers.values()) - set(present)))),
            "order": ",".join(map(str, present)) if present != sorted(present) else "",
        }
        given = {name: value for name, value in options.items() if value}
        return self.spell("topo-place", self.verdict.machine.argument, **given)

    def advise_on_measurement(self, measured: MeasuredVerdict) -> list[FileFinding]:
        """Compare a measurement with its bound, and with what its channels could carry."""
        peak, name, algbw = measured.peak, measured.collective, measured.peak.measured.algbw_GBps
        if measured.limits is None or peak.share is None:
            return []
        if measured.is_above:
            return [_explain_above(measured)]
        rates = [
            rate
            for c in self.verdict.communicators
            if c.communicator.ranks == measured.ranks
            and (rate := c.judged(name)) is not None
            and not c.taken.startswith("NVLS")
        ]
        if rates:
            fastest = max(rates, key=lambda rate: rate.algbw_GBps)
            part = algbw / float(fastest.algbw_GBps)
            finding = FileFinding(
                f"below-channels-{name}",
                f"{name} was measured at {gbps(algbw)} GB/s, {percent(part)} of the "
                f"{gbps(fastest.algbw_GBps)} GB/s that its {fastest.shape} could carry on these "
                "links",
                "the channels can do more: look for slow links (topo-probe can measure them), P2P "
                "through host memory, other jobs, and whether the largest size was large enough",
            )
            return [finding] if part < _NEAR else []
        if peak.share >= _NEAR:
            return [
                FileFinding(
                    f"near-bound-{name}",
                    f"{name} was measured at {percent(peak.share)} of the bound",
                    "leave it alone",
                )
            ]
        if measured.options is None:
            return []
        # A rate below 1 KB/s would round to 0, and no ratio to 0 exists.
        now = Fraction(algbw).limit_denominator(10**6) or Fraction(1, 10**6)
        return self._offer(
            name, now, "what was measured", peak.share, measured.options, measured.rank_map
        )


def _explain_above(measured: MeasuredVerdict) -> FileFinding:
    limits, peak = measured.limits, measured.peak
    assert limits is not None and peak.share is not None
    algbw, in_network = peak.measured.algbw_GBps, limits.in_network_GBps
    if in_network and limits.any_way_GBps < in_network and algbw <= float(in_network) * ABOVE:
        why = (
            "probably that no switch adds: NVLS lets NVSwitches add, and then the bound is "
            f"{gbps(in_network)} GB/s ({percent(algbw / float(in_network))} of it); "
            f"{limits.possible}"
        )
    elif algbw <= float(limits.any_way_GBps) * ABOVE and limits.any_way_GBps > limits.one_way_GBps:
        why = (
            "probably that a pair of GPUs has a single path: the multipath bound is "
            f"{gbps(limits.any_way_GBps)} GB/s"
        )
    else:
        why = (
            f"probably a rate of the topology, assumed too low: {limits.rates}; or the topology is "
            "another machine's. Measure the links with topo-probe"
        )
        if in_network is not None:
            why += f" (even with switches that add the bound is {gbps(in_network)} GB/s)"
    return FileFinding(
        f"above-bound-{measured.collective}",
        f"{measured.collective} was measured at {gbps(algbw)} GB/s, {percent(peak.share)} of the "
        f"bound of {gbps(limits.one_way_GBps)} GB/s: an assumption of the bound is wrong",
        why,
    )
