"""Measure the links between ranks, and decide by topo/extras/measured which rates to believe.

First every ordered pair alone: half a round trip of a small message, and the rate from a fit over
three sizes, found by doubling until a message takes long enough. Times are the receiver's, of a
message right behind another. Pairs whose declared routes share no rank, cable or CPU are measured
at once. Then every two ranks in both directions, and then contention groups: for each link shared
by several pairs, as many of them as can send at once; if no links are declared, shifts, too, in
which every rank r sends to r + k. At last fans: flows out of one rank, or into one, at once. The
data is on GPUs over NCCL and in host memory over gloo. Rates of simultaneous flows are taken while
all of them are running.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count, permutations
from typing import Any

import torch
import torch.distributed as dist

from ....topo.errors import InputError
from ....topo.extras.measured.believe import believe
from ....topo.extras.measured.flows import Experiment, Measurements, Pair
from ....topo.graph import Topology
from ....topo.loader.resolve import load_for_planning
from ....topo.routes import Route, Router, route_links
from ...ranks.control import gather_objects
from ...ranks.groups import device_of, uses_nccl
from ...ranks.machine import count_cores, describe_machine, emulated, find_own_cores
from ...ranks.rank_locations import init_gloo_by_network
from ..meeting import Meeting, meeting
from .rates import (
    Arrivals,
    Endpoint,
    MessageLimits,
    PairRate,
    choose_chunk_bytes,
    estimate_rates_GBps,
)

_REPEATS = 3  # of simultaneous flows; the median counts
# Approximate multiples of `target_s` that a pair alone, and a flow of a group, take.
_WORK_ALONE, _WORK_FLOW = 14, 5
# Contention groups, each run several times: chosen, not measured, to bound the time on meshes.
_MAX_GROUPS = 256
# Ranks whose fans are measured, and flows of a fan: chosen, not measured.
_MAX_FANS, _MAX_FAN = 16, 8


@dataclass(frozen=True)
class _Budget:
    """Seconds for the whole measurement and for one message, and the largest message in bytes."""

    total_s: float
    max_s: float
    min_s: float
    max_bytes: int


# A message over gloo takes milliseconds, so that a busy scheduler disturbs it little; NCCL's GPUs
# need less, and larger messages to show their bandwidth.
_GLOO = _Budget(60.0, 0.06, 0.004, 16 << 20)
_NCCL = _Budget(5.0, 0.002, 0.0003, 128 << 20)


# Experiments, by kind and pairs, whose flows start together.
_Batch = list[tuple[str, tuple[Pair, ...]]]


def measure_topology(
    topology: Topology | None = None,
    timeout_s: float = 60.0,
    budget_s: float | None = None,
    advance: Callable[[str, float, float], None] | None = None,
) -> Topology:
    """Return the topology with every link's declared, measured and believed rate (see `believe`).

    Collective. Rank i is the i-th GPU of `topology`. The default is the emulated machine inside
    topo-emulate, else the hosts that the ranks are on, joined (meeting.py); ranks on hosts
    without GPUs represent them at measured rates. Equal parallel switches are merged, since which
    of them a flow crossed is unknown. A process group is made and ended. `timeout_s`
    limits any single wait; `budget_s` is roughly the time for all sending (default: 60 over gloo, 5
    over NCCL), by which messages are sized, down to a few milliseconds each. On rank 0 `advance` is
    called with the name of the current step, the number of finished experiments, and the total
    number.

    Raise InputError outside a launch or if the topology's number of GPUs is not that of the ranks,
    and ExecutionError if a rank dies or does not answer.
    """
    with meeting(timeout_s, init_gloo_by_network) as ranks:
        is_declared, machine_topology = True, topology if topology is not None else emulated()
        if machine_topology is None:
            machine_topology, is_declared = ranks.join()
        machine_topology, _ = load_for_planning(machine_topology)
        if len(machine_topology.ranks) != ranks.ranks:
            raise InputError(
                f"topology {machine_topology.name!r} has {len(machine_topology.ranks)} GPUs, "
                f"{ranks.ranks} ranks are running; "
                "start one rank a GPU"
            )
        measured = _LinkMeasurement(ranks, machine_topology, is_declared, budget_s).run(advance)
        return Topology.loads(
            ranks.broadcast(measured and believe(machine_topology, measured, is_declared).dumps()),
            machine_topology.name,
        )


class _LinkMeasurement:
    """One rank's part in measuring a machine.

    Rank 0 plans the experiments and collects the rates.
    """

    def __init__(
        self, ranks: Meeting, topology: Topology, declared: bool, budget_s: float | None
    ) -> None:
        self.ranks, self.topology, self.declared = ranks, topology, declared
        self.batched = all(location.cuda for location in ranks.locations)
        budget = _NCCL if self.batched else _GLOO
        self.budget = budget if budget_s is None else replace(budget, total_s=budget_s)
        self.routes = find_routes(topology)
        self.trusted, self.otherwise = self._find_trusted()

    def _find_trusted(self) -> tuple[str, str]:
        """Return which links the data really crosses, and the reason; see Measurements."""
        if self.batched or not self.declared:
            return "all", ""
        world = dist.group.WORLD or dist.new_group()
        at_hand = describe_machine(
            self.topology,
            count_cores(gather_objects(world, world.size(), device_of(world), find_own_cores())),
            batched=uses_nccl(world),
        )
        if at_hand.topology is None:
            return "none", "measured over gloo in one host's memory: the data was not on this link"
        if at_hand.what == "emulated":  # its links are between network namespaces
            return "all", ""
        return (
            "network",
            "measured over gloo between hosts' memories: the data was not on this link",
        )

    def run(
        self, advance: Callable[[str, float, float], None] | None = None
    ) -> Measurements | None:
        """Measure everything; return the measurements on rank 0. Collective."""
        group = dist.new_group(backend="nccl", timeout=self.ranks.timeout) if self.batched else None
        disjoint, both, groups = self.ranks.broadcast(
            self._plan() if self.ranks.rank == 0 else None
        )
        limits = _choose_limits(self.budget, disjoint, both, groups)
        endpoint = Endpoint(
            torch.device("cuda", torch.cuda.current_device())
            if self.batched
            else torch.device("cpu"),
            limits,
            group,
        )
        is_first = self.ranks.rank == 0
        steps, numbers = len(disjoint) + _REPEATS * (len(both) + len(groups)), count(1)

        def step(what: str) -> None:
            if advance is not None and is_first:
                advance(f"measuring {what}", next(numbers), steps)

        alone = self._measure_alone(endpoint, disjoint, step)
        # Rank 0 alone has all rates of single pairs. Simultaneous flows carry the bytes that each
        # carries alone in the same time.
        chunk_bytes: dict[Pair, int] = self.ranks.broadcast(
            {(x.src, x.dst): choose_chunk_bytes(x.GBps, limits) for x in alone}
        )
        batches: list[_Batch] = [
            [("both", (pair, pair[::-1])) for pair in chosen] for chosen in both
        ]
        batches += [[("together", group)] for group in groups]
        together = self._measure_together(endpoint, batches, chunk_bytes, step)
        fans = self._measure_fans(endpoint, list_fans(self.routes), chunk_bytes)
        return self._summarize(alone, together, fans) if is_first else None

    def _plan(self) -> tuple[list[list[Pair]], list[list[Pair]], list[tuple[Pair, ...]]]:
        """Return groups of pairs alone, of pairs in both directions, and of contending pairs."""
        pairs = list(self.routes)
        both = [p for p in pairs if p[0] < p[1] and p[::-1] in self.routes]
        groups = group_contending(self.routes)
        if not self.declared:
            groups += [g for g in list_shifts(self.ranks.ranks) if g not in groups]
        if self.trusted == "none":  # one memory, whatever the links
            return [[pair] for pair in pairs], [[pair] for pair in both], groups
        return (
            group_disjoint(pairs, self.topology, self.routes),
            group_disjoint(both, self.topology, self.routes),
            groups,
        )

    def _measure_alone(
        self, endpoint: Endpoint, disjoint: Sequence[Sequence[Pair]], step: Callable[[str], None]
    ) -> list[PairRate]:
        me = self.ranks.rank
        own: list[PairRate] = []
        for chosen in disjoint:
            dist.barrier()
            for src, dst in chosen:
                self.ranks.doing = f"measuring rank {src} -> {dst} alone"
                if me == src:
                    own.append(endpoint.measure_to(me, dst))
                elif me == dst:
                    endpoint.answer_measurement(src)
            step("pairs alone")
        return [rate for rates in self.ranks.gather(own) for rate in rates]

    def _measure_together(
        self,
        endpoint: Endpoint,
        batches: Sequence[_Batch],
        chunk_bytes: Mapping[Pair, int],
        step: Callable[[str], None],
    ) -> list[tuple[str, dict[Pair, Fraction]]]:
        """Measure simultaneous flows; return each experiment's median repetition, by total rate."""
        own: list[Arrivals | None] = []
        for batch in batches:
            what = batch[0][0]
            flows = [(pair, chunk_bytes[pair]) for _, pairs in batch for pair in pairs]
            self.ranks.doing = f"measuring {len(flows)} flows at once ({what})"
            for _ in range(_REPEATS):
                dist.barrier()
                own.append(endpoint.run_flows(self.ranks.rank, flows))
                step("both directions" if what == "both" else "contention groups")
        arrivals_by_rank = self.ranks.gather(own)
        out = []
        for number, batch in enumerate(batches if arrivals_by_rank else ()):
            runs = slice(number * _REPEATS, (number + 1) * _REPEATS)
            # Per repetition, the arrivals at each rank.
            arrived = [
                [x for x in of_ranks if x is not None]
                for of_ranks in zip(*(arrivals[runs] for arrivals in arrivals_by_rank), strict=True)
            ]
            for how, pairs in batch:
                rates = sorted(
                    (estimate_rates_GBps([x for x in run if x.pair in pairs]) for run in arrived),
                    key=lambda rates: sum(rates.values()),
                )
                out.append((how, rates[_REPEATS // 2]))
        return out

    def _measure_fans(
        self,
        endpoint: Endpoint,
        fans: Sequence[tuple[str, tuple[Pair, ...]]],
        chunk_bytes: Mapping[Pair, int],
    ) -> tuple[Experiment, ...]:
        """Measure flows out of one rank, or into one, at once; return them on rank 0."""
        own: list[list[Arrivals]] = []
        for how, pairs in fans:
            self.ranks.doing = f"measuring {len(pairs)} flows at once ({how})"
            size = min(chunk_bytes[pair] for pair in pairs)
            for _ in range(_REPEATS):
                dist.barrier()
                own.append(endpoint.run_fan(self.ranks.rank, [(pair, size) for pair in pairs]))
        arrived = self.ranks.gather(own)  # rank 0 alone has them
        runs = [
            estimate_rates_GBps([x for of_rank in ranks for x in of_rank])
            for ranks in zip(*arrived, strict=True)
        ]
        out = []
        for number, (how, _) in enumerate(fans if runs else ()):
            repeated = runs[number * _REPEATS : (number + 1) * _REPEATS]
            repeated.sort(key=lambda rates: sum(rates.values()))
            out.append(Experiment(how, repeated[_REPEATS // 2]))
        return tuple(out)

    def _summarize(
        self,
        alone: list[PairRate],
        together: list[tuple[str, dict[Pair, Fraction]]],
        fans: tuple[Experiment, ...],
    ) -> Measurements:
        pairs: dict[Pair, dict[str, Any]] = {
            (x.src, x.dst): {
                "us": _round_digits(x.latency_us),
                "GBps": _round_digits(x.GBps),
                "alpha_us": _round_digits(x.alpha_us),
                "us_per_byte": _round_digits(x.beta_us),
                "residual": _round_digits(x.residual),
                "bytes": list(x.sizes),
            }
            for x in alone
        }
        for how, rates in together:
            for pair, rate in rates.items():
                key = f"{how}_GBps"
                # The slowest of the experiments that a pair took part in.
                pairs[pair][key] = min(
                    _round_digits(float(rate)), pairs[pair].get(key, float("inf"))
                )
        possible = self.ranks.ranks * (self.ranks.ranks - 1)
        notes: tuple[str, ...] = (self.otherwise,) if self.trusted == "none" else ()
        if len(self.routes) < possible:
            notes += (
                f"{possible - len(self.routes)} of {possible} pairs have no route of their own "
                "(only other GPUs lie between): not measured",
            )
        return Measurements(
            experiments=(
                *(Experiment("alone", {(x.src, x.dst): Fraction(x.GBps)}) for x in alone),
                *(Experiment(how, rates) for how, rates in together),
            ),
            latency_us={(x.src, x.dst): Fraction(_round_digits(x.latency_us)) for x in alone},
            medium="NCCL" if self.batched else "gloo",
            trusted=self.trusted,
            otherwise=self.otherwise,
            pairs=pairs,
            notes=notes,
            fans=fans,
        )


def _choose_limits(
    budget: _Budget,
    disjoint: Sequence[object],
    both: Sequence[object],
    groups: Sequence[tuple[Pair, ...]],
) -> MessageLimits:
    """Return message limits with which all experiments stay within the budget.

    In the worst case a group's flows share one link.
    """
    flows = 2 * len(both) + sum(len(group) for group in groups)
    work = _WORK_ALONE * len(disjoint) + _WORK_FLOW * _REPEATS * flows
    return MessageLimits(
        max(budget.min_s, min(budget.max_s, budget.total_s / max(1.0, work))), budget.max_bytes
    )


def _round_digits(value: float) -> float:
    return float(f"{value:.4g}")


def find_routes(topology: Topology) -> dict[Pair, Route]:
    """Return the route of each (source, destination) of ranks that the hardware connects.

    Pairs that are connected only through other GPUs are left out.
    """
    router = Router(topology)
    return {
        pair: route
        for pair in permutations(range(len(topology.ranks)), 2)
        if (route := router.route(*pair)) is not None
    }


def group_disjoint(
    pairs: Iterable[Pair], topology: Topology, routes: Mapping[Pair, Route]
) -> list[list[Pair]]:
    """Divide pairs of ranks into groups that can be measured at once, each pair as if alone.

    No two pairs of a group share a rank, a CPU, or a cable in either direction of their routes
    there and back (answers go back), as far as the topology knows. Greedy, pairs with long routes
    first.
    """

    groups: list[tuple[list[Pair], set[object]]] = []
    for pair in sorted(
        pairs, key=lambda p: (-len(routes.get(p, ())), (p[1] - p[0]) % len(topology.ranks), p)
    ):
        both_routes = [routes[p] for p in (pair, pair[::-1]) if p in routes]
        needed: set[object] = {
            *pair,
            *(frozenset(hop) for route in both_routes for hop in route_links(route)),
            *(x for route in both_routes for x in route if topology.by_id[x].kind == "cpu"),
        }
        for group, used in groups:
            if not needed & used:
                group.append(pair)
                used |= needed
                break
        else:
            groups.append(([pair], needed))
    return [group for group, _ in groups]


def list_fans(routes: Mapping[Pair, Route]) -> list[tuple[str, tuple[Pair, ...]]]:
    """Return the flows out of each of the first ranks at once, and those into each.

    There are at most _MAX_FANS such ranks, and _MAX_FAN flows of each; one alone is no fan.
    """
    ranks = sorted({rank for pair in routes for rank in pair})[:_MAX_FANS]
    fans: list[tuple[str, tuple[Pair, ...]]] = []
    for rank in ranks:
        for how, end in (("fan-out", 0), ("fan-in", 1)):
            pairs = [pair for pair in sorted(routes) if pair[end] == rank][:_MAX_FAN]
            if len(pairs) > 1:
                fans.append((how, tuple(pairs)))
    return fans


def group_contending(routes: Mapping[Pair, Route]) -> list[tuple[Pair, ...]]:
    """Return, for each link that several routes share, a largest set of their pairs to run at once.

    Each rank sends to at most one and receives from at most one (a maximum matching). The sets are
    distinct; the 256 largest are returned.
    """
    crossing: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair, route in sorted(routes.items()):
        for hop in route_links(route):
            crossing[hop].append(pair)
    groups = {group for pairs in crossing.values() if len(group := _match(pairs)) > 1}
    return sorted(groups, key=lambda group: (-len(group), group))[:_MAX_GROUPS]


def _match(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """Return a maximum matching of senders and receivers (augmenting paths).

    Each sender starts at a different receiver: spread out, the pairs share fewer other links.
    """
    receivers: dict[int, list[int]] = defaultdict(list)
    for a, b in pairs:
        receivers[a].append(b)
    for number, (a, every) in enumerate(receivers.items()):
        at = number * len(every) // len(receivers)
        receivers[a] = every[at:] + every[:at]
    sender_to: dict[int, int] = {}

    def assign(a: int, tried: set[int]) -> bool:
        for b in receivers[a]:
            if b not in tried:
                tried.add(b)
                if b not in sender_to or assign(sender_to[b], tried):
                    sender_to[b] = a
                    return True
        return False

    for a in receivers:
        assign(a, set())
    return tuple(sorted((a, b) for b, a in sender_to.items()))


def list_shifts(ranks: int) -> list[tuple[Pair, ...]]:
    """Return groups of pairs, one for each k: every rank r sends to rank (r + k) modulo `ranks`.

    They are for machines without known links.
    """
    return [
        tuple((r, (r + k) % ranks) for r in range(ranks))
        # Two ranks have no contention beyond both directions, measured anyway.
        for k in (range(1, ranks) if ranks > 2 else ())
    ]
