"""Compute the rate of a bracketing on a machine: its embeddings, weighed by column generation.

A bracketing is the order in which the ranks' values of an element are added, such as ((0+1)+(2+3)).
An embedding of it says at which ranks the partial sums are made, and over which ranks they move
there (embedding.py). Each embedding is a column of a linear program, which divides the data among
them so that the busiest link takes the least time.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from ....topo.errors import InfeasibleError
from ...ir.collective import Chunk, Collective
from ...ir.schedule import Schedule
from ...machine.links import Floats
from ...machine.routes import OwnRoutes
from ...numeric.effort import Effort
from ...packing.division import divide
from ...packing.weigh import round_shares
from ...request import Request, Send, build_schedule
from .bracket import Bracket
from .embedding import Column, Embedding, count_sends, find_spreads

NAME = "bracketed"
# Column generation ends once the time is at most this many times the lower bound that the prices
# prove for the bracketing.
_NEAR = 1.002
# Columns of an allreduce or reduce added per turn; turns without a share after which a column is
# dropped.
_COLUMNS, _MAX_IDLE = 6, 6
# Seconds of an idle core: per linear program of a turn, per rank for pricing, per out-tree, and per
# pair of ranks in it.
_TURN_S, _PRICING_RANK_S, _TREE_S, _TREE_ENTRY_S = 8e-3, 1.5e-3, 6e-4, 4e-6
# Weight of earlier turns' prices relative to the last duals.
_SMOOTH = 0.5
# Prices per hop, in mean distances, with which columns of few hops are found.
_HOP_PRICES = (0.05, 0.2, 1.0)
# A limit on steps is worth a schedule above this fraction of the best rate; more steps are worth it
# if they are faster by this factor.
_WORTH_IT, _FASTER = 0.85, 1.005


@dataclass
class Fit:
    """Embeddings of a bracketing (columns), the share that each carries, and their time.

    `shares` are floats; those of a group's columns sum to 1 (see Fitting). `seconds` is the time
    per GB of buffer that the columns take together. `least_s` is the lower bound on it, in seconds
    per GB, that the prices prove for all embeddings of this bracketing in the form of embedding.py.
    """

    columns: list[Column]
    shares: Floats
    seconds: float
    least_s: float


class Fitting:
    """Finds how fast a collective adds in one bracketing on a machine, and makes its schedules.

    `run` generates columns, the embeddings of the bracketing, and stores the best shares of the
    data in `fit`, which is None before; `list_fits` and `build` make schedules of them. `bracket`
    is the bracketing as nested pairs of ranks; `collective` is an allreduce, reduce or
    reduce-scatter; ranks send to each other on `routes`.

    In a reduce-scatter (`is_apart`) each rank's part of the buffer is divided among a group of
    columns of its own, which end at that rank; otherwise there is one group. `uses` maps each
    column to how often it crosses each link, by the link's number.
    """

    def __init__(self, bracket: Bracket, collective: Collective, routes: OwnRoutes) -> None:
        self.collective, self.routes, n = collective, routes, collective.ranks
        # In a reduce-scatter the buffer has a part per rank, else only one.
        self.is_apart = collective.name == "reduce-scatter"
        self.parts = n if self.is_apart else 1
        # The ranks at which sums may end.
        self.ends = [collective.root or 0] if collective.name == "reduce" else list(range(n))
        self.embedding = Embedding(bracket, routes)
        self.uses: dict[Column, Counter[int]] = {}
        self.prices: Floats = 1 / routes.capacity / len(routes.capacity)
        self.duals: Mapping[Hashable, float] = {}
        self.least_s = 0.0
        self._idle: Counter[Column] = Counter()
        self.fit: Fit | None = None

    @property
    def seconds(self) -> float:
        """The columns' time in seconds per GB of buffer; infinity before there are any."""
        return np.inf if self.fit is None else self.fit.seconds

    def group_of(self, column: Column) -> int:
        """Return a column's group: in a reduce-scatter the rank that gets its part, else 0."""
        return column.end if self.is_apart else 0

    def run(self, effort: Effort, turns: int, beaten_s: float = np.inf) -> Fit:
        """Generate columns until they are near the optimum, for at most `turns` more turns.

        Stop early if the effort is spent, or once it is proved that this bracketing takes more than
        `beaten_s` seconds per GB. Raise InfeasibleError if there are no columns.
        """
        n, smooth = self.collective.ranks, self.prices
        tree_s = n * (_TREE_S + _TREE_ENTRY_S * n * n) if self.collective.name == "allreduce" else 0
        for _ in range(turns):
            if self.uses and effort.is_over(NAME):
                break
            smooth = _SMOOTH * smooth + (1 - _SMOOTH) * self.prices
            fresh = self._price(smooth) or self._price(self.prices)
            effort.spend(_TURN_S + n * _PRICING_RANK_S + tree_s)
            least_s = self.least_s / self.parts
            if self.fit is not None:
                self.fit.least_s = least_s
            if not fresh or least_s > beaten_s:
                break
            for column in fresh:
                self.uses[column] = self._count_uses(column)
            division = divide(
                list(self.uses.values()),
                self.routes.capacity,
                [self.group_of(c) for c in self.uses],
                effort=effort,
            )
            if division is None:
                raise InfeasibleError(f"{NAME}: the weights of the embeddings have no optimum")
            self.prices, self.duals = division.prices, division.duals
            self.fit = Fit(list(self.uses), division.shares, division.time / self.parts, least_s)
            if division.time <= self.least_s * _NEAR:
                break
            self._forget_unused(division.shares)
        if self.fit is None:
            raise InfeasibleError(
                f"{NAME}: the ranks cannot add up in this order over the routes that there are"
            )
        return self.fit

    def _forget_unused(self, shares: Floats) -> None:
        """Drop columns that had no share for more than _MAX_IDLE turns: the program stays small."""
        for column, share in zip(list(self.uses), shares.tolist(), strict=True):
            self._idle[column] = 0 if share > 0 else self._idle[column] + 1
            if self._idle[column] > _MAX_IDLE:
                del self.uses[column], self._idle[column]

    def _price(self, prices: Floats) -> list[Column]:
        """Return new columns that cost less than their group's dual.

        Also raise the lower bound `least_s` if these prices prove a higher one.
        """
        tiny = 1e-7 * float(prices.mean())
        distance = self.routes.distances(prices + tiny)
        adding = self.embedding.price(distance)
        spreads = find_spreads(distance) if self.collective.name == "allreduce" else None
        offers: list[tuple[float, int, list[int] | None]] = []
        for end in self.ends:
            spread, cost = None if spreads is None else spreads[end], float(adding[end])
            cost += sum(float(distance[p, v]) for v, p in enumerate(spread or ()) if p >= 0)
            if np.isfinite(cost):
                offers.append((cost, end, spread))
        offers.sort(key=lambda offer: offer[:2])
        if len(offers) < self.parts:
            return []
        paid = float(self.routes.capacity @ (prices + tiny))
        self.least_s = max(self.least_s, sum(o[0] for o in offers[: self.parts]) / paid)
        cheap = (
            self.embedding.find_column(end, spread)
            for cost, end, spread in (offers if self.is_apart else offers[:_COLUMNS])
            if cost < self.duals.get(end if self.is_apart else 0, np.inf) * (1 - 1e-6)
        )
        return [column for column in cheap if column not in self.uses]

    def _count_uses(self, column: Column) -> Counter[int]:
        loads = self.routes.loads(count_sends(column, self.routes.ranks))
        return Counter({int(i): int(loads[i]) for i in np.flatnonzero(loads)})

    def list_columns(self, distance: Floats) -> list[Column]:
        """Return the cheapest column for each rank at which sums can end.

        `distance[u, v]` is the price of sending from rank u to rank v, infinite without a route.
        """
        adding = self.embedding.price(distance)
        spreads = find_spreads(distance) if self.collective.name == "allreduce" else None
        return [
            self.embedding.find_column(end, None if spreads is None else spreads[end])
            for end in self.ends
            if np.isfinite(adding[end])
        ]

    def add_low_columns(self) -> None:
        """Add columns with few hops to `uses`, found by adding a price per hop to the last prices.

        `list_fits` can then choose them; `fit` stays as it is.
        """
        distance = self.routes.distances(self.prices)
        usual = float(distance[np.isfinite(distance)].mean())
        for hop_price in _HOP_PRICES:
            with_hops = distance + hop_price * usual
            np.fill_diagonal(with_hops, 0.0)
            self.uses |= {
                column: self._count_uses(column) for column in self.list_columns(with_hops)
            }

    def list_fits(self) -> list[Fit]:
        """Return the fastest fits under limits on the number of steps, fewest steps first.

        The caller must call `run` first. Without a fit under a limit it is `fit` alone. A limit is
        skipped if its rate is too low, or if its extra steps gain too little.
        """
        assert self.fit is not None
        out: list[Fit] = []
        for steps in sorted({column.steps for column in self.uses}):
            columns = [column for column in self.uses if column.steps <= steps]
            groups = [self.group_of(column) for column in columns]
            if len(set(groups)) < self.parts:
                continue
            uses = [self.uses[column] for column in columns]
            division = divide(uses, self.routes.capacity, groups)
            seconds = np.inf if division is None else division.time / self.parts
            if (
                division is not None
                and seconds * _WORTH_IT <= self.seconds
                and (not out or seconds * _FASTER < out[-1].seconds)
            ):
                out.append(Fit(columns, division.shares, seconds, self.least_s / self.parts))
        return out or [self.fit]

    def build(self, request: Request, fit: Fit) -> Schedule:
        """Return the schedule of a fit, with one chunk per column in use.

        `request` is for the collective and the routes of this fitting.
        """
        capacity = [request.topology.capacity_GBps[link] for link in self.routes.links]
        uses = [self._count_uses(column) for column in fit.columns]
        shares = round_shares(fit.shares, uses, capacity, list(map(self.group_of, fit.columns)))
        chunks: list[Chunk] = []
        sends: list[Send] = []
        for column, share in zip(fit.columns, shares, strict=True):
            if share:
                sends += [(step, src, dst, len(chunks), op) for step, src, dst, op in column.moves]
                chunks.append(
                    Chunk(share / self.parts, target=column.end if self.is_apart else None)
                )
        return build_schedule(request, NAME, tuple(chunks), sends, trees=len(chunks))
