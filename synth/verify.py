"""An independent verifier of schedules: it replays them, without knowing how they were built.

It plays all transfers, counts how often each rank's contribution is in the value that a receiver
ends with (0, 1, or 2 for "more than once"), and requires every member's contribution exactly once.
Flags that are ORed, as in other checkers of the field, cannot see double counting. If a collective
only copies, a rank either has a chunk or does not. Transfers are played a step at a time, as
arrays. Members are the ranks that contribute or receive data, helpers others that relay or add.
"""

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from math import lcm

import numpy as np
from numpy.typing import NDArray

from ..topo.errors import VerificationError
from ..topo.graph import Topology
from ..topo.grouping import group_by_key
from .cost.loads import computes_in_network, stream_loads
from .ir.collective import spell_ranks
from .ir.schedule import Schedule
from .ir.transfers import COPY, REDUCE, Transfers

_MISSING = "the sender does not have it at that step"
# Represents "more than once".
_MANY = 2
# Sums below this fit into 64-bit integers.
_SAFE = 1 << 62


def verify(schedule: Schedule, topology: Topology, *, gpus_forward: bool = False) -> None:
    """Raise VerificationError unless `schedule` is well-formed and correct on `topology`.

    Also raise it if a link carries more in a step than the duration that the schedule declares for
    the step allows, or if a route passes through a GPU, unless `gpus_forward`, as in NCCL. Segments
    do not matter.
    """
    _check_participants(schedule, topology)
    _check_form(schedule)
    _check_routes(schedule, topology, frozenset() if gpus_forward else frozenset(topology.ranks))
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


def _check_routes(schedule: Schedule, topology: Topology, gpus: frozenset[str]) -> None:
    """Check that every route is a path of links that passes none of `gpus`."""
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
        _replay_sums(schedule)
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


def _replay_sums(schedule: Schedule) -> None:
    """Replay a collective that reduces.

    Values are numbered: first what each rank starts with of each chunk, then, step by step, each
    sum that is made. A contribution is in a value as often as paths of additions lead from it to
    the value. These paths are counted backwards from what receivers end with. In most schedules
    that is one value of each chunk at all receivers, so all chunks are counted in one pass.
    """
    collective, limit, t = schedule.collective, schedule.rank_limit, schedule.transfers
    wanted = np.zeros(limit, np.bool_)
    wanted[list(collective.members)] = True
    cells = len(schedule.chunks) * limit
    # The value that each rank holds of each chunk; -1 for none, which only a helper can have.
    held = np.where(np.tile(wanted, len(schedule.chunks)), np.arange(cells), -1)
    sums: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    values = cells
    for places in _steps(t):
        # All transfers of a step read the values from before it, so they are read before anything
        # is written.
        at = t.chunk[places] * limit + t.dst[places]
        sent = held[t.chunk[places] * limit + t.src[places]]
        if schedule.helpers:
            _refuse_any(t[places], sent < 0, _MISSING)
        copies = t.op[places] == COPY
        targets, of_target = np.unique(at[~copies], return_inverse=True)
        made = values + np.arange(len(targets))
        whole = np.concatenate([made[of_target.reshape(-1)], made])
        parts = np.concatenate([sent[~copies], held[targets]])
        sums.append((whole[parts >= 0], parts[parts >= 0]))
        held[targets] = made
        held[at[copies]] = sent[copies]
        values += len(targets)
    receiving = np.concatenate(
        [
            c * limit + np.array(collective.receivers(chunk))
            for c, chunk in enumerate(schedule.chunks)
        ]
    )
    # A pass counts the paths to one value of each chunk, that of its first receivers first.
    first = np.sort(np.unique(held[receiving], return_index=True)[1])
    of_chunk = receiving[first] // limit
    place = np.arange(len(first)) - np.searchsorted(of_chunk, of_chunk)
    for number in range(int(place.max(initial=-1)) + 1):
        now = first[place == number]
        times = np.zeros(values, np.int64)
        times[held[receiving[now]]] = 1
        for whole, parts in reversed(sums):
            np.add.at(times, parts, times[whole])
            times[parts] = np.minimum(times[parts], _MANY)
        counts = times[:cells].reshape(-1, limit)[of_chunk[place == number]]
        for row, other in np.argwhere(counts != wanted)[:1].tolist():
            c, rank = divmod(int(receiving[now[row]]), limit)
            lacks = counts[row, other] < wanted[other]
            raise VerificationError(
                f"rank {rank} ends {'without' if lacks else 'with'} the contribution of rank "
                f"{other} to chunk {c}{'' if lacks else ' more than once'}"
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
    # The links of each path; after the end of a shorter one, a number that stands for no link.
    hops = 1 + max((len(route) for _, _, route in paths), default=0)
    crossed = np.full((len(paths), hops), len(links))
    for row, (a, b, route) in enumerate(paths):
        crossed[row, : len(route) + 1] = [
            number[link] for link in pairwise((ranks[a], *route, ranks[b]))
        ]
    most = max(shares) * len(transfers) * hops
    exact = np.int64 if most < _SAFE else object
    share_of = np.array(shares, dtype=exact)
    of_capacity = group_by_key(
        (capacity, number[link]) for link, capacity in topology.capacity_GBps.items()
    )
    for places in _steps(transfers):
        # Every link on a transfer's route carries the chunk's whole share.
        load = np.zeros(len(links) + 1, dtype=exact)
        for hop in range(hops):
            np.add.at(load, crossed[path_of[places], hop], share_of[transfers.chunk[places]])
        # The most loaded of the links with one bandwidth decides, so few fractions are compared.
        for alike in of_capacity.values():
            worst = alike[int(np.argmax(load[alike]))]
            yield int(transfers.step[places.start]), links[worst], Fraction(int(load[worst]), scale)
