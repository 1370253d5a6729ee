"""Graph files beside modelled stock NCCL, machine by machine.

    python -m benchmarks nccl_graphs                      recorded machines and presets
    python -m benchmarks nccl_graphs --only dgx1v
    python -m benchmarks nccl_graphs --runs 200 --seed 7 --results hosts.jsonl    random hosts too

Recorded machines are those of ../shared, where it is present, with at most 16 GPUs. Stock and file
are the algbw of an allreduce in GB/s at NCCL's constants, each of what NCCL's tuner picks at 1 GiB;
"x1", "x2" and "x4" are their ratio with links between CPUs at once, twice and four times NCCL's
constants. "own" is the file's algbw at the machine's own rates, "fraction" its share of the bound
over NCCL's routes. Exit code 1 if a written file is below stock, or under .97 of the bound on a
recorded machine with at most 8 GPUs (.95 up to 16): random NVLinks allow no such chains. Files are
"held back" where the best channels at the machine's own rates are below stock at NCCL's constants.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from harness import Results, Table, add_sample, make_parser
from single_path import MACHINES, SHARED, open_machine

from topoplan.synth.extras.nccl_files.choice import ChosenGraphs, choose_graphs
from topoplan.synth.extras.nccl_files.guard import BETWEEN_CPUS, WORTH_WRITING, pick_stock
from topoplan.synth.extras.stock.model import KINDS, NotModelled
from topoplan.synth.extras.stock.nccl_version import NEWEST
from topoplan.synth.ir.collective import collective_on
from topoplan.synth.numeric.effort import Effort
from topoplan.topo.errors import InfeasibleError, InputError
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import load_for_planning

PRESETS = ("dgx1", "dgx2", "dgx-a100", "dgx-h100", "pcie-2socket")
FOLDERS = ("inputs/nccl_stock", "inputs/nccl_graphs", "machines")
COLLECTIVES = ("allreduce", "allgather", "reduce-scatter")
_MAX_RANKS = 16
_SIZE_bytes = 1 << 30
# The least share of the bound, up to so many GPUs.
_LEAST = {8: 0.97, 16: 0.95}
_COLUMNS = (
    ("machine", "machine", "<34"),
    ("collective", "collective", "<14"),
    ("ranks", "GPUs", ">4"),
    ("stock_GBps", "stock", ">8.2f"),
    ("stock_picked", "takes", "<6"),
    ("file_GBps", "file", ">8.2f"),
    ("picked", "takes", "<6"),
    *((f"x{factor}", f"x{factor}", ">6.3f") for factor in BETWEEN_CPUS),
    ("own_GBps", "own", ">8.2f"),
    ("fraction", "fraction", ">8.4f"),
    ("channels", "K", ">3"),
    ("cpu_s", "cpu s", ">6.1f"),
    ("written", "written", "<7"),
    ("met", "met", "<4"),
)


def list_machines(args: argparse.Namespace) -> Iterator[tuple[str, Topology | None]]:
    """Yield the machines by name, None where a file is absent."""
    seen: set[str] = set()
    for name, file, text, _ in MACHINES:
        seen.add(Path(file or name).name)
        yield name, open_machine(file, text)
    yield from ((name, load_for_planning(name)[0]) for name in PRESETS if name not in seen)
    for folder in FOLDERS:
        if not (SHARED / folder).is_dir():
            yield folder, None
        for path in sorted((SHARED / folder).rglob("*")):
            ending = path.suffix in (".xml", ".txt", ".bz2") and "graph.xml" not in path.name
            if not (path.is_file() and ending) or path.name in seen:
                continue
            try:
                topology = load_for_planning(str(path))[0]
            except InputError:
                continue  # skeletons, and texts that describe no machine
            if 2 <= len(topology.ranks) <= _MAX_RANKS:
                yield path.name[:34], topology
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from random_hosts import make_host

    for seed in range(args.seed, args.seed + args.runs):
        yield f"random host {seed}", make_host(seed)


def measure(name: str, topology: Topology, collective_name: str) -> dict[str, Any] | None:
    """Return the figures of a machine; None if its stock is not modelled."""
    topology, router = load_for_planning(topology)
    collective = collective_on(collective_name, topology)
    started = time.process_time()
    try:
        chosen = choose_graphs(collective, router, Effort(), None, NEWEST, _SIZE_bytes)
    except InfeasibleError:
        return None
    library = chosen.library
    if isinstance(library, NotModelled):
        return None
    assert chosen.comparison is not None
    compared, graphs = chosen.comparison, chosen.graphs
    rings_only = collective_name != "allreduce"
    picked, written = pick_stock(library, rings_only, _SIZE_bytes), chosen.is_worth_writing
    row = {
        "machine": name,
        "collective": collective_name,
        "ranks": collective.ranks,
        "stock_GBps": float(library.rate_stock(picked)),
        "stock_picked": KINDS[picked],
        "file_GBps": float(compared.algbw_GBps),
        "picked": KINDS[compared.picked],
        **{f"x{factor}": float(compared.ratios[None, factor]) for factor in BETWEEN_CPUS},
        "own_GBps": float(graphs.fraction * graphs.bound.algbw_GBps),
        "fraction": float(graphs.fraction),
        "channels": graphs.count,
        "nvb": chosen.nvb,
        "cpu_s": time.process_time() - started,
        "written": written,
    }
    if not written or _is_near_bound(name, chosen):
        return row | {"met": not written or _is_above(chosen)}
    # Where the best channels at the machine's own rates are below stock at NCCL's, less is asked.
    best = choose_graphs(collective, router, Effort(), None, NEWEST, _SIZE_bytes, guard=False)
    is_held = best.comparison is not None and not best.comparison.is_safe
    return row | {"met": is_held and _is_above(chosen), "note": "held back" if is_held else ""}


def _is_above(chosen: ChosenGraphs) -> bool:
    assert chosen.comparison is not None
    ratios = chosen.comparison.ratios.values()
    return chosen.comparison.gain >= WORTH_WRITING and min(ratios) >= Fraction(1)


def _is_near_bound(name: str, chosen: ChosenGraphs) -> bool:
    """Return whether a file is near the bound; random meshes have no such chains."""
    ranks = chosen.graphs.collective.ranks
    least = next(share for most, share in _LEAST.items() if ranks <= most)
    return name.startswith("random") or float(chosen.graphs.fraction) >= least


def main() -> int:
    """Print the table; return 1 where a file is below stock or its bound."""
    parser = make_parser(__doc__)
    parser.add_argument("--only", default="", help="machines whose name contains this")
    add_sample(parser, 0, COLLECTIVES, files=False)
    parser.set_defaults(collectives=["allreduce"])
    args = parser.parse_args()
    table = Table(_COLUMNS, as_json=args.json)
    results = Results(args.results, ("machine", "collective"))
    for name, topology in list_machines(args):
        if args.only not in name:
            continue
        if topology is None:
            print(f"{name:<34} skipped: it is not in {SHARED}", file=sys.stderr)
            continue
        for collective in args.collectives:
            if results.has(machine=name, collective=collective):
                continue
            row = measure(name, topology, collective)
            if row is not None:
                results.add(row)
                table.add(row, row.get("note", ""))
    table.end()
    return int(not all(row["met"] for row in results.rows))


if __name__ == "__main__":
    sys.exit(main())
