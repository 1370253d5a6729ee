"""Check bounds independently: redo a certificate's arithmetic exactly.

The checker does not know how a certificate was found.

Kind "cut": {"inside": [device ids]}. The data that must cross from the devices inside to those
outside, as a share of the buffer, divided by the bandwidth of the links that lead out, is a lower
bound on the time (max-flow min-cut; for allgather ForestColl, arXiv 2402.06787, eq. 1). It holds
for any algorithm, in-network copying and adding included.

Kind "prices", allreduce: {"prices": [[a, b, price], ...]}, the same in both directions. Let d be
the least price of a path between two GPUs, M the weight of a minimum spanning tree of the GPUs
under d. Contract the parts of any partition into p parts: each part must hear of all others, which
takes 2 (p - 1) directed messages between parts (Harary, Schwenk 1974); summed over the partitions
that Kruskal's algorithm passes through, each unit of buffer pays at least 2 M. Hence time >= 2 M /
sum over directed links of bandwidth * price (the dual of tree packing: Tutte, Nash-Williams 1961).
M is found as Mehlhorn does (1988): the nearest GPU of every device first, then Kruskal over the
links between different ones.

Kind "prices", alltoall, gather, scatter: directed prices; each rank's share for another pays its
distance: time >= sum of the distances times the shares, over sum of bandwidth * price (the dual of
concurrent multicommodity flow).

Kind "tree-prices": directed prices. A unit of buffer that reaches all GPUs from GPU v pays at least
out(v), the cheapest out-tree over distances; one that is reduced to v pays at least in(v), the
cheapest in-tree. So broadcast pays out(root), reduce in(root), allgather the mean of out(v),
reduce-scatter the mean of in(v), allreduce the least in(v) + out(v). All but the last hold for any
algorithm without coding; allreduce's for schedules that bring each unit together at one rank and
spread it from there. (Whether any other could pay less if prices differ by direction is open; over
9,000 random instances of up to 4 ranks none did.)

A group on a larger machine has members, and helpers: the machine's other GPUs, which relay, copy
and add. Cuts count members only. Out(v) and in(v) are then the cheapest trees between v and the
members, through any GPUs (directed Steiner trees, by dynamic programming: numeric/steiner.py), and
v is any GPU for allreduce, else a member. There is no kind "prices" for allreduce of a group,
unless all its helpers are `joined` with members (see below), which leaves a machine of members.

Demands (synth/ir/demands.py) have certificates of kind "tree-prices": each piece pays the
cheapest tree from any of its holders to all its receivers, through any GPUs. For more receivers
than the dynamic program takes, it pays what dual ascent proves. A cut counts the pieces of which
all holders are inside, and some receiver is not.

Kinds "route-prices" and "route-tree-prices" hold if each ordered pair of GPUs has a single path,
the hardware's route (topo/routes.py), and only GPUs relay, combine and copy. They are as above with
other distances: prices are directed, and the distance between two GPUs is the price of the
hardware's route between them (prices.py). For alltoall, gather and scatter a rank's share pays the
cheapest sequence of such routes from GPU to GPU. In "route-prices" of allreduce a pair weighs as
much as its cheaper direction: each message between two parts pays at least that, so the argument of
"prices" holds, mirrored routes or not. Cuts hold for single paths as well as for any use of the
links; in a "route-cut" only links count that some hardware route crosses.

Prices alone prove nothing if switches add or copy what the collective needs: copies help where
several ranks receive the same data, sums where data is added. In that case a certificate of prices
names, for every such device, a GPU that it is `joined` with; prices are then those of the machine
in which each is one with its GPU. Helpers may be joined with members in the same way. That machine
can do at least as much: its GPU does the work of the switch at no cost, all links between different
GPUs and plain devices are still there, and a step's streams through a switch become messages to its
GPU and on from it, one stream after the other, beginning at the leaves of a reduction (or at the
source of a copy). As no plain device adds or copies, a bound that prices prove for it holds for
both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product
from math import lcm
from operator import add
from typing import Annotated, Any, Literal, get_args

import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType
from numpy.typing import NDArray

from ...topo.clock import pace
from ...topo.errors import VerificationError
from ...topo.exact import fraction_to_json, parse_fraction
from ...topo.graph import Topology
from ...topo.routes import Router, route_links
from ...topo.schema import Label
from ..cost.loads import computes_in_network
from ..ir.collective import Collective, DemandName
from ..ir.demands import Demands
from ..numeric.arborescence import cheapest_out_tree
from ..numeric.steiner import MAX_TERMINALS, SteinerTrees, close
from .prices import (
    Distances,
    matrix_of,
    path_distances,
    path_tree_price,
    relayed_distances,
    route_distances,
    route_tree_price,
)

# The price of each directed link, by the ids of source and target.
Prices = dict[tuple[str, str], Fraction]


class CertificateFields(Struct, forbid_unknown_fields=True):
    """The JSON of a certificate: `inside` of kind "cut", `prices` of the other kinds.

    `joined` is present if switches compute.
    """

    inside: list[Label] | UnsetType = UNSET
    prices: Annotated[
        list[tuple[Label, Label, Fraction]] | UnsetType,
        Meta(description="source, destination, price of a link"),
    ] = UNSET
    joined: Annotated[
        list[tuple[Label, Label]] | UnsetType,
        Meta(description="a device that adds or copies, the GPU that it is taken as one with"),
    ] = UNSET


CutShort = Annotated[
    Literal[True] | UnsetType,
    Meta(description="the time limit stopped the search: a longer one may prove a lower rate"),
]


class BoundFields(Struct, forbid_unknown_fields=True):
    """The JSON of a bound: no schedule takes less than `s_per_GB` seconds per GB of buffer."""

    s_per_GB: Fraction
    kind: Literal["cut", "prices", "tree-prices"]
    certificate: CertificateFields
    cut_short: CutShort = UNSET


class SinglePathBoundFields(Struct, forbid_unknown_fields=True):
    """The JSON of a bound on schedules that keep to the hardware's routes."""

    s_per_GB: Fraction
    kind: Literal["cut", "prices", "tree-prices", "route-cut", "route-prices", "route-tree-prices"]
    certificate: CertificateFields
    cut_short: CutShort = UNSET


@dataclass(frozen=True)
class Bound:
    """A proof that no schedule takes less than `s_per_GB` seconds per GB of buffer.

    `certificate` is the proof. `kind` is "cut", "prices" or "tree-prices", or for single paths
    "route-cut", "route-prices" or "route-tree-prices"; see the module's docstring. The bound holds
    in any case; if `is_cut_short`, the time limit stopped the search for it, so that the true limit
    may be lower, and nothing may be advised by it.
    """

    s_per_GB: Fraction
    kind: str
    certificate: Mapping[str, Any] = field(hash=False)
    is_cut_short: bool = field(default=False, compare=False)

    def __repr__(self) -> str:
        return f"<Bound at most {float(self.algbw_GBps):.4g} GB/s by {self.kind}>"

    @property
    def algbw_GBps(self) -> Fraction:
        """Upper bound on the algorithm bandwidth, in GB/s."""
        return 1 / self.s_per_GB

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that BoundFields declares."""
        return {
            "s_per_GB": fraction_to_json(self.s_per_GB),
            "kind": self.kind,
            "certificate": dict(self.certificate),
            **({"cut_short": True} if self.is_cut_short else {}),
        }

    @classmethod
    def from_fields(cls, fields: BoundFields | SinglePathBoundFields) -> Bound:
        """Return the bound that a file's parsed fields declare; it is not checked."""
        certificate = certificate_from_fields(fields.certificate)
        return cls(fields.s_per_GB, fields.kind, certificate, fields.cut_short is True)


@dataclass(frozen=True)
class Bounds:
    """Two bounds on one collective: `multipath` for any use of the links, and `single_path`.

    The second is for schedules in which each pair of GPUs uses only the route the hardware takes.
    """

    multipath: Bound
    single_path: Bound


def certificate_from_fields(fields: CertificateFields) -> dict[str, Any]:
    """Return the certificate of a bound that a file declares: `inside`, or `prices` and `joined`.

    Prices are rows (source, destination, text of a fraction).
    """
    certificate: dict[str, Any] = {}
    if fields.inside is not UNSET:
        certificate["inside"] = fields.inside
    if fields.prices is not UNSET:
        certificate["prices"] = [[a, b, fraction_to_json(price)] for a, b, price in fields.prices]
    if fields.joined is not UNSET:
        certificate["joined"] = [list(pair) for pair in fields.joined]
    return certificate


# Prefix of the kinds of certificates that hold for single paths only.
SINGLE_PATH = "route-"


def check_bound(
    bound: Bound, collective: Collective, topology: Topology, router: Router | None = None
) -> None:
    """Raise VerificationError unless the certificate proves exactly the bound, no more and no less.

    With a `router`, the bound is for schedules that send each pair's data on its route only;
    without one, for any use of the links.
    """
    try:
        proved = proved_s_per_GB(bound.kind, bound.certificate, collective, topology, router)
    except (KeyError, TypeError, ValueError) as error:
        raise VerificationError(
            f"bound: malformed certificate: {type(error).__name__}: {error}"
        ) from None
    if bound.s_per_GB <= 0 or proved != bound.s_per_GB:
        raise VerificationError(
            f"bound: the certificate proves {proved} s a GB for {collective.name}, not the "
            f"claimed {bound.s_per_GB}"
        )


def bound_of(
    kind: str,
    certificate: Mapping[str, Any],
    collective: Collective,
    topology: Topology,
    router: Router | None = None,
) -> Bound:
    """Return the bound that a certificate of a kind proves.

    With a `router`, it is for schedules on its routes alone. Errors are those of `proved_s_per_GB`.
    """
    return Bound(
        proved_s_per_GB(kind, certificate, collective, topology, router), kind, certificate
    )


def proved_s_per_GB(
    kind: str,
    certificate: Mapping[str, Any],
    collective: Collective,
    topology: Topology,
    router: Router | None = None,
) -> Fraction:
    """Return the lower bound, in seconds per GB of buffer, that a certificate of a kind proves.

    With a `router`, it is for schedules on its routes alone. Raise VerificationError if it proves
    none, KeyError, TypeError or ValueError if it is malformed.
    """
    if kind.startswith(SINGLE_PATH) and router is None:
        raise VerificationError(
            f"bound: a certificate of kind {kind!r} proves nothing for any use of the links"
        )
    if kind == "route-cut" and router is not None:
        topology, kind = keep_crossed(router), "cut"
    if kind == "cut":
        return _cut_s_per_GB(frozenset(certificate["inside"]), collective, topology)
    # Prices over routes depend on the router; all other kinds hold for any use of the links.
    own = router if kind.startswith(SINGLE_PATH) else None
    kind = kind.removeprefix(SINGLE_PATH)
    if "joined" in certificate and own is None:
        collective, topology = join_helpers(collective, topology, dict(certificate["joined"]))
    mirrored = (kind, collective.name) == _MIRRORED and collective.has_all_gpus
    if not mirrored and (kind, collective.name) not in _PRICED:
        raise VerificationError(f"bound: no certificate of kind {kind!r} for {collective}")
    if computes_in_network(topology, collective):
        raise VerificationError("bound: prices prove nothing where switches add or copy")
    fractions = read_prices(
        certificate["prices"],
        topology,
        both_directions=own is None and mirrored,
    )
    # If a GB of buffer must pay `needed`, and all links together earn at most `paid` per second, it
    # takes needed / paid s.
    paid = sum((topology.capacity_GBps[link] * p for link, p in fractions.items()), Fraction(0))
    if not paid:
        raise VerificationError("bound: all prices are zero")
    # With integer prices, the shortest paths and trees below are exact and quick.
    scale = lcm(*(p.denominator for p in fractions.values()))
    prices = {link: int(p * scale) for link, p in fractions.items()}
    if mirrored:
        total = (
            route_tree_price(route_distances(prices, own), topology)
            if own is not None
            else path_tree_price(prices, topology)
        )
        return 2 * total / (paid * scale)
    if own is None:
        distance = path_distances(prices, topology)
    else:
        distance = route_distances(prices, own)
        distance = relayed_distances(distance, topology) if kind == "prices" else distance
    needed = _PRICED[kind, collective.name](distance, collective, topology)
    return needed / (paid * scale)


def keep_crossed(router: Router) -> Topology:
    """Return the router's topology with only the links that routes between GPUs cross.

    Raise TimeLimitError if the running command's time ends meanwhile.
    """
    topology, ranks = router.topology, range(len(router.topology.ranks))
    pairs = pace(product(ranks, ranks), "tracing routes")
    routes = (router.route(a, b) for a, b in pairs)
    crossed = {link for route in routes if route for link in route_links(route)}
    links = (link for link in topology.links if (link.src, link.dst) in crossed)
    return replace(topology, links=tuple(links))


def join_helpers(
    collective: Collective, topology: Topology, gpu_of: Mapping[str, str]
) -> tuple[Collective, Topology]:
    """Return the collective and machine in which each device in `gpu_of` is one with its GPU.

    `gpu_of` maps ids of switches, or of helpers (GPUs that are no members), to ids of GPUs that
    stay. Links of a joined device become its GPU's. Joined helpers are ranks no more: the GPUs that
    stay are numbered anew, without gaps, and so are the collective's members and root. Raise
    VerificationError if a member is to be joined with another GPU, or an id is wrong.
    """
    helpers = set(topology.ranks) - {topology.ranks[member] for member in collective.members}
    joined = join_devices(topology, gpu_of, helpers)
    left = [rank for rank, gpu in enumerate(topology.ranks) if gpu in joined.by_id]
    return (collective if len(left) == len(topology.ranks) else collective.among(left)), joined


def join_devices(
    topology: Topology, gpu_of: Mapping[str, str], helpers: Collection[str] = ()
) -> Topology:
    """Return the machine in which each device in `gpu_of` is one with the GPU named there.

    `gpu_of` maps ids of devices to ids of GPUs. The devices are removed, with the links between
    each and its GPU; their other links become the GPU's. Of GPUs, only `helpers` (ids) may be
    joined with others. Raise VerificationError if `gpu_of` is wrong.
    """
    for device, gpu in gpu_of.items():
        if device not in topology.by_id or gpu not in topology.ranks or gpu in gpu_of:
            raise VerificationError(
                f"bound: {device!r} is joined with {gpu!r}; expected a device and a GPU of the "
                "topology"
            )
        if device in topology.ranks and device not in helpers:
            raise VerificationError(
                f"bound: {device!r} is a member's GPU; only other devices may be joined with one"
            )
    links = []
    for link in topology.links:
        src, dst = gpu_of.get(link.src, link.src), gpu_of.get(link.dst, link.dst)
        if src != dst:
            moved = (src, dst) != (link.src, link.dst)
            links.append(replace(link, src=src, dst=dst) if moved else link)
    devices = tuple(d for d in topology.devices if d.id not in gpu_of)
    return replace(topology, devices=devices, links=tuple(links))


def price_data(distance: Distances, collective: Collective, topology: Topology) -> Fraction:
    """Return the least price of a unit of buffer, over trees or paths that any GPUs may relay.

    `distance` has the prices between GPUs without relays, by ids. Raise VerificationError if the
    members are not connected.
    """
    if ("prices", collective.name) in _PRICED:
        return _price_of_paths(relayed_distances(distance, topology), collective, topology)
    return _price_of_trees(distance, collective, topology)


def _price_of_paths(distance: Distances, collective: Collective, topology: Topology) -> Fraction:
    """Return the price of all pieces together, each on a cheapest path from one rank to another."""
    members = [topology.ranks[member] for member in collective.members]
    roots = [topology.ranks[collective.root or 0]]
    sources = roots if collective.name == "scatter" else members
    targets = roots if collective.name == "gather" else members
    pairs = [(a, b) for a in sources for b in targets if a != b]
    apart = next(((a, b) for a, b in pairs if b not in distance[a]), None)
    if apart:
        raise VerificationError(f"bound: {apart[1]!r} cannot be reached from {apart[0]!r}")
    return Fraction(sum(distance[a][b] for a, b in pairs), collective.ranks)


def _price_of_trees(distance: Distances, collective: Collective, topology: Topology) -> Fraction:
    """Return the price of a unit of buffer on the collective's cheapest tree or trees."""
    matrix, far = matrix_of(distance, topology)
    price_of = _price_spanning_trees if collective.has_all_gpus else _price_member_trees

    def list_prices(roots: Sequence[int], facing: NDArray[Any]) -> list[int]:
        """Return the prices of cheapest out-trees, or in-trees if the matrix is transposed."""
        paid = price_of(facing, roots, collective)
        if max(paid) >= far:
            root = topology.ranks[roots[paid.index(max(paid))]]
            raise VerificationError(f"bound: no tree joins all members to {root!r}")
        return paid

    if collective.name == "allreduce":
        # Any GPU that both kinds of trees reach may be where a unit comes together.
        gpus = range(len(topology.ranks))
        prices = (price_of(facing, gpus, collective) for facing in (matrix, matrix.T))
        least = min(map(add, *prices))
        if least >= far:
            raise VerificationError("bound: no trees join all members")
        return Fraction(least)
    roots = collective.members if collective.root is None else [collective.root]
    paid = list_prices(roots, matrix.T if collective.reduces else matrix)
    return Fraction(sum(paid), len(roots))


def _price_spanning_trees(
    price: NDArray[Any], roots: Sequence[int], collective: Collective
) -> list[int]:
    """Return the price of the cheapest out-tree from each root to all ranks."""
    return [
        sum(int(price[p, v]) for v, p in enumerate(cheapest_out_tree(price, root)) if p >= 0)
        for root in roots
    ]


def _price_member_trees(
    price: NDArray[Any], roots: Sequence[int], collective: Collective
) -> list[int]:
    """Return the price of the cheapest out-tree from each root to the members.

    Other ranks may be on the tree. Raise VerificationError if there are too many members.
    """
    trees = SteinerTrees(price, collective.members)
    if not trees.is_exact:
        raise VerificationError(
            f"bound: prices of trees prove nothing for {collective.ranks} of {len(price)} GPUs; "
            f"expected at most {MAX_TERMINALS} members, or a cut"
        )
    return [int(trees.price(root)) for root in roots]


def _price_of_pieces(distance: Distances, collective: Collective, topology: Topology) -> Fraction:
    """Return the price of all pieces of demands, per unit of the buffer."""
    assert isinstance(collective, Demands)
    matrix, far = matrix_of(distance, topology)
    length, before = close(matrix)
    total = 0
    for (holders, receivers), size in collective.classes.items():
        price = int(length[np.ix_(holders, receivers)].min(axis=0).max())
        if price >= far:
            ends = (topology.ranks[holders[0]], [topology.ranks[rank] for rank in receivers])
            raise VerificationError(f"bound: no tree joins {ends[0]!r} with {ends[1]}")
        if len(receivers) > 1:
            trees = SteinerTrees.from_any(length, before, holders, receivers)
            price = int(trees.bound_price(len(length)))
        total += size * price
    return Fraction(total, collective.size)


_MIRRORED = ("prices", "allreduce")
_PRICED: Mapping[tuple[str, str], Callable[[Distances, Collective, Topology], Fraction]] = {
    **{("prices", name): _price_of_paths for name in ("alltoall", "gather", "scatter")},
    **{
        ("tree-prices", name): _price_of_trees
        for name in ("broadcast", "reduce", "allgather", "reduce-scatter", "allreduce")
    },
    **{("tree-prices", name): _price_of_pieces for name in get_args(DemandName)},
}


def _cut_s_per_GB(inside: frozenset[str], collective: Collective, topology: Topology) -> Fraction:
    """Return the seconds per GB of buffer that the cut around `inside` requires.

    This is the share of the buffer that must cross the cut over the bandwidth out of it, in GB/s.
    """
    if unknown := inside - topology.by_id.keys():
        raise VerificationError(
            f"bound: the cut names {min(unknown)!r}, which the topology does not have"
        )
    out = sum(
        (c for (a, b), c in topology.capacity_GBps.items() if a in inside and b not in inside),
        Fraction(0),
    )
    crossing = _find_crossing(inside, collective, topology)
    if not crossing:
        return Fraction(0)
    if not out:
        raise VerificationError("bound: no link leads out of the cut; the collective is impossible")
    return crossing / out


def _find_crossing(inside: frozenset[str], collective: Collective, topology: Topology) -> Fraction:
    """Return the share of the buffer that must cross the cut around `inside`."""
    if isinstance(collective, Demands):
        within_ranks = {rank for rank, gpu in enumerate(topology.ranks) if gpu in inside}
        sizes = (
            size
            for (holders, receivers), size in collective.classes.items()
            if within_ranks.issuperset(holders) and not within_ranks.issuperset(receivers)
        )
        return Fraction(sum(sizes), collective.size)
    # A sum of contributions counts once, parts that stay apart count one by one.
    n = collective.ranks
    within = sum(topology.ranks[member] in inside for member in collective.members)
    outside = n - within
    root_inside = collective.root is not None and topology.ranks[collective.root] in inside
    return {
        "allreduce": Fraction(bool(within and outside)),
        "allgather": Fraction(within if outside else 0, n),
        "reduce-scatter": Fraction(outside if within else 0, n),
        "broadcast": Fraction(bool(root_inside and outside)),
        "reduce": Fraction(bool(within and not root_inside)),
        "gather": Fraction(0 if root_inside else within, n),
        "scatter": Fraction(outside if root_inside else 0, n),
        "alltoall": Fraction(within * outside, n),
    }[collective.name]


def read_prices(rows: Any, topology: Topology, *, both_directions: bool) -> Prices:
    """Return the price of each directed link from a certificate's rows (source, target, price).

    With `both_directions` a row is for both links of a pair. Raise VerificationError for negative
    prices and unknown links.
    """
    prices: Prices = {}
    for a, b, text in rows:
        price = parse_fraction(text)
        if price < 0:
            raise VerificationError(f"bound: the price of link {a!r} -> {b!r} is negative")
        named = [
            link
            for link in (((a, b), (b, a)) if both_directions else ((a, b),))
            if link in topology.capacity_GBps
        ]
        prices |= dict.fromkeys(named, price)
        if not named:
            raise VerificationError(
                f"bound: prices name a link {a!r} -> {b!r} that the topology does not have"
            )
    return prices
