"""An independent verifier of schedules: it replays them, without knowing how they were built.

For every rank and chunk it counts how often each rank's contribution is in what that rank holds (0,
1, or 2 for "more than once"), plays all transfers, and in the end requires each receiver to hold
every contribution exactly once. Flags that are ORed, as in other checkers of the field, cannot see
double counting. Where a collective only copies, a rank has a chunk or does not. Transfers are
played a step at a time, as arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..topo.errors import VerificationError
from ..topo.graph import Topology
from .cost.innetwork import computes_in_network, stream_loads
from .ir.schedule import Schedule, Transfer
from .ir.transfers import COPY, REDUCE, Transfers

Counts = NDArray[np.uint8]
Mask = NDArray[np.bool_]
# Stands for "more than once".
_MANY = 2
# Sums below this fit into 64-bit integers.
_SAFE = 1 << 62


def verify(schedule: Schedule, topology: Topology) -> None:
    """Raise VerificationError unless `schedule` is well-formed, correct, and overloads no link of
    `topology`.
    """
    _check_form(schedule, topology)
    _check_routes(schedule, topology)
    replay(schedule)
    _check_loads(schedule, topology)


def _describe(transfer: Transfer) -> str:
    """Return what errors call a transfer."""
    return f"step {transfer.step}: {transfer.op} of chunk {transfer.chunk} from rank {transfer.src} to rank {transfer.dst}"


def _refuse_any(transfers: Transfers, wrong: Mask, why: str) -> None:
    """Raise VerificationError about the first wrong transfer, if there is one."""
    if wrong.any():
        raise VerificationError(f"{_describe(transfers[int(np.flatnonzero(wrong)[0])])}: {why}")


def _check_form(schedule: Schedule, topology: Topology) -> None:
    """Check ranks, chunks, steps and operations: everything that later checks index by."""
    collective, t = schedule.collective, schedule.transfers
    n = collective.ranks
    if n != len(topology.ranks):
        raise VerificationError(
            f"the schedule is for {n} ranks, topology {topology.name!r} has {len(topology.ranks)}"
        )
    problem = collective.problem_with(schedule.chunks)
    if problem:
        raise VerificationError(f"{collective.name}: {problem}")
    if any(cost < 0 for cost in schedule.step_s_per_GB):
        raise VerificationError("a step has a negative duration")
    if schedule.segments < 1:
        raise VerificationError(f"segments is {schedule.segments}; expected 1 or more")
    no_such_rank = (t.src < 0) | (t.src >= n) | (t.dst < 0) | (t.dst >= n)
    _refuse_any(t, no_such_rank, f"no such rank; ranks are 0 to {n - 1}")
    _refuse_any(t, t.src == t.dst, "a rank sends to itself")
    chunks = len(schedule.chunks)
    _refuse_any(
        t, (t.chunk < 0) | (t.chunk >= chunks), f"no such chunk; chunks are 0 to {chunks - 1}"
    )
    if not collective.reduces:
        _refuse_any(t, t.op == REDUCE, f"{collective.name} adds nothing up")
    before = np.concatenate([[0], t.step[:-1]])
    backwards = (t.step < before) | (t.step >= schedule.steps)
    _refuse_any(t, backwards, f"steps must not decrease, and be below {schedule.steps}")


def _check_routes(schedule: Schedule, topology: Topology) -> None:
    """Check that every route is a path of links that passes no other GPU."""
    gpus = frozenset(topology.ranks)
    ways, way = schedule.transfers.ways()
    for number, (src, dst, route) in enumerate(ways):
        wrong = next(
            (
                f"its route passes through {d!r}, a GPU; GPUs do not forward"
                for d in route
                if d in gpus
            ),
            None,
        )
        for a, b in pairwise((topology.ranks[src], *route, topology.ranks[dst])):
            if (a, b) not in topology.capacity_GBps:
                wrong = wrong or f"no link {a!r} -> {b!r} in topology {topology.name!r}"
        if wrong:
            _refuse_any(schedule.transfers, way == number, wrong)


def replay(schedule: Schedule) -> None:
    """Play the transfers and check the result; see the module's docstring.

    Raises VerificationError where a rank sends what it does not have, where a step copies to a
    chunk at a rank and writes to it otherwise too, and where a receiver lacks a contribution, has
    it more than once, or has one it should not.
    """
    _check_single_writes(schedule)
    if schedule.collective.reduces:
        # Chunk by chunk: ranks x ranks counts are held at a time, not ranks x ranks x chunks.
        by_chunk = np.argsort(schedule.transfers.chunk, kind="stable")
        edges = np.searchsorted(
            schedule.transfers.chunk[by_chunk], np.arange(len(schedule.chunks) + 1)
        )
        for c, (low, high) in enumerate(pairwise(edges.tolist())):
            _replay_sums(schedule, c, schedule.transfers.taken(by_chunk[low:high]))
    else:
        _replay_copies(schedule)


def _check_single_writes(schedule: Schedule) -> None:
    """Check that each copy is the only write to its chunk at its rank in its step."""
    t = schedule.transfers
    key = (t.step * schedule.collective.ranks + t.dst) * len(schedule.chunks) + t.chunk
    _, write, count = np.unique(key, return_inverse=True, return_counts=True)
    crowded = (count[write.reshape(-1)] > 1) & (t.op == COPY)
    _refuse_any(t, crowded, "another transfer writes that chunk at that rank in the same step")


def _steps(transfers: Transfers) -> Iterator[Transfers]:
    """Yield the transfers of each step that has any."""
    edges = np.flatnonzero(np.diff(transfers.step)) + 1
    for low, high in pairwise([0, *edges.tolist(), len(transfers)]):
        if high > low:
            yield transfers[low:high]


def _replay_copies(schedule: Schedule) -> None:
    """Replay a collective that copies: which rank has which chunk."""
    collective = schedule.collective
    has = np.zeros((collective.ranks, len(schedule.chunks)), np.bool_)
    for c, chunk in enumerate(schedule.chunks):
        has[list(collective.holders(chunk)), c] = True
    for now in _steps(schedule.transfers):
        missing = ~has[now.src, now.chunk]
        if missing.any():
            t = now[int(np.flatnonzero(missing)[0])]
            raise VerificationError(f"{_describe(t)}: rank {t.src} does not have it at that step")
        has[now.dst, now.chunk] = True
    for c, chunk in enumerate(schedule.chunks):
        for rank in collective.receivers(chunk):
            if not has[rank, c]:
                raise VerificationError(f"rank {rank} never gets chunk {c}")


def _replay_sums(schedule: Schedule, c: int, transfers: Transfers) -> None:
    """Replay one chunk of a collective that reduces: how often each contribution (column) is in
    what each rank (row) holds.
    """
    collective = schedule.collective
    held: Counts = np.eye(collective.ranks, dtype=np.uint8)
    for now in _steps(transfers):
        # All transfers of a step read what was held before it, so this copy is taken before
        # anything is written.
        sent = held[now.src]
        copies = now.op == COPY
        # Several transfers may add to one rank: grouped by destination they are summed at once.
        # Counts are capped, so that 8 bits are enough.
        order = np.argsort(now.dst[~copies], kind="stable")
        targets, starts, count = np.unique(
            now.dst[~copies][order], return_index=True, return_counts=True
        )
        if len(targets):
            arriving = sent[~copies][order]
            single = bool((count == 1).all())
            total = (
                arriving
                if single
                else np.add.reduceat(arriving, starts, axis=0, dtype=_sum_type(len(arriving)))
            )
            held[targets] = np.minimum(held[targets] + total, _MANY)
        held[now.dst[copies]] = sent[copies]
    # The first contribution that differs says what is wrong.
    chunk = schedule.chunks[c]
    wanted = np.zeros(collective.ranks, np.uint8)
    wanted[list(collective.contributors(chunk))] = 1
    receivers = list(collective.receivers(chunk))
    for place in np.flatnonzero((held[receivers] != wanted).any(axis=1)).tolist():
        rank = receivers[place]
        other = int(np.flatnonzero(held[rank] != wanted)[0])
        if held[rank, other] < wanted[other]:
            raise VerificationError(
                f"rank {rank} ends without the contribution of rank {other} to chunk {c}"
            )
        raise VerificationError(
            f"rank {rank} ends with the contribution of rank {other} to chunk {c} more than once"
        )


def _sum_type(rows: int) -> type[np.unsignedinteger[Any]]:
    """Return a type that holds the sum of so many counts, and one more."""
    return np.uint16 if (rows + 1) * _MANY < 1 << 16 else np.uint64


def _check_loads(schedule: Schedule, topology: Topology) -> None:
    """Check that no link carries more in a step than the step's declared duration allows."""
    for step, link, share in _loads(schedule, topology):
        allowed = schedule.step_s_per_GB[step]
        if share > topology.capacity_GBps[link] * allowed:
            raise VerificationError(
                f"step {step}: link {link[0]!r} -> {link[1]!r} is overloaded: it carries {share} "
                "of the buffer, "
                f"{float(topology.capacity_GBps[link]):g} GB/s for {float(allowed):g} s a GB carry "
                f"{topology.capacity_GBps[link] * allowed}"
            )


def _loads(
    schedule: Schedule, topology: Topology
) -> Iterator[tuple[int, tuple[str, str], Fraction]]:
    """Yield (step, link, share of the buffer) for the most loaded link of each bandwidth in each
    step.

    If these are not overloaded, no link is.
    """
    transfers = schedule.transfers
    if not len(transfers):
        return
    if computes_in_network(topology):
        for now in _steps(transfers):
            for link, share in stream_loads(schedule.chunks, now, topology).items():
                yield int(now.step[0]), link, share
        return
    # Exact whole numbers over a common denominator, in 64 bits where no sum can overflow them.
    scale = lcm(*{c.share.denominator for c in schedule.chunks})
    shares = [c.share.numerator * (scale // c.share.denominator) for c in schedule.chunks]
    links = list(topology.capacity_GBps)
    number = {link: i for i, link in enumerate(links)}
    ways, way = transfers.ways()
    ranks = topology.ranks
    paths = [
        [number[link] for link in pairwise((ranks[a], *route, ranks[b]))] for a, b, route in ways
    ]
    exact = np.int64 if max(shares) * len(transfers) * max(map(len, paths)) < _SAFE else object
    share_of = np.array(shares, dtype=exact)
    group = {c: i for i, c in enumerate(sorted(set(topology.capacity_GBps.values())))}
    groups = np.array([group[topology.capacity_GBps[link]] for link in links])
    for low, high in pairwise(
        [0, *(np.flatnonzero(np.diff(transfers.step)) + 1).tolist(), len(transfers)]
    ):
        # Step by step, as one array: every link on a transfer's route carries the chunk's whole
        # share.
        load = np.zeros(len(links), dtype=exact)
        crossed = [paths[w] for w in way[low:high].tolist()]
        times = np.repeat(share_of[transfers.chunk[low:high]], [len(path) for path in crossed])
        np.add.at(load, np.array([i for path in crossed for i in path]), times)
        # Of links with one bandwidth the most loaded decides, so few fractions are compared.
        for g in range(len(group)):
            members = np.flatnonzero(groups == g)
            worst = int(members[np.argmax(load[members])])
            yield int(transfers.step[low]), links[worst], Fraction(int(load[worst]), scale)
