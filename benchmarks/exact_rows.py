"""Measures how long exact synthesis takes, beside SCCL's own code: python benchmarks/exact_rows.py

Prints, for the rows that SCCL's paper and code were measured on (DGX-1, and the AMD machine z52),
whether they are feasible and the seconds that finding or refuting them took here; then the seconds
of whole Pareto fronts. The column "SCCL" holds seconds measured with SCCL's public code and z3 4.13
on a machine with 2 cores, or "paper".
"""

import time

from topoplan.synth.ir.collective import collective_on
from topoplan.synth.ksync.pareto import decide, pareto
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
    print(f"{'machine':8} {'collective':15} {'C,S,R':10} {'answer':11} {'seconds':>8}  SCCL")
    for machine, name, triple, sccl in ROWS:
        topology = preset(machine)
        (row,) = decide(
            collective_on(name, topology), Router(topology), [triple], Effort(300.0, 300.0)
        ).rows
        if row.schedule is not None:
            verify(row.schedule, topology)
        print(
            f"{machine:8} {name:15} {','.join(map(str, triple)):10} {row.status:11} "
            f"{row.synthesis_s:8.2f}  {sccl}"
        )
    print(
        f"\n{'machine':8} {'collective':15} {'wall s':>7} {'solving s':>9}  {'SCCL':6} front "
        "(chunks, steps, rounds)"
    )
    for machine, name, sccl in FRONTS:
        topology = preset(machine)
        started = time.perf_counter()
        front = pareto(collective_on(name, topology), Router(topology))
        wall = time.perf_counter() - started
        shown = " ".join(str((r.chunks, r.steps, r.rounds)) for r in front.front)
        solving = sum(row.synthesis_s for row in front.rows)
        print(
            f"{machine:8} {name:15} {wall:7.2f} {solving:9.2f}  {sccl:6} "
            f"{shown}{'' if front.complete else ' (open)'}"
        )


if __name__ == "__main__":
    main()
