"""Winners of races from recorded times: times in, winner out.

Each rule has one function that carries recorded times to the code that decides; the rest of this
module knows no class of the product.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import chain, cycle, repeat
from types import SimpleNamespace
from typing import Any, cast

from ranks.scripted import ScriptedTransport, race, steady

import topoplan
from goldens.store import INPUTS
from topoplan import Plan
from topoplan.runtime.candidates import Candidate, label_of
from topoplan.runtime.extras.joint import race as joint_race
from topoplan.runtime.extras.shared_memory.runners import InSharedMemory
from topoplan.runtime.extras.slow_links.pace import Pace
from topoplan.runtime.extras.slow_links.watch import SlowWatch, find_change
from topoplan.runtime.race import Race, is_worthwhile
from topoplan.runtime.ranking import Candidates
from topoplan.runtime.ranks.turns import Trial, Turns
from topoplan.runtime.runners.contract import Opening
from topoplan.runtime.runners.programs import Messages
from topoplan.topo.extras.measured.flows import Hop

STOCK = "stock"
_SIZE_BYTES = 1 << 16
# Microseconds of schedules and of the stock collective, around the fractions that decide.
_PAIRS_US = [(own, stock) for stock in (100, 999, 1000, 5000) for own in (84, 86, 94, 96, 100)]
# By the segments of all groups' schedules; the first two were recorded on four ranks, the others
# are made from them.
_JOINT_US: tuple[dict[str, float], ...] = (
    {STOCK: 4077.4, "plan": 6388.9, "x16": 6861.2, "x64": 23003.9},
    {STOCK: 2987.7, "plan": 6094.1, "x16": 6593.0, "x64": 15085.0},
    {STOCK: 7187.7, "plan": 6894.1, "x16": 6893.0, "x64": 15085.0},
    {STOCK: 7387.7, "plan": 6894.1, "x16": 6593.0, "x64": 15085.0},
    {STOCK: 1001.9, "plan": 905.0, "x16": 980.5, "x64": 1155.1},
    {"plan": 3410.0, "x16": 2980.5, "x64": 2155.1, "x128": 2101.9, "x32": 2490.0},
)
# What three schedules and the stock collective took while a link was slow, or after it was mended;
# `used` was in use, `original` before any link was slow.
_SLOW_US: tuple[dict[str, Any], ...] = (
    {"slow": True, "used": "packing", "original": "packing", "packing": 990, "exact": 700},
    {"slow": True, "used": "packing", "original": "packing", "packing": 990, "exact": 950},
    {"slow": True, "used": "exact", "original": "packing", "packing": 990, "exact": 1010},
    {"slow": True, "used": "exact", "original": STOCK, "stock": 400, "exact": 1010},
    {"slow": False, "used": "exact", "original": "packing", "packing": 400, "exact": 390},
    {"slow": False, "used": "exact", "original": "packing", "packing": 400, "exact": 350},
)
# Of the plan's own schedule and the stock collective, in a first launch and in the next one.
_CACHED_US: tuple[dict[str, dict[str, float]], ...] = tuple(
    {"first_us": {"own": first, STOCK: 3000.0}, "next_us": {"own": own, STOCK: stock}}
    for first, own, stock in (
        *((1000.0, 1200.0, 1300.0), (1000.0, 1200.0, 900.0), (1000.0, 1600.0, 3000.0)),
        *((1000.0, 400.0, 3000.0), (2900.0, 500.0, 3000.0), (2800.0, 2840.0, 3000.0)),
    )
)
# Medians of periods of five calls at two sizes, a second each.
_PERIODS_US: dict[str, list[tuple[float, float]]] = {
    "steady": [(900.0, 5000.0), (950.0, 5200.0), (880.0, 5600.0), (990.0, 5900.0)],
    "slow at once": [(900.0, 5000.0), *[(910.0, 9900.0)] * 5],
    "slow for a moment": [(900.0, 5000.0), (2900.0, 9900.0), (900.0, 5010.0), (905.0, 9000.0)],
    "slower and slower": [(900.0, 5000.0 + 300 * i) for i in range(12)],
}
# Fractions of their rates that links have, before and after a measurement.
_CHANGES: tuple[tuple[dict[str, str], dict[str, str]], ...] = (
    ({}, {"0-1": "1/4"}),
    ({"0-1": "1/4"}, {"0-1": "1/4", "2-3": "1/2"}),
    ({"0-1": "1/4"}, {"0-1": "1/2"}),
    ({"0-1": "1/4", "2-3": "1/2"}, {"2-3": "1/2"}),
    ({"0-1": "1/4", "2-3": "1/2"}, {"0-1": "1/8", "2-3": "1"}),
)


def record() -> dict[str, Any]:
    """Return the winner of each case, with the times that it was decided from."""
    recorded = json.loads((INPUTS / "race_times.json").read_text(encoding="utf-8"))
    return {
        "races": dict(_list_races(recorded["races_us"])),
        "turns": {name: measure_turns(series) for name, series in recorded["turns_us"].items()},
        "trials": {name: play_trial(us) for name, us in recorded["trials_us"].items()},
        "cached": [{**case, "outcome": race_again(**case)} for case in _CACHED_US],
        "worthwhile": {
            f"{own} of {stock} us": is_worthwhile(own * stock / 100 * 1e-6, stock * 1e-6)
            for own, stock in _PAIRS_US
        },
        "joint": [{**times, "winner": decide_jointly(times)} for times in _JOINT_US],
        "slow links": [{**case, "winner": decide_slow(case)} for case in _SLOW_US],
        "pace": {name: find_measurements(periods) for name, periods in _PERIODS_US.items()},
        "changes": [
            {"before": before, "after": after, "change": name_change(before, after)}
            for before, after in _CHANGES
        ],
    }


def _list_races(races_us: Mapping[str, dict[str, float]]) -> Iterator[tuple[str, str]]:
    """Yield the winner of each recorded race, also among fewer candidates than there were."""
    for name, times_us in races_us.items():
        messages = {x: us for x, us in times_us.items() if not x.endswith("one-sided")}
        alone = {x: us for x, us in messages.items() if x != STOCK}
        for what, given in (("", times_us), (", messages", messages), (", no stock", alone)):
            yield f"{name}{what}", decide_race(name.split()[0], given)


# The rules


def decide_race(machine: str, times_us: Mapping[str, float]) -> str:
    """Return which candidate of a race is used, by the medians of all."""
    by_label = {candidate.label: candidate for candidate in _list_candidates(machine)}
    times_s: dict[Candidate | None, float] = {
        None if label == STOCK else by_label[label]: us * 1e-6 for label, us in times_us.items()
    }
    return label_of(Race[Candidate]([]).decide(times_s).winner)


@cache
def _make_plan(machine: str, strategy: str = "auto") -> Plan:
    return topoplan.synthesize("allreduce", machine, strategy)


@cache
def _list_candidates(machine: str) -> list[Candidate]:
    plan, transport = _make_plan(machine), cast(Any, ScriptedTransport(lambda _: 0.0))
    in_memory = InSharedMemory(Opening(plan, transport, keeps_bits=False))
    return Candidates(plan, [Messages(transport, None)], [in_memory]).all


def measure_turns(series_us: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return the medians that a race takes, and how often it calls each candidate, if the calls of
    each take the times of a series again and again.
    """
    times = [cycle(series) for series in series_us]
    transport = ScriptedTransport(lambda name: next(times[int(name)]))
    calls = [lambda name=str(i): transport.call(name) for i in range(len(times))]
    medians_s = Turns(cast(Any, transport), "a race").measure_medians_s(calls)
    counts = [transport.calls[str(i)] for i in range(len(times))]
    return {"medians_us": [round(x * 1e6, 2) for x in medians_s], "calls": counts}


def play_trial(times_us: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return the order of the candidates in a trial, and the best time of each; its last time is
    that of all further calls.
    """
    left = {name: chain(series, repeat(series[-1])) for name, series in times_us.items()}
    trial, order = Trial(cast(Any, list(left))), []
    while not trial.is_over:
        name = cast(str, trial.entrant)
        order.append(name)
        trial.record(next(left[name]) * 1e-6)
    return {"order": order, "best_us": {x: round(s * 1e6, 2) for x, s in trial.best_s().items()}}


def race_again(first_us: dict[str, float], next_us: dict[str, float]) -> dict[str, Any]:
    """Return what a launch uses after another one has cached its race, and which were called."""
    plan = _make_plan("ring:3", "ring")
    with tempfile.TemporaryDirectory(prefix="goldens-") as folder:
        for times_us in (first_us, next_us):
            named = {"ring" if name == "own" else name: us for name, us in times_us.items()}
            choice, calls = race(plan, steady(**named), folder)
    return {"winner": choice.label, "calls": dict(sorted(Counter(calls).items()))}


def decide_jointly(times_us: Mapping[str, float]) -> dict[str, Any]:
    """Return what all groups use, and the numbers of segments that would be timed next."""
    segments = {STOCK: None, "plan": 0}
    times_s = {
        segments[name] if name in segments else int(name[1:]): us * 1e-6
        for name, us in times_us.items()
    }
    race = joint_race.make_race(list(times_s))
    used = joint_race.choose(race.decide(times_s))
    race.end_heat(times_s)
    return {"used": used.label, "next": [x for x in race.heat if x not in times_s]}


def decide_slow(case: Mapping[str, Any]) -> str:
    """Return which schedule is used after a trial for links that are slow, or are again fast."""
    plan, used = _make_plan("ring:4"), []
    candidates = Candidates(plan, [Messages(cast(Any, ScriptedTransport(steady())), None)], [])
    given = [candidates.send(schedule) for schedule in plan.schedules]
    by_name: dict[str, Candidate | None] = {x.strategy: x for x in (*given, *candidates.sent)}
    by_name[STOCK] = None
    base = SimpleNamespace(
        transport=ScriptedTransport(lambda _: 0.0),
        plan=plan,
        use_instead=lambda _, candidate, *, is_usual: used.append((candidate, is_usual)),
    )
    watch = SlowWatch(cast(Any, base), [{"size_bytes": 0, "after_s": None}], 0.0)
    bits = _SIZE_BYTES.bit_length()
    names = dict.fromkeys([case["used"], case["original"], *case])
    entrants = [by_name[name] for name in names if name in by_name and name in case]
    watch._factors = {("gpu0", "gpu1"): Fraction(1, 4)} if case["slow"] else {}
    watch._candidates = candidates
    original = watch._originals[bits] = by_name[case["original"]]
    race = watch._races[bits] = watch._make_race(entrants, original)
    while not race.is_over:
        race.record(case[STOCK if race.entrant is None else race.entrant.strategy] * 1e-6)
    watch._end_race(_SIZE_BYTES, race.race, cast(Any, None))
    ((candidate, is_usual),) = used
    label = STOCK if candidate is None else candidate.strategy
    return f"{label}, as before" if is_usual else label


def find_measurements(periods_us: Sequence[tuple[float, float]]) -> list[int]:
    """Return after which periods links are measured, if none is found to have changed."""
    pace, measured = Pace(), []
    for number, medians_us in enumerate(periods_us):
        pace.note_period([(size, us * 1e-6) for size, us in enumerate(medians_us)] * 5)
        if pace.is_suspicious(float(number)):
            measured.append(number)
            pace.note_measurement(float(number), 0.1, has_changed=False)
    return measured


def name_change(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return what a change of links' rates is called, with the links."""
    rates = [
        {cast(Hop, tuple(link.split("-"))): Fraction(rate) for link, rate in x.items()}
        for x in (before, after)
    ]
    kind, links = find_change(*rates)
    return f"{kind}: " + ", ".join(f"{a}-{b} {rate}" for (a, b), rate in links.items())
