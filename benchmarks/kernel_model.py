"""Predicted times of kernels beside published ones.

    python -m benchmarks kernel_model [--json]

The box is that of vllm-project/vllm#50576: 8 A800 on PCIe in two islands of four, each below a
switch, bridged by the CPUs. Published (microseconds, bf16) are NCCL, a one-shot kernel (each rank
reads its island, then exchanges all of it with a rank of the other) and a two-shot one
(reduce-scatter in the island, exchange of a quarter, allgather). The published time of NCCL at 8 KB
gives the time of a hop; everything else is a prediction, from rates that are assumed for PCIe.
`order` says whether the three are in the published order, `ratio` is the predicted gain of the
faster kernel over stock, divided by the published one.
"""

from __future__ import annotations

import tempfile
from itertools import permutations
from typing import Any

from harness import Table, make_parser

from topoplan.runtime.extras.kernels.model import LAUNCH_us, measure_hop_us, predict_us
from topoplan.synth.extras.stock.model import NotModelled, model_stock
from topoplan.synth.ir.collective import collective_on
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.numeric.effort import Effort
from topoplan.synth.request import Request, Send, build_schedule
from topoplan.synth.verify import verify
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import load_for_planning

RANKS, ISLAND = 8, 4
# By KB: NCCL, one-shot, two-shot.
PUBLISHED_us = {
    8: (56.9, 46.5, 47.5),
    16: (63.8, 45.4, 47.9),
    32: (95.8, 45.6, 47.3),
    48: (64.7, 54.3, 49.6),
    64: (49.8, 64.5, 52.9),
    128: (132.2, 102.2, 66.7),
    256: (169.4, 174.8, 91.2),
    512: (160.4, 324.2, 143.0),
}


def main() -> None:
    """Print the table."""
    args = make_parser(__doc__).parse_args()
    topology = make_box()
    one_shot, two_shot = build_schedules(topology)
    stock = model_stock(topology)
    if isinstance(stock, NotModelled):
        raise SystemExit(stock.reason)
    hop_us = measure_hop_us(PUBLISHED_us[8][0], RANKS)
    table = Table(
        [
            ("kb", "KB", ">4d"),
            ("stock", "stock", ">6.1f"),
            ("one", "one-shot", ">8.1f"),
            ("two", "two-shot", ">8.1f"),
            ("published_stock", "published: stock", ">16.1f"),
            ("published_one", "one-shot", ">8.1f"),
            ("published_two", "two-shot", ">8.1f"),
            ("order", "order", ">5s"),
            ("ratio", "ratio", ">5.2f"),
        ],
        as_json=args.json,
    )
    for kb, published in PUBLISHED_us.items():
        size = kb << 10
        predicted = (
            stock.expect(size, hop_us)[1],
            predict_us(one_shot, topology, size, "pull", hop_us),
            predict_us(two_shot, topology, size, "pull", hop_us),
        )
        row: dict[str, Any] = {"kb": kb}
        for name, expected, measured in zip(
            ("stock", "one", "two"), predicted, published, strict=True
        ):
            row |= {name: expected, f"published_{name}": measured}
        row["order"] = rank_names(predicted) == rank_names(published)
        row["ratio"] = (predicted[0] / min(predicted[1:])) / (published[0] / min(published[1:]))
        table.add(row)
    table.end(hop_us=hop_us, launch_us=LAUNCH_us)


def rank_names(times_us: tuple[float, float, float]) -> list[int]:
    """Return the numbers of the columns, the fastest first."""
    return sorted(range(len(times_us)), key=lambda number: times_us[number])


def make_box() -> Topology:
    """Return the box, from the matrix that nvidia-smi prints on it."""
    names = [f"GPU{rank}" for rank in range(RANKS)]
    lines = ["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity"])]
    for rank, name in enumerate(names):
        island = rank // ISLAND
        cells = [
            "X" if other == rank else "PIX" if other // ISLAND == island else "SYS"
            for other in range(RANKS)
        ]
        lines.append("\t".join([name, *cells, f"{32 * island}-{32 * island + 31}", str(island)]))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        return load_for_planning(file.name)[0]


def build_schedules(topology: Topology) -> tuple[Schedule, Schedule]:
    """Return the schedules of the two published kernels, verified."""
    request = Request(collective_on("allreduce", topology), topology, Effort(1.0))
    pairs = [(a, b) for a, b in permutations(range(RANKS), 2) if a // ISLAND == b // ISLAND]
    opposite = [(rank, (rank + ISLAND) % RANKS) for rank in range(RANKS)]
    one: list[Send] = [
        *((0, src, dst, 0, "reduce") for src, dst in pairs),
        *((1, src, dst, 0, "reduce") for src, dst in opposite),
    ]
    two: list[Send] = [
        *((0, src, dst, dst % ISLAND, "reduce") for src, dst in pairs),
        *((1, src, dst, src % ISLAND, "reduce") for src, dst in opposite),
        *((2, src, dst, src % ISLAND, "copy") for src, dst in pairs),
    ]
    schedules = (
        build_schedule(request, "one-shot in islands", request.collective.even_chunks(1), one),
        build_schedule(request, "two-shot in islands", request.collective.even_chunks(ISLAND), two),
    )
    for schedule in schedules:
        verify(schedule, topology)
    return schedules


if __name__ == "__main__":
    main()
