"""Measure whether surviving ranks name a killed or stopped rank or a cut link in time.

    python -m benchmarks fault_table  about 100 runs: every rank killed and stopped, every link cut,
                                      on three machines (20 minutes on 2 cores)
    python -m benchmarks fault_table mesh:2x2 --repeat 3

Ranks add up tensors through a plan and check every element, until at a random moment one of them
gets SIGKILL or SIGSTOP, or a cable goes down. Each survivor must end with an error that names the
culprit, within its deadline. Needs root and iproute2 (see topo-emulate).
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from harness import Table, make_parser

if TYPE_CHECKING:
    from topoplan.runtime.extras.emulate import Blueprint, Network

# The number of runs of each fault, by machine.
MACHINES = {"mesh:2x2": 4, "switch:4": 1, "dgx1": 1}
# Where ranks meet: a file, which no fault of the network reaches, or rank 0's TCPStore, as under
# torchrun and MPI.
STORES = ("beside", "wires")
RATE = "100Mbit"
TIMEOUT_S = 8.0
START_S = 90.0
# Beyond the deadline, for processes to be scheduled on a busy host and to end.
SLACK_S = 4.0
# Of an outcome, added up over runs.
COUNTED = ("hung", "wrong", "survivors", "named")


@dataclass(frozen=True)
class Fault:
    """`kind` is kill or stop (of rank `a`), or cut (of the cable between ranks or devices `a` and
    `b`).
    """

    kind: str
    a: int
    b: int = -1


@dataclass(frozen=True)
class Outcome:
    """How a run ended: seconds from the fault to the last survivor's end, and how many of the
    `survivors` hung, computed a wrong sum, or named the culprit. `last_lines` are what they printed
    last.
    """

    seconds: float
    survivors: int
    hung: int
    wrong: int
    named: int
    last_lines: list[str]


def list_faults(built: object) -> list[Fault]:
    """Return every single fault that an emulated machine can have."""
    ranks = len(built.home)  # type: ignore[attr-defined]
    both = [Fault(kind, rank) for kind in ("kill", "stop") for rank in range(ranks)]
    return both + [Fault("cut", cable.a, cable.b) for cable in built.cables]  # type: ignore[attr-defined]


class Worker(Protocol):
    """A rank that runs; subprocess.Popen is one."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit code; None while the rank runs."""

    def kill(self) -> None:
        """End the rank by SIGKILL."""

    def wait(self) -> int:
        """Wait for the end, and return the exit code."""


# Starts a rank of a network: its number, the ranks' folder, the arguments of `main`, and the file
# that it prints to.
Start: TypeAlias = "Callable[[Network, int, Path, list[str], Path], Worker]"


def start_process(
    network: Network, rank: int, folder: Path, arguments: list[str], output: Path
) -> Worker:
    """Start a rank as topo-emulate does, by a new interpreter."""
    from topoplan.runtime.extras.emulate import start_rank

    with output.open("wb") as log:
        return start_rank(network, rank, [sys.executable, __file__, *arguments], folder, log)


def run(
    topology: str,
    plan: str,
    fault: Fault,
    after_s: float,
    timeout_s: float = TIMEOUT_S,
    start: Start = start_process,
    store: str = "beside",
) -> Outcome:
    """Emulate a machine, cause one fault after `after_s`, and return how the survivors ended.

    `store` says where the ranks meet: "beside" the network, in a file, or on its "wires", in a
    TCPStore that rank 0 hosts.
    """
    from topoplan.runtime.extras.emulate import emulate, parse_rate
    from topoplan.runtime.extras.emulate.ranks import write_topology
    from topoplan.topo.loader.resolve import resolve

    with (
        emulate(resolve(topology), parse_rate(RATE)) as network,
        tempfile.TemporaryDirectory() as name,
    ):
        folder = Path(name)
        write_topology(network, folder)
        built = network.blueprint
        ranks = len(built.home)
        logs = [folder / f"{rank}.log" for rank in range(ranks)]
        for log in logs:
            log.touch()
        arguments = ["--worker", plan, "--timeout", str(timeout_s), "--store", store]
        workers = [start(network, rank, folder, arguments, logs[rank]) for rank in range(ranks)]
        try:
            _wait_until(lambda: all("ready" in log.read_text() for log in logs), START_S, logs)
            time.sleep(after_s)
            began = time.monotonic()
            if fault.kind == "cut":
                network.cut(built.devices[fault.a], built.devices[fault.b])
            else:
                os.kill(
                    workers[fault.a].pid, signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP
                )
            survivors = [rank for rank in range(ranks) if fault.kind == "cut" or rank != fault.a]
            ends = began + timeout_s + SLACK_S
            while any(workers[r].poll() is None for r in survivors) and time.monotonic() < ends:
                time.sleep(0.02)
            seconds = time.monotonic() - began
            hung = [r for r in survivors if workers[r].poll() is None]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        last_lines = [_find_last_line(logs[r].read_text()) for r in survivors]
        wrong = sum("WRONG" in logs[r].read_text() for r in range(ranks))
        alone = _find_cut_off(built, fault)
        named = sum(
            line.startswith("ERROR") and _names(line, fault, built.devices, alone)
            for line in last_lines
        )
        return Outcome(seconds, len(survivors), len(hung), wrong, named, last_lines)


def _find_last_line(printed: str) -> str:
    """Return a rank's error, after which torch may print more, or what it printed last."""
    lines = printed.strip().splitlines()
    return next((line for line in lines if line.startswith("ERROR")), lines[-1])


def _find_cut_off(built: Blueprint, fault: Fault) -> list[int]:
    """Return the ranks whose only link is the one that is cut."""
    links = Counter(device for cable in built.cables for device in (cable.a, cable.b))
    ends = {fault.a, fault.b} if fault.kind == "cut" else set()
    return [rank for rank, home in enumerate(built.home) if home in ends and links[home] == 1]


def _names(line: str, fault: Fault, devices: tuple[str, ...], alone: Sequence[int]) -> bool:
    """Return whether an error names the culprit; its first half does, its second says what the rank
    itself saw.

    A cut cuts off the ranks `alone`: naming one of them is as good as naming their only link.
    """
    blamed = line.split(";")[0]
    if fault.kind != "cut":
        return f"rank {fault.a} does not answer" in blamed
    a, b = devices[fault.a], devices[fault.b]
    return any(
        f"{x} {arrow} {y}" in blamed for x, y in ((a, b), (b, a)) for arrow in ("->", "-")
    ) or any(
        f"rank {rank} {what}" in blamed
        for rank in alone
        for what in ("does not answer", "reaches no other rank")
    )


def _wait_until(condition: object, patience_s: float, logs: list[Path]) -> None:
    ends = time.monotonic() + patience_s
    while not condition():  # type: ignore[operator]
        if time.monotonic() > ends:
            raise SystemExit(
                "ranks did not start: " + " | ".join(log.read_text()[-500:] for log in logs)
            )
        time.sleep(0.05)


def work(plan: str, timeout_s: float, store: str) -> int:
    """Be a rank: allreduce and check until a fault; then print the error and leave the group."""
    import torch
    import torch.distributed as dist

    from topoplan import Communicator, ExecutionError
    from topoplan.runtime.ranks.launch import init_method

    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    patience = timedelta(seconds=timeout_s)
    where = init_method() if store == "beside" else "env://"
    dist.init_process_group(
        "gloo", init_method=where, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    communicator = Communicator(plan, timeout=patience, choose="plan")
    x = torch.empty(50_000)
    total = world * (world + 1) / 2
    calls = 0
    try:
        while True:
            x.fill_(rank + 1)
            communicator.allreduce(x)
            if not bool((x == total).all()):
                print("WRONG", flush=True)
                return 4
            calls += 1
            if calls == 3:
                print("ready", flush=True)
    except ExecutionError as error:
        print(f"ERROR {error}", flush=True)
    dist.destroy_process_group()
    return 3


def main(argv: list[str] | None = None) -> None:
    """Print the table; or be a rank."""
    parser = make_parser(__doc__)
    parser.add_argument("machines", nargs="*")
    parser.add_argument("--repeat", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", metavar="PLAN", help=argparse.SUPPRESS)
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S)
    parser.add_argument("--store", choices=STORES, default=STORES[0], help="where the ranks meet")
    args = parser.parse_args(argv)
    if args.worker:
        code = work(args.worker, args.timeout, args.store)
        sys.stdout.flush()
        os._exit(code)
    from planned import synthesize

    from topoplan.runtime.extras.emulate import blueprint, parse_rate
    from topoplan.synth.ir.collective import collective_on
    from topoplan.topo.loader.resolve import resolve

    moments = random.Random(args.seed)
    table = Table(
        [
            ("machine", "machine", ">10s"),
            ("fault", "fault", ">14s"),
            ("runs", "runs", ">5d"),
            ("hung", "hung", ">5d"),
            ("wrong", "wrong", ">6d"),
            ("survivors", "errors", ">7d"),
            ("named", "naming it", ">10d"),
            ("slowest_s", "slowest s", ">9.1f"),
        ],
        as_json=args.json,
    )
    for name in args.machines or MACHINES:
        topology = resolve(name)
        with tempfile.TemporaryDirectory() as folder:
            plan = str(Path(folder) / "plan.json")
            synthesize(collective_on("allreduce", topology), topology, "auto", 20).plan.save(plan)
            rows: dict[str, list[Outcome]] = {}
            for _ in range(args.repeat or MACHINES.get(name, 1)):
                for fault in list_faults(blueprint(topology, parse_rate(RATE))):
                    outcome = run(
                        name, plan, fault, moments.uniform(0, 1.5), args.timeout, store=args.store
                    )
                    rows.setdefault(fault.kind, []).append(outcome)
                    if outcome.hung or outcome.wrong or outcome.named < outcome.survivors:
                        print(f"  {fault}: {outcome}", file=sys.stderr, flush=True)
        for kind, outcomes in rows.items():
            slowest_s = max(x.seconds for x in outcomes)
            counted = {key: sum(getattr(x, key) for x in outcomes) for key in COUNTED}
            row = {"machine": name, "fault": kind, "runs": len(outcomes)} | counted
            table.add(row | {"slowest_s": slowest_s})
    total = {key: sum(row[key] for row in table.rows) for key in ("runs", *COUNTED)}
    table.add({"machine": "all"} | total)
    table.end()


if __name__ == "__main__":
    main()
