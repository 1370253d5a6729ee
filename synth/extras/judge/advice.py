"""Advice on a verdict, in plain sentences.

A verdict compares a file's measurements and channels (rings and trees) with the machine's bound.
Alternatives that the machine could run (a graph file for NCCL, another rank order, a plan) are
offered if they exceed stock NCCL or RCCL, and what was measured, by 5 %. Stock's rate is on paper:
at large sizes, with every link at its rate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from ....topo.extras.machine_details.p2p_or_memory import THROUGH_MEMORY, find_faster
from ....topo.facts.view import WIRES
from ....topo.graph import Topology
from ..place.job import WHOLE
from ..stock.model import list_refused_p2p
from .file_contents import FileFinding, Measurement
from .machine import RankMap, count_hosts
from .options import GRAPH_FILE, NEAR, PLAN, RANK_ORDER, ROUNDING, Limits, Options
from .paper import Stock, find_model, find_stock
from .ranking import is_healthy
from .rates import RINGS, TREES, Rate
from .verdict import OFF, ON, UNKNOWN, ChannelVerdict, FileVerdict, MeasuredVerdict

# Smallest speedup worth reporting: below it, differences between runs are as large.
_MIN_GAIN = Fraction("1.05")
# Share of the best rate at a smaller size below which a rate counts as fallen: where a library
# changes its protocol or algorithm, healthy tables lose up to a fifth.
_FALL = 0.7
# Smallest size in bytes at which a fall can matter: below it latency decides, which varies.
_MIN_FALL_BYTES = 1 << 16
# Smallest share of the best rate that a size must reach before a fall from it can matter: below it,
# too, latency decides.
_MIN_FALL_SHARE = 0.1
# Share of a plan's rate that its model must reach at the largest size for that to tell of links:
# below it, latency takes more of the time than data.
_MIN_FILLED = 0.5
# Findings that say that GPUs do not reach each other directly, as every offer assumes.
_NO_P2P = ("p2p-refused", "p2p-refused-cuda", "shared-memory")
# The finding that names the file from which NCCL takes the machine.
_TOPOLOGY_FILE = "variable-nccl_topo_file"

# Binary units, since message sizes are nearly always powers of two.
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
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
    findings = [f for channels in verdict.communicators for f in _advise_on_transports(channels)]
    is_blocked = any(f.name in _NO_P2P for f in (*findings, *verdict.findings))
    adviser = _Adviser(verdict, spell, is_blocked)
    for measured in verdict.measured:
        findings += adviser.advise_on_measurement(measured)
    judged = {(m.collective, m.ranks) for m in verdict.measured if m.peak.share is not None}
    for channels in verdict.communicators:
        for name in channels.rates:
            if (name, channels.communicator.ranks) not in judged:
                on_paper = adviser.advise_on_channels(channels, name)
                # Beside measurements, only what could be better on paper matters.
                findings += [f for f in on_paper if not judged or not is_healthy(f)]
    return list(dict.fromkeys(findings))


def gbps(value: Fraction | float) -> str:
    """Format a rate in GB/s with four digits."""
    return f"{float(value):.4g}"


def percent(share: float) -> str:
    """Format a share as a percentage."""
    return f"{share * 100:.3g} %"


def size_text(size_bytes: int) -> str:
    """Format a size in the largest binary unit of which it is a multiple."""
    for unit, name in _UNITS:
        if size_bytes >= unit and size_bytes % unit == 0:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B"


def describe_limit(rate: Rate) -> str:
    """Describe the link that limits channels (rings or trees), and how often they cross it."""
    counts = sorted(set(rate.crossings) - {0})[:3]
    times = " or ".join({1: "once", 2: "twice"}.get(n, f"{n} times") for n in counts)
    crossing, others = rate.crossing_count, rate.alike - 1
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
    """The advice on one file; `is_blocked` if GPUs do not reach each other directly there."""

    verdict: FileVerdict
    spell: Spell
    is_blocked: bool

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
        what = f"what {taken.shape} reach"
        limits = channels.limits[collective]
        if limits.guesses:
            return [
                *_advise_on_tuner(channels, collective),
                _report_conditional(collective, f"{what} on paper", share, limits),
            ]
        if share >= 1 / _MIN_GAIN:
            return [
                _leave_alone(collective, f"{what} on paper", share, channels.limits[collective])
            ]
        options = channels.options[collective]
        offers = self._offer(collective, taken, options, Fraction(0), channels.rank_map)
        findings = [*_advise_on_tuner(channels, collective), *offers]
        return findings or [_report_no_option(collective, f"{what} on paper", share)]

    def advise_on_measurement(self, measured: MeasuredVerdict) -> list[FileFinding]:
        """Compare a measurement with its bound, and with what stock carries on paper."""
        peak, name, limits = measured.peak, measured.collective, measured.limits
        findings = _find_fall(measured)
        if " or " in name:
            return [*findings, self._ask_which(name)]
        what = f"{measured.title} as measured{measured.name_variant(peak.measured)}"
        if limits is None or (peak.share is None and not measured.is_above):
            return findings
        if measured.is_above or peak.share is None:
            suspects = [*_suspect_topology_file(self.verdict), *_suspect_directions(measured)]
            return [*findings, _explain_above(measured, suspects)]
        if limits.guesses:
            return [*findings, _report_conditional(name, what, peak.share, limits)]
        if peak.share >= measured.near:
            if measured.is_held_against_nvls:
                well = _leave_nvls_alone(measured)
            else:
                well = _leave_alone(name, what, peak.share, limits)
            return findings or [well]  # what falls at large sizes is not to be left alone
        if (small := _report_small_sizes(measured)) is not None:
            return [*findings, small]
        return self._explain_below(measured, what, findings)

    def _explain_below(
        self, measured: MeasuredVerdict, what: str, findings: list[FileFinding]
    ) -> list[FileFinding]:
        """Return `findings`, and others that may explain a measurement below the bound.

        `what` names the measurement.
        """
        peak, name = measured.peak, measured.collective
        share = peak.share or 0.0
        own = [
            c
            for c in self.verdict.communicators
            if c.communicator.ranks == measured.ranks and c.judged(name) is not None
        ]
        if measured.is_held_against_nvls:
            findings.append(_report_below_nvls(measured))
        if measured.options is None or any(c.taken.startswith("NVLS") for c in own):
            return findings or [_report_no_option(name, what, share)]
        fastest = max(
            (rate for c in own if (rate := c.judged(name))),
            key=lambda rate: rate.algbw_GBps,
            default=None,
        )
        findings += _compare_with_stock(measured, fastest)
        for c in own:
            findings += _advise_on_tuner(c, name)
        now = Fraction(peak.measured.algbw_GBps)
        findings += self._offer(name, fastest, measured.options, now, measured.rank_map)
        return findings or [_report_no_option(name, what, share)]

    def _ask_which(self, names: str) -> FileFinding:
        """Report that the columns of a table do not tell two collectives apart."""
        first, second = names.split(" or ")
        file = self.verdict.contents.where
        return FileFinding(
            f"undecided-{first}-{second}",
            f"the columns do not tell {first} from {second}, so nothing is compared with a bound",
            f"say which it is: {self.spell('topo-judge', file, collective=second)}, or {first}",
        )

    def _offer(
        self,
        collective: str,
        channels: Rate | None,
        options: Options,
        measured: Fraction,
        rank_map: RankMap | None,
    ) -> list[FileFinding]:
        """Return the options that exceed stock on paper, and what was measured, in GB/s.

        Both sides of the comparison are on paper, with the same rates; `channels` are those of
        the file, if it shows them.
        """
        if rank_map is None or self.is_blocked or _lacks_p2p(rank_map.topology):
            return []
        stock = find_stock(collective, rank_map.topology, channels)
        if stock is None:
            return []
        # An offer holds whatever the guessed rates are in truth.
        least = max(stock.most_GBps, measured) * _MIN_GAIN
        named = (options.best(name) for name in (GRAPH_FILE, PLAN, RANK_ORDER))
        file, plan, order = (o if o and o.algbw_GBps > least else None for o in named)

        def write(finding: str, option: str, algbw: Fraction, advice: str) -> FileFinding:
            return FileFinding(
                f"{finding}-{collective}",
                f"{_compare_on_paper(option, algbw, stock, measured)}, if every link carries the "
                "rate that the topology gives it and GPUs reach each other directly (P2P)",
                advice,
            )

        prepare, machine = self._name_machine()
        synth = {"collective": collective, "topology": machine}
        if file is not None:
            command = self.spell("topo-synth", **synth, format="nccl-graph", output="graph.xml")
            settings = f"NCCL_GRAPH_FILE=graph.xml{file.settings}{_name_level(rank_map.topology)}"
            advice = f"{prepare}{command}; then run with {settings}, and compare"
            return [write("offer", f"a graph file ({file.what})", file.algbw_GBps, advice)]
        findings = []
        # Inside a host NCCL chooses its own rings whatever the rank order.
        if order is not None and count_hosts(rank_map.topology) > 1:
            advice = f"start ranks in that order: {self._place(collective, rank_map)}"
            findings.append(write("order", order.what, order.algbw_GBps, advice))
        if plan is not None:
            part = _name_group(rank_map)
            command = self.spell("topo-synth", **synth, **part, output="plan.json")
            advice = f"{prepare}{command}; then topo-run plan.json, or the hook"
            name = "a hierarchical plan" if stock.is_limit else "a plan"
            findings.append(write("offer", name, plan.algbw_GBps, advice))
        return findings

    def _name_machine(self) -> tuple[str, str]:
        """Return the machine's name for other commands, and the command that makes it before."""
        machine = self.verdict.machine
        if machine.pcie is None:
            return "", machine.argument
        rate = f"pcie={float(machine.pcie.bandwidth_GBps):g}"
        file = "machine.json"
        probe = self.spell("topo-probe", machine.argument, rate=rate, format="json", output=file)
        return f"{probe}; ", file

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


def _compare_on_paper(option: str, algbw: Fraction, stock: Stock, measured: Fraction) -> str:
    """Say how much faster an option is on paper than stock, and than what was measured."""
    times = f"{float(algbw / stock.algbw_GBps):.2f} times"
    if not stock.is_limit:
        return (
            f"on paper {option} reaches {gbps(algbw)} GB/s, {times} the "
            f"{gbps(stock.algbw_GBps)} GB/s of {stock.name}"
        )
    than_measured = f" and {float(algbw / measured):.2f} times what was measured" * bool(measured)
    return (
        f"on paper {stock.name} reaches at most {gbps(stock.algbw_GBps)} GB/s by what the hosts' "
        f"links carry, {option} {gbps(algbw)} GB/s: {times} that{than_measured}"
    )


def _name_group(rank_map: RankMap) -> dict[str, str]:
    """Return the option that names the GPUs in use, if they are a part of the machine."""
    if len(rank_map.in_use) == len(rank_map.whole.ranks):
        return {}
    return {"group": ",".join(map(str, rank_map.in_use))}


def _advise_on_tuner(channels: ChannelVerdict, collective: str) -> list[FileFinding]:
    """Report if the tuner takes the slower shape of a communicator's channels."""
    taken = channels.judged(collective)
    if taken is None or channels.taken not in ("RING", "TREE"):
        return []
    shape, name = (TREES, "Tree") if taken.shape == RINGS else (RINGS, "Ring")
    other = channels.rate(collective, shape)
    if other is None or other.algbw_GBps <= taken.algbw_GBps * _MIN_GAIN:
        return []
    options = channels.options.get(collective)
    is_offered = options is not None and options.best(GRAPH_FILE) is not None
    file = "a graph file with true speeds lets the tuner choose by size; " if is_offered else ""
    return [
        FileFinding(
            f"tuner-{collective}",
            f"the tuner takes {taken.shape} ({gbps(taken.algbw_GBps)} GB/s on paper), and {shape} "
            f"would reach {gbps(other.algbw_GBps)} GB/s",
            f"{file}NCCL_ALGO={name} forces it at all sizes",
        )
    ]


def _compare_with_stock(measured: MeasuredVerdict, channels: Rate | None) -> list[FileFinding]:
    """Report if less was measured than stock carries on paper."""
    limits, algbw = measured.limits, measured.peak.measured.algbw_GBps
    if limits is None or measured.rank_map is None:
        return []
    stock = find_stock(measured.collective, measured.rank_map.topology, channels)
    if stock is None or algbw >= limits.near * float(stock.least_GBps):
        return []
    # A limit between hosts says nothing of slow links inside them, which a plan would meet as well.
    plan = measured.options.best(PLAN) if measured.options is not None else None
    if stock.is_limit and (plan is None or plan.algbw_GBps < stock.algbw_GBps):
        return []
    carry = "reaches at most" if stock.is_limit else "carry"
    return [
        FileFinding(
            f"below-channels-{measured.collective}",
            f"{measured.peak_title} was measured at {gbps(algbw)} GB/s, "
            f"{percent(algbw / float(stock.algbw_GBps))} of the {gbps(stock.algbw_GBps)} GB/s that "
            f"{stock.name} {carry} on paper",
            "look for slow links (topo-probe can measure them), P2P through host memory, other "
            "jobs, and whether the largest size was large enough",
        )
    ]


def _report_small_sizes(measured: MeasuredVerdict) -> FileFinding | None:
    """Report if all sizes are so small that latency decides, by the model of the best plan."""
    largest = max(measured.rows, key=lambda row: row.measured.size_bytes)
    plan = measured.options.best(PLAN) if measured.options is not None else None
    if plan is None or largest.plan_GBps is None:
        return None
    if largest.plan_GBps >= _MIN_FILLED * float(plan.algbw_GBps):
        return None
    size = size_text(largest.measured.size_bytes)
    return FileFinding(
        f"small-sizes-{measured.collective}",
        f"{measured.title} was measured up to {size}, where latency decides: a plan reaches "
        f"{gbps(largest.plan_GBps)} GB/s there, and {gbps(plan.algbw_GBps)} GB/s at large sizes",
        "measure larger sizes, such as 1 GiB: small ones tell little of links",
    )


def _find_fall(measured: MeasuredVerdict) -> list[FileFinding]:
    """Report the deepest fall of the rate from a size to a larger one."""
    best: dict[str, Measurement] = {}
    part, pair = _FALL, None
    least = _MIN_FALL_SHARE * max((row.measured.algbw_GBps for row in measured.rows), default=0)
    for m in sorted((row.measured for row in measured.rows), key=lambda m: m.size_bytes):
        before = best.setdefault(m.how, m)
        if m.algbw_GBps >= before.algbw_GBps:
            best[m.how] = m
        elif (
            before.size_bytes >= _MIN_FALL_BYTES
            and before.algbw_GBps >= least
            and m.size_bytes > before.size_bytes
            and m.algbw_GBps < part * before.algbw_GBps
        ):
            part, pair = m.algbw_GBps / before.algbw_GBps, (before, m)
    if pair is None:
        return []
    before, m = pair
    return [
        FileFinding(
            f"fall-{measured.collective}",
            f"{measured.title}{measured.name_variant(m)} falls from "
            f"{gbps(before.algbw_GBps)} GB/s at {size_text(before.size_bytes)} to "
            f"{gbps(m.algbw_GBps)} GB/s at {size_text(m.size_bytes)}",
            "a rate should not fall as sizes grow: look for what changes there, such as the "
            "tuner's algorithm or protocol (NCCL_DEBUG_SUBSYS=TUNING), registration or paging of "
            "memory, a shared network, or heat, and repeat those sizes",
        )
    ]


def _lacks_p2p(topology: Topology) -> bool:
    """Return whether some GPUs are known to have no P2P, or to be faster without it."""
    faster = find_faster(topology)
    return bool(list_refused_p2p(topology)) or THROUGH_MEMORY in faster.values()


def _name_level(topology: Topology) -> str:
    """Return the variable that an option needs if NCCL connects some pairs without P2P."""
    model = find_model(topology)
    is_far = model is not None and len(model.p2p) < len(model.p2p_at_sys)
    return " NCCL_P2P_LEVEL=SYS" if is_far else ""


def _leave_alone(collective: str, what: str, share: float, limits: Limits) -> FileFinding:
    text = f"{what} is {percent(share)} of the bound"
    if share > ROUNDING:
        text = f"{what} is at the bound and above the rates that NCCL counts ({limits.rates})"
    elif share < NEAR:
        text += ", which rests on a datasheet's rates, of which packets leave about four fifths"
    return FileFinding(f"near-bound-{collective}", text, "nothing: leave it alone")


def _report_conditional(collective: str, what: str, share: float, limits: Limits) -> FileFinding:
    return FileFinding(
        f"conditional-{collective}",
        f"{what} is {percent(share)} of a bound that holds only if "
        f"{' and '.join(limits.guesses)}, which nothing states: no verdict rests on it",
        "state these rates (rate), or give a topology with measured ones (topo-probe on the "
        "machine)",
    )


def _describe_nvls(measured: MeasuredVerdict) -> str:
    limits, peak = measured.limits, measured.peak
    assert limits is not None
    without = peak.measured.algbw_GBps / float(limits.one_way_GBps)
    known = (
        "whether NVLS was on is not known"
        if measured.nvls == UNKNOWN
        else f"NVLS was {measured.nvls}"
    )
    if without > limits.most:
        known = f"NVLS was on, as {gbps(limits.one_way_GBps)} GB/s are the most without it"
    else:
        known += f"; without it the bound is {gbps(limits.one_way_GBps)} GB/s, of which this is "
        known += percent(without)
    return (
        f"{measured.peak_title} as measured is {percent(peak.share or 0.0)} of the "
        f"{gbps(measured.held_GBps)} GB/s that are the bound if NVSwitches add (NVLS): {known}"
    )


def _leave_nvls_alone(measured: MeasuredVerdict) -> FileFinding:
    text = f"{_describe_nvls(measured)}; healthy machines measure from {percent(measured.near)} on"
    return FileFinding(f"near-bound-{measured.collective}", text, "nothing: leave it alone")


def _report_below_nvls(measured: MeasuredVerdict) -> FileFinding:
    text = f"{_describe_nvls(measured)}; healthy machines measure from {percent(measured.near)} on"
    advice = {
        ON: "look for slow NVLinks or NICs (topo-probe can measure them), other jobs, and whether "
        "the largest size was large enough",
        OFF: "let NCCL use NVLS: unset NCCL_NVLS_ENABLE and NCCL_ALGO",
        UNKNOWN: "see whether NCCL uses NVLS (NCCL_DEBUG=INFO names it in the log); "
        "NCCL_NVLS_ENABLE=0, NCCL_ALGO, or a fabric manager that does not run keep it from that",
    }[measured.nvls or UNKNOWN]
    return FileFinding(f"below-nvls-{measured.collective}", text, advice)


def _report_no_option(collective: str, what: str, share: float) -> FileFinding:
    return FileFinding(
        f"below-bound-{collective}",
        f"{what} is {percent(share)} of the bound, and no option that was tried is known to exceed "
        f"stock on paper by {float(_MIN_GAIN - 1) * 100:.0f} %",
        "",
    )


def _suspect_topology_file(verdict: FileVerdict) -> list[str]:
    """Name the file that NCCL took the machine from, if the bound has the rates of that run."""
    contents, machine = verdict.contents, verdict.machine.argument
    dumps = {Path(name).name for name in contents.topology_files}
    if not (contents.machine is not None and machine == contents.where) and (
        Path(machine).name not in dumps
    ):
        return []
    return [
        f"the topology file that NCCL was given ({finding.message.partition(': ')[0]}, line "
        f"{finding.line}): the rates of the bound follow it"
        for finding in contents.findings
        if finding.name == _TOPOLOGY_FILE
    ]


def _suspect_directions(measured: MeasuredVerdict) -> list[str]:
    """Name a pair of devices whose NVLinks or xGMI links carry less one way than back."""
    if measured.rank_map is None:
        return []
    topology = measured.rank_map.topology
    capacity = topology.capacity_GBps
    wired = dict.fromkeys((x.src, x.dst) for x in topology.links if x.kind in WIRES)
    uneven = [pair for pair in wired if capacity[pair] < capacity.get(pair[::-1], 0)]
    if not uneven:
        return []
    a, b = uneven[0]
    more = f" ({len(uneven) - 1} more such pairs)" if len(uneven) > 1 else ""
    return [
        f"the rates of {a} -> {b}: {gbps(capacity[a, b])} GB/s, but {gbps(capacity[b, a])} GB/s "
        f"back{more}, which no healthy cable has"
    ]


def _explain_above(measured: MeasuredVerdict, suspects: Sequence[str]) -> FileFinding:
    """Report a measurement above its bound; `suspects` come before the usual assumptions."""
    limits, peak = measured.limits, measured.peak
    assert limits is not None
    algbw, in_network = peak.measured.algbw_GBps, limits.in_network_GBps
    if in_network and measured.held_GBps < in_network and algbw <= float(in_network) * ROUNDING:
        why = (
            "probably that no switch adds: NVLS and SHARP let switches add, and then the bound is "
            f"{gbps(in_network)} GB/s ({percent(algbw / float(in_network))} of it); "
            f"{limits.possible}"
        )
    elif (
        algbw <= float(limits.any_way_GBps) * ROUNDING and limits.any_way_GBps > limits.one_way_GBps
    ):
        what = (
            "that a pair of GPUs has a single path: the multipath bound is "
            f"{gbps(limits.any_way_GBps)} GB/s"
        )
        why = f"probably {'; or '.join([*suspects, what])}"
    else:
        what = (
            f"a rate of the topology, assumed too low: {limits.rates}; or the topology is "
            "another machine's. Measure the links with topo-probe"
        )
        why = f"probably {'; or '.join([*suspects, what])}"
        if in_network is not None:
            why += f" (even with switches that add the bound is {gbps(in_network)} GB/s)"
    return FileFinding(
        f"above-bound-{measured.collective}",
        f"{measured.peak_title} was measured at {gbps(algbw)} GB/s, more than the bound of "
        f"{gbps(measured.held_GBps)} GB/s, which is withdrawn: an assumption of it is wrong",
        why,
    )
