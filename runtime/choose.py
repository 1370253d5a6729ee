"""Which of a plan's schedules to use at a size, how finely cut, or the stock collective: predicted, then raced.

All ranks must choose alike. Rank 0 predicts, with the host costs and links at hand, and tells the others which candidates
are worth trying; all of them run these, and the stock collective, a few times on scratch memory the first time that a
size (a power of two) turns up; the slowest rank's median decides.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist

from ..synth.cuts import Family, families, fastest, time_us
from ..synth.plan import Plan
from ..synth.schedule import Schedule
from .machine import Machine

MODES = ("race", "model", "plan")
_NEAR = 1.4
"""What is predicted to take so many times as long as the best is not raced."""
_RACED = 4
_PER_BASE = 2
_RACE_S = 0.5
_MOST_TURNS = 9
_HOPELESS = 1.6
"""What takes so many times as long as the best at its first run is out of the race."""


@dataclass(frozen=True)
class Choice:
    """What is used at a size: a schedule, or None for the stock collective; `raced` has what was measured, in us."""

    schedule: Schedule | None
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
    """The choices of one communicator."""

    def __init__(self, plan: Plan, machine: Machine, group: dist.ProcessGroup, device: torch.device, mode: str) -> None:
        self.plan, self.machine, self.group, self.device, self.mode = plan, machine, group, device, mode
        self.rank = dist.get_rank(group)
        self.choices: dict[int, Choice] = {}

    @cached_property
    def families(self) -> list[Family]:
        """The plan's schedules and their cuts."""
        return families([*(entry.schedule for entry in self.plan.entries), *self.plan.alternatives], self.plan.topology)

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

    def _choice(self, schedule: Schedule | None, raced: dict[str, float] | None = None) -> Choice:
        return Choice(schedule, lambda size: None if schedule is None else self.predict(schedule, size), raced or {})

    def predict(self, schedule: Schedule, size_bytes: int) -> float | None:
        """Microseconds on the machine at hand."""
        machine = self.machine
        return time_us(schedule, machine.topology, machine.host, size_bytes, rounds=machine.rounds) or None

    def choose(self, size_bytes: int, run: Callable[[Schedule], None], stock: Callable[[], None] | None) -> Choice:
        """Make the choice for a size; `run` and `stock` work on scratch memory. Collective."""
        order = self._ranked(size_bytes)
        if self.mode == "model" or (len(order) == 1 and stock is None):
            schedule = self.variants[order[0]]
            choice = self._choice(schedule)
        else:
            choice = self._race(size_bytes, order, run, stock)
        self.choices[size_bytes.bit_length()] = choice
        return choice

    def _ranked(self, size_bytes: int) -> list[int]:
        """The numbers of the variants worth trying, best first, as rank 0 sees it."""
        box: list[object] = [self._near(size_bytes) if self.rank == 0 else None]
        dist.broadcast_object_list(box, dist.get_global_rank(self.group, 0), self.group, self.device)
        return box[0]  # type: ignore[return-value]

    def _near(self, size_bytes: int) -> list[int]:
        machine = self.machine
        found = fastest(self.families, machine.topology, machine.host, size_bytes, _NEAR, rounds=machine.rounds)
        kept: list[int] = []
        of_base: Counter[Schedule] = Counter()
        for _, schedule in found:
            base = schedule.uncut
            if of_base[base] < _PER_BASE and len(kept) < _RACED:
                of_base[base] += 1
                kept.append(self.variants.index(schedule))
        return kept

    def _race(
        self, size_bytes: int, order: list[int], run: Callable[[Schedule], None], stock: Callable[[], None] | None
    ) -> Choice:
        entrants: list[tuple[Schedule | None, Callable[[], None]]] = []
        for number in order:
            schedule = self.variants[number]
            entrants.append((schedule, lambda s=schedule: run(s)))  # type: ignore[misc]
        if stock is not None:
            entrants.append((None, stock))
        for _, call in entrants:  # compiled, and buffers touched
            call()
        first = self._slowest([self._timed(call) for _, call in entrants])
        best = min(first)
        running = [i for i, seconds in enumerate(first) if seconds <= best * _HOPELESS]
        times: dict[int, list[float]] = {i: [first[i]] for i in running}
        turns = 0 if len(running) == 1 else max(1, min(_MOST_TURNS, int(_RACE_S / (best * len(running)))))
        for _ in range(turns):
            for i, seconds in zip(running, self._slowest([self._timed(entrants[i][1]) for i in running]), strict=True):
                times[i].append(seconds)
        medians = {i: statistics.median(seconds) for i, seconds in times.items()}
        winner = entrants[min(medians, key=medians.__getitem__)][0]
        labels = ["stock" if schedule is None else schedule.label for schedule, _ in entrants]
        measured = {labels[i]: medians.get(i, first[i]) * 1e6 for i in range(len(entrants))}
        return self._choice(winner, measured)

    def _timed(self, call: Callable[[], None]) -> float:
        dist.barrier(self.group)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        started = time.perf_counter()
        call()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - started

    def _slowest(self, seconds: list[float]) -> list[float]:
        """The slowest rank's times."""
        box = torch.tensor(seconds, dtype=torch.float64, device=self.device)
        dist.all_reduce(box, dist.ReduceOp.MAX, self.group)
        return [float(x) for x in box.tolist()]
