"""The contract of strategies, and helpers that several of them use.

A strategy takes a Request and returns candidate schedules, each with its steps' durations filled
in; the caller costs, verifies and chooses. It raises InfeasibleError if it has no schedule for the
collective or the topology.

A chunk may be cut into segments, equal parts that follow each other through the steps (a pipeline).
Which partial sums an addition over ranks forms, as in (0+1)+(2+3), is its bracketing; it determines
the bits of the result. An `Effort` is an allowance of work and time for searches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..topo.errors import InfeasibleError, InputError
from ..topo.exact import parse_fraction
from ..topo.graph import Topology
from ..topo.hardware_rule import HARDWARE
from ..topo.routes import Router
from .bounds.certificate import Bound
from .cost.affine import tighten
from .ir.collective import COLLECTIVES, Chunk, Collective
from .ir.schedule import Schedule
from .ir.transfers import OPS, Op, Transfers
from .numeric.effort import Effort
from .strategy_names import AUTO

if TYPE_CHECKING:
    from .cost.affine import Cost
    from .cost.host_costs import HostCosts

# Numbers of segments that pipelines may have; the cost model chooses among them by size.
SEGMENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
# Segments of all trees together; over gloo each message takes about 100 us of a core.
_MAX_PIECES = 1 << 16
# GB/s; used until a bound is known. No machine is as fast.
_UNKNOWN = Fraction(10**12)
# Limit for schedules whose transfers grow with the square of the ranks: 632 ranks in one step.
MAX_TRANSFERS = 400_000

# No limit on ranks.
_ANY = sys.maxsize

Send = tuple[int, int, int, int, Op]
"""A send for `build_schedule`: (step, sending rank, receiving rank, chunk, "copy" or "reduce")."""


@dataclass(frozen=True)
class TreeLimits:
    """A user's limits on the trees of a forest.

    `epsilon` is the gap, as a share of the bound, that is accepted in exchange for fewer and
    shallower trees; `max_trees` is the largest number of trees, and `max_depth` their greatest
    depth in hops. None means no limit. Raise InputError if a limit is out of range.
    """

    epsilon: Fraction | None = None
    max_trees: int | None = None
    max_depth: int | None = None

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            try:
                epsilon = parse_fraction(self.epsilon)
            except ValueError:
                raise InputError(
                    f"epsilon is {self.epsilon!r}; expected a share of the bound, such as 0.05"
                ) from None
            if not 0 <= epsilon < 1:
                raise InputError(
                    f"epsilon is {float(epsilon):g}; expected at least 0 and less than 1"
                )
            object.__setattr__(self, "epsilon", epsilon)
        for name in ("max_trees", "max_depth"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InputError(f"{name} is {value!r}; expected a whole number of at least 1")

    def allows(self, trees: int, depth: int) -> bool:
        """Return whether a number of trees and their depth are within the limits."""
        few = self.max_trees is None or trees <= self.max_trees
        return few and (self.max_depth is None or depth <= self.max_depth)


@dataclass
class Request:
    """What is planned: a collective on a topology, and how. Planners and strategies take it.

    `effort` limits the searches, and `limits` restrict trees. `progress` is called with lines of
    text. `router` knows the hardware's route between two ranks.

    For strategies `bound` is the bound to reach, the single-path one; None if it is unknown.
    `quick` asks for short searches. The packing strategy appends to `table` a row for each forest
    that it considered, with the keys trees, depth, algbw_GBps, gap, how and kept.

    Planners are told more: `strategy` is the name of the one to use, or "auto". `thorough`: auto
    also tries the strategies that it expects to lose, and searches longer for the best placements.
    `reproducible`: all schedules of the plan add every element up in one bracketing. `helpers` are
    the ranks that may help the collective's members, if not all GPUs are members. `promises` are
    what else all schedules keep; who asks for any gets no helpers.
    """

    collective: Collective
    topology: Topology
    effort: Effort
    progress: Callable[[str], None] | None = None
    bound: Bound | None = None
    limits: TreeLimits = field(default_factory=TreeLimits)
    quick: bool = False
    table: list[dict[str, Any]] = field(default_factory=list)
    router: Router = HARDWARE
    strategy: str = AUTO
    thorough: bool = False
    reproducible: bool = False
    helpers: tuple[int, ...] = ()
    promises: tuple[Promise, ...] = ()

    def __post_init__(self) -> None:
        self.router = self.router.on(self.topology)

    @property
    def bound_GBps(self) -> Fraction:
        """Upper bound on algbw in GB/s from `bound`; 1e12, above any machine's, if that is None."""
        return self.bound.algbw_GBps if self.bound is not None else _UNKNOWN

    def say(self, message: str) -> None:
        """Report progress, if the request has a function for it."""
        if self.progress is not None:
            self.progress(message)

    def reversed(self) -> Request:
        """Return the request for the opposite collective on the topology with all links reversed.

        See `Collective.reversed`. The copy keeps all else, `bound` included, and shares `effort`
        and `table`.
        """
        back = self.router.reversed()
        return replace(
            self, collective=self.collective.reversed(), topology=back.topology, router=back
        )

    def of(self, collective: Collective) -> Request:
        """Return a copy of the request for another collective; the rest is kept, `bound` included.

        The copy shares `effort` and `table`.
        """
        return replace(self, collective=collective)


Costed = list[tuple[Schedule, "Cost"]]
"""Candidate schedules, each with its cost."""


@dataclass(frozen=True)
class Promise:
    """What all schedules of a plan keep, such as one bracketing.

    Extras, the optional features that extras.py at the root lists, add promises to its groups
    `promises` and `constraints`. `strategy` makes schedules that can keep it. `choose`, given
    candidates, the router and the hosts' costs (None: not known), returns the plan's section about
    the promise (synth/section.py) and schedules that keep it together: the best candidates, or what
    it makes of them. It raises InfeasibleError if there are none.
    """

    strategy: Strategy
    choose: Callable[[Costed, Router, HostCosts | None], tuple[Any, Costed]]


@dataclass(frozen=True)
class Strategy:
    """A strategy: its name, the function that builds its schedules, and the cases it applies to.

    Called with a Request, it returns candidate schedules (for small sizes, large ones, ...), or
    raises InfeasibleError with the reason why it has none.

    The other fields are for auto. It tries `auto_collectives` (default: all of `collectives`) and
    works `work_s` seconds of an idle core on the strategy. If it was not asked to be thorough, it
    works `quick_work_s`, or `at_bound_work_s` if a schedule is at the bound, and omits a strategy
    that cannot win: if there are more than `max_ranks` ranks; more than `max_ranks_beside` and
    there is a schedule already; or more than `max_ranks_at_bound` and a schedule is at the bound.
    """

    name: str
    build: Callable[[Request], list[Schedule]]
    collectives: tuple[str, ...] = COLLECTIVES
    auto_collectives: tuple[str, ...] = ()
    # Seconds of an idle core that one strategy of several may work.
    work_s: float = 6.0
    quick_work_s: float | None = None
    at_bound_work_s: float | None = None
    max_ranks: int = _ANY
    max_ranks_beside: int = _ANY
    max_ranks_at_bound: int = _ANY

    def __call__(self, request: Request) -> list[Schedule]:
        """Return the candidate schedules for a request."""
        name = request.collective.name
        if name not in self.collectives:
            raise InfeasibleError(
                f"{self.name} has no {name}; it has {', '.join(self.collectives)}"
            )
        return self.build(request)

    def may_win(self, collective: Collective, *, have_one: bool, at_bound: bool) -> bool:
        """Return whether auto should try the strategy if it was not asked to be thorough.

        `have_one`: an earlier strategy gave a schedule. `at_bound`: such a schedule reaches the
        bound.
        """
        names, ranks = self.auto_collectives or self.collectives, collective.ranks
        return (
            collective.name in names
            and ranks <= self.max_ranks
            and not (have_one and ranks > self.max_ranks_beside)
            and not (at_bound and ranks > self.max_ranks_at_bound)
        )


def check_size(name: str, ranks: int, transfers: int) -> None:
    """Raise InfeasibleError if a schedule would have more than MAX_TRANSFERS transfers.

    `name` (the strategy) and `ranks` are for the message only.
    """
    if transfers > MAX_TRANSFERS:
        raise InfeasibleError(
            f"{name}: {ranks} ranks take {transfers} transfers; at most {MAX_TRANSFERS} are planned"
        )


def segment_counts(trees: int) -> list[int]:
    """Return the numbers of segments to try for pipelined trees, ascending.

    They are those of SEGMENTS whose product with `trees`, the number of trees, is small enough to
    run; 1 and 2 are always among them.
    """
    return [m for m in SEGMENTS if m <= 2 or m * trees <= _MAX_PIECES]


def build_schedule(
    request: Request,
    name: str,
    chunks: tuple[Chunk, ...],
    sends: Iterable[Send],
    *,
    trees: int | None = None,
) -> Schedule:
    """Return a schedule of sends, each on the hardware's route.

    `name` is the strategy that the schedule records. `chunks` are shares of the buffer
    (`request.collective.even_chunks(1)`). A send is (step, source rank, destination rank, index of
    its chunk, "copy" or "reduce"); all sends of a step read the values from before the step.
    `trees` is the number of trees, for schedules of trees. The result has one segment;
    `dataclasses.replace(schedule, segments=16)` turns it into a pipeline.

    Raise InfeasibleError if two ranks have no route, InputError if a send names an unknown rank or
    operation.
    """
    routes: dict[tuple[int, int], int] = {}
    listed: list[tuple[str, ...]] = []
    rows, ranks = [], request.topology.ranks
    for step, src, dst, chunk, op in sends:
        number = routes.get((src, dst))
        if number is None:
            if not (0 <= src < len(ranks) and 0 <= dst < len(ranks)):
                raise InputError(
                    f"{name}: a send from rank {src!r} to rank {dst!r}; expected ranks from 0 to "
                    f"{len(ranks) - 1}"
                )
            route = request.router.route(src, dst)
            if route is None:
                raise InfeasibleError(
                    f"{name} needs {ranks[src]} to send to {ranks[dst]}, and only other GPUs lie "
                    "between them"
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
