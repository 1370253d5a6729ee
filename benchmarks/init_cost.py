"""Measure what a start costs a rank that does not plan.

    python -m benchmarks init_cost                       2 ranks, 5 turns
    python -m benchmarks init_cost --ranks 4 --turns 11

A turn starts the same script over gloo and then over the backend: init_process_group, a model in
DistributedDataParallel, one step, destroy_process_group. Figures are processor seconds of a rank's
process, all threads together, so a busy machine hardly changes them; a rank's figure is a median of
all turns and of all ranks but the first, which alone finds plans. `more` is the median difference
of a turn's two runs. All modules come from bytecode, as they do from an installed package: a turn
that is not counted writes it. Bar: at most .1 s more than over gloo, from init to destroy, and for
`import topoplan`. Exit code 1 where a figure is above its bar.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from typing import Any

from harness import Table, make_parser, run_ranks

BACKENDS = ("gloo", "topo")
# Seconds: no more than people notice.
MOST_MORE_S = 0.1
# Seconds of the clock for the two ranks of a run, on a busy machine.
_LIMIT_S = 300.0
_IMPORT, _WHOLE = "import topoplan", "init to destroy"
PARTS = ("import torch", "init", "DDP", "first step", "destroy")
COLUMNS = (
    ("what", "processor time of", "<18"),
    ("gloo_s", "gloo s", ">8.3f"),
    ("topo_s", "topo s", ">8.3f"),
    ("more_s", "more s", ">8.3f"),
    ("most_s", "at most", ">8.3f"),
    ("fits", "fits", "<4"),
)


def main() -> int:
    """Print the table, or the rows as JSON; or be a rank."""
    args = _parse_arguments()
    if args.worker:
        work(args.worker)
        return 0
    turns = []
    with tempfile.TemporaryDirectory(prefix="topoplan-init-cost-") as folder:
        for _ in range(args.turns + 1):
            turns.append({backend: launch(backend, args.ranks, folder) for backend in BACKENDS})
    table = Table(COLUMNS, as_json=args.json)
    for what in (_IMPORT, *PARTS, _WHOLE):
        table.add(summarize(what, turns[1:]))
    table.end(turns=turns[1:])
    return int(not all(row.get("fits", True) for row in table.rows))


def launch(backend: str, ranks: int, folder: str) -> list[dict[str, float]]:
    """Run the script once; return the processor seconds of its parts, by rank."""
    own = {
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": f"{folder}/bytecode",
        "TOPOPLAN_CACHE": f"{folder}/cache",
    }
    printed = run_ranks(__file__, ["--worker", backend], ranks, _LIMIT_S, own)
    return [json.loads(text) for text in printed]


def summarize(what: str, turns: list[dict[str, list[dict[str, float]]]]) -> dict[str, Any]:
    """Return the row of a part of all turns, of the ranks that do not plan."""
    gloo_s, topo_s = (
        [statistics.median(rank[what] for rank in turn[backend][1:]) for turn in turns]
        for backend in BACKENDS
    )
    more_s = statistics.median(topo - gloo for gloo, topo in zip(gloo_s, topo_s, strict=True))
    row: dict[str, Any] = {"what": what, "gloo_s": statistics.median(gloo_s)}
    row |= {"topo_s": statistics.median(topo_s), "more_s": more_s}
    if what in (_IMPORT, _WHOLE):
        row |= {"most_s": MOST_MORE_S, "fits": more_s <= MOST_MORE_S}
    return row


def work(backend: str) -> None:
    """Be a rank: train for a step, and print the processor seconds of each part."""
    clock = time.process_time
    marks = [clock()]
    if backend == "topo":
        importlib.import_module("topoplan")
    marks.append(clock())
    import torch
    import torch.distributed as dist
    from torch import nn

    if backend == "topo":
        importlib.import_module("topoplan.runtime.register")  # as torch does, once installed
    torch.set_num_threads(1)
    marks.append(clock())
    dist.init_process_group(backend)
    marks.append(clock())
    layers = nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 256))
    model = nn.parallel.DistributedDataParallel(layers)
    marks.append(clock())
    model(torch.ones(2, 256)).sum().backward()
    marks.append(clock())
    dist.destroy_process_group()
    marks.append(clock())
    spent = [after - before for before, after in pairwise(marks)]
    found = dict(zip((_IMPORT, *PARTS), spent, strict=True))
    print(json.dumps({**found, _WHOLE: marks[-1] - marks[2]}))


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="of each run (default: 2)")
    parser.add_argument("--turns", type=int, default=5, help="that count (default: 5)")
    parser.add_argument("--worker", choices=BACKENDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ranks < 2 or args.turns < 1:
        parser.error("expected at least 2 ranks and 1 turn")
    return args


if __name__ == "__main__":
    sys.exit(main())
