"""The bound on the time in which calls of several groups can end together, and its checker.

A call is one group's collective with its bytes and weight (joint_calls.py). A certificate prices
directed links. Each GB of a call pays at least the price of the cheapest trees or paths that carry
it: the cheapest out-tree from the root for broadcast, in-tree to it for reduce, the mean of them
over the members for allgather and reduce-scatter, the least sum of an in-tree and an out-tree with
one root for allreduce, and cheapest paths for alltoall, gather and scatter. Trees reach the group's
members; its helpers may relay, copy and add. In one second all links together earn the sum of
bandwidth times price. So no schedules move all calls' data in less than

    sum of (GB of a call x its weight x the price of its data) / sum of (bandwidth x price)

seconds: the dual of packing all calls' trees and paths into the links at once. Trees with helpers
are Steiner trees, whose price is computed exactly (synth/numeric/steiner.py).

If all weights are equal, it is a bound on the time at which the last call ends. Else it holds for
rates that do not change during the calls: a call of weight w then ends after 1 / w of the time.
Of an allreduce it holds for schedules that bring each unit of data together at one rank and spread
it from there; see synth/bounds/certificate.py, also for devices `joined` with GPUs.

Kind "joint-prices" holds for any use of the links, "route-joint-prices" for schedules on the
hardware's routes. The checker knows neither how prices were found nor any plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm
from typing import Any, Literal

from msgspec import Struct

from ....topo.derived.degrade import keep_gpus
from ....topo.errors import VerificationError
from ....topo.exact import fraction_to_json
from ....topo.graph import Topology
from ....topo.routes import Router
from ...bounds.certificate import (
    SINGLE_PATH,
    CertificateFields,
    certificate_from_fields,
    join_devices,
    price_data,
    read_prices,
)
from ...bounds.prices import Distances, path_distances, route_distances
from ...cost.loads import computes_in_network
from .joint_calls import JointCall, helpers_of

# Kinds of certificates: for any use of the links, and for the hardware's routes alone.
MULTIPATH_KIND = "joint-prices"
SINGLE_PATH_KIND = SINGLE_PATH + MULTIPATH_KIND


class JointBoundFields(Struct, forbid_unknown_fields=True):
    """The JSON of a joint bound: the calls take at least `time_s` seconds together."""

    time_s: Fraction
    kind: Literal["joint-prices", "route-joint-prices"]
    certificate: CertificateFields


@dataclass(frozen=True)
class JointBound:
    """A proof that the calls of several groups, made together, take at least `time_s` seconds.

    `certificate` is the proof. `kind` is "joint-prices", or "route-joint-prices" if it holds for
    schedules on the hardware's routes; see synth/extras/joint/bound.py.
    """

    time_s: Fraction
    kind: str
    certificate: Mapping[str, Any] = field(hash=False)

    def __repr__(self) -> str:
        return f"<JointBound at least {float(self.time_s):.4g} s by {self.kind}>"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that JointBoundFields declares."""
        return {
            "time_s": fraction_to_json(self.time_s),
            "kind": self.kind,
            "certificate": dict(self.certificate),
        }

    @classmethod
    def from_fields(cls, fields: JointBoundFields) -> JointBound:
        """Return the bound that the JSON `fields` of a file declare."""
        return cls(fields.time_s, fields.kind, certificate_from_fields(fields.certificate))


def check_joint_bound(
    bound: JointBound, calls: Sequence[JointCall], helpers: Iterable[int], router: Router
) -> None:
    """Raise VerificationError unless the certificate proves exactly the bound.

    `helpers` are the ranks that may help groups of which they are no members. `router` has the
    topology, and the routes for which a bound of kind "route-joint-prices" holds.
    """
    try:
        proved = joint_bound_of(bound.kind, bound.certificate, calls, helpers, router).time_s
    except (KeyError, TypeError, ValueError) as error:
        raise VerificationError(
            f"joint bound: malformed certificate: {type(error).__name__}: {error}"
        ) from None
    if bound.time_s <= 0 or proved != bound.time_s:
        raise VerificationError(
            f"joint bound: the certificate proves {proved} s, not the claimed {bound.time_s}"
        )


def joint_bound_of(
    kind: str,
    certificate: Mapping[str, Any],
    calls: Sequence[JointCall],
    helpers: Iterable[int],
    router: Router,
) -> JointBound:
    """Return the bound of this `kind` that a certificate proves for calls.

    `helpers` are the ranks that may help groups of which they are not members; `router` has the
    topology and the routes. Raise VerificationError if it proves none.
    """
    if kind not in (MULTIPATH_KIND, SINGLE_PATH_KIND):
        raise VerificationError(f"joint bound: no certificate of kind {kind!r:.60}")
    topology, helpers = router.topology, set(helpers)
    joined = dict(certificate.get("joined", ()))
    if joined and kind == MULTIPATH_KIND:
        topology = join_devices(topology, joined)
        # A switch that computes serves all groups, so its GPU may help all of them.
        helpers.update(topology.ranks.index(gpu) for gpu in joined.values())
    if computes_in_network(topology):
        raise VerificationError("joint bound: prices prove nothing where switches add or copy")
    fractions = read_prices(certificate["prices"], topology, both_directions=False)
    paid = sum((topology.capacity_GBps[link] * p for link, p in fractions.items()), Fraction(0))
    if not paid:
        raise VerificationError("joint bound: all prices are zero")
    # With integer prices, the cheapest paths and trees below are exact and quick.
    scale = lcm(*(p.denominator for p in fractions.values()))
    prices = {link: int(p * scale) for link, p in fractions.items()}
    needed = Fraction(0)
    priced: dict[tuple[int, ...], tuple[Topology, Distances]] = {}
    for call in calls:
        ranks = tuple(sorted({*call.collective.members, *helpers_of(call, helpers)}))
        if ranks not in priced:
            machine = keep_gpus(topology, ranks)
            priced[ranks] = (
                machine,
                (
                    path_distances(prices, machine)
                    if kind == MULTIPATH_KIND
                    else _keep_pairs(route_distances(prices, router), machine)
                ),
            )
        machine, distance = priced[ranks]
        one = call.collective if len(ranks) == len(topology.ranks) else call.collective.among(ranks)
        needed += call.demand_GB * price_data(distance, one, machine)
    return JointBound(needed / (paid * scale), kind, certificate)


def _keep_pairs(distance: Distances, machine: Topology) -> Distances:
    """Return the distances between the GPUs of a part of the machine."""
    gpus = machine.ranks
    return {u: {v: distance[u][v] for v in gpus if v in distance[u]} for u in gpus}
