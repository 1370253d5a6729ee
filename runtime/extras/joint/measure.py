"""Time a joint plan: all groups' calls at once, by their plans and by the stock collectives.

A joint plan is one file of plans for several groups that make their calls at the same time. A stock
collective is gloo's, NCCL's or MPI's own, without a plan; a race times several schedules at one
message size and keeps the fastest.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from ....synth.extras.joint.plan import GroupPlan, JointPlan
from ...communicator import Communicator
from ...environment import find_cache_folder
from ...measuring.bench import choose_plan_call, find_scale, prepare_stock
from ...measuring.bench_data import BenchBuffers
from ...measuring.bench_options import BenchOptions
from ...ranks.groups import device_of
from ...ranks.transport import Transport
from .groups import JointGroups
from .race import race_jointly

Call = Callable[[], object]


@dataclass(frozen=True)
class GroupTimes:
    """Median microseconds of one group's call while the other groups make theirs.

    `schedule` names the one used; `plan_us` is by the plan, `stock_us` by the stock collective
    (None if it lacks the dtype); `wrong` counts wrong elements of results.
    """

    group: GroupPlan
    schedule: str
    plan_us: float
    stock_us: float | None
    wrong: int


@dataclass(frozen=True)
class JointTimes:
    """Median microseconds until all groups' calls, started together, have ended.

    `plan_us` is by the plans, `stock_us` by the stock collectives (None if one lacks the dtype).
    `bound_us` is the plan's lower bound, None if it is for another machine than this one. `groups`
    has the times of each; `raced_us` those of the race's candidates, empty without a race.
    """

    plan_us: float
    stock_us: float | None
    bound_us: float | None
    groups: list[GroupTimes]
    raced_us: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """The stock collectives' time divided by the plans': above 1 the plans are faster.

        None if `stock_us` is None.
        """
        return None if self.stock_us is None else self.stock_us / self.plan_us

    @property
    def bound_fraction(self) -> float | None:
        """The lower bound divided by the plans' time: 1 is optimal; None without a bound."""
        return None if self.bound_us is None else self.bound_us / self.plan_us


@dataclass
class _Part:
    """This rank's part in a group's calls: the plan's call and the stock one, with their times."""

    number: int
    buffers: BenchBuffers
    communicator: Communicator
    calls: tuple[Call, Call | None]
    times_s: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))


def run_joint(
    joint: JointPlan,
    options: BenchOptions,
    transport: Transport,
    timeout: timedelta,
    say: Callable[[str], None],
) -> JointTimes:
    """Measure a joint plan over a transport that has a rank for each GPU of its topology.

    By default a race decides first what all groups use. The groups' plans and their stock
    collectives take turns, and every element of the results is checked. `timeout` limits a call;
    `say` is given lines about the progress. Collective; all ranks return the same. Raise
    ExecutionError if a rank fails.
    """
    say("setting up groups ...")
    groups = JointGroups(joint, transport, timeout, options.choose, executor=options.executor)
    parts = [
        _make_part(number, joint.groups[number], communicator, options)
        for number, communicator in groups.own.items()
    ]
    raced_us: dict[str, float] = {}
    if options.choose == "race":
        say("racing ...")
        scratch = {
            part.number: part.communicator.dispatcher.make_scratch(
                part.buffers.numel, part.buffers.settings.dtype
            )
            for part in parts
        }
        raced_us = race_jointly(groups, scratch, find_cache_folder()).raced_us
    has_stock = all(transport.control.exchange(all(part.calls[1] is not None for part in parts)))
    joint_s: tuple[list[float], list[float]] = [], []
    for turn in range(options.warmup + options.iterations):
        say(f"call {turn + 1} of {options.warmup + options.iterations} ...")
        for which in range(2 if has_stock else 1):
            seconds = _call_together(groups, parts, which)
            if turn >= options.warmup:
                joint_s[which].append(seconds)
                continue
            for part in parts:
                part.times_s[which].clear()
    _call_together(groups, parts, 0)
    wrong = {part.number: part.buffers.count_errors()[0] for part in parts}
    times = _combine(joint, transport, parts, joint_s, wrong)
    groups.close()
    return replace(times, raced_us=raced_us)


def _make_part(
    number: int, group: GroupPlan, communicator: Communicator, options: BenchOptions
) -> _Part:
    members = communicator.dispatcher.transport
    settings = options.settings_for(options.collective_over(group.plan, members.size))
    buffers = BenchBuffers(settings, members.rank, group.call.size_bytes, device_of(None))
    calls = choose_plan_call(buffers, communicator), prepare_stock(buffers, members)
    return _Part(number, buffers, communicator, calls)


def _call_together(groups: JointGroups, parts: Sequence[_Part], which: int) -> float:
    """Make the calls of all parts at once after a barrier; return this rank's seconds."""
    for part in parts:
        part.buffers.reset()
    groups.transport.meet()
    began = time.monotonic()

    def run_part(part: _Part) -> None:
        call = part.calls[which]
        assert call is not None
        call()
        part.times_s[which].append(time.monotonic() - began)

    groups.run({part.number: partial(run_part, part) for part in parts})
    return time.monotonic() - began


def _combine(
    joint: JointPlan,
    transport: Transport,
    parts: Sequence[_Part],
    joint_s: tuple[list[float], list[float]],
    wrong: dict[int, int],
) -> JointTimes:
    """Return the times of the slowest ranks."""
    own = {part.number: part.times_s for part in parts}
    labels = {part.number: _find_label(part) for part in parts}
    answers = transport.control.exchange((joint_s, own, labels, wrong))

    def find_us(columns: Sequence[Sequence[float]]) -> float | None:
        slowest = [max(row) for row in zip(*columns, strict=True)]
        return statistics.median(slowest) * 1e6 if slowest else None

    groups = []
    for number, group in enumerate(joint.groups):
        of_group = [answer for answer in answers if number in answer[1]]
        plan_us, stock_us = (
            find_us([of_rank[number][which] for _, of_rank, _, _ in of_group]) for which in (0, 1)
        )
        groups.append(
            GroupTimes(
                group,
                of_group[0][2][number],
                plan_us or 0.0,
                stock_us,
                sum(counts[number] for *_, counts in of_group),
            )
        )
    plan_us, stock_us = (find_us([times[which] for times, *_ in answers]) for which in (0, 1))
    scales = [find_scale(part.communicator) for part in parts]
    scale = next((x for x in transport.control.exchange(scales[0] if scales else None) if x), None)
    bound_us = None if scale is None else float(joint.bound_one_way.time_s) * 1e6 / scale
    return JointTimes(plan_us or 0.0, stock_us, bound_us, groups)


def _find_label(part: _Part) -> str:
    sent = part.communicator.dispatcher.wire_size(part.buffers.numel, part.buffers.settings.dtype)
    choice = part.communicator.choice(sent)
    return "" if choice is None else choice.label
