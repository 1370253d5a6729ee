"""Measure how long exact synthesis takes, beside SCCL's own code.

    python -m benchmarks exact_rows

Prints, for the rows that SCCL's paper and code were measured on (DGX-1, and the AMD machine z52),
whether they are feasible and the seconds that finding or refuting them took here; then the seconds
of whole Pareto fronts. The column "SCCL" holds seconds measured with SCCL's public code and z3 4.13
on a machine with 2 cores, or "paper".
"""

from __future__ import annotations

import time
from typing import Any

from harness import Table, make_parser

from topoplan.synth.extras.exact.search import decide, pareto
from topoplan.synth.ir.collective import collective_on
from topoplan.synth.numeric.effort import Effort
from topoplan.synth.verify import verify
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

ROWS = [
    ("dgx1", "allgather", (1, 2, 2), ".11"),
    ("dgx1", "allgather", (2, 2, 3), ".27"),
    ("dgx1", "allgather", (2, 3, 3), ".25"),
    ("dgx1", "allgather", (3, 2, 4), ".36"),
    ("dgx1", "allgather", (5, 2, 7), ""),
    ("dgx1", "allgather", (7, 2, 10), ""),
    ("dgx1", "allgather", (4, 3, 5), "2.3"),
    ("dgx1", "allgather", (5, 3, 6), "4.6"),
    ("dgx1", "allgather", (6, 2, 7), "3.3"),
    ("dgx1", "allgather", (6, 3, 7), "8.0-18.8"),
    ("dgx1", "allgather", (6, 7, 7), "8.2-26.5"),
    ("dgx1", "broadcast", (6, 3, 3), ".21"),
    ("dgx1", "broadcast", (7, 3, 3), ""),
    ("dgx1", "broadcast", (12, 4, 4), ".88"),
    ("dgx1", "broadcast", (18, 5, 5), "3.3"),
    ("dgx1", "gather", (6, 3, 7), "10.4"),
    ("dgx1", "scatter", (6, 3, 7), "22.6"),
    ("dgx1", "reduce-scatter", (6, 3, 7), "8.5"),
    ("dgx1", "allreduce", (1, 2, 2), "1.15"),
    ("dgx1", "allreduce", (2, 2, 2), ""),
    ("dgx1", "allreduce", (6, 3, 3), ""),
    ("dgx1", "alltoall", (1, 2, 2), ""),
    ("dgx1", "alltoall", (1, 2, 3), "6.2"),
    ("dgx1", "alltoall", (3, 2, 8), "50"),
    ("dgx1", "alltoall", (3, 3, 8), "none in 300"),
    ("dgx1", "alltoall", (3, 8, 8), "133.7 (paper)"),
    ("z52", "allgather", (1, 4, 4), ""),
    ("z52", "allgather", (2, 4, 7), ""),
]
FRONTS = [
    ("dgx1", "allgather", "19.5"),
    ("dgx1", "allreduce", ""),
    ("dgx1", "alltoall", ""),
    ("z52", "allgather", ""),
]


def main() -> None:
    """Print both tables."""
    args = make_parser(__doc__).parse_args()
    table = Table(
        [
            ("machine", "machine", "<8s"),
            ("collective", "collective", "<15s"),
            ("instance", "C,S,R", "<10s"),
            ("answer", "answer", "<11s"),
            ("seconds", "seconds", ">8.2f"),
            ("sccl", " SCCL", "s"),
        ],
        as_json=args.json,
    )
    for machine, name, triple, sccl in ROWS:
        table.add(time_row(machine, name, triple) | {"sccl": sccl})
    fronts = Table(
        [
            ("machine", "machine", "<8s"),
            ("collective", "collective", "<15s"),
            ("seconds", "wall s", ">7.2f"),
            ("solving_s", "solving s", ">9.2f"),
            ("sccl", " SCCL", "<6s"),
            ("front", "front (chunks,steps,rounds)", "s"),
        ],
        as_json=args.json,
    )
    for machine, name, sccl in FRONTS:
        fronts.add(time_front(machine, name) | {"sccl": sccl})
    table.end(fronts=fronts.rows)


def time_row(machine: str, name: str, triple: tuple[int, int, int]) -> dict[str, Any]:
    """Return whether an instance is feasible, and the seconds that this took."""
    topology = preset(machine)
    (row,) = decide(
        collective_on(name, topology), Router(topology), [triple], Effort(300.0, 300.0)
    ).rows
    if row.schedule is not None:
        verify(row.schedule, topology)
    found = {"answer": row.status, "seconds": row.synthesis_s}
    return {"machine": machine, "collective": name, "instance": ",".join(map(str, triple))} | found


def time_front(machine: str, name: str) -> dict[str, Any]:
    """Return a Pareto front, the seconds that it took, and those of the solver."""
    topology = preset(machine)
    started = time.perf_counter()
    front = pareto(collective_on(name, topology), Router(topology))
    seconds = time.perf_counter() - started
    shown = " ".join(f"{row.chunks},{row.steps},{row.rounds}" for row in front.front)
    return {
        "machine": machine,
        "collective": name,
        "seconds": seconds,
        "solving_s": sum(row.synthesis_s for row in front.rows),
        "front": shown + ("" if front.complete else " (open)"),
    }


if __name__ == "__main__":
    main()
