"""A verdict: the measurements and channels of a file next to the bounds of its machine.

Channels are the rings and trees of a communicator. The bound is the highest algbw that is possible
where each pair of GPUs has a single path; a share is a fraction of it. Options are alternatives
that the machine could run, such as a plan. NVLS is NCCL's use of NVSwitches that add.
"""

from dataclasses import dataclass, field
from fractions import Fraction

from ....topo.answers import Answer
from ....topo.graph import Topology
from .file_contents import FileContents, FileFinding, Measurement, ObservedCommunicator
from .machine import JudgedMachine, RankMap
from .options import Limits, Options
from .rates import RINGS, TREES, Rate

# How topo-run names the measurements of a plan.
PLAN_ROW = "plan"
# What is known of NVLS: whether NVSwitches added.
ON, OFF, UNKNOWN = "on", "off", "unknown"


@dataclass(frozen=True)
class MeasuredRow:
    """A measurement, its share of the bound, and a plan's predicted algbw in GB/s.

    The share is None if the measurement could not be judged, the prediction None without a plan.
    """

    measured: Measurement
    share: float | None
    plan_GBps: float | None = None


@dataclass
class MeasuredVerdict:
    """The measurements of one collective in one run, and the bounds that they are compared with.

    `rank_map` has the GPU of each rank, `limits` the bounds there, `options` the alternatives; each
    is None if it is not known.

    `why_not` is the reason if they could not be judged, else "". Without a judgement no row has a
    share, though `limits` may be there: if a measurement exceeds a bound that rests on assumed
    rates, the bound is withdrawn. `run` is the number of the run, from 1, if the file has several
    runs of the collective, else 0. `seen_nvls` is what the file says of sums in NVSwitches (NVLS):
    "on", "off" or "unknown".
    """

    collective: str
    ranks: int
    rows: list[MeasuredRow]
    limits: Limits | None = None
    rank_map: RankMap | None = None
    options: Options | None = None
    why_not: str = ""
    run: int = 0
    seen_nvls: str = UNKNOWN

    @property
    def title(self) -> str:
        """The collective, with the number of the run if the file has several."""
        return f"{self.collective}, run {self.run}," if self.run else self.collective

    @property
    def has_variants(self) -> bool:
        """Whether the file has results both out of place and in place, or of several types."""
        hows = {row.measured.how for row in self.rows}
        return {"out-of-place", "in-place"} <= hows or any(" " in how for how in hows)

    def name_variant(self, measured: Measurement) -> str:
        """Return a measurement's variant, as in " out of place" or " in place half".

        Return "" if the file has no other variant.
        """
        return f" {measured.how.replace('-', ' ')}" if self.has_variants else ""

    @property
    def peak_title(self) -> str:
        """The title with the variant of the peak."""
        return self.title + self.name_variant(self.peak.measured)

    @property
    def is_held_against_nvls(self) -> bool:
        """Whether rows are held against the bound with sums in NVSwitches, `limits.nvls_GBps`.

        They are if the peak exceeds the bound without such sums, which nothing else explains. They
        also are if NCCL is faster by such sums (`limits.counts_nvls`), except in a file of topo-run
        with rows of a plan, since the switches do not add a plan's messages.
        """
        limits = self.limits
        if limits is None or limits.nvls_GBps is None:
            return False
        has_plan = any(row.measured.how == PLAN_ROW for row in self.rows)
        return (limits.counts_nvls and not has_plan) or self._exceeds(limits.one_way_GBps)

    @property
    def held_GBps(self) -> Fraction:
        """The bound in GB/s that rows are held against; 0 without one."""
        if self.limits is None:
            return Fraction(0)
        nvls = self.limits.nvls_GBps if self.is_held_against_nvls else None
        return max(self.limits.one_way_GBps, nvls or Fraction(0))

    @property
    def near(self) -> float:
        """The share of `held_GBps` from which a measurement counts as reaching it."""
        if self.limits is None:
            return 1.0
        return self.limits.nvls_near if self.is_held_against_nvls else self.limits.near

    @property
    def nvls(self) -> str | None:
        """Whether NVSwitches added: "on", "off" or "unknown"; None if they cannot.

        A rate above the bound without sums in switches means that they did.
        """
        if self.limits is None or self.limits.nvls_GBps is None:
            return None
        return ON if self._exceeds(self.limits.one_way_GBps) else self.seen_nvls

    @property
    def peak(self) -> MeasuredRow:
        """The row with the highest algbw, by which the collective is judged."""
        return max(self.rows, key=lambda row: row.measured.algbw_GBps)

    @property
    def is_above(self) -> bool:
        """Whether the peak exceeds `held_GBps` by more than links may carry above their rates."""
        return self.limits is not None and self._exceeds(self.held_GBps)

    @property
    def is_ruled_out(self) -> bool:
        """Whether the bound rests on assumed rates that the peak disproves.

        It does if it exceeds both the bound and the one with all switches adding that could.
        """
        if self.limits is None or not self.limits.is_assumed:
            return False
        limits = self.limits
        return self._exceeds(max(limits.one_way_GBps, limits.in_network_GBps or Fraction(0)))

    @property
    def guesses(self) -> tuple[str, ...]:
        """The rates on which the bound rests that are guesses; no verdict rests on them."""
        return self.limits.guesses if self.limits is not None else ()

    def _exceeds(self, bound_GBps: Fraction) -> bool:
        most = self.limits.most if self.limits is not None else 1.0
        return self.peak.measured.algbw_GBps > float(bound_GBps) * most


def count_ranks(ranks: int) -> str:
    """Return a number of ranks in words."""
    return f"{ranks} rank{'' if ranks == 1 else 's'}"


@dataclass
class ChannelVerdict:
    """The rates, bounds and options of a communicator's channels, each by name of collective.

    `taken` is the algorithm that NCCL uses for large allreduces: RING, TREE, NVLS, or empty if
    unknown. `why_not` is the reason if the channels could not be judged.
    """

    communicator: ObservedCommunicator
    rates: dict[str, list[Rate]] = field(default_factory=dict)
    limits: dict[str, Limits] = field(default_factory=dict)
    options: dict[str, Options] = field(default_factory=dict)
    rank_map: RankMap | None = None
    taken: str = ""
    why_not: str = ""

    def rate(self, collective: str, shape: str | None) -> Rate | None:
        """Return the rate of a shape ("rings", "trees") for a collective; None if it has none."""
        return next((rate for rate in self.rates.get(collective, ()) if rate.shape == shape), None)

    def judged(self, collective: str) -> Rate | None:
        """Return the rate of the shape that NCCL uses or, if unknown, of the faster shape.

        The result is None if the collective has no rate.
        """
        algorithm = self.taken if collective == "allreduce" else "RING"
        return self.rate(collective, {"RING": RINGS, "TREE": TREES}.get(algorithm)) or max(
            self.rates.get(collective, ()), key=lambda r: r.algbw_GBps, default=None
        )

    def share(self, collective: str) -> float | None:
        """Return the share of the single-path bound that `judged` reaches; None if not judged."""
        rate, limits = self.judged(collective), self.limits.get(collective)
        return None if not rate or not limits else float(rate.algbw_GBps / limits.one_way_GBps)


@dataclass
class FileVerdict:
    """The complete verdict on one file: what was read, its machine, and what both give.

    `findings` are remarks, each with a remedy, the most important first; `notes` are sentences on
    what was left out or assumed.
    """

    contents: FileContents
    machine: JudgedMachine
    measured: list[MeasuredVerdict] = field(default_factory=list)
    communicators: list[ChannelVerdict] = field(default_factory=list)
    findings: list[FileFinding] = field(default_factory=list)  # the verdict first
    notes: list[str] = field(default_factory=list)
    answers: tuple[Answer, ...] = ()  # why it hangs, fails or is slow, the surest first

    @property
    def is_answer(self) -> bool:
        """Whether the verdict only repeats the first of `answers`: nothing else was judged."""
        return bool(self.answers) and self.verdict.name == self.answers[0].symptom

    @property
    def shares(self) -> list[tuple[str, float]]:
        """The judged items, each named in words with its share of the single-path bound.

        Items are the measurements or, if none was judged, the channels. Items whose bound rests on
        guessed rates are left out.
        """
        by_measurement = [
            (f"{m.title} on {count_ranks(m.ranks)}, measured", m.peak.share)
            for m in self.measured
            if m.peak.share is not None and not m.guesses
        ]
        return by_measurement or [
            (f"{name} on {c.communicator.ranks} ranks, by its channels", share)
            for c in self.communicators
            for name in c.rates
            if (share := c.share(name)) is not None and not c.limits[name].guesses
        ]

    @property
    def judged_topology(self) -> Topology | None:
        """The machine with the GPUs in use by the first judged part; None if nothing is judged."""
        maps = [m.rank_map for m in self.measured] + [c.rank_map for c in self.communicators]
        return next((rank_map.topology for rank_map in maps if rank_map is not None), None)

    @property
    def verdict(self) -> FileFinding:
        """The first of the findings; without any, a finding that says why nothing was judged."""
        return next(iter(self.findings), FileFinding("not-judged", self.find_reason()))

    def find_reason(self) -> str:
        """Return why nothing was compared with a bound."""
        reasons = [m.why_not for m in self.measured] + [c.why_not for c in self.communicators]
        guesses = [x for m in self.measured for x in m.guesses]
        guesses += [
            x for c in self.communicators for each in c.limits.values() for x in each.guesses
        ]
        if guesses:
            reasons.append(f"the bound holds only if {' and '.join(dict.fromkeys(guesses))}")
        if not self.measured and not self.communicators:
            reasons.append(
                "it has no results, and the rings and trees of no communicator; give a table of "
                "nccl-tests, or the log of all ranks (NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING)"
            )
        if self.machine.topology is None:
            reasons.append(self.machine.source)
        return next(filter(None, reasons), "nothing in it has a bound")
