"""The least R/C that any number of chunks can reach in S steps: a linear programme, and its dual as an exact proof.

Relax SCCL's formulation: x[j,e,s] in [0, 1] is how much of commodity j (the data of one source for one set of
receivers) crosses edge e in step s, r_s >= 0 the length of step s for one chunk. Minimise sum r_s subject to

    (1) every rank v that wants j:             sum_{e into v, s} x[j,e,s]               = 1     (dual pi[j,v], free)
    (1') every other rank:                     sum_{e into v, s} x[j,e,s]              <= 1     (dual pi[j,v] <= 0)
    (2) what left over e by step s was there:  sum_{t<=s} x[j,e,t] <= sum_{f into u, t<s} x[j,f,t]   (dual -w[j,e,s])
        for e = (u,v), u not a source of j, the edge f = (v,u) left out (what came from v need not go back)
    (3) links:                                 sum_{j, e over l} x[j,e,s] <= b_l r_s            (dual -y[l,s])

Any pi, w >= 0, y >= 0 prove, by weak duality and 0 <= x <= 1,

    R/C >= ( sum pi[j,v] - sum_{j,e,s} max(0, excess[j,e,s]) ) / max_s (sum_l b_l y[l,s]),   where
    excess[j,e,s] = pi[j,v] - sum_{l in e} y[l,s] - sum_{t>=s} w[j,e,t] + sum_{f=(v,x), x != u, t>s} w[j,f,t].

The programme is solved in floats; the multipliers are rounded to fractions, and only this formula, evaluated exactly,
counts. `equal_steps` asks for r_1 = ... = r_S (the rows with R = S), where max_s becomes a mean over s.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from ..collective import Collective
from ..cost import DirectedLink
from .copying import Key, possible_sends
from .fabric import Fabric

_MAX_DENOMINATORS = (64, 1000, 10**6)


@dataclass(frozen=True)
class RatioProof:
    """Multipliers of the programme above; `value` is what they prove R/C to be at least. Commodities are numbered as
    `collective.even_chunks(1)`. The dictionaries hold the multipliers that are not zero.
    """

    collective: Collective
    steps: int
    equal_steps: bool
    pi: dict[tuple[int, int], Fraction]
    w: dict[Key, Fraction]
    y: dict[tuple[DirectedLink, int], Fraction]
    value: Fraction


class _Rows:
    """A sparse matrix in the making, a row a constraint."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []
        self.right: list[float] = []

    def add(self, terms: list[tuple[int, float]], right: float) -> int:
        for column, value in terms:
            self.rows.append(len(self.right))
            self.columns.append(column)
            self.values.append(value)
        self.right.append(right)
        return len(self.right) - 1

    def matrix(self, columns: int) -> coo_matrix:
        return coo_matrix((self.values, (self.rows, self.columns)), (len(self.right), columns))


def least_ratio(fabric: Fabric, collective: Collective, steps: int, *, equal_steps: bool = False) -> RatioProof | None:
    """The proof of the best lower bound on R/C in `steps` steps, or None where no schedule has so few steps."""
    commodities = collective.even_chunks(1)
    sends = possible_sends(fabric, collective, commodities, steps)
    column = {key: steps + i for i, key in enumerate(sends)}
    inward: dict[tuple[int, int], list[Key]] = defaultdict(list)
    for key in sends:
        inward[key[0], fabric.edges[key[1]][1]].append(key)
    at_most, equal = _Rows(), _Rows()
    pi_rows: dict[tuple[int, int], int] = {}
    slack_rows: dict[tuple[int, int], int] = {}
    w_rows: dict[Key, int] = {}
    y_rows: dict[tuple[DirectedLink, int], int] = {}
    for j, chunk in enumerate(commodities):
        wanted, sources = set(collective.receivers(chunk)), set(collective.holders(chunk))
        for v in sorted(set(range(fabric.ranks)) - sources):
            terms = [(column[key], 1.0) for key in inward[j, v]]
            if v in wanted:
                if not terms:
                    return None
                pi_rows[j, v] = equal.add(terms, 1.0)
            elif terms:
                slack_rows[j, v] = at_most.add(terms, 1.0)
    last_sends: dict[tuple[int, int], list[Key]] = defaultdict(list)
    for key in sends:
        last_sends[key[0], key[1]].append(key)
    for (j, e), keys in last_sends.items():
        u, v = fabric.edges[e]
        if u in set(collective.holders(commodities[j])):
            continue
        for _, _, s in keys:
            terms = [(column[k], 1.0) for k in keys if k[2] <= s]
            terms += [(column[k], -1.0) for k in inward[j, u] if k[2] < s and fabric.edges[k[1]][0] != v]
            w_rows[j, e, s] = at_most.add(terms, 0.0)
    load: dict[tuple[DirectedLink, int], list[int]] = defaultdict(list)
    for key, at in column.items():
        for link in fabric.links_of(key[1]):
            load[link, key[2]].append(at)
    for (link, s), columns in load.items():
        y_rows[link, s] = at_most.add([*((c, 1.0) for c in columns), (s, -float(fabric.capacity[link]))], 0.0)
    if equal_steps:
        for s in range(1, steps):
            equal.add([(0, 1.0), (s, -1.0)], 0.0)
    total = steps + len(sends)
    objective = np.zeros(total)
    objective[:steps] = 1.0
    result = linprog(
        objective, at_most.matrix(total), at_most.right, equal.matrix(total), equal.right, bounds=(0, None), method="highs"
    )
    if result.status != 0:
        return None
    eq, ub = result.eqlin.marginals, result.ineqlin.marginals
    floats = (
        {k: eq[i] for k, i in pi_rows.items()} | {k: ub[i] for k, i in slack_rows.items()},
        {k: -ub[i] for k, i in w_rows.items()},
        {k: -ub[i] for k, i in y_rows.items()},
    )
    return max(
        (_rounded(fabric, collective, steps, equal_steps, floats, d) for d in _MAX_DENOMINATORS), key=lambda p: p.value
    )


def _rounded(
    fabric: Fabric,
    collective: Collective,
    steps: int,
    equal_steps: bool,
    floats: tuple[dict[tuple[int, int], float], dict[Key, float], dict[tuple[DirectedLink, int], float]],
    denominator: int,
) -> RatioProof:
    def near(value: float) -> Fraction:
        return Fraction(float(value)).limit_denominator(denominator)

    pi = {k: f for k, v in floats[0].items() if (f := near(v))}
    w = {k: f for k, v in floats[1].items() if (f := near(v)) > 0}
    y = {k: f for k, v in floats[2].items() if (f := near(v)) > 0}
    for (j, v), value in list(pi.items()):
        if v not in set(collective.receivers(collective.even_chunks(1)[j])) and value > 0:
            del pi[j, v]
    value = proved_ratio(fabric, collective, steps, equal_steps, pi, w, y)
    return RatioProof(collective, steps, equal_steps, pi, w, y, value)


def proved_ratio(
    fabric: Fabric,
    collective: Collective,
    steps: int,
    equal_steps: bool,
    pi: dict[tuple[int, int], Fraction],
    w: dict[Key, Fraction],
    y: dict[tuple[DirectedLink, int], Fraction],
) -> Fraction:
    """What the multipliers prove, by the formula in the module's docstring, exactly. 0 where they prove nothing."""
    commodities = collective.even_chunks(1)
    if any(f < 0 for f in (*w.values(), *y.values())):
        return Fraction(0)
    if any(f > 0 and v not in set(collective.receivers(commodities[j])) for (j, v), f in pi.items()):
        return Fraction(0)
    later: dict[tuple[int, int], list[tuple[int, Fraction]]] = defaultdict(list)
    out_of: dict[tuple[int, int], list[tuple[int, int, Fraction]]] = defaultdict(list)
    for (j, e, s), f in w.items():
        u, x = fabric.edges[e]
        later[j, e].append((s, f))
        out_of[j, u].append((x, s, f))
    loss = Fraction(0)
    for j, e, s in possible_sends(fabric, collective, commodities, steps):
        u, v = fabric.edges[e]
        excess = pi.get((j, v), Fraction(0))
        excess -= sum((y.get((link, s), Fraction(0)) for link in fabric.links_of(e)), Fraction(0))
        excess -= sum((f for t, f in later[j, e] if t >= s), Fraction(0))
        excess += sum((f for x, t, f in out_of[j, v] if x != u and t > s), Fraction(0))
        loss += max(Fraction(0), excess)
    per_step = [sum((fabric.capacity[link] * f for (link, t), f in y.items() if t == s), Fraction(0)) for s in range(steps)]
    price = sum(per_step, Fraction(0)) / steps if equal_steps else max(per_step, default=Fraction(0))
    return max(Fraction(0), (sum(pi.values(), Fraction(0)) - loss) / price) if price else Fraction(0)
