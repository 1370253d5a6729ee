"""Whether taking a link away ever improves a plan.

    python -m benchmarks fewer_links                300 pairs of random machines (half an hour)
    python -m benchmarks fewer_links --seed 7 --runs 20 --collectives allreduce
    python -m benchmarks fewer_links --results fewer.jsonl
    python -m benchmarks fewer_links --runs 40 --machines dgx-a100:4 torus:6x6

Each random machine (machine_kinds.py) is planned whole, and with one link gone or slower, for one
collective of the list in turn. Neither the rate of the best schedule nor the single-path bound may
be higher without the link. Machines are compared only if the hardware takes no new route: a pair
that must leave a slow shortcut can really be better off. With --results a second start continues
where the first one ended. Exit code 1 if anything improved.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import replace
from fractions import Fraction
from typing import Any

from damage import COLLECTIVES
from harness import Results, Table, add_sample, make_parser
from machine_kinds import make_machine
from planned import synthesize

from topoplan.synth.ir.collective import collective_on
from topoplan.synth.plan import Plan
from topoplan.topo.errors import InfeasibleError
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import load
from topoplan.topo.routes import Router

# Shares are rounded to 1e-7 of the optimum, so that rates of equal machines differ by as much.
_EQUAL = 1e-6
# Changes tried on a machine until one takes no new route.
_TRIES = 20
_COLUMNS = (
    ("number", "number", ">6"),
    ("kind", "kind", "<11"),
    ("gpus", "gpus", ">4"),
    ("collective", "collective", "<14"),
    ("change", "change", "<28"),
    ("whole", "whole GB/s", ">10.6g"),
    ("less", "less", ">10.6g"),
    ("bound", "bound", ">10.6g"),
    ("less_bound", "less", ">10.6g"),
    ("met", "met", ">4"),
)


def main() -> int:
    """Compare what is not in the results yet, and print the rows in which something improved."""
    args = _parse_arguments()
    results = Results(args.results, ("number",))
    for number in range(args.seed, args.seed + args.runs):
        if not results.has(number=number):
            kind, topology = make_machine(number)
            if args.machines:
                kind = args.machines[number % len(args.machines)]
                topology = take_away(load(kind), random.Random(number))[0]
            collective = args.collectives[number // 8 % len(args.collectives)]
            row = {"number": number, "kind": kind, "gpus": len(topology.ranks)}
            results.add({**row, **compare(topology, collective, number, args.strategy)})
    table = Table(_COLUMNS, as_json=args.json)
    compared = [row for row in results.rows if "less" in row]
    for row in compared:
        if not row["met"]:
            table.add(row)
    table.end()
    missed = sum(not row["met"] for row in compared)
    if not args.json:
        print(f"{len(compared)} of {len(results.rows)} machines compared, {missed} improved")
    return min(missed, 1)


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_sample(parser, 300, COLLECTIVES, files=False)
    parser.add_argument("--machines", nargs="*", help="presets or files, with a link taken away")
    parser.add_argument("--strategy", default="auto", help="strategy of both plans")
    return parser.parse_args()


def compare(topology: Topology, collective: str, seed: int, strategy: str) -> dict[str, Any]:
    """Return the figures of a machine and of it with less; "less" is missing if none compares.

    Nor does a machine whose search the clock stopped, as on a busy host.
    """
    chance = random.Random(seed)
    out: dict[str, Any] = {"collective": collective}
    for _ in range(_TRIES):
        less, change = take_away(topology, chance)
        if has_new_route(topology, less):
            continue
        try:
            after, before = (
                synthesize(collective_on(collective, t), t, strategy) for t in (less, topology)
            )
        except InfeasibleError:
            continue
        if before.cut_short or after.cut_short:
            return {**out, "cut_short": [*before.cut_short, *after.cut_short]}
        rates = [float(find_rate(x.plan)) for x in (before, after)]
        bounds = [float(x.plan.bound_one_way.algbw_GBps) for x in (before, after)]
        met = all(b <= a * (1 + _EQUAL) for a, b in (rates, bounds))
        figures = dict(
            zip(("whole", "less", "bound", "less_bound"), (*rates, *bounds), strict=True)
        )
        return {**out, "change": change, **figures, "met": met}
    return out


def take_away(topology: Topology, chance: random.Random) -> tuple[Topology, str]:
    """Return the machine with a link gone or slower, in one direction or both, and the change."""
    one = chance.choice(topology.links)
    share = chance.choice((Fraction(0), Fraction(0), Fraction(chance.randint(1, 9), 10)))
    both = chance.random() < 0.6
    ends = ((one.src, one.dst), (one.dst, one.src))[: 2 if both else 1]
    links = tuple(
        replace(x, bandwidth_GBps=x.bandwidth_GBps * share) if (x.src, x.dst) in ends else x
        for x in topology.links
        if share or (x.src, x.dst) not in ends
    )
    arrow = "-" if both else ">"
    return replace(topology, links=links), f"{one.src}{arrow}{one.dst} x{share}"


def has_new_route(whole: Topology, less: Topology) -> bool:
    """Return whether some pair of GPUs has a route on `less` that it does not have on `whole`."""
    before, after, ranks = Router(whole), Router(less), range(len(whole.ranks))
    return any(
        route != before.route(u, v)
        for u in ranks
        for v in ranks
        if (route := after.route(u, v)) is not None
    )


def find_rate(plan: Plan) -> Fraction:
    """Return the algbw in GB/s of a plan's fastest schedule at large sizes."""
    return max(plan.limit_GBps(entry) or Fraction(0) for entry in plan.entries)


if __name__ == "__main__":
    sys.exit(main())
