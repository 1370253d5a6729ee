"""Graph files for RCCL beside stock RCCL, machine by machine.

    python -m benchmarks rccl_graphs --models DIR         RCCL's own tools/topo_expl/models, say
    python -m benchmarks rccl_graphs --runs 20 --seed 7 --results rccl.jsonl      random meshes too

Without --models the machines are those of ../shared, where it is present, and presets. All rates
are the algbw of an allreduce in GB/s by RCCL's own count. "stock" are RCCL's rings and chains by
the model, or bounds of them where its table of machines may decide; "plain" are the rings of its
search without the table; "x1", "x2" and "x4" the least ratio of the file's rings and chains to
stock with links between CPUs at once, twice and four times RCCL's constants. Exit code 1 if a
written file is below stock, or its bound (chains, where rings are above theirs: .95 of it).
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

from harness import Results, Table, add_sample, make_parser
from single_path import SHARED

from topoplan.synth.channels.channels import CHAIN, RING
from topoplan.synth.extras.nccl_files.guard import BETWEEN_CPUS
from topoplan.synth.extras.nccl_files.rccl_choice import choose_rccl_graphs, list_rccl_json
from topoplan.synth.extras.nccl_files.rccl_guard import CHAIN_SHARE
from topoplan.synth.extras.stock.rccl import RcclHost
from topoplan.synth.extras.stock.rccl_search import find_rccl_rings_without_table
from topoplan.synth.ir.collective import collective_on
from topoplan.synth.numeric.effort import Effort
from topoplan.topo.derived.degrade import Change, degrade
from topoplan.topo.errors import InfeasibleError, InputError
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import load_for_planning
from topoplan.topo.presets import preset

PRESETS = ("mi250", "mi300x")
COLLECTIVES = ("allreduce", "allgather", "reduce-scatter")
# The most links that a random mesh lacks.
_MAX_DEAD = 4
_COLUMNS = (
    ("machine", "machine", "<26"),
    ("collective", "collective", "<14"),
    ("ranks", "GPUs", ">4"),
    ("plain", "plain", ">7.2f"),
    ("stock_rings", "stock", ">7.2f"),
    ("stock_chains", "chains", ">7.2f"),
    ("rings", "file", ">7.2f"),
    ("chains", "chains", ">7.2f"),
    *((f"x{factor}", f"x{factor}", ">6.3f") for factor in BETWEEN_CPUS),
    ("channels", "K", ">3"),
    ("cpu_s", "cpu s", ">6.1f"),
    ("basis", "basis", "<14"),
)


def list_machines(args: argparse.Namespace) -> Iterator[tuple[str, Topology]]:
    """Yield the machines by name."""
    folder = Path(args.models) if args.models else SHARED / "machines/nccl_xml/rccl"
    for path in sorted(folder.glob("*.xml")):
        try:
            yield path.stem[:26], load_for_planning(str(path))[0]
        except InputError as error:
            print(f"{path.name:<26} skipped: {error}", file=sys.stderr)
    if not args.models:
        yield from ((name, preset(name)) for name in PRESETS)
    for seed in range(args.seed, args.seed + args.runs):
        generator = random.Random(seed)
        pairs = list(combinations(range(8), 2))
        count = generator.randint(1, _MAX_DEAD)
        dead = tuple(f"gpu{a}:gpu{b}" for a, b in generator.sample(pairs, count))
        yield (
            f"mesh, {len(dead)} dead, {seed}",
            degrade(preset("mi300x"), Change(without_links=dead)),
        )


def measure(name: str, topology: Topology, collective_name: str) -> dict[str, Any] | None:
    """Return the figures of a machine; None if RCCL's graph cannot be made of it."""
    topology, router = load_for_planning(topology)
    collective = collective_on(collective_name, topology)
    started = time.process_time()
    try:
        chosen = choose_rccl_graphs(collective, router, Effort(), None)
    except InfeasibleError:
        return None
    host, compared = chosen.host, chosen.comparison
    if not isinstance(host, RcclHost) or compared is None:
        return None
    plain = find_rccl_rings_without_table(host.system, host.gpu_paths)
    ratios = {
        factor: min(
            float(rate / compared.others[key]) if compared.others[key] else 0.0
            for key, rate in compared.rates.items()
            if key[1] == factor
        )
        for factor in BETWEEN_CPUS
    }
    basis = list_rccl_json(chosen)["basis"]
    least = 1.0 if compared.is_known else float(CHAIN_SHARE)
    return {
        "machine": name,
        "collective": collective_name,
        "ranks": collective.ranks,
        "plain": float(host.rate(plain)),
        "stock_rings": float(compared.others.get((RING, 1), 0)),
        "stock_chains": float(compared.others.get((CHAIN, 1), 0)),
        "rings": float(compared.rates.get((RING, 1), 0)),
        "chains": float(compared.rates.get((CHAIN, 1), 0)),
        **{f"x{factor}": ratio for factor, ratio in ratios.items()},
        "channels": chosen.graphs.count,
        "cpu_s": time.process_time() - started,
        "basis": basis or "-",
        "reason": host.reason,
        "met": basis is None or min(ratios.values()) >= least - 1e-6,
    }


def main() -> int:
    """Print the table; return 1 where a file is below stock or its bound."""
    parser = make_parser(__doc__)
    parser.add_argument("--models", help="folder with RCCL's XML files of machines")
    add_sample(parser, 0, COLLECTIVES, files=False)
    parser.set_defaults(collectives=["allreduce"])
    args = parser.parse_args()
    table = Table(_COLUMNS, as_json=args.json)
    results = Results(args.results, ("machine", "collective"))
    for name, topology in list_machines(args):
        for collective in args.collectives:
            if not results.has(machine=name, collective=collective):
                row = measure(name, topology, collective)
                if row is not None:
                    results.add(row)
                    table.add(row, row["reason"])
    table.end()
    return int(not all(row["met"] for row in results.rows))


if __name__ == "__main__":
    sys.exit(main())
