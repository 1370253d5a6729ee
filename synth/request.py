"""The contract of strategies, and helpers that several of them use.

A strategy takes a Request and returns candidate schedules, each with its steps' durations filled
in; the caller costs, verifies and chooses. It raises InfeasibleError where it has no schedule for
the collective or the topology.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from ..topo.errors import InfeasibleError, InputError
from ..topo.graph import Topology
from ..topo.routes import HARDWARE, Router
from .bounds.certificate import Bound
from .cost.affine import tighten
from .effort import Effort
from .forest.plant import Limits
from .ir.collective import Chunk, Collective
from .ir.schedule import Schedule
from .ir.transfers import OPS, Op, Transfers

# Numbers of segments that pipelines may have; the cost model chooses among them by size.
SEGMENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
# Segments of all trees together that a schedule may have.
_MOST_PIECES = 1 << 16
# GB/s; stands for a bound that is not known yet. No machine is as fast.
_UNKNOWN = Fraction(10**12)
# Limit on the transfers of schedules in which they grow with the square of the ranks.
MOST_TRANSFERS = 400_000


def segment_counts(trees: int) -> list[int]:
    """Return those of SEGMENTS that give no more pieces, over all trees, than can be run."""
    return [m for m in SEGMENTS if m <= 2 or m * trees <= _MOST_PIECES]


# (step, sending rank, receiving rank, chunk, "copy" or "reduce"): what `build_schedule` takes.
Send = tuple[int, int, int, int, Op]


@dataclass
class Request:
    """A collective on a topology to be planned for, and how: what a strategy is given.

    `effort` limits the searches; `bound` is the lower bound on time, where it is known; `limits`
    restrict trees; `quick` asks for short searches. `router` knows the system's route between two
    ranks. `table` collects the forests that were considered: trees, depth, algbw_GBps, gap, how,
    kept.
    """

    collective: Collective
    topology: Topology
    effort: Effort
    progress: Callable[[str], None] | None = None
    bound: Bound | None = None
    limits: Limits = field(default_factory=Limits)
    quick: bool = False
    table: list[dict[str, Any]] = field(default_factory=list)
    router: Router = HARDWARE

    def __post_init__(self) -> None:
        self.router = self.router.on(self.topology)

    @property
    def bound_GBps(self) -> Fraction:
        """Upper bound on algbw; far above any machine's where no bound is known yet."""
        return self.bound.algbw_GBps if self.bound is not None else _UNKNOWN

    def say(self, message: str) -> None:
        """Report progress, if anybody listens."""
        if self.progress is not None:
            self.progress(message)

    def reversed(self) -> Request:
        """Return the request for the opposite collective on the reversed topology."""
        turned = self.router.reversed()
        return replace(
            self, collective=self.collective.reversed(), topology=turned.topology, router=turned
        )

    def of(self, collective: Collective) -> Request:
        """Return the request for another collective on the same topology."""
        return replace(self, collective=collective)


class NotOfferedError(InfeasibleError):
    """A strategy that does not have the requested collective, on any topology."""


def only_for(request: Request, name: str, collectives: Sequence[str]) -> None:
    """Raise NotOfferedError unless the collective is one of those that a strategy has."""
    if request.collective.name not in collectives:
        raise NotOfferedError(
            f"{name} has no {request.collective.name}; it has {', '.join(collectives)}"
        )


def build_schedule(
    request: Request,
    name: str,
    chunks: tuple[Chunk, ...],
    sends: Iterable[Send],
    *,
    trees: int | None = None,
) -> Schedule:
    """Return a schedule of sends, each on the system's own route. InfeasibleError where two ranks
    have no route, InputError where a send names no rank or no operation.

    `chunks` are shares of the buffer (`request.collective.even_chunks(1)`); sends name them by
    their places. All sends of a step read what was there before it. The result has one segment;
    `dataclasses.replace(schedule, segments=16)` is the same as a pipeline.
    """
    routes: dict[tuple[int, int], int] = {}
    listed: list[tuple[str, ...]] = []
    rows = []
    n = len(request.topology.ranks)
    for step, src, dst, chunk, op in sends:
        number = routes.get((src, dst))
        if number is None:
            if not (0 <= src < n and 0 <= dst < n):
                raise InputError(
                    f"{name}: a send from rank {src!r} to rank {dst!r}; expected ranks from 0 to "
                    f"{n - 1}"
                )
            route = request.router.route(src, dst)
            if route is None:
                a, b = request.topology.ranks[src], request.topology.ranks[dst]
                raise InfeasibleError(
                    f"{name} needs {a} to send to {b}, and only other GPUs lie between them"
                )
            number = routes[src, dst] = len(listed)
            listed.append(route[1:-1])
        if op not in OPS:
            raise InputError(
                f"{name}: a send with the operation {op!r:.40}; expected one of {', '.join(OPS)}"
            )
        rows.append((step, src, dst, chunk, OPS.index(op), number))
    transfers = Transfers.from_columns(
        zip(*rows, strict=True) if rows else [()] * 6, listed
    ).sorted()
    schedule = Schedule(request.collective, name, chunks, transfers, (), trees=trees)
    return tighten(schedule, request.topology)


def whole(collective: Collective) -> tuple[Chunk, ...]:
    """Return one chunk in SCCL's units: one for each rank's part, or the whole buffer."""
    return collective.even_chunks(1)
