"""Plans for machines that are not perfect, at scale.

    python -m benchmarks imperfect [--command] [WORD ...]

For machines with a slow link, a lost link or a lost GPU, large meshes, and machines on which only
some switches compute: the bound, the best bound of a cut (around a GPU or a group for alltoall),
the gap of the plan, the seconds, and whether the row's bar is met. With words, only the rows in
which all of them occur are run. With --command, each row is what `topo-synth` does with its usual
time limit, from its start to the plan's file. No test plans for as many as 512 GPUs, as the row
"dgx-a100:64 allreduce" does.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from harness import Table, make_parser
from planned import synthesize

from topoplan.synth.bounds.certificate import check_bound
from topoplan.synth.bounds.multipath import cut_bound
from topoplan.synth.cost.affine import bandwidth_s_per_GB
from topoplan.synth.ir.collective import collective_on
from topoplan.synth.plan import Plan
from topoplan.topo.derived.degrade import Change, degrade
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.presets import preset

SLOW = Change(scale_links=("gpu0:network0=0.9",))
CUT_OFF = Change(without_links=("gpu0:network0",))
LOST = Change(without_ranks=(3,))
NONE = Change()
# Machine, change, collective, seconds and gap that are the bar.
ROWS: list[tuple[str, Change, str, float, float]] = [
    ("dgx-a100:16", SLOW, "alltoall", 60, 0.02),
    ("dgx-h100:16", LOST, "alltoall", 60, 0.02),
    ("dgx-a100:16", CUT_OFF, "alltoall", 60, 0.02),
    ("dgx-a100:8", SLOW, "allgather", 60, 0.02),
    ("dgx-a100:16", SLOW, "allgather", 60, 0.02),
    ("dgx-a100:16", SLOW, "reduce-scatter", 60, 0.02),
    ("dgx-h100:16", LOST, "allgather", 60, 0.02),
    ("dgx-a100:16", SLOW, "allreduce", 60, 0.02),
    ("dgx-h100:16", LOST, "allreduce", 60, 0.02),
    ("mi250:8", Change(scale_links=("gpu0:nic0=0.9",)), "allgather", 60, 0.02),
    ("mesh:32x32", NONE, "allreduce", 20, 0.02),
    ("torus:12x12", Change(scale_links=("0:1=0.9",)), "allgather", 60, 0.02),
    ("torus:12x12", Change(scale_links=("0:1=0.9",)), "alltoall", 60, 0.02),
    ("mixed:1", NONE, "allreduce", 20, 0.02),
    ("mixed:3", NONE, "allreduce", 20, 0.02),
    ("dgx-a100:64", NONE, "allreduce", 60, 0.02),
    ("dgx-a100:128", SLOW, "allreduce", 120, 0.02),
    ("dgx-a100:128", SLOW, "allgather", 120, 0.02),
    ("dgx-a100:128", SLOW, "alltoall", 120, 0.02),
]


def make_mixed_switches(GBps: Fraction) -> Topology:
    """Return two switches of four GPUs each, one of which adds and copies, joined by a link."""
    devices = [Device(f"gpu{i}") for i in range(8)]
    devices += [Device("adder", "switch", can_reduce=True), Device("plain", "switch")]
    links = [
        x
        for i in range(8)
        for x in both_directions(Link(f"gpu{i}", "adder" if i < 4 else "plain", Fraction(1)))
    ]
    return Topology(
        f"mixed:{GBps}", tuple(devices), (*links, *both_directions(Link("adder", "plain", GBps)))
    )


def find_machine(name: str, change: Change) -> Topology:
    """Return a row's machine."""
    family, _, size = name.partition(":")
    return degrade(
        make_mixed_switches(Fraction(size)) if family == "mixed" else preset(name), change
    )


def make_plan(name: str, change: Change, collective: str, limit_s: float) -> tuple[Plan, float]:
    """Return a row's plan, searched for at most `limit_s`, and the seconds it took."""
    topology = find_machine(name, change)
    wanted = collective_on(collective, topology)
    started = time.perf_counter()
    return synthesize(wanted, topology, time_limit_s=limit_s).plan, time.perf_counter() - started


def run_command(name: str, change: Change, collective: str) -> tuple[Plan, float]:
    """Return the plan that topo-synth writes for a row, and the seconds from its start to its
    end.
    """
    changes = [f"--scale-link={x}" for x in change.scale_links] + [
        f"--without-link={x}" for x in change.without_links
    ]
    changes += [f"--without-rank={x}" for x in change.without_ranks]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "topoplan.cli.synth",
            "--collective",
            collective,
            "--topology",
            name,
            *changes,
        ]
        file = Path(folder) / "plan.json"
        started = time.perf_counter()
        subprocess.run(
            [*command, "-o", str(file)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        took = time.perf_counter() - started
        return Plan.load(file), took


def main() -> None:
    """Print the table."""
    parser = make_parser(__doc__)
    parser.add_argument("words", nargs="*", help="only rows that contain all of these words")
    parser.add_argument("--command", action="store_true", help="plan by the command")
    args = parser.parse_args()
    table = Table(
        [
            ("machine", "machine", "<46s"),
            ("collective", "collective", "<15s"),
            ("bound_GBps", "bound", ">8.4g"),
            ("cut_GBps", "cut", ">8.4g"),
            ("gap", "gap", ">7.2%"),
            ("seconds", "seconds", ">8.1f"),
            ("bar_met", "bar met", ">7s"),
        ],
        as_json=args.json,
    )
    for name, change, collective_name, seconds, gap in ROWS:
        topology = find_machine(name, change)
        if not all(word in f"{topology.name} {collective_name}" for word in args.words):
            continue
        if args.command and name.startswith("mixed"):  # no preset
            continue
        collective = collective_on(collective_name, topology)
        row = name, change, collective_name
        plan, took = run_command(*row) if args.command else make_plan(*row, seconds)
        check_bound(plan.bound, collective, topology)
        reached = min(
            bandwidth_s_per_GB(replace(entry.schedule, segments=2), topology)
            for entry in plan.entries
        )
        away = max(0.0, float(1 - plan.bound.s_per_GB / reached))
        table.add(
            {
                "machine": topology.name,
                "collective": collective_name,
                "bound_GBps": float(plan.bound.algbw_GBps),
                "cut_GBps": float(cut_bound(collective, topology).algbw_GBps),
                "gap": away,
                "seconds": took,
                "bar_met": away <= gap and took <= seconds,
            }
        )
    table.end()


if __name__ == "__main__":
    main()
