"""Measures whether links slower than declared are found, on emulated machines: python
benchmarks/measure_links.py

    python benchmarks/measure_links.py                 all machines, three times each
    python benchmarks/measure_links.py dgx1 --repeats 1  one of them, once

Needs root (see topo-emulate). Each row is one direction of a slow link: its declared, true,
measured and believed rates in Mbit/s, and the errors of the measured and the believed rate. Of all
other links, `others` is the largest error of a believed rate, `wrong` the number that are not
believed as declared, `alike` the number of these that no traffic can tell from a slow link (between
two hosts all traffic takes both uplinks); these do not count in `others`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

from harness import make_parser

from topoplan.runtime.extras.emulate import blueprint, emulate
from topoplan.runtime.extras.emulate.ranks import start_rank, write_topology
from topoplan.runtime.extras.measuring.measure_links import measure_topology
from topoplan.runtime.ranks.launch import is_rank, run_together
from topoplan.topo.derived.degrade import Change, degrade
from topoplan.topo.devices import Device, Link, both_directions
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset

SLOWEST_bps = Fraction(50_000_000)
Mbps_PER_GBps = 8000


def two_hosts() -> Topology:
    """Return two hosts with four GPUs each on a PCIe switch; a host's network link carries what two
    GPUs send.
    """
    devices = [Device(f"gpu{i}") for i in range(8)] + [
        Device(f"host{h}", "switch", "pcie") for h in range(2)
    ]
    devices.append(Device("net", "switch", "network"))
    links = [
        x
        for i in range(8)
        for x in both_directions(Link(f"gpu{i}", f"host{i // 4}", Fraction(1), kind="pcie"))
    ]
    links += [
        x
        for h in range(2)
        for x in both_directions(Link(f"host{h}", "net", Fraction(2), kind="network"))
    ]
    return Topology("two hosts", tuple(devices), tuple(links))


MACHINES = {
    "dgx1": (preset("dgx1"), ("gpu2:gpu3=0.5",)),
    "pcie-2socket": (preset("pcie-2socket"), ("gpu5:plx2=0.5",)),
    "pcie-2socket, sockets": (preset("pcie-2socket"), ("cpu0:cpu1=0.6",)),
    "two hosts": (two_hosts(), ("gpu6:host1=0.7", "host0:net=0.6")),
}


def measure(declared: Topology, slow: tuple[str, ...]) -> dict[str, object]:
    """Emulate a machine, measure it once from inside, and compare with the truth."""
    scaled = blueprint(declared, SLOWEST_bps).topology
    true = degrade(scaled, Change(scale_links=slow))
    with tempfile.TemporaryDirectory() as name, emulate(true, _slowest_bps(true)) as network:
        folder = Path(name)
        write_topology(network, folder)
        (folder / "declared.json").write_text(scaled.dumps())
        command = [
            sys.executable,
            __file__,
            str(folder / "declared.json"),
            "--out",
            str(folder / "believed.json"),
        ]
        started = time.monotonic()
        failed, code = run_together(
            lambda rank: start_rank(network, rank, command, folder), len(true.ranks)
        )
        if failed is not None:
            raise SystemExit(f"rank {failed} ended with {code}")
        seconds = time.monotonic() - started
        believed = Topology.load(folder / "believed.json")
    changed = {frozenset(text.partition("=")[0].split(":")) for text in slow}
    rows, others, wrong, alike = [], 0.0, 0, 0
    for link in believed.links:
        truth = float(true.capacity_GBps[link.src, link.dst])
        if frozenset((link.src, link.dst)) in changed:
            rows.append(
                {
                    "link": f"{link.src} -> {link.dst}",
                    "how": link.extra["measured"]["how"],
                    "limit": link.extra["measured"]["limit"],
                    "declared": float(scaled.capacity_GBps[link.src, link.dst]),
                    "true": truth,
                    "measured": link.extra["measured"]["GBps"],
                    "believed": float(link.bandwidth_GBps),
                }
            )
        else:
            is_alike = "nothing tells them apart" in link.extra["reason"]
            others = max(others, 0.0 if is_alike else abs(float(link.bandwidth_GBps) / truth - 1))
            wrong += link.extra["believed"] != "declared"
            alike += is_alike
    return {
        "rows": rows,
        "others": others,
        "wrong": wrong,
        "alike": alike,
        "links": len(believed.links),
        "seconds": seconds,
        "notes": believed.extra["notes"],
    }


def _slowest_bps(topology: Topology) -> Fraction:
    return min(topology.capacity_GBps.values()) * 8 * 10**9


def show(name: str, result: dict[str, object]) -> None:
    for row in result["rows"]:  # type: ignore[attr-defined]
        rates = [row[key] * Mbps_PER_GBps for key in ("declared", "true", "measured", "believed")]
        errors = [rates[i] / rates[1] - 1 for i in (2, 3)]
        counts = " ".join(f"{result[key]:>6}" for key in ("wrong", "alike", "links"))
        print(
            f"{name:<22} {row['link']:<16} {row['how']:<9}",
            *(f"{rate:>9.1f}" for rate in rates),
            *(f"{error:>+9.1%}" for error in errors),
            f"{result['others']:>8.1%} {counts} {result['seconds']:>8.1f}",
            flush=True,
        )


def main() -> int:
    """Run the table, or be a rank."""
    parser = make_parser(__doc__)
    parser.add_argument("machines", nargs="*", metavar="MACHINE", help=", ".join(MACHINES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if is_rank():
        believed = measure_topology(Topology.load(args.machines[0]))
        if os.environ["RANK"] == "0":
            Path(args.out).write_text(believed.dumps())
        return 0
    if not args.json:
        print(
            f"{'machine':<22} {'slow link':<16} {'how':<9} {'declared':>9} {'true':>9} "
            f"{'measured':>9} {'believed':>9} "
            f"{'error':>9} {'error':>9} {'others':>8} {'wrong':>6} {'alike':>6} {'links':>6} "
            f"{'seconds':>8}"
        )
    for name, (declared, slow) in MACHINES.items():
        if args.machines and name not in args.machines:
            continue
        for _ in range(args.repeats):
            result = measure(declared, slow)
            if args.json:
                print(json.dumps({"machine": name, **result}), flush=True)
            else:
                show(name, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
