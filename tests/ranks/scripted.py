"""Races whose times are made up: a dispatcher on one rank, whose calls take as long as a script
says.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist

from topoplan.runtime.candidates import Choice
from topoplan.runtime.choices import Entrant
from topoplan.runtime.compiled import Buffers
from topoplan.runtime.dispatcher import Dispatcher
from topoplan.runtime.option_names import POINT_TO_POINT
from topoplan.runtime.policy import Policy
from topoplan.runtime.ranks.machine import Machine
from topoplan.runtime.runners.programs import Messages
from topoplan.synth.cost.host_costs import HostCosts
from topoplan.synth.plan import Plan

SIZE_BYTES = 4096
MACHINE = Machine(None, HostCosts(), batched=False, what="made up")
# From a candidate's strategy, or stock, to the microseconds of its next call.
Script = Callable[[str], float]


@dataclass(eq=False)
class ScriptedTransport:
    """What a dispatcher needs of a Transport, with one rank and made-up times."""

    script: Script
    calls: Counter[str] = field(default_factory=Counter)
    taken_s: list[float] = field(default_factory=list)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    rank: int = 0
    label: int = 0
    size: int = 1
    labels: tuple[int, ...] = tuple(range(64))
    store: None = None
    topology: object = None
    carrier: str = ""
    costs: None = None
    is_batched: bool = False
    memory_runner: str | None = None
    has_logged_new_race: bool = False

    @property
    def group(self) -> dist.ProcessGroup | None:
        return dist.group.WORLD

    @property
    def faults(self) -> Any:
        return self

    control = links = faults

    def find_cores_of_hosts(self) -> dict[str, int]:
        return {"host": 1}

    def has_stock(self, *_: object) -> bool:
        return True

    def stock(
        self, what: str, number: int | None = None, *, is_part: bool = False
    ) -> nullcontext[None]:
        return nullcontext()

    def meet(self) -> None:
        """Nobody else is there."""

    def exchange(self, value: object) -> list[object]:
        return [value]

    def call(self, name: str) -> None:
        self.calls[name] += 1
        self.taken_s.append(self.script(name) * 1e-6)

    def find_slowest_s(self, seconds: list[float]) -> list[float]:
        taken, self.taken_s = self.taken_s, []
        assert len(taken) == len(seconds)
        return taken


def race(
    plan: Plan,
    script: Script,
    folder: str | None,
    machine: Machine = MACHINE,
    *,
    has_stock: bool = True,
) -> tuple[Choice, Counter[str]]:
    """Return what a new start chooses, and how often each candidate was called."""
    transport = ScriptedTransport(script)
    tensor = torch.zeros(SIZE_BYTES // 4)
    with tempfile.TemporaryDirectory(prefix="races-") as nowhere:
        policy = Policy(executor=POINT_TO_POINT, cache=folder or nowhere)
        dispatcher = ScriptedDispatcher(
            plan,
            cast(Any, transport),
            policy,
            [Messages(cast(Any, transport), None)],
            with_stock=has_stock,
        )
        dispatcher.choices.machine = machine
        choice = dispatcher.hold_race(Buffers(len(tensor), tensor, tensor))
    assert dispatcher.choices.find(SIZE_BYTES) is choice
    return choice, transport.calls


class ScriptedDispatcher(Dispatcher):
    """A dispatcher whose calls take as long as a ScriptedTransport says."""

    def make_run(self, buffers: Buffers) -> Callable[[Entrant], None]:
        transport = cast(ScriptedTransport, self.transport)
        return lambda entrant: transport.call("stock" if entrant is None else entrant.strategy)


def steady(**times_us: float) -> Script:
    """Every call takes the same time; those that are not named 10 ms."""
    return lambda name: times_us.get(name, 10_000.0)


def held_up(seed: int) -> Script:
    """As on a crowded host: stock takes 716 us, each schedule 1 ms, and one call in five is held up
    for up to 4 ms.
    """
    random_ = random.Random(seed)

    def draw(name: str) -> float:
        own = (716 if name == "stock" else 1000) * random_.uniform(0.9, 1.2)
        return own + (random_.uniform(500, 4000) if random_.random() < 0.2 else 0)

    return draw


def disturbed_races(path: str, seeds: int) -> tuple[int, int, int]:
    """Return how often a race was won by a schedule that is slower than stock, and the stock calls
    of a quiet race and on average of a disturbed one.
    """
    plan = Plan.load(path)
    choices = [race(plan, held_up(seed), None) for seed in range(seeds)]
    _, quiet = race(plan, lambda name: 716.0 if name == "stock" else 1000.0, None)
    wrong = sum(choice.schedule is not None for choice, _ in choices)
    return wrong, quiet["stock"], sum(calls["stock"] for _, calls in choices) // seeds


def verdicts(path: str, folder: str) -> None:
    """A cached winner stays while it is near its time and beats stock; else it races again."""
    plan = Plan.load(path)
    own = plan.entry_for(SIZE_BYTES).schedule.strategy
    first, _ = race(plan, steady(**{own: 1000, "stock": 3000}), folder)
    assert first.schedule is not None and first.schedule.strategy == own
    again, calls = race(plan, steady(**{own: 1200, "stock": 1300}), folder)
    assert again.raced == first.raced  # tried beside stock, and found to be fastest still
    assert set(calls) == {own, "stock"} and calls["stock"] == calls[own] <= 4
    beaten, calls = race(plan, steady(**{own: 1200, "stock": 900}), folder)
    assert beaten.schedule is None and beaten.raced["stock"] == 900
    assert calls["stock"] > 4
    stays, calls = race(plan, steady(**{own: 500, "stock": 900}), folder)
    assert stays.schedule is None and set(calls) == {
        "stock"
    }  # stock alone: who trusts it asks for nothing else
    far_off, _ = race(plan, steady(**{own: 500, "stock": 9000}), folder)
    assert far_off.schedule is not None and far_off.raced["stock"] == 9000
    without, calls = race(plan, steady(**{own: 500}), folder, has_stock=False)
    assert "stock" not in without.raced and "stock" not in calls
    assert len(list(Path(folder).glob("races/*"))) == 2
    # Fitted anew by each topo-run; cores are the machine's.
    fitted = replace(
        MACHINE, host=replace(MACHINE.host, send_us=7.5, call_us=3.25, source="fitted")
    )
    found, _ = race(plan, steady(**{own: 500, "stock": 9000}), folder, fitted)
    assert found.raced == far_off.raced
    assert len(list(Path(folder).glob("races/*"))) == 2
    larger = replace(MACHINE, host=replace(MACHINE.host, cores=64))
    race(plan, steady(**{own: 500, "stock": 9000}), folder, larger)
    assert len(list(Path(folder).glob("races/*"))) == 3
