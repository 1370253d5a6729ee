"""Search for the best lower bound on all rank orders: the weights of a certificate that proves it.

check.py states the claim and its proof. A tier divides the GPUs into parts, such as hosts; a case
assumes for some tiers and dimensions of the job that each group is in one part, or that some group
is divided.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import chain
from math import floor, log10
from typing import Any

import numpy as np

from .....topo.exact import fraction_to_json
from .....topo.grouping import group_by_key
from ....numeric.linear import Rows, minimise
from ..job import Job, Phase
from ..loads import TIME
from ..route_table import RouteTable
from ..tiers import Tier, TierPart, TierParts, log_at_least, measure_part
from .check import TIERS, Cases, PlaceBound, Proof, pay

# Most cases of a proof: each solves a linear program, and checking repeats them all.
_MAX_CASES = 64
# Most kinds of parts with a separate row; those with the least capacity per rank come first.
_MAX_SLOWEST = 4


def find_bound(
    table: RouteTable,
    gpus: Sequence[int],
    tiers: Sequence[Tier],
    job: Job,
    phases: Sequence[Phase],
    objective: str,
    unit: Fraction,
    together: Sequence[str] = (),
) -> PlaceBound:
    """Return the best lower bound on the time of all rank orders that tiers of GPUs prove.

    `table` has the machine's routes; a tier divides `gpus` (numbers of the topology's ranks) into
    parts. `phases` are the job's messages, `objective` is "time" or "bottleneck", and each group of
    the dimensions `together` shares a host. `unit` is the time of a known order in seconds:
    programs are scaled by it, and no higher bound is sought.
    """
    proof = Proof(table, gpus, job, phases, objective, together)
    proof.tiers = [row for tier in tiers for row in _list_rows(table, gpus, tier)]
    finder = _Finder(proof, unit)
    node = finder.prove({}, finder.list_questions())
    # Floors of latencies and of matrices use every tier that covers the machine.
    finder.used.update(number for number, tier in enumerate(proof.tiers) if tier.covers)
    # The time of a check grows with the number of tiers, so only those of the proof are kept.
    used = sorted(finder.used)
    _renumber(node, {number: i for i, number in enumerate(used)})
    rows = [
        {"direction": t.direction, "inside": [sorted(p.inside) for p in t.parts]}
        for t in (proof.tiers[number] for number in used)
    ]
    proof.tiers = [proof.tiers[number] for number in used]
    return PlaceBound(proof.prove_cases(node), TIERS, {"tiers": rows, "proof": node})


def choose_parts(
    table: RouteTable, gpus: Sequence[int], tier: Tier, direction: str
) -> list[TierPart]:
    """Return the parts of a tier with the capacity to leave (direction "out") or enter ("in") them.

    Each part is taken with the devices between its GPUs or without, whichever has less capacity
    around it.
    """
    topology, parts = table.topology, []
    for part in tier:
        alone = frozenset(topology.ranks[gpu] for gpu in part)
        between = np.unique(table.crossed[np.ix_(part, part)]).tolist()
        ends = {end for link in between if link < len(table.links) for end in table.links[link]}
        others = {end for end in ends if topology.by_id[end].kind != "gpu"}
        parts.append(measure_part(table, gpus, (alone, alone | others), direction))
    return parts


def _list_rows(table: RouteTable, gpus: Sequence[int], tier: Tier) -> list[TierParts]:
    """Return the rows of a tier, in both directions.

    These are all parts of the tier together and, separately, the identical ones with the least
    capacity.
    """
    rows: list[TierParts] = []
    for direction in ("out", "in"):
        parts = choose_parts(table, gpus, tier, direction)
        if rows and [p.capacity_GBps for p in parts] == [p.capacity_GBps for p in rows[0].parts]:
            break
        rows.append(TierParts(direction, tuple(parts), True))
        alike = group_by_key(((len(part.gpus), part.capacity_GBps), part) for part in parts)
        slowest = sorted(alike, key=lambda key: key[1] / key[0])[:_MAX_SLOWEST]
        if len(alike) > 1:
            rows += [TierParts(direction, tuple(alike[key]), False) for key in slowest]
    return rows


class _Finder:
    """A proof search that divides into cases as long as that may help, and weighs each case.

    `used` are the tiers of the proof.
    """

    def __init__(self, proof: Proof, unit: Fraction) -> None:
        self.proof, self.unit = proof, unit
        self.used: set[int] = set()
        self.cases = 0

    def list_questions(self) -> list[tuple[int, str]]:
        """Return the tiers and dimensions for which it matters whether groups are whole.

        The coarsest tiers come first.
        """
        busy = {phase.traffic.dimension for phase in self.proof.phases}
        covering = [
            number
            for number, tier in enumerate(self.proof.tiers)
            if tier.covers and tier.direction == "out" and len(tier.parts) < tier.ranks
        ]
        return [
            (number, name)
            for number in reversed(covering)
            for name, size in self.proof.job.dimensions
            if name in busy and size > 1
        ]

    def prove(self, cases: Cases, questions: Sequence[tuple[int, str]]) -> dict[str, Any]:
        """Return a proof for some cases.

        It is by weights or shapes if these prove enough or no question is left, else by the cases
        of the next question.
        """
        proof = self.proof
        weights, shapes = self._choose_weights(cases), self._choose_shapes(cases)
        by_weights, by_shapes = proof.weigh(weights, cases), proof.weigh_shapes(shapes, cases)
        proved = max(by_weights, by_shapes) + proof.floor_of_latencies(cases)
        self.cases += 1
        if not questions or proved >= self.unit or self.cases > _MAX_CASES:
            rows = weights["tiers"] if by_weights >= by_shapes else shapes
            self.used.update(row[0] for row in rows)
            return weights if by_weights >= by_shapes else {"shapes": shapes}
        (tier, name), rest = questions[0], questions[1:]
        self.used.add(tier)
        node: dict[str, Any] = {"tier": tier, "dimension": name}
        # Impossible cases need no proof.
        if not proof.must_be_whole(tier, name, cases):
            node["divided"] = self.prove({**cases, (tier, name): False}, rest)
        if proof.can_be_whole(tier, name, cases):
            node["whole"] = self.prove({**cases, (tier, name): True}, rest)
        return node

    def _choose_shapes(self, cases: Cases) -> list[list[Any]]:
        """Return the tiers whose parts' shapes prove the most together.

        Each has its dimensions across and along.
        """
        proof = self.proof
        names = [name for name, _ in proof.job.dimensions]
        rows: list[list[Any]] = []
        for number, tier in enumerate(proof.tiers):
            free = [name for name in names if not proof.must_be_whole(number, name, cases)]
            axes: dict[int, list[tuple[str | None, ...]]] = {
                1: [(*free, None)],
                2: [(*free,), (*free[::-1],)],
            }
            rows += [
                [number, across, along]
                for across, along in axes.get(len(free), ())
                if tier.covers and proof.list_times(number, across, along, cases)
            ]
        # Every row makes the check slower, so rows without effect are dropped.
        proved = proof.weigh_shapes(rows, cases)
        for row in list(rows):
            fewer = [other for other in rows if other is not row]
            if proof.weigh_shapes(fewer, cases) >= proved:
                rows = fewer
        return rows

    def _choose_weights(self, cases: Cases) -> dict[str, Any]:
        nothing = [0] * len(self.proof.phases)
        for number, tier in enumerate(self.proof.tiers):
            logs = [
                log_at_least(min(self.proof.list_inside(number, name, cases)))
                for name, _ in self.proof.job.dimensions
            ]
            excess = sum(logs, Fraction(0)) - tier.mean_log
            # An impossible case: its logarithms alone prove any bound.
            if excess > 0:
                return {
                    "gpus": nothing,
                    "divided": nothing,
                    "tiers": [
                        [number, nothing, fraction_to_json(_round(float(2 * self.unit / excess)))]
                    ],
                }
        return _Weights(self.proof, cases, self.unit).choose()


class _Weights:
    """The linear program for the least time in some cases.

    Its columns are the times of the phases (a single time for the objective "bottleneck") and, for
    each tier and dimension, the shares of the ranks with each f.
    """

    def __init__(self, proof: Proof, cases: Cases, unit: Fraction) -> None:
        self.proof, self.cases, self.unit = proof, cases, unit
        self.apart = proof.objective == TIME
        self.times = len(proof.phases) if self.apart else 1
        self.columns = self.times
        self.at_most, self.equal = Rows(), Rows()
        self.tier_rows = [self._add_tier(number) for number in range(len(proof.tiers))]
        # The rows of the floors of GPUs, then of divided groups, each by phase.
        self.floor_rows = [
            [
                self.at_most.add([(i if self.apart else 0, -1.0)], -float(seconds / unit))
                for i, seconds in enumerate(floors)
            ]
            for floors in (
                map(proof.floor_of_gpus, proof.phases),
                (proof.floor_of_divided(phase, cases) for phase in proof.phases),
            )
        ]

    def _add_tier(self, tier_number: int) -> tuple[list[int], int]:
        """Add the inequalities of a tier.

        Return the rows of the times, and the row of the logarithms.
        """
        proof, tier = self.proof, self.proof.tiers[tier_number]
        capacity = tier.capacity_GBps
        share_of: dict[str, list[tuple[int, int]]] = {}
        for name, _ in proof.job.dimensions:
            allowed = proof.list_inside(tier_number, name, self.cases)
            share_of[name] = [(f, self.columns + i) for i, f in enumerate(allowed)]
            self.columns += len(allowed)
            self.equal.add([(column, 1.0) for _, column in share_of[name]], 1.0)
        terms_of: list[list[tuple[int, float]]] = [[] for _ in range(self.times)]
        for number, phase in enumerate(proof.phases):
            if phase.parts is not None:
                continue
            name, pattern = phase.traffic.dimension, phase.pattern
            seconds = pattern.bytes_each * tier.ranks / (capacity * 10**9) if capacity else 0
            price = float(seconds / self.unit)
            terms_of[number if self.apart else 0] += [
                (column, price * float(pay(pattern.shape, proof.sizes[name], f, tier.covers)))
                for f, column in share_of[name]
            ]
        rows = [self.at_most.add([*terms, (i, -1.0)], 0.0) for i, terms in enumerate(terms_of)]
        shares = chain.from_iterable(share_of.values())
        logs = ((column, float(log_at_least(f))) for f, column in shares)
        return rows, self.at_most.add(logs, float(tier.mean_log))

    def choose(self) -> dict[str, Any]:
        """Return the optimal weights in the form of a proof."""
        optimum = minimise(
            (np.arange(self.columns) < self.times).astype(float), self.at_most, self.equal
        )
        duals = np.zeros(len(self.at_most.right))
        if optimum is not None:
            duals = np.maximum(0.0, -optimum.at_most_duals)
        gpus, divided = ([_round(duals[row]) for row in rows] for rows in self.floor_rows)
        weights = [[_round(duals[row]) for row in rows] for rows, _ in self.tier_rows]
        # Weights of one time must be at most 1 together; rounding may have made them more.
        floors = [a + b for a, b in zip(gpus, divided, strict=True)]
        floors = floors if self.apart else [sum(floors, Fraction(0))]
        shrink = max(
            [Fraction(1), *(sum((row[i] for row in weights), floors[i]) for i in range(self.times))]
        )
        # A single time stands for those of all phases.
        times = 1 if self.apart else len(self.proof.phases)
        return {
            "gpus": [fraction_to_json(w / shrink) for w in gpus],
            "divided": [fraction_to_json(w / shrink) for w in divided],
            "tiers": [
                [
                    number,
                    [fraction_to_json(w / shrink) for w in row * times],
                    fraction_to_json(_round(duals[log_row] * float(self.unit / shrink))),
                ]
                for number, (row, (_, log_row)) in enumerate(
                    zip(weights, self.tier_rows, strict=True)
                )
                if any(row)
            ],
        }


def _renumber(node: dict[str, Any], number: dict[int, int]) -> None:
    if "dimension" not in node:
        key = "shapes" if "shapes" in node else "tiers"
        node[key] = [[number[tier], *rest] for tier, *rest in node[key]]
        return
    node["tier"] = number[node["tier"]]
    for case in node.keys() & {"whole", "divided"}:
        _renumber(node[case], number)


def _round(value: float) -> Fraction:
    """Return a weight as a fraction of 15 digits, rounded down."""
    digits = 10 ** (15 - min(0, floor(log10(value)))) if value > 0 else 1
    return Fraction(int(value * digits), digits)
