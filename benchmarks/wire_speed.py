"""Measures plans on emulated machines against bound, prediction and stock: python
benchmarks/wire_speed.py

    python benchmarks/wire_speed.py                        every machine, 4 KiB to 16 MiB (about 25
                                                           minutes on 2 cores)
    python benchmarks/wire_speed.py dgx1 mesh -b 1M -e 8M  some of them, some sizes
    python benchmarks/wire_speed.py --loopback             4 and 8 ranks on this host, nothing
                                                           emulated
    python benchmarks/wire_speed.py --recorded FOLDER      recorded machines from there as well

Needs root and iproute2 (see topo-emulate). Stock is gloo's all_reduce, in rank order and in the
order that topo-place gives. Each time is a median, the slowest rank's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import make_parser

from topoplan.cli.commands import import_command
from topoplan.synth.extras.place.placing import place
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import resolve

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
    parser = make_parser(__doc__, json=False)
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
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.loopback:
            for topology in args.machines or ["switch:4", "switch:8"]:
                plan = synthesize_to_file(topology, topology, folder)
                print_loopback(topology, run([*topo("run"), plan, *sizes]))
            return
        machines = dict(MACHINES)
        if args.recorded:
            machines |= {k: (str(args.recorded / v), rate) for k, (v, rate) in RECORDED.items()}
        wanted = {
            k: v
            for k, v in machines.items()
            if not args.machines or any(k.startswith(x) for x in args.machines)
        }
        for number, (name, (topology, rate)) in enumerate(wanted.items()):
            if isinstance(topology, dict):
                path = folder / f"{number}.json"
                path.write_text(json.dumps(topology))
                topology = str(path)
            measure(name, topology, args.rate or rate, folder, sizes)


def measure(name: str, topology: str, rate: str | None, folder: Path, sizes: list[str]) -> None:
    """Calibrate a machine, synthesize for it, run the plan, and run stock in its best order; print
    the rows.
    """
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
    rates = [r for c in built.cables for r in (c.rate_ab, c.rate_ba) if r]
    print(
        f"\n{name}: {min(rates) / 1e6:.4g} to {max(rates) / 1e6:.4g} Mbit/s, stock's best order "
        f"{listed}"
    )
    print(
        f"{'size':>10} {'schedule':>20} {'us':>10} {'of bound':>8} {'predicted':>9} "
        f"{'/ measured':>10} {'x rank order':>12} "
        f"{'x best order':>12}"
    )
    for row, other in zip(rows, best, strict=True):
        predicted = row["predicted_us"]
        print(
            f"{row['size_bytes']:>10} {row['schedule']:>20} {row['plan_us']:>10.0f} "
            f"{row['bound_fraction']:>8.3f} "
            f"{predicted or 0:>9.0f} {(predicted or 0) / row['plan_us']:>10.2f} "
            f"{row['ratio']:>12.2f} "
            f"{other['stock_us'] / row['plan_us']:>12.2f}"
            + (f"  {row['wrong']} WRONG" if row["wrong"] else ""),
            flush=True,
        )


def print_loopback(name: str, rows: list[dict[str, Any]]) -> None:
    """Print the rows of a run over this host's memory."""
    print(f"\n{name} on loopback")
    print(
        f"{'size':>10} {'schedule':>20} {'us':>10} {'stock us':>10} {'ratio':>6} "
        f"{'predicted / measured':>20}"
    )
    for row in rows:
        print(
            f"{row['size_bytes']:>10} {row['schedule']:>20} {row['plan_us']:>10.0f} "
            f"{row['stock_us']:>10.0f} "
            f"{row['ratio']:>6.2f} {(row['predicted_us'] or 0) / row['plan_us']:>20.2f}"
        )


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
