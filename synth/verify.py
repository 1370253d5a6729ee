"""An independent verifier of schedules: it replays them, without knowing how they were built.

For every rank and chunk it counts how often each rank's contribution is in the value that the rank
holds (0, 1, or 2 for "more than once"), plays all transfers, and finally requires each receiver to
hold every member's contribution exactly once. Flags that are ORed, as in other checkers of the
field, cannot see double counting. If a collective only copies, a rank either has a chunk or does
not. Transfers are played a step at a time, as arrays.
"""

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from math import lcm

import numpy as np
from numpy.typing import NDArray

from ..topo.errors import VerificationError
from ..topo.graph import Topology
from .cost.loads import computes_in_network, stream_loads
from .ir.collective import spell_ranks
from .ir.schedule import Schedule
from .ir.transfers import COPY, REDUCE, Transfers

_MISSING = "the sender does not have it at that step"
# Represents "more than once".
_MANY = 2
# Sums below this fit into 64-bit integers.
_SAFE = 1 << 62


def verify(schedule: Schedule, topology: Topology) -> None:
    """Raise VerificationError unless `schedule` is well-formed and correct on `topology`.

    Also raise it if the schedule overloads a link.
    """
    _check_participants(schedule, topology)
    _check_form(schedule)
    _check_routes(schedule, topology)
    replay(schedule)
    _check_loads(schedule, topology)


def _refuse_any(transfers: Transfers, wrong: NDArray[np.bool_], why: str) -> None:
    """Raise VerificationError about the first wrong transfer, if there is one."""
    for t in transfers.taken(wrong)[:1]:
        raise VerificationError(
            f"step {t.step}: {t.op} of chunk {t.chunk} from rank {t.src} to rank {t.dst}: {why}"
        )


def _check_participants(schedule: Schedule, topology: Topology) -> None:
    """Check that members and helpers are different GPUs of the topology."""
    collective, gpus = schedule.collective, len(topology.ranks)
    if collective.has_all_gpus and collective.ranks != gpus:
        raise VerificationError(
            f"the schedule is for {collective.ranks} ranks, topology {topology.name!r} has {gpus}"
        )
    if schedule.rank_limit > gpus:
        raise VerificationError(
            f"rank {schedule.rank_limit - 1} takes part in the schedule; topology "
            f"{topology.name!r} has ranks 0 to {gpus - 1}"
        )
    helpers = schedule.helpers
    if any(a >= b for a, b in pairwise((-1, *helpers))) or set(helpers) & set(collective.members):
        raise VerificationError(
            f"the helpers are {spell_ranks(helpers)}; expected different ranks, ascending, that "
            "are not members"
        )


def _check_form(schedule: Schedule) -> None:
    """Check chunks, steps, ranks and operations, which later checks use as indices."""
    collective, t, chunks = schedule.collective, schedule.transfers, len(schedule.chunks)
    problem = collective.problem_with(schedule.chunks)
    if problem:
        raise VerificationError(f"{collective.name}: {problem}")
    if any(cost < 0 for cost in schedule.step_s_per_GB):
        raise VerificationError("a step has a negative duration")
    if schedule.segments < 1:
        raise VerificationError(f"segments is {schedule.segments}; expected 1 or more")
    participants = schedule.participants
    named = (
        f"no such rank; ranks are 0 to {collective.ranks - 1}"
        if collective.has_all_gpus
        else f"a rank that does not take part; participants are {spell_ranks(participants)}"
    )
    ranks = np.array(participants)
    _refuse_any(t, ~(np.isin(t.src, ranks) & np.isin(t.dst, ranks)), named)
    _refuse_any(t, t.src == t.dst, "a rank sends to itself")
    _refuse_any(
        t, (t.chunk < 0) | (t.chunk >= chunks), f"no such chunk; chunks are 0 to {chunks - 1}"
    )
    if not collective.reduces:
        _refuse_any(t, t.op == REDUCE, f"{collective.name} adds nothing up")
    backwards = (t.step < np.concatenate([[0], t.step[:-1]])) | (t.step >= schedule.steps)
    _refuse_any(t, backwards, f"steps must not decrease, and be below {schedule.steps}")


def _check_routes(schedule: Schedule, topology: Topology) -> None:
    """Check that every route is a path of links that passes no other GPU."""
    gpus = frozenset(topology.ranks)
    paths, path_of = schedule.transfers.paths()
    for number, (src, dst, route) in enumerate(paths):
        wrong = [
            f"its route passes through {d!r}, a GPU; GPUs do not forward"
            for d in route
            if d in gpus
        ] + [
            f"no link {a!r} -> {b!r} in topology {topology.name!r}"
            for a, b in pairwise((topology.ranks[src], *route, topology.ranks[dst]))
            if (a, b) not in topology.capacity_GBps
        ]
        if wrong:
            _refuse_any(schedule.transfers, path_of == number, wrong[0])


def replay(schedule: Schedule) -> None:
    """Play the transfers and check the result; see the module's docstring.

    Raise VerificationError if a rank sends a chunk that it does not have, if a step copies to a
    chunk at a rank that also writes to it otherwise, or if a receiver lacks a contribution, has
    it more than once, or has one it should not have.
    """
    t = schedule.transfers
    key = (t.step * schedule.rank_limit + t.dst) * len(schedule.chunks) + t.chunk
    _, write, count = np.unique(key, return_inverse=True, return_counts=True)
    _refuse_any(
        t,
        (count[write.reshape(-1)] > 1) & (t.op == COPY),
        "another transfer writes that chunk at that rank in the same step",
    )
    if schedule.collective.reduces:
        # Chunk by chunk: ranks x ranks counts are in memory at a time, not ranks x ranks x chunks.
        by_chunk = np.argsort(t.chunk, kind="stable")
        edges = np.searchsorted(t.chunk[by_chunk], np.arange(len(schedule.chunks) + 1))
        for c, (low, high) in enumerate(pairwise(edges.tolist())):
            _replay_sums(schedule, c, t.taken(by_chunk[low:high]))
    else:
        _replay_copies(schedule)


def _steps(transfers: Transfers) -> Iterator[slice]:
    """Yield a slice of the transfers for each step that has any."""
    edges = np.flatnonzero(np.diff(transfers.step)) + 1
    for low, high in pairwise([0, *edges.tolist(), len(transfers)]):
        if high > low:
            yield slice(low, high)


def _replay_copies(schedule: Schedule) -> None:
    """Replay a collective that copies: track which rank has which chunk."""
    collective = schedule.collective
    has = np.zeros((schedule.rank_limit, len(schedule.chunks)), np.bool_)
    for c, chunk in enumerate(schedule.chunks):
        has[list(collective.holders(chunk)), c] = True
    for places in _steps(schedule.transfers):
        now = schedule.transfers[places]
        _refuse_any(now, ~has[now.src, now.chunk], _MISSING)
        has[now.dst, now.chunk] = True
    for c, chunk in enumerate(schedule.chunks):
        for rank in collective.receivers(chunk):
            if not has[rank, c]:
                raise VerificationError(f"rank {rank} never gets chunk {c}")


def _replay_sums(schedule: Schedule, c: int, transfers: Transfers) -> None:
    """Replay one chunk of a collective that reduces.

    Count how often each contribution (column) is in the value that each rank (row) holds.
    """
    collective = schedule.collective
    wanted = np.zeros(schedule.rank_limit, np.uint8)
    wanted[list(collective.members)] = 1
    held = np.diag(wanted)
    for places in _steps(transfers):
        now = transfers[places]
        # All transfers of a step read the values from before it, so this copy is taken before
        # anything is written.
        sent = held[now.src]
        if schedule.helpers:  # only a helper can lack a value
            _refuse_any(now, sent.max(axis=1) == 0, _MISSING)
        copies = now.op == COPY
        # Several transfers may add to one rank; they are grouped by destination and summed at once.
        # Counts are capped, so that 8 bits are enough.
        order = np.argsort(now.dst[~copies], kind="stable")
        targets, starts, count = np.unique(
            now.dst[~copies][order], return_index=True, return_counts=True
        )
        if len(targets):
            total = sent[~copies][order]
            if (count > 1).any():
                wide = np.uint16 if (len(total) + 1) * _MANY < 1 << 16 else np.uint64
                total = np.add.reduceat(total, starts, axis=0, dtype=wide)
            held[targets] = np.minimum(held[targets] + total, _MANY)
        held[now.dst[copies]] = sent[copies]
    # The error message names the first contribution that differs.
    receivers = list(collective.receivers(schedule.chunks[c]))
    for place in np.flatnonzero((held[receivers] != wanted).any(axis=1)).tolist():
        rank = receivers[place]
        other = int(np.flatnonzero(held[rank] != wanted)[0])
        lacks = held[rank, other] < wanted[other]
        raise VerificationError(
            f"rank {rank} ends {'without' if lacks else 'with'} the contribution of rank {other} "
            f"to chunk {c}{'' if lacks else ' more than once'}"
        )


def _check_loads(schedule: Schedule, topology: Topology) -> None:
    """Check that no link carries more in a step than the step's declared duration allows."""
    for step, link, share in _loads(schedule, topology):
        allowed, capacity_GBps = schedule.step_s_per_GB[step], topology.capacity_GBps[link]
        if share > capacity_GBps * allowed:
            raise VerificationError(
                f"step {step}: link {link[0]!r} -> {link[1]!r} is overloaded: it carries {share} "
                f"of the buffer, {float(capacity_GBps):g} GB/s for {float(allowed):g} s a GB carry "
                f"{capacity_GBps * allowed}"
            )


def _loads(
    schedule: Schedule, topology: Topology
) -> Iterator[tuple[int, tuple[str, str], Fraction]]:
    """Yield (step, link, share of the buffer) for the links that may be the first overloaded.

    These are, in each step, the most loaded link of each bandwidth: if none of them is overloaded,
    no link is. The sums are independent of cost/loads.py, which computes the declared durations.
    """
    transfers = schedule.transfers
    if computes_in_network(topology):
        for places in _steps(transfers):
            now = transfers[places]
            for link, share in stream_loads(schedule.chunks, now, topology).items():
                yield int(now.step[0]), link, share
        return
    # Exact integers over a common denominator, in 64 bits if no sum can overflow them.
    scale = lcm(*{c.share.denominator for c in schedule.chunks})
    shares = [c.share.numerator * (scale // c.share.denominator) for c in schedule.chunks]
    links, ranks = list(topology.capacity_GBps), topology.ranks
    number = {link: i for i, link in enumerate(links)}
    paths, path_of = transfers.paths()
    crossed = [
        np.array([number[link] for link in pairwise((ranks[a], *route, ranks[b]))])
        for a, b, route in paths
    ]
    most = max(shares) * len(transfers) * max(map(len, crossed), default=0)
    exact = np.int64 if most < _SAFE else object
    share_of = np.array(shares, dtype=exact)
    of_capacity: dict[Fraction, list[int]] = defaultdict(list)
    for link, capacity in topology.capacity_GBps.items():
        of_capacity[capacity].append(number[link])
    for places in _steps(transfers):
        # Every link on a transfer's route carries the chunk's whole share.
        load = np.zeros(len(links), dtype=exact)
        routes = [crossed[i] for i in path_of[places].tolist()]
        times = np.repeat(share_of[transfers.chunk[places]], [len(route) for route in routes])
        np.add.at(load, np.concatenate(routes), times)
        # The most loaded of the links with one bandwidth decides, so few fractions are compared.
        for alike in of_capacity.values():
            worst = alike[int(np.argmax(load[alike]))]
            yield int(transfers.step[places.start]), links[worst], Fraction(int(load[worst]), scale)
