"""Which of a plan's schedules to use at a size, how finely cut, or the stock collective: predicted, then raced.

All ranks must choose alike. Rank 0 predicts, with the host costs and links at hand, and tells the others which candidates
are worth trying; all of them run these, and the stock collective, a few times on scratch memory the first time that a
size (a power of two) turns up; the slowest rank's median decides. Where a coarser cut wins, still coarser ones race it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.distributed as dist

from ..synth.cost.host_costs import HostCosts
from ..synth.cost.segmentation import Family, families, fastest, time_us
from ..synth.ir.schedule import Schedule
from ..synth.plan import Plan
from .codecs import Codec
from .ranks.faults import Faults
from .ranks.machine import Machine
from .ranks.timing import slowest_s, timed_s

MODES = ("race", "model", "plan")
_NEAR = 1.4
"""What is predicted to take so many times as long as the best is not raced."""
_RACED = 4
_WORTHWHILE = 0.95
"""A schedule must take less than so much of the stock collective's time: of stock ones several can be under way at once."""
_STEP = 4
"""How much coarser the next cut is that races."""
_RACE_S = 0.5
_MOST_TURNS = 9
_HOPELESS = 1.6
"""What takes so many times as long as the best at its first run is out of the race."""


@dataclass(frozen=True)
class Choice:
    """What is used at a size: a schedule, or None for the stock collective, and the best of the plan's own (for what the
    backend has no stock collective for); `raced` has what was measured, in us.
    """

    schedule: Schedule | None
    own: Schedule
    predicted: Callable[[int], float | None]
    raced: dict[str, float]

    def predict_us(self, size_bytes: int) -> float | None:
        """What the cost model says of it, on the machine at hand."""
        return self.predicted(size_bytes)

    @property
    def label(self) -> str:
        """As tables show it."""
        return "stock" if self.schedule is None else self.schedule.label


class Chooser:
    """The choices of one communicator. Sizes are what the buffer has on the wire, where `codec` encodes it; `fits`
    says which schedules may be used.
    """

    def __init__(
        self,
        plan: Plan,
        machine: Machine,
        faults: Faults,
        device: torch.device,
        mode: str,
        fits: Callable[[Schedule], bool] = lambda _: True,
        codec: Codec | None = None,
    ) -> None:
        self.plan, self.machine, self.faults, self.device, self.mode = plan, machine, faults, device, mode
        self.fits, self.codec = fits, codec
        self.group, self.rank = faults.group, faults.rank
        self.choices: dict[int, Choice] = {}

    @cached_property
    def families(self) -> list[Family]:
        """The plan's schedules that fit, and their cuts."""
        return families(filter(self.fits, self.plan.schedules), self.plan.topology)

    @cached_property
    def variants(self) -> list[Schedule]:
        """All candidates, the same list on every rank."""
        return [schedule for family in self.families for schedule in (*family.stepwise, *family.piped)]

    def known(self, size_bytes: int) -> Choice | None:
        """The choice for a size, if it was made."""
        if self.mode == "plan":
            schedule = self.plan.entry_for(size_bytes).schedule
            return self._choice(schedule)
        return self.choices.get(size_bytes.bit_length())

    def _choice(self, schedule: Schedule) -> Choice:
        return Choice(schedule, schedule, lambda size: self.predict(schedule, size), {})

    def predict(self, schedule: Schedule, size_bytes: int) -> float | None:
        """Microseconds on the machine at hand."""
        machine = self.machine
        return time_us(schedule, machine.topology, self.host, size_bytes, batched=machine.rounds) or None

    @property
    def host(self) -> HostCosts:
        """What sending costs the hosts, encoding and decoding included."""
        return self.machine.host if self.codec is None else self.codec.loaded(self.machine.host)

    def choose(
        self, size_bytes: int, run: Callable[[Schedule], None], stock: Callable[[], None], has_stock: Callable[[], bool]
    ) -> Choice:
        """Make the choice for a size; `run` and `stock` work on scratch memory, `has_stock` says, alike on all ranks,
        whether there is a stock collective. Collective; ExecutionError on every rank where one of them fails.
        """
        order = self._ranked(size_bytes)
        with_stock = self.mode == "race" and has_stock()
        if self.mode == "model" or (len(order) == 1 and not with_stock):
            choice = self._choice(self.variants[order[0]])
        else:
            choice = self._race(size_bytes, order, run, stock if with_stock else None)
        self.choices[size_bytes.bit_length()] = choice
        return choice

    def _ranked(self, size_bytes: int) -> list[int]:
        """The numbers of the variants worth trying, best first, as rank 0 sees it."""
        box: list[object] = [self._near(size_bytes) if self.rank == 0 else None]
        with self.faults.stock(f"what to try at {size_bytes} bytes"):
            dist.broadcast_object_list(box, dist.get_global_rank(self.group, 0), self.group, self.device)
        return box[0]  # type: ignore[return-value]

    def _near(self, size_bytes: int) -> list[int]:
        """The best cut of each base, and a coarser one: what messages cost the hosts may not be known well."""
        machine = self.machine
        found = fastest(self.families, machine.topology, self.host, size_bytes, _NEAR, batched=machine.rounds)
        kept: dict[Schedule, None] = {}
        seen: set[Schedule] = set()
        for _, schedule in found:
            if schedule.uncut not in seen and len(kept) < _RACED:
                seen.add(schedule.uncut)
                kept |= dict.fromkeys(x for x in (schedule, _coarser(schedule)) if x is not None)
        return [self.variants.index(schedule) for schedule in kept if schedule in self.variants]

    def _race(
        self, size_bytes: int, order: list[int], run: Callable[[Schedule], None], stock: Callable[[], None] | None
    ) -> Choice:
        def entered(schedule: Schedule) -> Callable[[], None]:
            return lambda: run(schedule)

        entrants: dict[Schedule | None, Callable[[], None]] = {
            schedule: entered(schedule) for schedule in map(self.variants.__getitem__, order)
        }
        if stock is not None:
            entrants[None] = stock
        times = dict(zip(entrants, self._medians(size_bytes, list(entrants.values())), strict=True))
        winner = min(times, key=times.__getitem__)
        while winner is not None and (coarser := _coarser(winner)) in self.variants and coarser not in times:
            assert coarser is not None
            entrants[coarser] = entered(coarser)
            times[winner], times[coarser] = self._medians(size_bytes, [entrants[winner], entrants[coarser]])
            if times[winner] <= times[coarser]:
                break
            winner = coarser
        if winner is not None and times[winner] > _WORTHWHILE * times.get(None, float("inf")):
            winner = None
        own = winner or min((x for x in times if x is not None), key=times.__getitem__)
        measured = {"stock" if x is None else x.label: seconds * 1e6 for x, seconds in times.items()}
        return Choice(winner, own, lambda size: None if winner is None else self.predict(winner, size), measured)

    def _medians(self, size_bytes: int, calls: list[Callable[[], None]]) -> list[float]:
        """Seconds, alike on all ranks: medians over several turns, of what is hopeless the first time alone."""
        for call in calls:  # compiled, and buffers touched
            call()
        first = self._round(size_bytes, calls)
        best = min(first)
        running = [i for i, seconds in enumerate(first) if seconds <= best * _HOPELESS]
        times: dict[int, list[float]] = {i: [first[i]] for i in running}
        turns = 0 if len(running) == 1 else max(1, min(_MOST_TURNS, int(_RACE_S / (best * len(running)))))
        for _ in range(turns):
            for i, seconds in zip(running, self._round(size_bytes, [calls[i] for i in running]), strict=True):
                times[i].append(seconds)
        return [statistics.median(times[i]) if i in times else seconds for i, seconds in enumerate(first)]

    def _round(self, size_bytes: int, calls: list[Callable[[], None]]) -> list[float]:
        """The slowest rank's seconds for each call, made once."""
        seconds = []
        for call in calls:
            with self.faults.stock(f"the race at {size_bytes} bytes"):
                seconds.append(timed_s(call, self.group, self.device))
        with self.faults.stock(f"the times of the race at {size_bytes} bytes"):
            return slowest_s(seconds, self.group, self.device)


def _coarser(schedule: Schedule) -> Schedule | None:
    """The same schedule in a quarter of the parts; None for a whole one."""
    if schedule.segments == 1:
        return None
    parts = schedule.segments // _STEP
    return replace(schedule, segments=parts) if parts > 1 else schedule.uncut
