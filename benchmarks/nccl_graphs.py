"""What equal rings and chains reach as NCCL_GRAPH_FILE can say them, machine by machine: python
benchmarks/nccl_graphs.py

First come machines whose one-way optima were found by other means ("wanted"), then presets and
recorded machines with at most 16 GPUs (in ../shared, where it is present). Rates are of an
allreduce, in GB/s of algbw, from the exact loads of the links: of at most 32 equal channels ("of
K"), and beside them of the best free shares. "fraction" is the better of rings and chains over the
bound for one way a pair; the least that it must be is .97 up to 8 GPUs, and .95 up to 16. A sparse
mesh of direct links has no such chains: there the bound is for trees, and nothing is asked.
"prefix" is the least that any prefix of the channels reaches of what so many of them could at best,
each limited by its own busiest link, or by the bound.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import make_parser
from one_way import MACHINES, SHARED, open_machine

if TYPE_CHECKING:
    from topoplan.topo.graph import Topology

PRESETS = (
    "dgx1",
    "dgx2",
    "dgx-a100",
    "dgx-h100",
    "mi250",
    "mi300x",
    "pcie-2socket",
    "z52",
    "dgx-a100:2",
)
# Graphs of direct links, some without good chains: nothing is asked of them.
GRAPHS = ("ring:8", "torus:4x4", "hypercube:4", "mesh:3x3", "mesh:4x4", "path:8")
MOST_RANKS = 16
# The least fraction of the bound, up to so many GPUs.
LEAST = {8: 0.97, 16: 0.95}


@dataclass(frozen=True)
class Machine:
    """A machine, with the one-way optimum that is wanted of it where one is known, and whether
    something is asked of it.
    """

    name: str
    topology: Topology
    wanted_GBps: float | None = None
    asked: bool = True


def list_machines() -> Iterator[Machine]:
    """Yield the machines of the table, the presets, and the recorded machines that are here."""
    from topoplan.topo.derived.degrade import Change, degrade
    from topoplan.topo.errors import InputError
    from topoplan.topo.loader.resolve import load_for_planning, resolve

    seen: set[str] = set()
    for name, file, text, wanted in MACHINES:
        topology = open_machine(file, text)
        if topology is None:
            print(f"{name:<28} skipped: {file} is not in {SHARED}", file=sys.stderr)
            continue
        seen.add(Path(file or name).name)
        yield Machine(name, topology, wanted)
    for name in (*PRESETS, *GRAPHS):
        if name not in seen:
            yield Machine(name, resolve(name), None, name in PRESETS)
    for path in sorted((SHARED / "machines").rglob("*")):
        if not path.is_file() or path.suffix not in (".xml", ".txt", ".bz2") or path.name in seen:
            continue
        try:
            topology = load_for_planning(str(path))[0]
        except InputError:
            continue  # skeletons, and texts that describe no machine
        if 2 <= len(topology.ranks) <= MOST_RANKS:
            yield Machine(path.name[:28], topology)
        if path.name == "topo_16p1h.xml":
            yield Machine(
                "  its GCDs 0 to 7", degrade(topology, Change(without_ranks=tuple(range(8, 16))))
            )


def measure(machine: Machine, collective_name: str = "allreduce") -> dict[str, Any]:
    """Return the figures of a machine."""
    from topoplan.synth.bounds.certificate import check_bound
    from topoplan.synth.bounds.single_path import find_bounds
    from topoplan.synth.channels.channels import SHAPES, Channels, algbw_GBps, schedule_channels
    from topoplan.synth.channels.columns import pack_orders
    from topoplan.synth.channels.rounding import find_channels
    from topoplan.synth.numeric.effort import Effort
    from topoplan.synth.planner.synthesize import collective_on
    from topoplan.synth.request import Request
    from topoplan.synth.verify import verify
    from topoplan.topo.errors import InfeasibleError
    from topoplan.topo.routes import Router

    topology = machine.topology
    collective = collective_on(collective_name, topology)
    router = Router(topology)
    bound = find_bounds(collective, router).single_path
    check_bound(bound, collective, topology, router)
    row: dict[str, Any] = {
        "machine": machine.name,
        "ranks": collective.ranks,
        "one_way_GBps": float(bound.algbw_GBps),
        "wanted_GBps": machine.wanted_GBps,
    }
    for shape in SHAPES:
        started = time.process_time()
        request = Request(collective, topology, Effort())
        try:
            channels = find_channels(request, shape)
        except InfeasibleError:
            row[shape] = None
            continue
        seconds = time.process_time() - started
        schedule = schedule_channels(request, channels, shape)
        verify(schedule, topology)
        rate = algbw_GBps(schedule, topology)
        alone = [rate_of(request, Channels(shape, (order,))) for order in channels.orders]
        prefixes = [
            rate_of(request, Channels(shape, channels.orders[:m])) for m in range(1, len(alone))
        ]
        best = [min(bound.algbw_GBps, m * max(alone)) for m in range(1, len(alone))]
        row[shape] = {
            "algbw_GBps": float(rate),
            "channels": len(channels.orders),
            "seconds": seconds,
            "free_shares_GBps": pack_orders(
                Request(collective, topology, Effort()), [shape]
            ).algbw_GBps,
            "fraction": float(rate / bound.algbw_GBps),
            "prefix": float(
                min((x / y for x, y in zip(prefixes, best, strict=True)), default=Fraction(1))
            ),
        }
    row["fraction"] = max((row[shape]["fraction"] for shape in SHAPES if row[shape]), default=0.0)
    asked = machine.asked and collective_name == "allreduce"
    row["least"] = next(
        (least for most, least in LEAST.items() if asked and collective.ranks <= most), 0.0
    )
    return row


def rate_of(request: Any, channels: Any) -> Fraction:
    """Return the algbw of channels in GB/s."""
    from topoplan.synth.channels.channels import algbw_GBps, schedule_channels

    return algbw_GBps(schedule_channels(request, channels, channels.shape), request.topology)


def tell(row: dict[str, Any]) -> str:
    """Return the line of a machine."""
    wanted = f"{row['wanted_GBps']:8.2f}" if row["wanted_GBps"] is not None else " " * 8
    cells = [f"{row['machine']:<28} {row['ranks']:>4} {row['one_way_GBps']:8.2f} {wanted}"]
    for shape in ("ring", "chain"):
        found = row[shape]
        cells.append(
            f"{found['algbw_GBps']:8.2f} {found['channels']:3d} {found['free_shares_GBps']:8.2f} "
            f"{found['prefix']:6.3f} "
            f"{found['seconds']:5.1f}"
            if found
            else f"{'none':>8} {'':3} {'':8} {'':6} {'':5}"
        )
    return "  ".join(
        [
            *cells,
            f"{row['fraction']:.4f}" + (" TOO LITTLE" if row["fraction"] < row["least"] else ""),
        ]
    )


def main() -> int:
    """Print the table; return 1 where a fraction is too little."""
    parser = make_parser(__doc__)
    parser.add_argument("--only", default="", help="machines whose name contains this")
    parser.add_argument(
        "--collective",
        default="allreduce",
        help="allreduce, or allgather or reduce-scatter: rings alone",
    )
    args = parser.parse_args()
    if not args.json:
        print(f"{'':<28} {'':>4} {'bound':>8} {'':>8}  {'rings':<34}  {'chains':<34}")
        figures = f"{'GB/s':>8} {'K':>3} {'free':>8} {'prefix':>6} {'cpu s':>5}"
        print(f"{'machine':<28} GPUs {'one way':>8} {'wanted':>8}  {figures}  {figures}  fraction")
    missed = False
    for machine in list_machines():
        if args.only not in machine.name:
            continue
        row = measure(machine, args.collective)
        missed = missed or row["fraction"] < row["least"]
        print(json.dumps(row) if args.json else tell(row), flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
