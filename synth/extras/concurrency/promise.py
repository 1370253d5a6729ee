"""The promise of --concurrent: schedules of all strategies, whose transfers take turns.

A promise (synth/request.py) is what all schedules of a plan keep: here limits on the transfers at a
time through devices. Transfers take turns if they are put into steps that keep to them (turns.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from ....topo.errors import InfeasibleError, TimeLimitError, VerificationError
from ....topo.routes import Router
from ...cost.affine import Cost, costs_between_gpus
from ...cost.host_costs import HostCosts
from ...ir.schedule import Schedule
from ...planner.registry import list_strategies
from ...request import Costed, Promise, Request, Strategy
from ...verify import verify
from .bound import find_bound
from .handovers import find_waits_us
from .limits import Limits, Port, parse_limits
from .one_ring import build_one_ring
from .replay import check_concurrency
from .section import Concurrent
from .turns import cut, take_turns

# Work of each strategy, in seconds of an idle core: what it finds is put into other steps anyway.
_STRATEGY_WORK_S = 2.0
# Schedules with more transfers do not take turns: a thousand take about .1 s.
_MAX_TRANSFERS = 4096
# Numbers of parts that chunks are cut into, so that parts overlap where limits let them.
_PARTS = (1, 2, 4, 8)
# Schedules whose transfers take turns, the fastest on their own first: chosen, not measured.
_MAX_BASES = 24


def make_promise(value: object) -> Promise:
    """Return the promise to keep to limits such as "gpu=1" or {"gpu": 1}.

    Raise InputError if `value` is neither.
    """
    limits = parse_limits(value)
    return Promise(Strategy("turns", _build), partial(_choose, limits))


def _build(request: Request) -> list[Schedule]:
    """Return the schedules of all strategies that are quick; `_choose` has them take turns."""
    built: dict[Schedule, None] = {}
    with suppress(InfeasibleError):
        built |= dict.fromkeys(build_one_ring(request))
    for strategy in list_strategies().values():
        collective = request.collective
        if collective.name not in strategy.collectives or not strategy.may_win(
            collective, have_one=bool(built), at_bound=False
        ):
            continue
        request.say(f"{strategy.name} ...")
        effort = request.effort.grant(_STRATEGY_WORK_S)
        try:
            found = strategy(replace(request, effort=effort, quick=True))
        except (InfeasibleError, TimeLimitError):
            continue
        built |= dict.fromkeys(schedule.uncut for schedule in found)
    if not built:
        raise InfeasibleError("turns: no strategy has a schedule whose transfers could take turns")
    return list(built)


def _choose(
    limits: Limits, costed: Costed, router: Router, host: HostCosts | None
) -> tuple[Concurrent, Costed]:
    """Return the limits with the bound, and schedules that keep to them, with their costs."""
    topology = router.topology
    ports, most = limits.find_ports(topology), limits.find_devices(topology)
    by_base: dict[Schedule, Cost] = {}
    for schedule, cost in costed:
        by_base.setdefault(schedule.uncut, cost)
    bases = sorted(by_base, key=lambda base: by_base[base].beta_s_per_GB)[:_MAX_BASES]
    kept: Costed = []
    seen: set[Schedule] = set()
    for base in bases:
        for schedule in _vary(base, router, ports):
            if schedule in seen:
                continue
            seen.add(schedule)
            try:
                check_concurrency(schedule, topology, most, str(limits))
            except VerificationError:
                continue  # it is as it was given, and keeps to no limits
            verify(schedule, topology)
            own = costs_between_gpus(schedule, topology, [1])[0]
            waits_us = find_waits_us(schedule, topology, ports)
            kept.append((schedule, replace(own, alpha_us=own.alpha_us + waits_us)))
    if not kept:
        raise InfeasibleError(
            f"no schedule keeps to {limits}: those found have more than {_MAX_TRANSFERS} "
            "transfers, or ranks that exchange values in one step; allow more at a time"
        )
    return Concurrent(limits, find_bound(kept[0][0].collective, topology, ports)), kept


def _vary(base: Schedule, router: Router, ports: dict[Port, int]) -> Iterator[Schedule]:
    """Yield a schedule as it is, then with its transfers taking turns in several ways."""
    yield base
    for parts in _PARTS:
        if len(base.transfers) * parts > _MAX_TRANSFERS:
            return
        whole = base if parts == 1 else cut(base, parts)
        for by_step in (False, True):
            try:
                yield take_turns(whole, router.topology, ports, by_step=by_step)
            except InfeasibleError:
                return
