"""Check certificates that bound the time of all rank orders, by independent arithmetic.

A job's ranks form a mesh; ranks that differ in one dimension only are a group of it. A phase is one
collective of all groups of a dimension, as messages between ranks; the phases of a training step
follow each other.

A certificate of kind "tiers" lists tiers: disjoint parts of the machine ("inside", device ids),
each with as many ranks as GPUs. Messages that leave a part (direction "in": enter it) on the
hardware's routes cross the links out of those devices that such routes use. So a phase takes at
least the bytes that all parts send, over the capacity of all these links. The certificate then
proves a bound by cases: for a tier that covers all GPUs and a dimension of the job, either every
group is *whole*, all in one part, or some group is *divided*. (Both are possible only if groups fit
into parts; groups that must share a host are not divided above it.) Without cases the facts would
be loose where groups either fit into a part or do not. In each case six facts hold for every order.

*Floors of GPUs*: in a phase every rank sends a message. So does the GPU whose widest route to any
other GPU is the narrowest, and this takes at least the bytes of a message over that width.

*Floors of divided groups*: some message crosses from one part to another, and takes at least its
bytes over the widest such route.

*Tiers*: let f be the number of members of a rank's group, itself included, in its part; there is
one f for each dimension. A phase pays at least `pay` for each rank, which depends on f alone. If
groups are whole in a tier, or in a finer one, f is their size.

*Logarithms*: not all f can be large. In a part with s ranks, the mean over them of the sum over the
dimensions of log f is at most log s: for a random rank of the part, log f is on average the entropy
of one coordinate given all others, and over all coordinates these sum to at most the entropy of the
whole, log s (Han's inequality).

*Shapes*: if all dimensions but two (or one) are whole in a tier, the part that holds a certain
rank, the one in the middle of a line, has one of the shapes that shapes.py lists. Each phase takes
at least the bytes that the shape sends, over the capacity of the part. So all phases take at least
the minimum over all shapes of their sum, other floors included.

*Latencies*: groups that do not fit into one part touch several, so calls wait for routes between
parts (floors.py). These times add to those of the bytes.

So with weights y of phases and theta of the logarithms, each order pays at least, over the
dimensions, the minimum of y pay(f) + theta log f, less theta log s. The weights of a phase (for the
objective "bottleneck" the largest of each tier) sum to at most 1, so the total is at most the
objective without latencies. The bound is the minimum over all cases, latencies included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import repeat
from math import prod
from typing import Any

from .....topo.derived.hosts import group_by_host
from .....topo.errors import VerificationError
from .....topo.exact import parse_fraction
from .....topo.graph import Topology
from ..job import AROUND, LINE, PAIRS, SPREAD, Job, Phase
from ..loads import BOTTLENECK
from ..route_table import RouteTable
from ..tiers import TierPart, TierParts, log_at_least, measure_part
from .floors import LatencyFloors, floor_of_matrix
from .shapes import Costs, keep_least, list_shapes

TIERS, SEARCH, NOTHING = "tiers", "search", "nothing"


@dataclass(frozen=True)
class PlaceBound:
    """A lower bound in `seconds` on the objective of all orders of the job's ranks.

    `kind` is "tiers", with a certificate for check_place_bound; "search" if all orders were tried,
    or CP-SAT proved that none is better; or "nothing" for a job without messages.
    """

    seconds: Fraction
    kind: str
    certificate: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of topo-place (docs/place.md)."""
        return {
            "seconds": float(self.seconds),
            "kind": self.kind,
            "certificate": dict(self.certificate),
        }


# Whether the groups of a dimension are whole in a tier (by number), for the cases assumed so far.
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
    """Raise VerificationError unless the certificate proves exactly the seconds of the bound.

    `gpus` (by number in the topology) have a rank each, and `phases` are the job's messages; each
    group of the dimensions `together` shares a host. `objective` is "time" or "bottleneck".
    """
    if bound.kind != TIERS:
        raise VerificationError(f"bound: one of kind {bound.kind!r} has no certificate to check")
    try:
        # A certificate is untrusted data: any failure while it is read means that it is malformed.
        proved = Proof(RouteTable(topology), gpus, job, phases, objective, together).prove(
            bound.certificate
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise VerificationError(
            f"bound: malformed certificate: {type(error).__name__}: {error}"
        ) from None
    if proved != bound.seconds:
        raise VerificationError(
            f"bound: the certificate proves {float(proved):.9g} s, not {float(bound.seconds):.9g} s"
        )


def pay(shape: str, size: int, inside: int, covers: bool) -> Fraction:
    """Return the least that leaves a part of the machine, per member of a group in the part.

    It is in messages of the pattern's `bytes_each` bytes. The part has `inside` of the group's
    `size` members, and `shape` is that of their pattern (job.py): "around" a ring, all "pairs", a
    "line", or "spread" for a plan. One message leaves each part around a ring; of pairs, all
    divided ones count. With `covers` the parts cover the whole machine, and the result bounds the
    mean over all ranks: p parts of a line send 2 (p - 1) together, those of a plan (p - 1). Without
    `covers` a part of a line counts one, that of a plan min(inside, size - inside) / size.
    """
    if inside == size:
        return Fraction(0)
    if shape == PAIRS:
        return Fraction(size - inside)
    if shape == AROUND:
        return Fraction(1, inside)
    if covers:
        return (2 if shape == LINE else 1) * (Fraction(1, inside) - Fraction(1, size))
    if shape == LINE:
        return Fraction(1, inside)
    return Fraction(min(inside, size - inside), inside * size)


class Proof:
    """Checker of certificates: lower bounds on the time of a job with a rank on each of `gpus`.

    `table` has the machine's routes, `phases` are the job's messages, and `objective` is "time" or
    "bottleneck". `tiers` are the divisions of the GPUs that the certificate lists; methods name a
    tier by its `number` in this list, and a dimension of the job by its `name`. `cases` says which
    groups are assumed to be whole (in one part of a tier) or divided so far. Each group of the
    dimensions `together` is on one host.
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
        self.table, self.gpus, self.job, self.phases = table, gpus, job, phases
        self.objective, self.together = objective, together
        self.sizes = dict(job.dimensions)
        # The widest route out of the GPU with the narrowest routes, and out of any.
        widths = [
            table.widest_GBps(table.crossed[[gpu], [other for other in gpus if other != gpu]])
            for gpu in gpus
        ]
        self._narrowest_GBps, self._widest_GBps = min(widths), max(widths)
        self._latencies = LatencyFloors(table, gpus)
        devices = [table.topology.by_id[table.topology.ranks[gpu]] for gpu in gpus]
        hosts = (tuple(gpus[i] for i in members) for members in group_by_host(devices))
        parts = (TierPart(frozenset(), host, Fraction(0), Fraction(0)) for host in hosts)
        self._hosts = TierParts("out", tuple(parts), True)
        self.tiers: list[TierParts] = []

    def prove(self, certificate: Mapping[str, Any]) -> Fraction:
        """Return the lower bound in seconds that a certificate proves; its tiers replace `tiers`.

        Raise VerificationError if it is invalid.
        """
        self.tiers = [self._read_tier(row) for row in certificate["tiers"]]
        return self.prove_cases(certificate["proof"])

    def prove_cases(self, node: Mapping[str, Any]) -> Fraction:
        """Return the lower bound in seconds that a certificate's proof, `node`, gives.

        The caller must set `tiers` first, as `prove` does. Raise VerificationError if the proof is
        invalid.
        """
        return max(self.floor_of_latencies({}), self._prove_case(node, {}))

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
        if "dimension" not in node:
            data = (
                self.weigh_shapes(node["shapes"], cases)
                if "shapes" in node
                else self.weigh(node, cases)
            )
            return data + self.floor_of_latencies(cases)
        tier, name = int(node["tier"]), str(node["dimension"])
        if not 0 <= tier < len(self.tiers) or not self.tiers[tier].covers:
            raise VerificationError("bound: cases are only of tiers that cover all GPUs")
        possible = {
            "whole": self.can_be_whole(tier, name, cases),
            "divided": not self.must_be_whole(tier, name, cases),
        }
        return min(
            self._prove_case(node[case], {**cases, (tier, name): case == "whole"})
            for case, is_possible in possible.items()
            if is_possible
        )

    def can_be_whole(self, number: int, name: str, cases: Cases) -> bool:
        """Return whether each group of dimension `name` can be in one part of tier `number`.

        They must fit into the parts, and not be divided in a coarser tier.
        """
        size, tier = self.sizes[name], self.tiers[number]
        return all(len(part.gpus) % size == 0 for part in tier.parts) and not any(
            not whole and dimension == name and tier.is_within(self.tiers[coarser])
            for (coarser, dimension), whole in cases.items()
        )

    def must_be_whole(self, number: int, name: str, cases: Cases) -> bool:
        """Return whether each group of dimension `name` must be in one part of tier `number`.

        This is so if groups are whole in a finer tier, or on a host.
        """
        tier = self.tiers[number]
        return (name in self.together and self._hosts.is_within(tier)) or any(
            whole and dimension == name and self.tiers[finer].is_within(tier)
            for (finer, dimension), whole in cases.items()
        )

    def list_inside(self, number: int, name: str, cases: Cases) -> list[int]:
        """Return how many members of a rank's group can be in the rank's part of tier `number`."""
        size = self.sizes[name]
        if self.must_be_whole(number, name, cases):
            return [size]
        return list(range(1, min(size, max(len(p.gpus) for p in self.tiers[number].parts)) + 1))

    def floor_of_gpus(self, phase: Phase) -> Fraction:
        """Return a lower bound on a phase's seconds, by the GPU with the narrowest routes.

        It sends a message. The result is 0 for a plan, whose messages may be split; a matrix has a
        floor of its own.
        """
        if phase.pattern.shape == SPREAD:
            return Fraction(0)
        if phase.parts is not None:
            return floor_of_matrix(phase, self.tiers, self._widest_GBps)
        return phase.pattern.bytes_each / (self._narrowest_GBps * 10**9)

    def floor_of_latencies(self, cases: Cases) -> Fraction:
        """Return a lower bound on the seconds of all calls beyond their bytes.

        The result is 0 for the objective "bottleneck", to which latencies add nothing.
        """
        if self.objective == BOTTLENECK:
            return Fraction(0)
        total = Fraction(0)
        for phase in self.phases:
            name = phase.traffic.dimension
            # Every GPU is a part of its own, whether or not the certificate lists this tier.
            touched: list[tuple[TierParts | None, int, bool]] = [
                (None, self.sizes.get(name, 2), False)
            ]
            for number, tier in enumerate(self.tiers):
                if tier.covers and tier.direction == "out":
                    parts = self._count_touched(number, name, cases)
                    touched.append((tier, parts, cases.get((number, name)) is False))
            total += self._latencies.floor(phase, touched)
        return total

    def _count_touched(self, number: int, name: str, cases: Cases) -> int:
        """Return how many parts of a tier every group of a dimension touches at least.

        Each member brings along the groups of other dimensions that are whole in the tier.
        """
        if name not in self.sizes or self.must_be_whole(number, name, cases):
            return 1
        whole = prod(
            n
            for other, n in self.sizes.items()
            if other != name and self.must_be_whole(number, other, cases)
        )
        room = max(len(part.gpus) for part in self.tiers[number].parts) // whole
        return -(-self.sizes[name] // max(1, room))

    def floor_of_divided(self, phase: Phase, cases: Cases) -> Fraction:
        """Return a lower bound on a phase's seconds, by a message that must go from part to part.

        The result is 0 if no message must cross.
        """
        divided = [
            max(part.widest_GBps for part in self.tiers[number].parts)
            for (number, name), whole in cases.items()
            if not whole and name == phase.traffic.dimension and phase.pattern.shape != SPREAD
        ]
        return phase.pattern.bytes_each / (min(divided) * 10**9) if divided else Fraction(0)

    def weigh_shapes(self, rows: Sequence[Sequence[Any]], cases: Cases) -> Fraction:
        """Return a lower bound on the seconds of a case, by the shapes of parts.

        Each row names a tier by its number, its dimension across, and its dimension along or None.
        Raise VerificationError if a row proves nothing.
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
                raise VerificationError("bound: shapes of parts that are impossible")
            least = max(least, min(sum(times, Fraction(0)) for times in shapes))
            choices = keep_least(
                {tuple(map(max, one, other)) for one in choices for other in shapes}
            )
        if self.objective == BOTTLENECK:
            return least
        return min(sum(times, Fraction(0)) for times in choices)

    def list_times(
        self, number: int, across: str | None, along: str | None, cases: Cases
    ) -> set[Costs]:
        """Return the least seconds of each phase, for each possible shape of a tier's parts.

        `across` and `along` are the dimensions that may be divided. The result is empty if shapes
        prove nothing, or none is possible.
        """
        tier, axes = self.tiers[number], (across, along)
        others = [name for name in self.sizes if name not in axes]
        if (
            not tier.covers
            or across == along
            or not all(self.must_be_whole(number, name, cases) for name in others)
        ):
            return set()
        whole = prod(self.sizes[name] for name in others)
        arguments = (
            *(1 if name is None else self.sizes[name] for name in axes),
            *(
                tuple(p.pattern.shape for p in self.phases if p.traffic.dimension == name)
                for name in axes
            ),
        )
        times: set[Costs] = set()
        for ranks, capacity in {(len(part.gpus), part.capacity_GBps) for part in tier.parts}:
            if not capacity:
                return set()
            if ranks % whole:
                continue
            for shape in list_shapes(ranks // whole, *arguments):
                counts = dict(zip(axes, map(iter, shape), strict=True))
                none = repeat(Fraction(0))
                # Phases on other dimensions send nothing out of parts.
                messages = ((p, next(counts.get(p.traffic.dimension, none))) for p in self.phases)
                times.add(
                    tuple(
                        n * p.pattern.bytes_each * whole / (capacity * 10**9) for p, n in messages
                    )
                )
        return keep_least(times)

    def weigh(self, weights: Mapping[str, Any], cases: Cases) -> Fraction:
        """Return a lower bound on the seconds of a case, by the weights of a certificate.

        Raise VerificationError if weights are negative, or sum to more than 1.
        """
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
        """Return the least that an order pays for a tier, by weights of phases and logarithms."""
        tier = self.tiers[number]
        total = -theta * tier.mean_log
        for name, size in self.job.dimensions:
            prices = [
                (
                    weight * p.pattern.bytes_each / (tier.capacity_GBps * 10**9) * tier.ranks,
                    p.pattern.shape,
                )
                for p, weight in zip(self.phases, weights, strict=True)
                if p.traffic.dimension == name and weight and tier.capacity_GBps
            ]
            total += min(
                sum(
                    (price * pay(shape, size, f, tier.covers) for price, shape in prices),
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
