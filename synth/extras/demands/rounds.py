"""Rounds in which each rank sends to one other and receives from one: no receiver is crowded.

It applies to schedules of demands (pieces of data, the ranks that hold each one, and those that
need it) in which all data goes from rank to rank directly. A doubly stochastic matrix is a sum of
matchings (Birkhoff 1946). Traffic becomes one by padding every rank's sends and receives to those
of the busiest rank. Each matching is a round, whose messages are equally long; the longest rounds
come first, so that there are few.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from ....topo.graph import Topology
from ...cost.affine import bandwidth_s_per_GB, tighten
from ...ir.collective import Chunk
from ...ir.schedule import Schedule
from ...ir.transfers import COPY, Transfers

NAME = "rounds"
# With more ranks there are hundreds of rounds.
_MAX_RANKS = 16
# Rounds that take this many times as long as all messages at once do not pay.
_WORSE = Fraction(101, 100)


def divide_into_rounds(schedule: Schedule, topology: Topology) -> Schedule | None:
    """Return a schedule of one step, divided into rounds, each a step of the result.

    None if the schedule has several steps, is for more than 16 ranks, or sends a chunk to several
    ranks, or if the rounds take over 1 % longer than it where only bandwidth counts.
    """
    t, n = schedule.transfers, schedule.rank_limit
    moved = set(t.chunk.tolist())
    # A chunk that goes to several ranks must not be cut for one of them alone.
    if schedule.steps != 1 or n > _MAX_RANKS or len(moved) < len(t):
        return None
    traffic = np.full((n, n), Fraction(0))
    waiting: dict[tuple[int, int], deque[tuple[int, Fraction]]] = defaultdict(deque)
    routes: dict[tuple[int, int], int] = {}
    columns = (column.tolist() for column in (t.src, t.dst, t.chunk, t.route))
    for src, dst, chunk, route in zip(*columns, strict=True):
        traffic[src, dst] += schedule.chunks[chunk].share
        waiting[src, dst].append((chunk, schedule.chunks[chunk].share))
        routes[src, dst] = route
    chunks = [chunk for c, chunk in enumerate(schedule.chunks) if c not in moved]
    rows: list[tuple[int, int, int, int, int, int]] = []
    for step, matching in enumerate(_list_matchings(traffic)):
        for src, dst, share in matching:
            room, queue = share, waiting[src, dst]
            while room:
                chunk, unsent = queue.popleft()
                part = min(room, unsent)
                rows.append((step, src, dst, len(chunks), COPY, routes[src, dst]))
                chunks.append(Chunk(part, piece=schedule.chunks[chunk].piece))
                room -= part
                if unsent > part:
                    queue.appendleft((chunk, unsent - part))
    transfers = Transfers.from_columns(zip(*rows, strict=True), t.routes)
    made = tighten(
        replace(schedule, strategy=NAME, chunks=tuple(chunks), transfers=transfers), topology
    )
    worst = bandwidth_s_per_GB(schedule, topology) * _WORSE
    return made if bandwidth_s_per_GB(made, topology) <= worst else None


def _list_matchings(traffic: NDArray[np.object_]) -> list[list[tuple[int, int, Fraction]]]:
    """Return what each rank sends in each round, as (source, destination, share)."""
    sent, received = traffic.sum(axis=1), traffic.sum(axis=0)
    # `left`: the share that the busiest rank has still to send or receive.
    n, left = len(traffic), max(*sent, *received)
    padded = np.block([[traffic, np.diag(left - sent)], [np.diag(left - received), traffic.T]])
    out = []
    while left:
        # The longest round: the largest share for which entries of at least that match all ranks.
        levels = sorted({x for x in padded.flat if x})
        low, high, best = 0, len(levels) - 1, None
        while low <= high:
            middle = (low + high) // 2
            allowed = csr_matrix((padded >= levels[middle]).astype(np.int8))
            matched = maximum_bipartite_matching(allowed, perm_type="column")
            if (matched >= 0).all():
                best, low = matched, middle + 1
            else:
                high = middle - 1
        assert best is not None  # a doubly stochastic matrix has a perfect matching
        places = np.arange(2 * n), best
        share = padded[places].min()
        padded[places] -= share
        left -= share
        ends = zip(*(x.tolist() for x in places), strict=True)
        out.append([(src, dst, share) for src, dst in ends if src < n and dst < n])
    return [matching for matching in out if matching]
