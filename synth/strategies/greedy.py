"""Time-expanded greedy matching for large direct networks, best of several trials.

The method is that of TACOS (MICRO 2024). In every step each link takes as many chunks as its
bandwidth has units. A chunk is only sent to ranks that lack it, and a link prefers the chunk that
the fewest ranks have. Links choose in random order, in batches in which no two lead to one rank.
"""

from collections import Counter, defaultdict

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
# Most units of bandwidth of the widest link: a trial treats each unit as a separate link.
_MAX_UNITS = 32
# Seconds of an idle core that a trial takes for each transfer.
_TRANSFER_S = 1e-5
Ints = NDArray[np.int64]


def build(request: Request) -> list[Schedule]:
    """Return, in a list, the schedule with the fewest steps of several random trials.

    Raise InfeasibleError if there are switches between GPUs, too many transfers, or bandwidths that
    are no small multiples of one unit; TimeLimitError if a trial takes too long.
    """
    name, n = request.collective.name, request.collective.ranks
    if name == "reduce-scatter":
        return [reverse(build(request.reversed())[0])]
    if name == "allreduce":
        halves = (Collective(name, n) for name in ("reduce-scatter", "allgather"))
        return [compose(*(build(request.of(half))[0] for half in halves))]
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
    # A trial cannot be stopped halfway, so it only begins if there is time for all of it.
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
        steps = _run_trial(request, {link: int(c / unit) for link, c in links.items()}, trial, best)
        if steps is not None:
            best = steps
            request.say(f"greedy: {len(best)} steps after {trial + 1} trials")
    if best is None:
        raise InfeasibleError("greedy: some GPUs cannot be reached")
    step = np.repeat(np.arange(len(best)), [len(rows) for rows in best])
    src, dst, chunk = np.concatenate(best).T
    op, route = np.full(len(step), COPY), np.zeros(len(step))
    transfers = Transfers(step, src, dst, chunk, op, route, [()]).sorted()
    chunks = request.collective.even_chunks(1)
    schedule = Schedule(request.collective, "greedy", chunks, transfers, ())
    return [tighten(schedule, request.topology)]


def _run_trial(
    request: Request, units: dict[tuple[str, str], int], seed: int, best: list[Ints] | None
) -> list[Ints] | None:
    """Return a (src, dst, chunk) array for each step.

    None if the trial takes no fewer steps than the best one.
    """
    n = request.collective.ranks
    number = {gpu: r for r, gpu in enumerate(request.topology.ranks)}
    random = np.random.default_rng(seed)
    links = [(number[a], number[b]) for (a, b), count in units.items() for _ in range(count)]
    has = np.eye(n, dtype=np.bool_)
    out: list[Ints] = []
    missing = n * (n - 1)
    while missing:
        if best is not None and len(out) + 1 >= len(best):
            return None
        rows = []
        coming = has.copy()
        order = np.argsort(has.sum(axis=0) + random.random(n))  # rarest first, ties at random
        # In a batch every rank receives at most once, so its links choose independently, all at
        # once in numpy.
        for src, dst in _deal_links(links, random):
            offered = has[src][:, order] & ~coming[dst][:, order]
            first_offer = np.argmax(offered, axis=1)
            useful = offered[np.arange(len(src)), first_offer]
            chunk = order[first_offer[useful]]
            coming[dst[useful], chunk] = True
            rows.append(np.stack([src[useful], dst[useful], chunk], axis=1))
        sent = np.concatenate(rows)
        if not len(sent):
            return None
        out.append(sent)
        missing -= len(sent)
        has = coming
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
