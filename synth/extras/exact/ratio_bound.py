"""The least R/C of any number of chunks in S steps: a linear program with its dual as exact proof.

R is the number of rounds, C that of chunks: in a round link l carries b_l chunks, its bandwidth in
units. Relax SCCL's formulation: x[j,e,s] in [0, 1] is the fraction of commodity j (the data of one
source for one set of receivers) that crosses edge e in step s, and r_s >= 0 is the length of step s
for one chunk. Minimise sum r_s subject to

    (1) for every rank v that wants j:  sum_{e into v, s} x[j,e,s]  = 1  (dual pi[j,v], free)
        every other rank but the source: the same  <= 1                  (dual pi[j,v] <= 0)
    (2) data that leaves u by step s came before:                        (dual -w)
            sum_{e in A, t<=s} x[j,e,t] <= sum_{f into u, t<s} x[j,f,t]
        several receivers: for each edge A = {(u,v)}, f = (v,u) left out (data from v need not go
        back); one receiver: for A = all edges out of u (nothing need be copied); at the source,
        the right side is 1
    (3) links:  sum_{j, e over l} x[j,e,s] <= b_l r_s                    (dual -y[l,s])

By weak duality and 0 <= x <= 1, any pi, w >= 0 and y >= 0 prove

    R/C >= ( sum pi - sum_{at the source} w - sum_{j,e,s} max(0, excess[j,e,s]) )
           / max_s (sum_l b_l y[l,s]),  with
    excess[j,(u,v),s] = pi[j,v] - sum_{l in e} y[l,s] - sum_{t>=s, A has e} w[j,A,t]
                        + sum_{t>s, A out of v, e counts} w[j,A,t]

The program is solved in floats; the multipliers are rounded to fractions, and only this formula,
evaluated exactly, counts. `equal_steps` requires r_1 = ... = r_S (the rows with R = S); max_s then
becomes a mean over s.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ....topo.grouping import group_by_key
from ...cost.loads import DirectedLink
from ...ir.collective import Chunk, Collective
from ...numeric.effort import Effort
from ...numeric.linear import Rows, minimise
from .models import SyncFabric, list_possible_sends

# Denominators to which multipliers are rounded in turn; the exact formula tells what they prove.
_MAX_DENOMINATORS = (64, 1000, 10**6)
# Relative distance to the program's optimum at which a proof lost nothing by rounding.
_CLOSE = 1e-9
# Represents all edges out of a rank in the rows of kind (2).
_ALL = -1

# (commodity, rank u, next rank v or _ALL, step): a row of kind (2).
Forward = tuple[int, int, int, int]


@dataclass(frozen=True)
class Multipliers:
    """The non-zero multipliers (duals) that prove a lower bound on R/C; see the module's docstring.

    Keys of `pi` are (commodity, rank), of `w` (commodity, rank, next rank or -1 for all, step), and
    of `y` (link, step). Commodities are numbered as in `collective.even_chunks(1)`.
    """

    pi: dict[tuple[int, int], Fraction]
    w: dict[Forward, Fraction]
    y: dict[tuple[DirectedLink, int], Fraction]


@dataclass(frozen=True)
class RatioProof:
    """A proof, by `multipliers`, that R/C is at least `value` for `collective` in `steps` steps."""

    collective: Collective
    steps: int
    equal_steps: bool
    multipliers: Multipliers
    value: Fraction


class _Programme:
    """The linear program: columns 0..S-1 are r_s, followed by one column per possible send."""

    def __init__(
        self, fabric: SyncFabric, collective: Collective, steps: int, equal_steps: bool
    ) -> None:
        self.fabric, self.collective = fabric, collective
        self.steps, self.equal_steps = steps, equal_steps
        self.commodities = collective.even_chunks(1)
        self.sends = list_possible_sends(fabric, collective, self.commodities, steps)
        self.column = {key: steps + i for i, key in enumerate(self.sends)}
        self.at_most, self.equal = Rows(), Rows()
        self.pi: dict[tuple[int, int], tuple[bool, int]] = {}
        self.w: dict[Forward, int] = {}
        self.y: dict[tuple[DirectedLink, int], int] = {}
        self.into = group_by_key(((key[0], fabric.edges[key[1]][1]), key) for key in self.sends)
        self.out_of = group_by_key(((key[0], fabric.edges[key[1]][0]), key) for key in self.sends)

    def build(self) -> bool:
        """Add all rows; return False if some receiver cannot be reached in this number of steps."""
        for j, chunk in enumerate(self.commodities):
            if not self._add_arrivals(j, chunk):
                return False
            self._add_forwarding(j, chunk)
        load = group_by_key(
            ((link, key[2]), column)
            for key, column in self.column.items()
            for link in self.fabric.links_of(key[1])
        )
        for (link, s), columns in load.items():
            self.y[link, s] = self.at_most.add(
                [*((c, 1.0) for c in columns), (s, -float(self.fabric.capacity[link]))], 0.0
            )
        if self.equal_steps:
            for s in range(1, self.steps):
                self.equal.add([(0, 1.0), (s, -1.0)], 0.0)
        return True

    def _add_arrivals(self, j: int, chunk: Chunk) -> bool:
        """Add the rows of kind (1); return False if some receiver cannot be reached."""
        wanted, sources = set(self.collective.receivers(chunk)), set(self.collective.holders(chunk))
        for v in sorted(set(range(self.fabric.ranks)) - sources):
            terms = [(self.column[key], 1.0) for key in self.into[j, v]]
            if v in wanted:
                if not terms:
                    return False
                self.pi[j, v] = True, self.equal.add(terms, 1.0)
            elif terms:
                self.pi[j, v] = False, self.at_most.add(terms, 1.0)
        return True

    def _add_forwarding(self, j: int, chunk: Chunk) -> None:
        single = _has_single_receiver(self.collective, chunk)
        sources = set(self.collective.holders(chunk))
        for u in range(self.fabric.ranks):
            sends = self.out_of[j, u]
            if u in sources:
                if single and sends:
                    self.w[j, u, _ALL, self.steps - 1] = self.at_most.add(
                        [(self.column[k], 1.0) for k in sends], 1.0
                    )
                continue
            for v in [_ALL] if single else sorted({self.fabric.edges[k[1]][1] for k in sends}):
                outward = [k for k in sends if v in (_ALL, self.fabric.edges[k[1]][1])]
                for s in sorted({k[2] for k in outward}):
                    terms = [(self.column[k], 1.0) for k in outward if k[2] <= s]
                    terms += [
                        (self.column[k], -1.0)
                        for k in self.into[j, u]
                        if k[2] < s and self.fabric.edges[k[1]][0] != v
                    ]
                    self.w[j, u, v, s] = self.at_most.add(terms, 0.0)

    def solve(self, effort: Effort) -> RatioProof:
        """Solve the program, round the duals, and return the best proof among the roundings.

        The value of the proof is 0 if the effort was too small.
        """
        objective = np.zeros(self.steps + len(self.sends))
        objective[: self.steps] = 1.0
        optimum = minimise(objective, self.at_most, self.equal, effort, "exact: bound on R/C")
        about = self.collective, self.steps, self.equal_steps
        if optimum is None:
            return RatioProof(*about, Multipliers({}, {}, {}), Fraction(0))
        # Rounding more coarsely may clean up float noise, or cost too much: the exact formula
        # decides.
        exact, upper = optimum.equal_duals, optimum.at_most_duals
        proofs = []
        for denominator in _MAX_DENOMINATORS:

            def to_fraction(value: float, limit: int = denominator) -> Fraction:
                return Fraction(float(value)).limit_denominator(limit)

            multipliers = Multipliers(
                pi={
                    k: f
                    for k, (eq, i) in self.pi.items()
                    if (
                        f := to_fraction(exact[i])
                        if eq
                        else min(to_fraction(upper[i]), to_fraction(0.0))
                    )
                },
                w={k: f for k, i in self.w.items() if (f := to_fraction(-upper[i])) > 0},
                y={k: f for k, i in self.y.items() if (f := to_fraction(-upper[i])) > 0},
            )
            value = evaluate_proof(self.fabric, *about, multipliers)
            proofs.append(RatioProof(*about, multipliers, value))
            if float(value) >= optimum.value * (1 - _CLOSE):
                break
        return max(proofs, key=lambda p: p.value)


def prove_least_ratio(
    fabric: SyncFabric,
    collective: Collective,
    steps: int,
    effort: Effort | None = None,
    equal_steps: bool = False,
) -> RatioProof | None:
    """Return a proof of the greatest lower bound found on R/C in `steps` steps.

    None if no schedule has so few steps. With `equal_steps` the bound is for schedules whose steps
    all last equally long.
    """
    program = _Programme(fabric, collective, steps, equal_steps)
    return program.solve(effort if effort is not None else Effort()) if program.build() else None


def _has_single_receiver(collective: Collective, chunk: Chunk) -> bool:
    """Return whether at most one rank still needs the chunk, so that it is never copied."""
    return len(set(collective.receivers(chunk)) - set(collective.holders(chunk))) <= 1


def evaluate_proof(
    fabric: SyncFabric,
    collective: Collective,
    steps: int,
    equal_steps: bool,
    multipliers: Multipliers,
) -> Fraction:
    """Return the lower bound on R/C that multipliers prove, in exact arithmetic.

    It is independent of the search (`prove_least_ratio`), and follows from the formula at the head
    of the module. It is 0 if they prove nothing, for example because of a wrong sign.
    """
    commodities = collective.even_chunks(1)
    pi, w, y = multipliers.pi, multipliers.w, multipliers.y
    sources = [set(collective.holders(chunk)) for chunk in commodities]
    single = [_has_single_receiver(collective, chunk) for chunk in commodities]
    wanted = [set(collective.receivers(chunk)) for chunk in commodities]
    # Multipliers of inequalities must have their sign, and belong to rows that the program has.
    if (
        any(f < 0 for f in (*w.values(), *y.values()))
        or any(v in sources[j] or (f > 0 and v not in wanted[j]) for (j, v), f in pi.items())
        or any((v == _ALL) != single[j] or (u in sources[j] and v != _ALL) for (j, u, v, _) in w)
    ):
        return Fraction(0)
    # Right-hand sides times multipliers, less the largest gain of each x in [0, 1].
    total = sum(pi.values(), Fraction(0)) - sum(
        (f for (j, u, _, _), f in w.items() if u in sources[j]), Fraction(0)
    )
    w_of = group_by_key(((j, u), (v, s, f)) for (j, u, v, s), f in w.items())
    for j, e, s in list_possible_sends(fabric, collective, commodities, steps):
        u, v = fabric.edges[e]
        excess = pi.get((j, v), Fraction(0))
        excess -= sum((y.get((link, s), Fraction(0)) for link in fabric.links_of(e)), Fraction(0))
        at_source = u in sources[j]
        excess -= sum(
            (f for x, t, f in w_of[j, u] if x in (_ALL, v) and (t >= s or at_source)), Fraction(0)
        )
        if v not in sources[j]:
            excess += sum((f for x, t, f in w_of[j, v] if x != u and t > s), Fraction(0))
        total -= max(Fraction(0), excess)
    # The price of a unit of each step's length: the highest counts, or the mean if steps are equal.
    length = [Fraction(0)] * steps
    for (link, s), f in y.items():
        length[s] += fabric.capacity[link] * f
    price = sum(length, Fraction(0)) / steps if equal_steps else max(length)
    return max(Fraction(0), total / price) if price else Fraction(0)
