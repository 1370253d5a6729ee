"""Schedules and plans over some GPUs of a machine, with helpers, for tests of what runs them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from topoplan.synth.bounds.certificate import bound_of
from topoplan.synth.cost.affine import tighten
from topoplan.synth.ir.collective import Collective
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.ir.transfers import Op, Transfer, Transfers
from topoplan.synth.plan import Entry, Plan
from topoplan.synth.verify import verify
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset


def build_helped(
    name: str,
    gpus: int,
    members: Sequence[int],
    helpers: Sequence[int],
    root: int | None = None,
    seed: int = 0,
    topology: Topology | None = None,
) -> Schedule:
    """Return a verified schedule on equal links between all GPUs: each chunk goes directly, by one
    helper or by two.

    Several terms of a sum meet at a helper; a helper passes partial sums to another, and gets the
    result back.
    """
    collective = Collective.with_default_root(name, len(members), root, tuple(members))
    chunks = collective.even_chunks(1 + 2 * len(helpers))
    draw = random.Random(seed)
    rows: list[Transfer] = []
    for c, chunk in enumerate(chunks):
        holders = list(collective.holders(chunk))
        receivers = list(collective.receivers(chunk))
        path = draw.sample(list(helpers), draw.randint(0, min(2, len(helpers))))
        op: Op = "reduce" if collective.reduces else "copy"
        if not path:  # all to one of the receivers, from there to the others
            hub = holders[0] if not collective.reduces else receivers[c % len(receivers)]
            rows += [Transfer(0, src, hub, c, "reduce") for src in holders if src != hub]
            rows += [Transfer(3, hub, dst, c) for dst in receivers if dst != hub]
            continue
        first, last = path[0], path[-1]
        own = receivers[0] if len(receivers) == 1 and collective.reduces else None
        terms = [x for x in holders if x != own]
        cut = draw.randint(1, len(terms)) if first != last else len(terms)
        rows += [Transfer(0, src, first, c, op) for src in terms[:cut]]
        rows += [Transfer(0, src, last, c, "reduce") for src in terms[cut:]]
        if first != last:
            rows.append(Transfer(1, first, last, c, op))
        if own is not None:
            rows.append(Transfer(2, last, own, c, "reduce"))
            continue
        back = [x for x in receivers if collective.reduces or x not in holders]
        direct = draw.randint(0, len(back)) if first != last and collective.reduces else len(back)
        rows += [Transfer(2, last, dst, c) for dst in back[:direct]]
        if back[direct:]:
            rows.append(Transfer(2, last, first, c))
            rows += [Transfer(3, first, dst, c) for dst in back[direct:]]
    rows.sort(key=lambda row: row.step)
    used = {rank for row in rows for rank in (row.src, row.dst)}
    schedule = Schedule(
        collective,
        "helped" if helpers else "alone",
        chunks,
        Transfers.of(rows),
        (),
        helpers=tuple(sorted(used & set(helpers))),
    )
    machine = topology or preset(f"full:{gpus}")
    schedule = tighten(schedule, machine)
    verify(schedule, machine)
    return schedule


def build_star(
    gpus: int, members: Sequence[int], helpers: Sequence[int], topology: Topology | None = None
) -> Schedule:
    """Return the best allreduce of two members of equal links: a share by each helper and link."""
    collective = Collective("allreduce", len(members), members=tuple(members))
    rows = []
    hubs = [*helpers, *members]
    chunks = collective.even_chunks(2 * len(helpers) + len(members))
    for c in range(len(chunks)):
        hub = hubs[c // 2] if c < 2 * len(helpers) else members[c - 2 * len(helpers)]
        rows += [Transfer(0, src, hub, c, "reduce") for src in members if src != hub]
        rows += [Transfer(1, hub, dst, c) for dst in members if dst != hub]
    rows.sort(key=lambda row: row.step)
    machine = topology or preset(f"full:{gpus}")
    schedule = Schedule(
        collective, "star", chunks, Transfers.of(rows), (), helpers=tuple(sorted(helpers))
    )
    return tighten(schedule, machine)


def build_relay(gpus: int, members: Sequence[int], helper: int) -> Schedule:
    """Return a scatter from the last member: directly to the first, by the helper to the others."""
    *others, root = members
    collective = Collective("scatter", len(members), root, tuple(members))
    rows = []
    for c, chunk in enumerate(collective.even_chunks(1)):
        target = chunk.target
        if target == others[0]:
            rows.append(Transfer(0, root, target, c))
        elif target in others:
            rows += [Transfer(0, root, helper, c), Transfer(1, helper, target, c)]
    rows.sort(key=lambda row: row.step)
    schedule = Schedule(
        collective,
        "relay",
        collective.even_chunks(1),
        Transfers.of(rows),
        (),
        helpers=(helper,),
    )
    machine = preset(f"full:{gpus}")
    schedule = tighten(schedule, machine)
    verify(schedule, machine)
    return schedule


def build_plan(*schedules: Schedule, topology: Topology | None = None, gpus: int = 0) -> Plan:
    """Return a verified plan of the schedules, the first of them for all sizes."""
    first, *others = schedules
    machine = topology or preset(f"full:{gpus}")
    collective = first.collective
    sends = [x for x in collective.members if x != collective.root]
    if collective.name in ("broadcast", "scatter"):
        sends = [collective.root or 0]
    inside = [machine.ranks[sends[0]]]
    bound = bound_of("cut", {"inside": inside}, collective, machine)
    plan = Plan(machine, collective, (Entry(0, None, first),), bound, bound, tuple(others))
    plan.verify()
    return plan
