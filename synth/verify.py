"""An independent replay of a schedule. It knows nothing of how the schedule was made.

It keeps, for every rank and chunk, how often each rank's contribution is in what that rank holds (0, 1, or 2 for
"more than once"), plays all transfers, and at the end wants each receiver to hold every contribution exactly once.
ORing flags, as checkers of the field do, cannot see double counting; counting does.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..topo.errors import VerificationError
from ..topo.graph import Topology
from .schedule import Schedule, Transfer

Counts = NDArray[np.uint8]
_MANY = 2


def verify(schedule: Schedule, topology: Topology) -> None:
    """Raise VerificationError unless `schedule` is well-formed, right, and overloads no link of `topology`."""
    _check_form(schedule, topology)
    _check_routes(schedule, topology)
    replay(schedule)
    _check_loads(schedule, topology)


def _name(transfer: Transfer) -> str:
    return (
        f"step {transfer.step}: {transfer.op} of chunk {transfer.chunk} from rank {transfer.src} to rank {transfer.dst}"
    )


def _check_form(schedule: Schedule, topology: Topology) -> None:
    collective = schedule.collective
    if collective.ranks != len(topology.ranks):
        raise VerificationError(
            f"the schedule is for {collective.ranks} ranks, topology {topology.name!r} has {len(topology.ranks)}"
        )
    problem = collective.problem_with(schedule.chunks)
    if problem:
        raise VerificationError(f"{collective.name}: {problem}")
    if any(cost < 0 for cost in schedule.step_s_per_GB):
        raise VerificationError("a step has a negative duration")
    if schedule.segments < 1:
        raise VerificationError(f"segments is {schedule.segments}; expected 1 or more")
    previous = 0
    for t in schedule.transfers:
        if not (0 <= t.src < collective.ranks and 0 <= t.dst < collective.ranks):
            raise VerificationError(f"{_name(t)}: no such rank; ranks are 0 to {collective.ranks - 1}")
        if t.src == t.dst:
            raise VerificationError(f"{_name(t)}: a rank sends to itself")
        if not 0 <= t.chunk < len(schedule.chunks):
            raise VerificationError(f"{_name(t)}: no such chunk; chunks are 0 to {len(schedule.chunks) - 1}")
        if t.op not in ("copy", "reduce"):
            raise VerificationError(f"{_name(t)}: unknown operation {t.op!r}; expected copy or reduce")
        if t.op == "reduce" and not collective.reduces:
            raise VerificationError(f"{_name(t)}: {collective.name} adds nothing up")
        if not previous <= t.step < schedule.steps:
            raise VerificationError(f"{_name(t)}: steps must not decrease, and be below {schedule.steps}")
        previous = t.step


def _check_routes(schedule: Schedule, topology: Topology) -> None:
    seen: set[tuple[int, int, tuple[str, ...]]] = set()
    for t in schedule.transfers:
        if (t.src, t.dst, t.route) in seen:
            continue
        seen.add((t.src, t.dst, t.route))
        path = (topology.ranks[t.src], *t.route, topology.ranks[t.dst])
        for device in t.route:
            if device in topology.by_id and topology.by_id[device].kind == "gpu":
                raise VerificationError(f"{_name(t)}: its route passes through {device!r}, a GPU; GPUs do not forward")
        for link in pairwise(path):
            if link not in topology.capacity_GBps:
                raise VerificationError(f"{_name(t)}: no link {link[0]!r} -> {link[1]!r} in topology {topology.name!r}")


def replay(schedule: Schedule) -> dict[tuple[int, int], Counts]:
    """Play the transfers; return how often each contribution is in each (rank, chunk) held at the end.

    Raises VerificationError on a send of what a rank does not have, on two writes of which one is a copy to one chunk
    at one rank in a step, and where a receiver lacks a contribution, has it more than once, or has one it should not.
    """
    collective = schedule.collective
    unit: list[Counts] = [np.zeros(collective.ranks, np.uint8) for _ in range(collective.ranks)]
    for rank, counts in enumerate(unit):
        counts[rank] = 1
    held = {(r, c): unit[r] for c, chunk in enumerate(schedule.chunks) for r in collective.holders(chunk)}
    for transfers in schedule.by_step:
        arriving: dict[tuple[int, int], list[tuple[Transfer, Counts]]] = defaultdict(list)
        for t in transfers:
            if (t.src, t.chunk) not in held:
                raise VerificationError(f"{_name(t)}: rank {t.src} does not have it at that step")
            arriving[t.dst, t.chunk].append((t, held[t.src, t.chunk]))
        for key, writes in arriving.items():
            held[key] = _land(held.get(key), writes)
    _check_end(schedule, held)
    return held


def _land(before: Counts | None, writes: list[tuple[Transfer, Counts]]) -> Counts:
    """What a rank holds of a chunk after the writes of one step."""
    first = writes[0][0]
    if len(writes) > 1 and any(t.op == "copy" for t, _ in writes):
        raise VerificationError(f"{_name(first)}: another transfer writes that chunk at that rank in the same step")
    if first.op == "copy":
        return writes[0][1]
    if before is None:
        raise VerificationError(f"{_name(first)}: rank {first.dst} has nothing to add it to")
    total = before.astype(np.int64)
    for _, counts in writes:
        total += counts
    return np.minimum(total, _MANY).astype(np.uint8)


def _check_end(schedule: Schedule, held: dict[tuple[int, int], Counts]) -> None:
    collective = schedule.collective
    for c, chunk in enumerate(schedule.chunks):
        wanted = np.zeros(collective.ranks, np.uint8)
        wanted[list(collective.contributors(chunk))] = 1
        for rank in collective.receivers(chunk):
            counts = held.get((rank, c))
            if counts is None:
                raise VerificationError(f"rank {rank} never gets chunk {c}")
            if np.array_equal(counts, wanted):
                continue
            other = int(np.flatnonzero(counts != wanted)[0])
            how = "more than once" if counts[other] > wanted[other] and wanted[other] else "although it should not"
            if counts[other] < wanted[other]:
                raise VerificationError(f"rank {rank} ends without the contribution of rank {other} to chunk {c}")
            raise VerificationError(f"rank {rank} ends with the contribution of rank {other} to chunk {c} {how}")


def _check_loads(schedule: Schedule, topology: Topology) -> None:
    for step, (transfers, allowed) in enumerate(zip(schedule.by_step, schedule.step_s_per_GB, strict=True)):
        load: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
        for t in transfers:
            path = (topology.ranks[t.src], *t.route, topology.ranks[t.dst])
            for link in pairwise(path):
                load[link] += schedule.chunks[t.chunk].share
        for link, share in load.items():
            if share > topology.capacity_GBps[link] * allowed:
                raise VerificationError(
                    f"step {step}: link {link[0]!r} -> {link[1]!r} is overloaded: it carries {share} of the buffer, "
                    f"{float(topology.capacity_GBps[link]):g} GB/s for {float(allowed):g} s a GB carry "
                    f"{topology.capacity_GBps[link] * allowed}"
                )
