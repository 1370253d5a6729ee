"""Plan large machines with a few faults.

    python -m benchmarks damage                     40 machines x 8 collectives (hours on 2 cores)
    python -m benchmarks damage --runs 3 --collectives allreduce,broadcast
    python -m benchmarks damage --seed 7 --results damage.jsonl
    python -m benchmarks damage --files ../shared/inputs/synth/mesh32-2dead.json

Machines of 128 to 1,024 GPUs (boxes, racks, tori and meshes) get one to four faults from a seed: a
dead NIC, a GPU with all links at half their rate, a slow or a dead link. Each is planned by the
command in its default time. The gap is that of the plan's fastest schedule to the single-path
bound. With --results a second start continues where the first one ended. Exit code 1 if a plan is
missing, or more than 2 % from its bound.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from harness import Results, Table, add_sample, make_parser

from topoplan.topo.errors import TopoplanError
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import load

COLLECTIVES = (
    "allreduce", "allgather", "reduce-scatter", "broadcast",
    "reduce", "alltoall", "gather", "scatter",
)  # fmt: skip
FAMILIES = (
    "dgx-a100:16", "dgx-a100:32", "dgx-a100:64", "dgx-a100:128", "dgx-h100:32", "dgx-h100:64",
    "gb200-nvl72:2", "gb200-nvl72:4", "torus:12x12", "torus:16x16", "mesh:16x16", "mesh:32x32",
)  # fmt: skip
FAULTS = ("dead NIC", "half GPU", "slow link", "dead link")
_MAX_GAP = 0.02
# Seconds beyond the time limit for the start, verification and output.
_GRACE_S = 120
_COLUMNS = (
    ("machine", "machine", "<16"),
    ("faults", "faults", "<44"),
    ("collective", "collective", "<14"),
    ("gap", "gap", ">8.3%"),
    ("cpu_s", "cpu s", ">7.1f"),
    ("s", "wall s", ">7.1f"),
    ("how", "", "<10"),
    ("met", "met", ">4"),
)


def main() -> int:
    """Plan what is not in the results yet, and print all rows."""
    args = _parse_arguments()
    results = Results(args.results, ("number", "machine", "collective"))
    with tempfile.TemporaryDirectory() as folder:
        for number, name, faults, topology in _list_machines(args):
            file = Path(folder) / f"{number}.json"
            file.write_text(json.dumps(topology.to_json()), "utf-8")
            for collective in args.collectives:
                key = {"number": number, "machine": name, "collective": collective}
                if not results.has(**key):
                    results.add(
                        {**key, "faults": faults, **plan(file, collective, args.time_limit)}
                    )
    table = Table(_COLUMNS, as_json=args.json)
    for row in results.rows:
        table.add(row)
    table.end()
    return 0 if all(row["met"] for row in results.rows) else 1


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_sample(parser, 40, COLLECTIVES)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds per plan")
    return parser.parse_args()


def _list_machines(args: argparse.Namespace) -> Iterator[tuple[int, str, str, Topology]]:
    if args.files:
        for number, name in enumerate(args.files):
            yield number, Path(name).stem, "as given", load(name)
        return
    for number in range(args.seed, args.seed + args.runs):
        chance = random.Random(number)
        family = FAMILIES[number % len(FAMILIES)]
        topology, faults = load(family), []
        for _ in range(chance.randint(1, 4)):
            fault = chance.choice(FAULTS)
            try:
                topology, where = damage(topology, fault, chance)
            except TopoplanError:
                continue
            faults.append(f"{fault} {where}")
        yield number, family, ", ".join(faults), topology


def damage(topology: Topology, fault: str, chance: random.Random) -> tuple[Topology, str]:
    """Return the machine with one more fault, and where it is.

    Raise TopoplanError if the machine has no part of that kind.
    """
    gpu = chance.choice(topology.ranks)
    ends = [link for link in topology.links if gpu in (link.src, link.dst)]
    if fault == "dead NIC":
        ends = [link for link in ends if link.kind == "network"]
    if not ends:
        raise TopoplanError(f"{gpu} has no such link")
    one = chance.choice(ends)
    hit = {one.src, one.dst}
    if fault == "half GPU":
        changed = {id(link) for link in ends}
        where = gpu
    else:
        changed = {id(link) for link in topology.links if {link.src, link.dst} == hit}
        where = f"{one.src}:{one.dst}"
    links = [
        replace(link, bandwidth_GBps=link.bandwidth_GBps * Fraction(1, 2))
        if id(link) in changed
        else link
        for link in topology.links
        if not (fault.startswith("dead") and id(link) in changed)
    ]
    return replace(topology, links=tuple(links)), where


def plan(file: Path, collective: str, limit_s: float) -> dict[str, Any]:
    """Return the figures of the command's plan for a machine, or how it ended."""
    command = [sys.executable, "-m", "topoplan.cli.synth", "--topology", str(file)]
    command += ["--collective", collective, "--json", "--time-limit", str(limit_s)]
    started = time.monotonic()
    try:
        ended = subprocess.run(command, capture_output=True, timeout=limit_s + _GRACE_S)
    except subprocess.TimeoutExpired:
        return {"how": "no end", "s": time.monotonic() - started, "met": False}
    took = time.monotonic() - started
    if ended.returncode:
        error = ended.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return {"how": f"exit {ended.returncode}", "error": error, "s": took, "met": False}
    out = json.loads(ended.stdout)
    gap = max(0.0, min(entry["gap"] for entry in out["entries"]))
    return {"gap": gap, "cpu_s": out["cpu_s"], "s": took, "how": "", "met": gap <= _MAX_GAP}


if __name__ == "__main__":
    sys.exit(main())
