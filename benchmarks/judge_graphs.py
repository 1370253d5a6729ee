"""What topo-judge says of the graphs that NCCL itself found, beside known figures: python
benchmarks/judge_graphs.py

The graphs and topologies are those of ../shared/inputs/nccl_graphs, where it is present; the
figures are GB/s algbw of NCCL's rings and chains, to two digits. Ends with 1 where one differs.
"""

from __future__ import annotations

import sys
from pathlib import Path

GRAPHS = Path(__file__).resolve().parents[2] / "shared" / "inputs" / "nccl_graphs"
# Where the table says that rings are at the optimum, that is the figure.
KNOWN: dict[str, tuple[float | None, float | None]] = {
    # machine: NCCL's rings, its chains (None: not in the table)
    "ncv4-bridged": (8.00, 12.00),
    "a100-one-bridge-missing": (8.00, 6.00),
    "pcie-3gpu": (12.00, 12.00),
    "pcie-2socket": (10.97, 12.00),
    "oci-h100": (211.89, 185.40),
    "dgx1": (85.71, None),
    "dgx-a100": (171.43, None),
    "pcie-8gpu-2socket": (6.86, None),
}
_WITHIN = 0.005


def main() -> int:
    from topoplan.synth.extras.judge.judging import Judge
    from topoplan.synth.extras.judge.machine import Machines
    from topoplan.synth.extras.judge.rates import RINGS, TREES
    from topoplan.synth.extras.judge.readers.detect import read_file

    if not GRAPHS.is_dir():
        print(f"{GRAPHS} is not here")
        return 0
    titles = ("rings", "known", "chains", "known", "1 path", "share", "graph file", "plan")
    widths = (9, 9, 9, 9, 9, 7, 12, 9)
    columns = "".join(f"{title:>{n}}" for title, n in zip(titles, widths, strict=True))
    print(f"{'machine':<26}{columns}")
    wrong = 0
    for name, known in KNOWN.items():
        judge = Judge(Machines(None, []), "allreduce")
        (channelled,) = judge.judge(read_file(str(GRAPHS / f"{name}.graph.xml"))).communicators
        rates = [
            float(rate.algbw_GBps) if (rate := channelled.rate("allreduce", s)) else None
            for s in (RINGS, TREES)
        ]
        options = channelled.options["allreduce"]
        best = [
            option.algbw_GBps if (option := options.best(what)) else 0
            for what in ("graph-file", "plan")
        ]
        cells = "".join(
            f"{'-' if value is None else f'{value:.2f}':>9}"
            for pair in zip(rates, known, strict=True)
            for value in pair
        )
        differs = any(
            k is not None and (r is None or abs(r - k) > _WITHIN)
            for r, k in zip(rates, known, strict=True)
        )
        wrong += differs
        limit, share = (
            channelled.limits["allreduce"].one_way_GBps,
            channelled.share("allreduce") or 0.0,
        )
        print(
            f"{name:<26}{cells}{float(limit):>9.2f}{share:>7.3f}{float(best[0]):>12.2f}{float(best[1]):>9.2f}"
            f"{'  differs' if differs else ''}"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
