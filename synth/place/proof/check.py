"""What no order of ranks can beat: the certificates that prove it, and an independent check that
redoes their arithmetic.

A certificate of kind "tiers" lists tiers: disjoint parts of the machine ("inside", device ids),
each with as many ranks as GPUs. What leaves a part (direction "in": enters it) on the system's own
routes crosses the links out of those devices that such routes use, so a phase takes at least what
all parts send, over the capacity of all these links. Then it proves a bound, in cases: for a tier
that covers all GPUs and a dimension of the job, either every group of it is *whole*, all in one
part, or some group is *divided* (where both can be: groups fit into parts, and those that must
share a host are not divided above it). In each case four things hold for every order.

*Floors of GPUs*: in a phase every rank sends a message, so the GPU whose widest way to any other is the narrowest does too,
and needs at least the bytes of a message over that width.

*Floors of divided groups*: some message crosses from a part to another, and needs at least its bytes over the widest such
way.

*Tiers*: let f be how many members of a rank's group, itself included, are in its part, a number for each dimension. A phase
pays at least `pay` for each rank, which depends on its f alone. Where groups are whole in a tier,
or in a finer one, f is their size.

*Logarithms*: not all f can be large. In a part with s ranks the mean over them of the sum over the dimensions of log f is
at most log s: draw a rank of the part by chance; then log f is, in the mean, the entropy of one
coordinate when all others are known, and for all coordinates together these are at most the entropy
of the whole, log s (Han's inequality).

*Shapes*: where all dimensions but two (or one) are whole in a tier, the part that has a certain rank, the one in the middle
of a line, has one of the shapes that shapes.py lists, and each phase takes at least what that one
sends, over the capacity of the part. So the phases together take at least the least over all shapes
of what they do at once, other floors included.

So with weights y of phases and theta of the logarithms, each order pays at least, over the
dimensions, the least of y pay(f) + theta log f, less theta log s. The weights of a phase (for the
objective "bottleneck" the largest of each tier) are together at most 1, so what is paid is at most
the objective. The bound is the least of all cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

from ....topo.derived.hosts import group_by_host
from ....topo.derived.route_table import RouteTable
from ....topo.errors import VerificationError
from ....topo.exact import parse_fraction
from ....topo.graph import Topology
from ..job import Job, Phase
from ..loads import BOTTLENECK
from ..patterns import AROUND, LINE, PAIRS, SPREAD
from ..tiers import Part, TierParts, log_at_least, measure_part
from .shapes import Costs, keep_least, list_shapes

TIERS, SEARCH, NOTHING = "tiers", "search", "nothing"


@dataclass(frozen=True)
class PlaceBound:
    """No order of the job's ranks takes less than `seconds` (of the objective that was asked for).

    `kind` is "tiers", with a certificate that check_place_bound redoes, "search" where all orders
    were looked at, or CP-SAT proved that none is better, or "nothing" for a job that sends nothing.
    """

    seconds: Fraction
    kind: str
    certificate: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of topo-place --json."""
        return {
            "seconds": float(self.seconds),
            "kind": self.kind,
            "certificate": dict(self.certificate),
        }


# For a tier, by number, and a dimension: whether its groups are whole, where that has been told
# apart.
Cases = Mapping[tuple[int, str], bool]


def check_place_bound(
    bound: PlaceBound,
    topology: Topology,
    gpus: Sequence[int],
    job: Job,
    phases: Sequence[Phase],
    objective: str,
    together: Sequence[str] = (),
) -> None:
    """Raise VerificationError unless the certificate proves exactly what the bound claims.

    `gpus` (numbers of the topology's) have a rank each; groups of the dimensions `together` share a
    host each.
    """
    if bound.kind != TIERS:
        raise VerificationError(f"bound: one of kind {bound.kind!r} has no certificate to check")
    try:
        proof = Proof(RouteTable(topology), gpus, job, phases, objective, together)
        proved = proof.prove(bound.certificate)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise VerificationError(
            f"bound: malformed certificate: {type(error).__name__}: {error}"
        ) from None
    if proved != bound.seconds:
        raise VerificationError(
            f"bound: the certificate proves {float(proved):.9g} s, not {float(bound.seconds):.9g} s"
        )


def pay(shape: str, size: int, inside: int, covers: bool) -> Fraction:
    """Return how many messages of a group leave a part, at least, for each of the `inside` members
    that it has of `size`.

    `covers`: parts cover the whole machine, and the least is of the mean over all ranks. Around a
    ring one leaves each part; on a line 2 (p - 1) leave p parts together, and (p - 1) times the
    bytes of a plan; of pairs all leave that are divided.
    """
    if inside == size:
        return Fraction(0)
    if shape == PAIRS:
        return Fraction(size - inside)
    if shape == AROUND:
        return Fraction(1, inside)
    if covers:
        return (2 if shape == LINE else 1) * (Fraction(1, inside) - Fraction(1, size))
    return (
        Fraction(1, inside)
        if shape == LINE
        else Fraction(min(inside, size - inside), inside * size)
    )


class Proof:
    """What can be proved of a job's ranks on `gpus`, which have a rank each, groups of dimensions
    `together` on one host.
    """

    def __init__(
        self,
        table: RouteTable,
        gpus: Sequence[int],
        job: Job,
        phases: Sequence[Phase],
        objective: str,
        together: Sequence[str] = (),
    ) -> None:
        self.table, self.gpus, self.job, self.phases, self.objective = (
            table,
            gpus,
            job,
            phases,
            objective,
        )
        self.together = together
        self.narrowest_GBps = self._find_narrowest_way()
        devices = [table.topology.by_id[table.topology.ranks[gpu]] for gpu in gpus]
        hosts = [tuple(gpus[i] for i in members) for members in group_by_host(devices)]
        self._hosts = TierParts(
            "out", tuple(Part(frozenset(), host, Fraction(0), Fraction(0)) for host in hosts), True
        )
        self.tiers: list[TierParts] = []

    def _find_narrowest_way(self) -> Fraction:
        """Return the width of the widest way out of the GPU for which that is least."""
        others = {gpu: [other for other in self.gpus if other != gpu] for gpu in self.gpus}
        return min(
            self.table.widest_GBps(self.table.crossed[[gpu], rest]) for gpu, rest in others.items()
        )

    def prove(self, certificate: Mapping[str, Any]) -> Fraction:
        """Return the seconds that a certificate proves. VerificationError where it proves
        nothing.
        """
        self.tiers = [self._read_tier(row) for row in certificate["tiers"]]
        return self.prove_cases(certificate["proof"])

    def prove_cases(self, node: Mapping[str, Any]) -> Fraction:
        """Return the seconds that a proof over the known tiers proves."""
        return max(Fraction(0), self._prove_case(node, {}))

    def _read_tier(self, row: Mapping[str, Any]) -> TierParts:
        parts = tuple(
            measure_part(self.table, self.gpus, [frozenset(inside)], row["direction"])
            for inside in row["inside"]
        )
        mine = [gpu for part in parts for gpu in part.gpus]
        if len(set(mine)) != len(mine) or not mine:
            raise VerificationError("bound: parts of a tier share a GPU, or have none")
        return TierParts(row["direction"], parts, len(mine) == len(self.gpus))

    def _prove_case(self, node: Mapping[str, Any], cases: Cases) -> Fraction:
        """Return what is proved under some cases."""
        if "shapes" in node:
            return self.weigh_shapes(node["shapes"], cases)
        if "dimension" not in node:
            return self.weigh(node, cases)
        tier, name = int(node["tier"]), str(node["dimension"])
        if not 0 <= tier < len(self.tiers) or not self.tiers[tier].covers:
            raise VerificationError(
                "bound: groups are whole or divided in tiers that cover all GPUs"
            )
        answers = [
            self._prove_case(node["whole" if whole else "divided"], {**cases, (tier, name): whole})
            for whole, can_be in (
                (True, self.can_be_whole(tier, name, cases)),
                (False, not self.must_be_whole(tier, name, cases)),
            )
            if can_be
        ]
        return min(answers)

    def can_be_whole(self, number: int, name: str, cases: Cases) -> bool:
        """Return whether the groups of a dimension fit into the parts of a tier, and are not
        divided in a coarser one.
        """
        size, tier = dict(self.job.dimensions)[name], self.tiers[number]
        return all(len(part.gpus) % size == 0 for part in tier.parts) and not any(
            not whole and dimension == name and tier.is_within(self.tiers[coarser])
            for (coarser, dimension), whole in cases.items()
        )

    def must_be_whole(self, number: int, name: str, cases: Cases) -> bool:
        """Return whether the groups of a dimension are whole in a finer tier, or on a host."""
        tier = self.tiers[number]
        if name in self.together and self._hosts.is_within(tier):
            return True
        return any(
            whole and dimension == name and self.tiers[finer].is_within(tier)
            for (finer, dimension), whole in cases.items()
        )

    def list_inside(self, number: int, name: str, cases: Cases) -> list[int]:
        """Return which numbers of members of its group a rank can have in its own part of a
        tier.
        """
        size, most = (
            dict(self.job.dimensions)[name],
            max(len(part.gpus) for part in self.tiers[number].parts),
        )
        return (
            [size]
            if self.must_be_whole(number, name, cases)
            else list(range(1, min(size, most) + 1))
        )

    def floor_of_gpus(self, phase: Phase) -> Fraction:
        """Return what a message of a phase needs at least from the GPU that is worst off; 0 where
        none is sent whole.
        """
        if phase.pattern.shape == SPREAD:
            return Fraction(0)
        return phase.pattern.bytes_each / (self.narrowest_GBps * 10**9)

    def floor_of_divided(self, phase: Phase, cases: Cases) -> Fraction:
        """Return what a message of a phase needs at least that crosses from a part to another,
        where some must.
        """
        divided = [
            max(part.widest_GBps for part in self.tiers[number].parts)
            for (number, name), whole in cases.items()
            if not whole and name == phase.traffic.dimension and phase.pattern.shape != SPREAD
        ]
        return phase.pattern.bytes_each / (min(divided) * 10**9) if divided else Fraction(0)

    def weigh_shapes(self, rows: Sequence[Sequence[Any]], cases: Cases) -> Fraction:
        """Return what a case pays for the shapes of parts: rows of a tier, its dimension across,
        and that along or None.
        """
        floors = tuple(
            max(self.floor_of_gpus(p), self.floor_of_divided(p, cases)) for p in self.phases
        )
        least, choices = max(floors, default=Fraction(0)), {floors}
        for number, across, along in rows:
            if not 0 <= int(number) < len(self.tiers):
                raise VerificationError("bound: shapes of a tier that is not listed")
            shapes = self.list_times(int(number), across, along, cases)
            if not shapes:
                raise VerificationError("bound: shapes of parts that cannot be")
            least = max(least, min(sum(times, Fraction(0)) for times in shapes))
            choices = keep_least(
                {tuple(map(max, known, more)) for known in choices for more in shapes}
            )
        return (
            least
            if self.objective == BOTTLENECK
            else min(sum(times, Fraction(0)) for times in choices)
        )

    def list_times(
        self, number: int, across: str | None, along: str | None, cases: Cases
    ) -> set[Costs]:
        """Return the seconds of each phase for the shapes of a tier's parts; none where shapes say
        nothing, or cannot be.
        """
        tier, sizes = self.tiers[number], dict(self.job.dimensions)
        whole = prod(sizes[name] for name in sizes if name not in (across, along))
        if (
            not tier.covers
            or across == along
            or not all(
                self.must_be_whole(number, name, cases)
                for name in sizes
                if name not in (across, along)
            )
        ):
            return set()
        patterns = {
            name: [p.pattern.shape for p in self.phases if p.traffic.dimension == name]
            for name in (across, along)
        }
        found: set[Costs] = set()
        for ranks, capacity in {(len(part.gpus), part.capacity_GBps) for part in tier.parts}:
            if not capacity:
                return set()
            if ranks % whole:
                continue
            for first, second in list_shapes(
                ranks // whole,
                sizes[across] if across is not None else 1,
                sizes[along] if along is not None else 1,
                tuple(patterns[across]),
                tuple(patterns[along]),
            ):
                counts = {across: iter(first), along: iter(second)}
                found.add(
                    tuple(
                        next(counts[name]) * whole * phase.pattern.bytes_each / (capacity * 10**9)
                        if (name := phase.traffic.dimension) in counts
                        else Fraction(0)
                        for phase in self.phases
                    )
                )
        return keep_least(found)

    def weigh(self, weights: Mapping[str, Any], cases: Cases) -> Fraction:
        """Return what a case pays under the weights of one."""
        used = [Fraction(0)] * len(self.phases)
        together = total = Fraction(0)
        for name, floor_of in (
            ("gpus", self.floor_of_gpus),
            ("divided", lambda p: self.floor_of_divided(p, cases)),
        ):
            for number, (phase, text) in enumerate(zip(self.phases, weights[name], strict=True)):
                weight = _read_weight(text)
                used[number] += weight
                together += weight
                total += weight * floor_of(phase) if weight else 0
        for number, rows, text in weights["tiers"]:
            each, theta = [_read_weight(row) for row in rows], _read_weight(text)
            used = [a + b for a, b in zip(used, each, strict=True)]
            together += max(each, default=Fraction(0))
            total += self._pay_of_tier(number, each, theta, cases)
        if (together if self.objective == BOTTLENECK else max(used, default=Fraction(0))) > 1:
            raise VerificationError("bound: the weights of a phase are more than 1")
        return total

    def _pay_of_tier(
        self, number: int, weights: Sequence[Fraction], theta: Fraction, cases: Cases
    ) -> Fraction:
        """Return what all orders pay at least for a tier, under the weights of phases and of the
        logarithms.
        """
        tier = self.tiers[number]
        ranks, capacity = tier.ranks, tier.capacity_GBps
        total = -theta * tier.mean_log
        for name, size in self.job.dimensions:
            on_it = [
                (
                    weight * phase.pattern.bytes_each * ranks / (capacity * 10**9),
                    phase.pattern.shape,
                )
                for phase, weight in zip(self.phases, weights, strict=True)
                if phase.traffic.dimension == name and weight and capacity
            ]
            total += min(
                sum(
                    (price * pay(shape, size, f, tier.covers) for price, shape in on_it),
                    theta * log_at_least(f),
                )
                for f in self.list_inside(number, name, cases)
            )
        return total


def _read_weight(text: Any) -> Fraction:
    weight = parse_fraction(text)
    if weight < 0:
        raise VerificationError("bound: a weight is negative")
    return weight
