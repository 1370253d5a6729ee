"""Measure plans on emulated machines against bound, prediction and stock.

    python -m benchmarks wire_speed                        every machine, 4 KiB to 16 MiB (about 25
                                                           minutes on 2 cores)
    python -m benchmarks wire_speed dgx1 mesh -b 1M -e 8M  some of them, some sizes
    python -m benchmarks wire_speed --loopback             4 and 8 ranks on this host, nothing
                                                           emulated
    python -m benchmarks wire_speed --recorded FOLDER      recorded machines from there as well

Needs root and iproute2 (see topo-emulate). Stock is gloo's all_reduce, in rank order and in the
order that topo-place gives. Each time is a median, the slowest rank's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import Table, make_parser

from topoplan.cli.commands import import_command
from topoplan.synth.extras.place.placing import place
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import resolve

# What both tables begin with, and what follows.
COLUMNS = [
    ("machine", "machine", "<15.15s"),
    ("size_bytes", "size", ">9d"),
    ("schedule", "schedule", ">20s"),
    ("plan_us", "us", ">9.0f"),
]
EMULATED = [
    ("bound_fraction", "of bound", ">8.3f"),
    ("predicted_us", "predicted", ">9.0f"),
    ("predicted_share", "/ measured", ">10.2f"),
    ("ratio", "x rank order", ">12.2f"),
    ("best_ratio", "x best order", ">12.2f"),
]
LOOPBACK = [
    ("stock_us", "stock us", ">9.0f"),
    ("ratio", "ratio", ">6.2f"),
    ("predicted_share", "predicted / measured", ">20.2f"),
]
TWO_HOSTS = {
    "format": "topoplan-topology",
    "version": 1,
    "name": "two-hosts",
    "devices": [
        *({"id": f"gpu{i}", "kind": "gpu"} for i in range(8)),
        *({"id": x, "kind": "switch", "family": "network"} for x in ("host0", "host1")),
    ],
    "links": [
        *(
            {
                "src": f"gpu{i}",
                "dst": f"host{i // 4}",
                "bandwidth_GBps": 0.05,
                "bidirectional": True,
            }
            for i in range(8)
        ),
        {"src": "host0", "dst": "host1", "bandwidth_GBps": 0.0125, "bidirectional": True},
    ],
}
HALF_RATE = {
    "format": "topoplan-topology",
    "version": 1,
    "name": "switch-one-half",
    "devices": [
        *({"id": f"gpu{i}", "kind": "gpu"} for i in range(8)),
        {"id": "sw", "kind": "switch", "family": "network"},
    ],
    "links": [
        {"src": f"gpu{i}", "dst": "sw", "bandwidth_GBps": 1.0 if i else 0.5, "bidirectional": True}
        for i in range(8)
    ],
}
MACHINES: dict[str, tuple[Any, str | None]] = {
    "dgx1": ("dgx1", "50Mbit"),
    "two-hosts": (TWO_HOSTS, "100Mbit"),
    "pcie-2socket": ("pcie-2socket", None),
    "switch-one-half": (HALF_RATE, None),
    "mesh:3x3": ("mesh:3x3", None),
}
RECORDED: dict[str, tuple[str, str | None]] = {
    "rome (8 Vega20)": ("nccl_xml/rccl/topo_8p_rome.xml", None),
    "ncv4 (4 A100)": ("nccl_xml/azure/ncv4-topo.xml", None),
}


def main() -> None:
    """Print the table."""
    parser = make_parser(__doc__)
    parser.add_argument("machines", nargs="*", help="those whose names begin so (default: all)")
    parser.add_argument("-b", default="4K")
    parser.add_argument("-e", default="16M")
    parser.add_argument("-f", default="4")
    parser.add_argument("-n", default="5")
    parser.add_argument("--recorded", type=Path, metavar="FOLDER")
    parser.add_argument("--loopback", action="store_true")
    parser.add_argument("--rate", help="of the slowest link, instead of each machine's own")
    args = parser.parse_args()
    sizes = ["-b", args.b, "-e", args.e, "-f", args.f, "-n", args.n, "-w", "1", "--json"]
    table = Table(COLUMNS + (LOOPBACK if args.loopback else EMULATED), as_json=args.json)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.loopback:
            for topology in args.machines or ["switch:4", "switch:8"]:
                plan = synthesize_to_file(topology, topology, folder)
                for row in run([*topo("run"), plan, *sizes]):
                    add_row(table, topology, row, {})
        else:
            for name, topology, rate in list_machines(args, folder):
                measure(table, name, topology, rate, folder, sizes)
    table.end()


def list_machines(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str, str | None]]:
    """Yield the machines that are asked for: name, preset or file, and rate of the slowest link."""
    machines = dict(MACHINES)
    if args.recorded:
        machines |= {k: (str(args.recorded / v), rate) for k, (v, rate) in RECORDED.items()}
    for number, (name, (topology, rate)) in enumerate(machines.items()):
        if args.machines and not name.startswith(tuple(args.machines)):
            continue
        if isinstance(topology, dict):
            path = folder / f"{number}.json"
            path.write_text(json.dumps(topology))
            topology = str(path)
        yield name, topology, args.rate or rate


def add_row(
    table: Table, machine: str, row: dict[str, Any], more: dict[str, Any], note: str = ""
) -> None:
    """Add a row of topo-run's, and what else is known of it."""
    share = (row["predicted_us"] or 0) / row["plan_us"]
    wrong = f" {row['wrong']} WRONG" if row["wrong"] else ""
    table.add({"machine": machine, **row, "predicted_share": share, **more}, f" {note}{wrong}")


def measure(
    table: Table, name: str, topology: str, rate: str | None, folder: Path, sizes: list[str]
) -> None:
    """Calibrate a machine, synthesize for it, run the plan, and run stock in its best order."""
    slowest = [] if rate is None else ["--slowest", rate]
    machine = resolve(topology)
    from topoplan.runtime.extras.emulate.blueprint import blueprint, parse_rate

    built = blueprint(machine, None if rate is None else parse_rate(rate))
    plan = synthesize_to_file(name, topology, folder)
    calibrated = folder / f"{name}.calibrated.json"
    run(
        [
            *topo("emulate"),
            topology,
            *slowest,
            "--",
            *topo("run"),
            plan,
            "--calibrate",
            "-o",
            str(calibrated),
        ],
        parse=False,
    )
    plan = synthesize_to_file(name, str(calibrated), folder)
    order = find_best_order(machine)
    rows = run([*topo("emulate"), topology, *slowest, "--", *topo("run"), plan, *sizes])
    listed = ",".join(map(str, order))
    best = run(
        [
            *topo("emulate"),
            topology,
            *slowest,
            "--order",
            listed,
            "--",
            *topo("run"),
            "--stock",
            *sizes,
        ]
    )
    rates = [r / 1e6 for c in built.cables for r in (c.rate_ab, c.rate_ba) if r]
    about = {"least_Mbps": min(rates), "most_Mbps": max(rates), "best_order": order}
    note = f"{min(rates):.4g} to {max(rates):.4g} Mbit/s, best order {listed}"
    for row, other in zip(rows, best, strict=True):
        about["best_ratio"] = other["stock_us"] / row["plan_us"]
        add_row(table, name, row, about, note)
        note = ""


def topo(command: str) -> list[str]:
    """Return the command line of one of the project's commands, installed or not."""
    return [sys.executable, "-m", import_command(command).main.__module__]


def run(command: list[str], *, parse: bool = True) -> list[dict[str, Any]]:
    """Run a command; return the rows that it prints as JSON."""
    text = run_text(command)
    return json.loads(text)["rows"] if parse else []


def run_text(command: list[str]) -> str:
    """Run a command; return what it prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return done.stdout


def synthesize_to_file(name: str, topology: str, folder: Path) -> str:
    """Synthesize an allreduce plan and return its path."""
    path = folder / f"{name}.plan.json"
    run(
        [
            *topo("synth"),
            "--collective",
            "allreduce",
            "--topology",
            topology,
            "-o",
            str(path),
            "--force",
        ],
        parse=False,
    )
    return str(path)


def find_best_order(machine: Topology) -> list[int]:
    """Return the order in which stock gloo's ring is fastest."""
    return list(place(machine, target="stock").order)


if __name__ == "__main__":
    main()
