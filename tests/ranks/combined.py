"""Ranks whose calls go through several layers, or through one beside helpers, codecs and groups of
joint plans.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import patience
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import Linear
from torch.nn.parallel import DistributedDataParallel

import topoplan
from ranks.checks import refused, same_everywhere
from ranks.recovering import list_watched, lose_a_connection
from ranks.topo_backend import end, start
from topoplan import Communicator
from topoplan.runtime.backend.process_group import TopoGroup
from topoplan.runtime.extras.layered_groups.layers import GroupLayers
from topoplan.runtime.extras.slow_links import watch
from topoplan.runtime.extras.slow_links.pace import Pace
from topoplan.runtime.extras.slow_links.probe import Probe

Rows = list[dict[str, Any]]
_SLOW = ("gpu0", "gpu1")
# More than the ranks make while a plan for a slow link is made, and its schedules are tried.
_MAX_CALLS = 20_000
_NUMEL = 20_000
# How far from right a sum by a codec may be, as a fraction of the largest.
_ERRORS = {None: 0.0, "fp16": 0.01, "int8": 0.03, "fp8": 0.1}
# Groups of a 2 x 2 mesh.
MESH = [[0, 1], [2, 3], [0, 2], [1, 3]]


def have_a_slow_link() -> None:
    """Have all later measurements find that a link has a fourth of its rate, and make them soon.

    The first measurement, and all that follows from the others, are real.
    """

    def find_slow(*_: object) -> dict[tuple[str, str], Fraction]:
        return {_SLOW: Fraction(1, 4)}

    Probe.measure = find_slow  # type: ignore[assignment,method-assign]
    Pace.is_suspicious = lambda *_: True  # type: ignore[method-assign]
    watch._MAX_CALLS = 4


def make_call(
    members: Sequence[int], error: float, all_reduce: Callable[..., Any]
) -> Callable[[int], None]:
    """Return a function that makes one allreduce of `members`, and checks the sums; see _ERRORS."""

    def call(number: int) -> None:
        x = torch.arange(_NUMEL, dtype=torch.float32) % 100 + dist.get_rank() * (number % 7)
        all_reduce(x)
        wanted = (torch.arange(_NUMEL) % 100) * len(members) + sum(members) * (number % 7)
        assert (x - wanted).abs().max() <= error * wanted.abs().max(), number

    return call


def call_until_followed(call: Callable[[int], None], list_rows: Callable[[], Rows]) -> None:
    """Make calls until the ranks know what it was worth to follow a slow link, and three more."""
    before, number = len(list_rows()), 0
    while not any(row.get("after_s") for row in list_rows()[before:]):
        call(number)
        number += 1
        assert number < _MAX_CALLS, list_rows()
    for further in range(3):
        call(number + further)


def lose_and_go_on(call: Callable[[int], None], before: dict[str, int], loser: int) -> None:
    """Make four calls; a rank loses a connection before the second."""
    for number in range(4):
        if number == 1 and dist.get_rank() == loser:
            lose_a_connection(before)
        call(number)


def communicators_follow(ways: list[tuple[str, str | None]]) -> list[Rows]:
    """Follow a slow link by each plan, with its codec; return the rows of those this rank calls."""
    have_a_slow_link()
    rows = []
    for path, compress in ways:
        communicator = Communicator(
            path, timeout=patience.deadline(20), choose="plan", compress=compress, on_slow="replan"
        )
        members = communicator.plan.collective.members
        if dist.get_rank() in members:
            call = make_call(members, _ERRORS[compress], communicator.allreduce)
            call_until_followed(call, partial(getattr, communicator, "recoveries"))
            rows.append(communicator.recoveries)
        communicator.close()
    return rows


def communicators_go_on(ways: list[tuple[str, dict[str, Any]]]) -> list[Rows]:
    """Go on after a lost connection by each plan, with its options; return the rows likewise."""
    all_rows = []
    for path, options in ways:
        before = list_watched()
        choose = take_last if options.get("choose") == take_last.__name__ else options.get("choose")
        given = {**options, "choose": choose or "plan"}
        communicator = Communicator(path, timeout=patience.deadline(20), on_fault="replan", **given)
        members = communicator.plan.collective.members
        if dist.get_rank() in members:
            error = _ERRORS[options.get("compress")]
            call = make_call(members, error, communicator.allreduce)
            lose_and_go_on(call, before, members[0])
        communicator.close()
        if dist.get_rank() in members:
            all_rows.append(communicator.recoveries)
    return all_rows


def the_backend_follows(on_fault: str) -> Rows:
    """Follow a slow link in calls of torch.distributed, then go on after a lost one if asked to."""
    have_a_slow_link()
    before = list_watched()
    start(plans="full:3", on_slow="replan", on_fault=on_fault)
    group = dist.group.WORLD
    assert isinstance(group, TopoGroup)
    around, call = group.planned.around, make_call(range(3), 0, dist.all_reduce)
    assert isinstance(around, GroupLayers)
    call_until_followed(call, lambda: around.recoveries)
    if on_fault == "replan":
        lose_and_go_on(call, before, 1)
        call_until_followed(call, lambda: around.recoveries)
    x = torch.full((1000,), float(dist.get_rank()))
    dist.broadcast(x, 2)  # a collective whose first call comes late
    assert (x == 2).all()
    rows = around.recoveries
    end()
    return rows


def groups_of_a_joint_plan(path: str, options: dict[str, Any]) -> list[list[str]]:
    """Follow a slow link, or lose one, in each of this rank's groups of a joint plan.

    Return the kinds of what they followed.
    """
    if options.get("on_slow"):
        have_a_slow_link()
    rank, all_kinds = dist.get_rank(), []
    for ranks in MESH:
        before = list_watched()
        given = topoplan.backend_options(path, **{"choose": "plan", **options})
        group = dist.new_group(ranks, backend="topo", pg_options=given)
        if rank not in ranks:
            continue
        assert isinstance(group, TopoGroup)
        around = group.planned.around
        assert isinstance(around, GroupLayers) == bool({"on_fault", "on_slow"} & options.keys())
        error = _ERRORS[options.get("compress")]
        call = make_call(ranks, error, partial(dist.all_reduce, group=group))
        if options.get("on_slow"):
            call_until_followed(call, partial(getattr, around, "recoveries"))
        elif options.get("on_fault"):
            lose_and_go_on(call, before, ranks[0])
        call(0)
        ours = {x.plan.collective.members for x in group.communicators.values() if x is not None}
        assert ours == {tuple(ranks)}, ours  # in the numbers of the launch: by the joint plan
        all_kinds.append([row["kind"] for row in getattr(around, "recoveries", ())])
    return all_kinds


def helpers_know_what_is_encoded(paths: dict[str, str]) -> list[str]:
    """Call collectives of a group with a codec, which encodes only what is averaged or gathered.

    Return what carried out the last calls. Values that a codec would round come whole from others.
    """
    options = topoplan.backend_options(
        choose=choose_helped, least_bytes=0, compress="fp16", time_limit_s=20
    )
    group = topoplan.new_group([0, 2], plans=[*paths.values()], options=options)
    rank, used = dist.get_rank(), []
    if rank == 1:
        atexit._run_exitfuncs()  # as a script that is done: serves as long as members need it
        return []
    for _ in range(2):
        x = torch.full((_NUMEL,), 1.0 + rank)
        dist.all_reduce(x, group=group)
        assert (x == 4).all()
        exact = torch.arange(_NUMEL) * 1.001
        y = exact.clone() if rank == 2 else torch.zeros(_NUMEL)
        dist.broadcast(y, 2, group=group)
        assert torch.equal(y, exact)
        z = torch.full((_NUMEL,), 100_001, dtype=torch.int64)
        dist.all_reduce(z, group=group)
        assert (z == 200_002).all()
    for (name, _, _), communicator in group.communicators.items():
        if communicator is not None:
            choices = [
                communicator.choice(communicator.dispatcher.wire_size(_NUMEL, dtype))
                for dtype in (torch.float32, torch.int64)
            ]
            used += [f"{name} {choice.label}" for choice in choices if choice is not None]
    dist.destroy_process_group(group)
    return used


def take_last(_: int, candidates: Sequence[Any]) -> Any:
    """Choose the last schedule, before and after a fault."""
    return candidates[-1]


def choose_helped(_: int, candidates: Any) -> Any:
    """Choose a schedule with helpers if there is one."""
    return next((x for x in candidates if x.helpers), "plan")


def a_hook_is_helped(path: str) -> list[float]:
    """Train by DDP on two ranks whose hook compresses, and which a third one helps.

    Return the bytes that helpers relayed, and the distance to what stock averages give.
    """
    rank, members = dist.get_rank(), dist.new_group([0, 2])
    options = topoplan.Policy(choose=choose_helped, compress="bf16")
    if rank == 1:
        helper = Communicator(path, policy=options)
        return [float(helper.serve()), 0.0]
    trained = []
    for planned in (True, False):
        torch.manual_seed(5)
        model = DistributedDataParallel(Linear(200, 10), process_group=members)
        if planned:
            hook: Any = topoplan.ddp_hook(path, policy=options)
            model.register_comm_hook(None, hook)
        else:
            model.register_comm_hook(members, allreduce_hook)
        for step in range(3):
            model(torch.full((4, 200), 1.0 + rank + step)).sum().backward()
        gradients = torch.cat([x.grad.flatten() for x in model.parameters() if x.grad is not None])
        assert same_everywhere(gradients, members)
        trained.append(gradients)
    relayed = hook.communicator.count_relayed_bytes()
    hook.communicator.close()
    distance = (trained[0] - trained[1]).abs().max() / trained[1].abs().max()
    return [float(relayed[1]), float(distance)]


def what_excludes_what(helped: str, some_bits: str) -> None:
    """All ranks refuse what does not work together, and say why, before any call."""
    for option, why in (
        ("on_fault", "helpers know of calls from the members' messages alone"),
        ("on_slow", "helpers take part in calls alone"),
    ):
        given: dict[str, Any] = {option: "replan"}
        with refused(f"{option}='replan' excludes plans with helpers: {why}"):
            Communicator(helped, timeout=patience.deadline(20), **given)
        options = topoplan.backend_options(**given)
        with refused(f"{option}='replan' excludes groups with helpers: these take part in calls"):
            topoplan.new_group([0, 2], options=options)
    with refused("executor='one-sided': values that are compressed are sent as messages"):
        Communicator(some_bits, compress="fp16", executor="one-sided")
    with refused("on_slow='replan' excludes choose='same-bits': a plan for slow links adds in an"):
        topoplan.backend_options(choose="same-bits", on_slow="replan")
    with refused("choose='same-bits' with compress='int8': values are rounded in blocks"):
        topoplan.backend_options(choose="same-bits", compress="int8")
