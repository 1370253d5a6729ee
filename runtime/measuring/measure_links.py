"""Measures the links that ranks talk over, and says what to believe of them (topo/believe.py).

First every ordered pair alone: half a round trip of a small message, and the rate from a fit over three sizes, found by
doubling until a message takes long enough; times are the receiver's, of a message right behind another. Pairs whose declared
routes share no rank, cable or CPU take their turn at the same moment; all else waits. Then every two ranks in both
directions, and then contention groups: for each link that several pairs share, as many of them as can send at once
(runtime/rounds.py); where no links are declared, shifts instead. Over NCCL the data lies on the GPUs, over gloo in host
memory. Rates of flows that go at once are taken while all are going.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist

from ...topo.errors import InputError
from ...topo.graph import Topology
from ...topo.measured.believe import believe
from ...topo.measured.flows import Experiment, Measurements, Pair
from ..ranks.machine import emulated, machine
from ..ranks.places import Meeting, joined, meeting
from .experiments import apart, contending, routed, shifts
from .rates import Aim, Alone, Arrivals, Wire, chunk_bytes, rates_GBps

_REPEATS = 3
_WORK_ALONE, _WORK_FLOW = 14, 5
"""How many aimed times a pair alone, and a flow of a group, take about."""


@dataclass(frozen=True)
class _Pace:
    """Seconds for everything, for one message at most and at least, and the most bytes of a message."""

    budget_s: float
    most_s: float
    least_s: float
    most_bytes: int


_GLOO = _Pace(60.0, 0.06, 0.004, 16 << 20)
_NCCL = _Pace(5.0, 0.002, 0.0003, 128 << 20)


@dataclass(frozen=True)
class _Moment:
    """Flows that start at the same moment, (pair, bytes of a chunk), and the experiments that they are."""

    flows: tuple[tuple[Pair, int], ...]
    experiments: tuple[tuple[str, tuple[Pair, ...]], ...]


def measure_topology(
    topology: Topology | None = None, timeout_s: float = 60.0, budget_s: float | None = None
) -> Topology:
    """The topology with every link's declared, measured and believed rate (see `believe`). Collective, the same on all ranks.

    Rank i is the i-th GPU of `topology`. Without one it is the emulated machine inside topo-emulate, else the hosts that the
    ranks are on, joined (runtime/meet.py); where these have no GPUs, ranks stand for them at measured rates. Makes a process
    group and ends it; `timeout_s` is for any single wait, `budget_s` what sending should take in all, about (default: 60
    over gloo, 5 over NCCL; messages are sized for it, down to a few milliseconds each). Progress goes to standard error, on
    rank 0.

    Raises InputError outside a launch or where the topology has another number of GPUs than there are ranks, and
    ExecutionError where a rank dies or does not answer.
    """
    with meeting(timeout_s) as here:
        declared, told = True, topology if topology is not None else emulated()
        if told is None:
            told, declared = joined(here)
        if len(told.ranks) != here.ranks:
            raise InputError(
                f"topology {told.name!r} has {len(told.ranks)} GPUs, {here.ranks} ranks are running; start one rank a GPU"
            )
        measured = _Measuring(here, told, declared, budget_s).all()
        text = None if measured is None else believe(told, measured, declared).dumps()
        return Topology.loads(here.from_first(text), told.name)


class _Measuring:
    """One run, on one rank; what is planned and what comes of it is rank 0's."""

    def __init__(self, here: Meeting, topology: Topology, declared: bool, budget_s: float | None) -> None:
        self.here, self.topology, self.declared = here, topology, declared
        self.batched = all(place.cuda for place in here.places)
        pace = _NCCL if self.batched else _GLOO
        self.pace = pace if budget_s is None else replace(pace, budget_s=budget_s)
        self.routes = routed(topology)
        self.trusted, self.otherwise = self._trust()

    def _trust(self) -> tuple[str, str]:
        """Which links the data is really on; see Measurements."""
        if self.batched or not self.declared:
            return "all", ""
        at_hand = machine(self.topology, dist.group.WORLD or dist.new_group())
        if at_hand.topology is None:
            return "none", "measured over gloo in one host's memory: the data was not on this link"
        reason = "measured over gloo between hosts' memories: the data was not on this link"
        return ("all", "") if at_hand.what == "emulated" else ("network", reason)

    def all(self) -> Measurements | None:
        """Everything, on rank 0."""
        group = dist.new_group(backend="nccl", timeout=self.here.timeout) if self.batched else None
        rounds, both, groups = self.here.from_first(self._plan() if self.here.rank == 0 else None)
        aim = _aim(self.pace, rounds, both, groups)
        device = torch.device("cuda", torch.cuda.current_device()) if self.batched else torch.device("cpu")
        wire = Wire(device, aim, group)
        moments = len(both) + len(groups)
        with _progress(self.here.rank, len(rounds) + _REPEATS * moments) as step:
            alone = self._alone(wire, rounds, step)
            pace = {(x.src, x.dst): x.GBps for x in alone}
            planned = _moments(both, groups, pace, aim) if self.here.rank == 0 else None
            experiments = self._at_once(wire, self.here.from_first(planned), step)
        return self._measurements(alone, experiments) if self.here.rank == 0 else None

    def _plan(self) -> tuple[list[list[Pair]], list[list[Pair]], list[tuple[Pair, ...]]]:
        """Rounds of pairs alone, rounds of pairs both ways, groups."""
        pairs, two_way = list(self.routes), [p for p in self.routes if p[0] < p[1] and p[::-1] in self.routes]
        groups = contending(self.routes)
        if not self.declared:
            groups += [g for g in shifts(self.here.ranks) if g not in groups]
        if self.trusted == "none":  # one memory, whatever the links
            return [[pair] for pair in pairs], [[pair] for pair in two_way], groups
        return apart(pairs, self.topology, self.routes), apart(two_way, self.topology, self.routes), groups

    def _alone(self, wire: Wire, rounds: Sequence[Sequence[Pair]], step: Callable[[str], None]) -> list[Alone]:
        me = self.here.rank
        mine: list[Alone] = []
        for chosen in rounds:
            dist.barrier()
            for src, dst in chosen:
                self.here.doing = f"measuring rank {src} -> {dst} alone"
                if me == src:
                    mine.append(wire.as_sender(me, dst))
                elif me == dst:
                    wire.as_receiver(src)
            step("pairs alone")
        return [x for theirs in self.here.at_first(mine) for x in theirs]

    def _at_once(
        self, wire: Wire, moments: Sequence[_Moment], step: Callable[[str], None]
    ) -> list[tuple[str, dict[Pair, Fraction]]]:
        """Of each experiment the repetition that is in the middle, by what all flows got."""
        mine: list[list[Arrivals | None]] = []
        for moment in moments:
            what = moment.experiments[0][0]
            self.here.doing = f"measuring {len(moment.flows)} flows at once ({what})"
            for _ in range(_REPEATS):
                dist.barrier()
                mine.append([wire.flow(self.here.rank, moment.flows)])
                step("both directions" if what == "both" else "contention groups")
        everybody = self.here.at_first(mine)
        out = []
        for number, moment in enumerate(moments if everybody else ()):
            turns = range(number * _REPEATS, (number + 1) * _REPEATS)
            for how, pairs in moment.experiments:
                came = [
                    [x for theirs in everybody for x in theirs[t] if x is not None and x.pair in pairs] for t in turns
                ]
                rates = sorted((rates_GBps(x) for x in came), key=lambda got: sum(got.values()))
                out.append((how, rates[_REPEATS // 2]))
        return out

    def _measurements(self, alone: list[Alone], at_once: list[tuple[str, dict[Pair, Fraction]]]) -> Measurements:
        told: dict[Pair, dict[str, Any]] = {}
        for x in alone:
            told[x.src, x.dst] = {
                "us": _digits(x.latency_us), "GBps": _digits(x.GBps), "alpha_us": _digits(x.alpha_us),
                "us_per_byte": _digits(x.beta_us), "residual": _digits(x.residual), "bytes": list(x.sizes),
            }  # fmt: skip
        for how, rates in at_once:
            for pair, rate in rates.items():
                key = f"{how}_GBps"
                told[pair][key] = min(_digits(float(rate)), told[pair].get(key, float("inf")))
        return Measurements(
            experiments=(
                *(Experiment("alone", {(x.src, x.dst): Fraction(x.GBps)}) for x in alone),
                *(Experiment(how, rates) for how, rates in at_once),
            ),
            latency_us={(x.src, x.dst): Fraction(_digits(x.latency_us)) for x in alone},
            medium="NCCL" if self.batched else "gloo",
            trusted=self.trusted,
            otherwise=self.otherwise,
            pairs=told,
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        pairs = self.here.ranks * (self.here.ranks - 1)
        notes = [self.otherwise] if self.trusted == "none" else []
        if len(self.routes) < pairs:
            notes.append(
                f"{pairs - len(self.routes)} of {pairs} pairs have no route of their own (only other GPUs lie between): not "
                "measured"
            )
        return tuple(notes)


def _aim(pace: _Pace, rounds: Sequence[object], both: Sequence[object], groups: Sequence[tuple[Pair, ...]]) -> Aim:
    """How long messages may take so that all of it keeps to the budget. In the worst case a group's flows share one link."""
    flows = 2 * len(both) + sum(len(group) for group in groups)
    work = _WORK_ALONE * len(rounds) + _WORK_FLOW * _REPEATS * flows
    return Aim(max(pace.least_s, min(pace.most_s, pace.budget_s / max(1.0, work))), pace.most_bytes)


def _moments(
    both: Sequence[Sequence[Pair]], groups: Sequence[tuple[Pair, ...]], pace: dict[Pair, float], aim: Aim
) -> list[_Moment]:
    """With as many bytes for each flow as it would carry alone in the aimed time, so that all go for about as long."""
    out = []
    for chosen in both:
        experiments = tuple(("both", (pair, pair[::-1])) for pair in chosen)
        flows = tuple((pair, chunk_bytes(pace[pair], aim)) for _, pairs in experiments for pair in pairs)
        out.append(_Moment(flows, experiments))
    for group in groups:
        out.append(_Moment(tuple((pair, chunk_bytes(pace[pair], aim)) for pair in group), (("together", group),)))
    return out


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


@contextmanager
def _progress(rank: int, steps: int) -> Iterator[Callable[[str], None]]:
    """A bar on standard error, on rank 0, if a person is looking."""
    if rank or not sys.stderr.isatty():
        yield lambda what: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=steps)
        yield lambda what: bar.update(task, advance=1, description=f"measuring {what}")
