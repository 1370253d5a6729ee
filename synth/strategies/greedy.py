"""Time-expanded greedy matching for large direct networks, best of several trials.

The method is that of TACOS (MICRO 2024). In every step each link takes as many chunks as its
bandwidth has units. A chunk is only sent to ranks that lack it, and a link prefers the chunk that
the fewest ranks have. Links choose in random order, in batches in which no two lead to one rank.

With one chunk per rank, a rank may have to wait for a step that only some of its links fill: on a
torus of 144 GPUs with a slow link the last of 21 steps receives 3 chunks over 7 units. So a second
schedule divides each rank's data into so many chunks that the steps come out even.

A request is a collective on a topology, with limits and an allowance of work; the planner verifies
and costs the schedules that `build` returns for it.
"""

from collections import Counter, defaultdict
from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import NDArray

from ...topo.errors import InfeasibleError, TimeLimitError
from ...topo.exact import fraction_gcd
from ..cost.affine import tighten
from ..ir.collective import Collective
from ..ir.schedule import Schedule, compose, reverse
from ..ir.transfers import COPY, Transfers
from ..request import Request

# Trials differ only in the random order of links.
_TRIALS = 8
# Transfers of a trial: with more, a trial takes over 40 s of an idle core.
_MAX_TRANSFERS = 4_000_000
# Most chunks per rank, and transfers of a schedule with several: such plans are large.
_MAX_PARTS, _MAX_PARTED_TRANSFERS = 64, 1_000_000
# Share of the time that rounding to whole steps may cost, and by which a schedule of more chunks
# must be faster.
_LOST = Fraction(1, 2000)
# Most units of bandwidth of the widest link: a trial treats each unit as a separate link.
_MAX_UNITS = 32
# Seconds of an idle core that a trial takes for each transfer.
_TRANSFER_S = 1e-5
Ints = NDArray[np.int64]


def build(request: Request) -> list[Schedule]:
    """Return the schedule of one chunk per rank with the fewest steps of several random trials.

    One of several chunks per rank follows it if it is faster at large sizes. Raise InfeasibleError
    if there are switches between GPUs, too many transfers, or bandwidths that are no small
    multiples of one unit; TimeLimitError if a trial takes too long.
    """
    name, n = request.collective.name, request.collective.ranks
    if name == "reduce-scatter":
        return [reverse(schedule) for schedule in _gather(request.reversed())]
    if name == "allreduce":
        # One chunk per rank: where more would help, trees have a higher rate than two halves.
        scatter, gather = (
            request.of(Collective(half, n)) for half in ("reduce-scatter", "allgather")
        )
        halves = reverse(_gather(scatter.reversed(), 1)[0]), _gather(gather, 1)[0]
        return [compose(*halves)]
    return _gather(request)


def _gather(request: Request, most_parts: int = _MAX_PARTS) -> list[Schedule]:
    """Return schedules for allgather: of one chunk per rank, and of several if that is faster.

    They have at most `most_parts` chunks per rank.
    """
    n = request.collective.ranks
    # A step sends whole chunks over each link, so all bandwidths must be small multiples of one
    # unit.
    links = request.topology.capacity_GBps
    if any(request.topology.by_id[d].kind != "gpu" for link in links for d in link):
        raise InfeasibleError(
            "greedy plans for GPUs that are joined by links of their own only; here switches lie "
            "between"
        )
    if n * n > _MAX_TRANSFERS:
        raise InfeasibleError(
            f"greedy: {n} ranks take {n * n} transfers, more than are planned for"
        )
    unit = fraction_gcd(sorted(set(links.values())))
    if max(links.values()) / unit > _MAX_UNITS:
        raise InfeasibleError(
            "greedy: the bandwidths have no common unit of which the widest link has at most "
            f"{_MAX_UNITS}"
        )
    units = {link: int(capacity / unit) for link, capacity in links.items()}
    best = _run_trials(request, units)
    out = [_schedule(request, best, 1)]
    steps, fewest = _least_steps(request, units), Fraction(len(best))
    most_parts = min(most_parts, _MAX_PARTED_TRANSFERS // n**2)
    parts = _choose_parts(steps, most_parts)
    while 1 < parts <= most_parts:
        trial_s = n * n * parts * _TRANSFER_S
        if trial_s > min(request.effort.left_s, request.effort.clock_s):
            break
        request.effort.spend(trial_s)
        parted = _run_trial(request, units, parts, 0, None)
        if parted is None or Fraction(len(parted), parts) >= fewest * (1 - _LOST):
            break
        request.say(f"greedy: {len(parted)} steps of {parts} chunks per rank")
        fewest = Fraction(len(parted), parts)
        out[1:] = [_schedule(request, parted, parts)]
        if len(parted) <= ceil(steps * parts) * (1 + _LOST):
            break
        parts *= 2  # the steps in which links are idle take half the time
    return out


def _least_steps(request: Request, units: dict[tuple[str, str], int]) -> Fraction:
    """Return the least steps, as a fraction, in which every rank can receive a chunk of each."""
    received: Counter[str] = Counter()
    for (_, end), count in units.items():
        received[end] += count
    return Fraction(request.collective.ranks - 1, min(received.values()))


def _choose_parts(steps: Fraction, most: int) -> int:
    """Return the chunks per rank, at most `most`, for which whole steps lose little time.

    `steps` are those that a chunk of each rank takes.
    """
    lost = {n: ceil(steps * n) / (steps * n) - 1 for n in range(1, max(1, most) + 1)}
    return min(lost, key=lambda parts: (max(lost[parts], _LOST), parts))


def _schedule(request: Request, sent: list[Ints], parts: int) -> Schedule:
    """Return the schedule of a (src, dst, chunk) array per step, of `parts` chunks per rank."""
    step = np.repeat(np.arange(len(sent)), [len(rows) for rows in sent])
    src, dst, chunk = np.concatenate(sent).T
    op, route = np.full(len(step), COPY), np.zeros(len(step))
    transfers = Transfers(step, src, dst, chunk, op, route, [()]).sorted()
    chunks = request.collective.even_chunks(parts)
    schedule = Schedule(request.collective, "greedy", chunks, transfers, ())
    return tighten(schedule, request.topology)


def _run_trials(request: Request, units: dict[tuple[str, str], int]) -> list[Ints]:
    """Return the transfers of each step, of one chunk per rank, in the fewest steps found."""
    # A trial cannot be stopped halfway, so it only begins if there is time for all of it.
    n = request.collective.ranks
    trial_s = n * n * _TRANSFER_S
    if trial_s > min(request.effort.left_s, request.effort.clock_s):
        if trial_s <= request.effort.left_s:
            request.effort.record_cut("greedy")
        raise TimeLimitError(
            f"greedy: a trial for {n} ranks takes about {trial_s:.0f} s; give it more"
        )
    # Each trial is abandoned once it cannot take fewer steps than the best.
    best: list[Ints] | None = None
    for trial in range(_TRIALS):
        if best is not None and request.effort.is_over("greedy"):
            break
        request.effort.spend(trial_s)
        steps = _run_trial(request, units, 1, trial, best)
        if steps is not None:
            best = steps
            request.say(f"greedy: {len(best)} steps after {trial + 1} trials")
    if best is None:
        raise InfeasibleError("greedy: some GPUs cannot be reached")
    return best


def _run_trial(
    request: Request,
    units: dict[tuple[str, str], int],
    parts: int,
    seed: int,
    best: list[Ints] | None,
) -> list[Ints] | None:
    """Return a (src, dst, chunk) array for each step, of `parts` chunks per rank.

    None if the trial takes no fewer steps than the best one.
    """
    n = request.collective.ranks
    number = {gpu: r for r, gpu in enumerate(request.topology.ranks)}
    random = np.random.default_rng(seed)
    links = [(number[a], number[b]) for (a, b), count in units.items() for _ in range(count)]
    has = np.repeat(np.eye(n, dtype=np.bool_), parts, axis=1)
    out: list[Ints] = []
    missing = n * (n - 1) * parts
    while missing:
        if best is not None and len(out) + 1 >= len(best):
            return None
        rows = []
        # Chunks in the order in which links prefer them: rarest first, ties at random.
        order = np.argsort(has.sum(axis=0) + random.random(n * parts))
        offered = has[:, order]
        coming = offered.copy()
        # In a batch every rank receives at most once, so its links choose independently, all at
        # once in numpy.
        for src, dst in _deal_links(links, random):
            new = offered[src] & ~coming[dst]
            place = np.argmax(new, axis=1)
            useful = new[np.arange(len(src)), place]
            coming[dst[useful], place[useful]] = True
            rows.append(np.stack([src[useful], dst[useful], order[place[useful]]], axis=1))
        sent = np.concatenate(rows)
        if not len(sent):
            return None
        out.append(sent)
        missing -= len(sent)
        has[:, order] = coming
    return out


def _deal_links(
    links: list[tuple[int, int]], random: np.random.Generator
) -> list[tuple[Ints, Ints]]:
    """Return the links in random order, in batches whose links lead to different ranks."""
    batches: dict[int, list[tuple[int, int]]] = defaultdict(list)
    leading_to: Counter[int] = Counter()
    for i in random.permutation(len(links)).tolist():
        batches[leading_to[links[i][1]]].append(links[i])
        leading_to[links[i][1]] += 1
    return [tuple(np.array(rows).T) for rows in batches.values()]
