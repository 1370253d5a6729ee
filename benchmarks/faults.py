"""Count how often surviving ranks name who is to blame.

    python -m benchmarks faults faults.jsonl                  every case 20 times (about 40 minutes)
    python -m benchmarks faults faults.jsonl --runs 2 --cases cut slow

Each run emulates a ring of four ranks with the store on the same wires (rank 0 hosts a TCPStore, as
under torchrun and MPI), and causes one fault at a moment and place drawn by --seed: a kill during
set-up, a kill or stop in the middle of calls, a call that differs from the others' in its dtype,
order, reduction or size (with sizes settled by race, and by plan), a cut link (with a plan, and
with the stock collective), or one that becomes slow. RESULTS has a line for each run; a second
start with the same seed goes on where the first ended. Needs root and iproute2 (see topo-emulate).
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import Table, be_emulated_rank, make_parser

if TYPE_CHECKING:
    from topoplan.runtime.extras.emulate import Network

TOPOLOGY, RANKS, RATE = "ring:4", 4, "100Mbit"
TIMEOUT_S = 6.0
_START_S = 90.0
# Beyond the deadline, for processes to be scheduled on a busy host and to end.
_SLACK_S = 4.0
# Kills in set-up strike within this time after all ranks have joined; setting up takes about as
# long.
_SET_UP_S = 0.6
_NUMEL = 50_000
# Calls that are alike, before one differs.
_CALLS_BEFORE = 5
# How many times slower the slow link gets.
_SLOWER = 10
# Time for a slow link to be named: ten calls, and the comparison in the background.
_WATCH_S = 14.0
MISMATCHES = ("dtype", "order", "op", "size")
CASES = (
    "setup-kill", "kill", "stop",
    *(f"{what}-{how}" for what in MISMATCHES for how in ("race", "plan")),
    "cut", "cut-stock", "slow",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """How one run ended: how many of the ranks that had to name the culprit did so, and what they
    printed last.
    """

    case: str
    run: int
    seed: int
    culprit: str
    seconds: float
    judged: int
    named: int
    hung: int
    last_lines: list[str]


@dataclass(frozen=True)
class Fault:
    """What is drawn for a run: the rank that is at fault (also the first end of the link), and
    when.
    """

    rank: int
    after_s: float

    @property
    def other(self) -> int:
        """The other end of the link."""
        return (self.rank + 1) % RANKS


def carry_out(case: str, run: int, seed: int, plan: str, context: Any) -> Run | None:
    """Carry out one run; None where the fault came too late, after set-up."""
    from topoplan.runtime.extras.emulate import emulate, parse_rate
    from topoplan.runtime.extras.emulate.ranks import list_rank_variables, write_topology
    from topoplan.topo.loader.resolve import resolve

    draw = random.Random(f"{seed} {case} {run}")
    in_set_up = case == "setup-kill"
    fault = Fault(draw.randrange(RANKS), draw.uniform(0, _SET_UP_S if in_set_up else 1.0))
    with (
        emulate(resolve(TOPOLOGY), parse_rate(RATE)) as network,
        tempfile.TemporaryDirectory() as name,
    ):
        folder = Path(name)
        write_topology(network, folder)
        logs = [folder / f"{rank}.log" for rank in range(RANKS)]
        ranks = []
        for rank, log in enumerate(logs):
            log.touch()
            variables = {
                **list_rank_variables(network, rank, folder),
                "TOPOPLAN_CACHE": str(folder / "cache"),
            }
            namespace = network.namespace_of(network.blueprint.home[rank])
            arguments = (work, variables, namespace, str(log), case, fault.rank, plan)
            ranks.append(context.Process(target=be_emulated_rank, args=arguments))
        try:
            for rank in ranks:
                rank.start()
            sign = "joined" if in_set_up else "ready"
            _wait_until(lambda: all(sign in log.read_text() for log in logs), logs)
            time.sleep(fault.after_s)
            if in_set_up and "ready" in logs[fault.rank].read_text():
                return None
            begun = time.monotonic()
            judged = _strike(case, fault, network, ranks)
            hung = _wait_for_end(case, judged, ranks, logs)
            seconds = time.monotonic() - begun
        finally:
            for rank in ranks:
                rank.kill()
                rank.join()
        last = [(log.read_text().strip().splitlines() or ["(nothing)"])[-1] for log in logs]
        named = sum(judge(case, fault, last[rank]) for rank in judged)
        if case == "slow":  # the receiving end of the link names it, and nobody names another
            judged = [0]
            text = "".join(log.read_text() for log in logs)
            named = int(names_slow_link(fault, text))
            last = re.findall(r"WARNING.*", text)
        culprit = (
            f"{fault.rank}-{fault.other}"
            if case in ("cut", "cut-stock", "slow")
            else str(fault.rank)
        )
        return Run(case, run, seed, culprit, seconds, len(judged), named, len(hung), last)


def _strike(case: str, fault: Fault, network: Network, ranks: Sequence[Any]) -> list[int]:
    """Cause a fault; return the ranks that have to name the culprit."""
    from topoplan.runtime.extras.emulate import parse_rate

    devices = network.blueprint.devices
    if case in ("cut", "cut-stock", "slow"):
        ends = devices[fault.rank], devices[fault.other]
        if case != "slow":
            network.cut(*ends)
        else:
            network.slow_down(*ends, int(Fraction(parse_rate(RATE)) / _SLOWER))
        return list(range(RANKS))
    if case in ("setup-kill", "kill", "stop"):
        os.kill(ranks[fault.rank].pid, signal.SIGSTOP if case == "stop" else signal.SIGKILL)
        return [rank for rank in range(RANKS) if rank != fault.rank]
    return list(range(RANKS))  # a rank makes another call by itself


def _wait_for_end(
    case: str, judged: Sequence[int], ranks: Sequence[Any], logs: Sequence[Path]
) -> list[int]:
    """Wait for ranks to end, or a slow link to be named; return those that hang."""
    if case == "slow":
        ends = time.monotonic() + _WATCH_S
        while time.monotonic() < ends and not any("is slow" in log.read_text() for log in logs):
            time.sleep(0.1)
        time.sleep(1.0)  # should another rank name another link
        return []
    ends = time.monotonic() + TIMEOUT_S + _SLACK_S
    while any(ranks[rank].is_alive() for rank in judged) and time.monotonic() < ends:
        time.sleep(0.02)
    return [rank for rank in judged if ranks[rank].is_alive()]


def _wait_until(condition: Callable[[], bool], logs: Sequence[Path]) -> None:
    ends = time.monotonic() + _START_S
    while not condition():
        if time.monotonic() > ends:
            raise SystemExit(
                "ranks did not start: " + " | ".join(log.read_text()[-500:] for log in logs)
            )
        time.sleep(0.01)


def judge(case: str, fault: Fault, line: str) -> bool:
    """Return whether a rank's last line blames the culprit, and nothing else, in its first part."""
    blamed = line.split(";")[0]
    if not line.startswith("ERROR"):
        return False
    if case in ("cut", "cut-stock"):
        ends = f"gpu{fault.rank}", f"gpu{fault.other}"
        return any(
            f"{a} {arrow} {b} " in f"{blamed} "
            for a, b in (ends, ends[::-1])
            for arrow in ("->", "-")
        )
    if case in ("setup-kill", "kill", "stop"):
        return re.search(rf": rank {fault.rank} (does not answer|did not come)", blamed) is not None
    return f": rank {fault.rank} is in another call" in blamed


def names_slow_link(fault: Fault, text: str) -> bool:
    """Return whether the slow link is warned of, and no other."""
    ends = f"gpu{fault.rank}", f"gpu{fault.other}"
    links = set(re.findall(r"link (\S+) -> (\S+) is slow", text))
    return bool(links) and links <= {ends, ends[::-1]}


def work(case: str, odd: int, plan: str) -> int:
    """Join the others, and make calls until a fault; then print the error."""
    import torch
    import torch.distributed as dist

    from topoplan import Communicator, ExecutionError

    torch.set_num_threads(1)
    logging.basicConfig(format="%(levelname)s %(message)s")
    rank, patience = int(os.environ["RANK"]), timedelta(seconds=TIMEOUT_S)
    dist.init_process_group(
        "gloo", init_method="env://", rank=rank, world_size=RANKS, timeout=patience
    )
    print("joined", flush=True)
    try:
        settled_by: Any = "race" if case.endswith("race") or case == "setup-kill" else "plan"
        if case == "cut-stock":
            settled_by = choose_stock
        communicator = Communicator(plan, timeout=patience, choose=settled_by)
        x = torch.zeros(_NUMEL)
        for number in range(10**9):
            if number == _CALLS_BEFORE:
                print("ready", flush=True)
                if case.startswith(MISMATCHES):
                    time.sleep(1.5)  # until it is seen that all are ready
                    make_other_call(communicator, case.split("-")[0], is_odd=rank == odd)
            communicator.allreduce(x)
    except ExecutionError as error:
        print(f"ERROR {error}", flush=True)
        return 3
    return 0


def choose_stock(size_bytes: int, candidates: Sequence[object]) -> None:
    """Choose the stock collective at all sizes, as a race may."""


def make_other_call(communicator: Any, what: str, *, is_odd: bool) -> None:
    """Make the calls in which the odd rank differs from the others."""
    import torch
    import torch.distributed as dist

    if what == "order":
        sizes = (_NUMEL, _NUMEL // 5)
        for numel in sizes[::-1] if is_odd else sizes:
            communicator.allreduce(torch.zeros(numel))
        return
    dtype = torch.float64 if is_odd and what == "dtype" else torch.float32
    numel = _NUMEL // 2 if is_odd and what == "size" else _NUMEL
    op = dist.ReduceOp.MAX if is_odd and what == "op" else dist.ReduceOp.SUM
    communicator.allreduce(torch.zeros(numel, dtype=dtype), op)


def main() -> None:
    """Carry out the runs that the results file lacks, and print the table."""
    parser = make_parser(__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--cases", nargs="*", choices=CASES, default=CASES)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    from planned import synthesize

    from topoplan.synth.ir.collective import collective_on
    from topoplan.topo.loader.resolve import resolve

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["topoplan", "topoplan.runtime.communicator", "__main__"])
    topology, runs = resolve(TOPOLOGY), read_runs(args.results)
    with tempfile.TemporaryDirectory() as folder, args.results.open("a") as file:
        plan = str(Path(folder) / "plan.json")
        synthesize(collective_on("allreduce", topology), topology, "auto", 20).plan.save(plan)
        for number in range(args.runs):
            for case in args.cases:
                if any((x.case, x.run, x.seed) == (case, number, args.seed) for x in runs):
                    continue
                run = carry_out(case, number, args.seed, plan, context)
                attempt = 1
                while run is None:  # set-up was over before the fault: draw again
                    run = carry_out(case, number, args.seed + 1000 * attempt, plan, context)
                    attempt += 1
                runs.append(Run(**{**asdict(run), "seed": args.seed}))
                file.write(json.dumps(asdict(runs[-1])) + "\n")
                file.flush()
                if run.named < run.judged or run.hung:
                    print(f"  {run}", file=sys.stderr, flush=True)
    print_table([run for run in runs if run.seed == args.seed], as_json=args.json)


def read_runs(results: Path) -> list[Run]:
    """Return the runs that a results file has."""
    if not results.exists():
        return []
    return [Run(**json.loads(line)) for line in results.read_text().splitlines()]


SUMMED = ("judged", "named", "hung")
COLUMNS = (
    ("case", "case", ">12"),
    ("runs", "runs", ">5"),
    ("all_named", "all named", ">10"),
    ("judged", "ranks", ">6"),
    ("named", "named", ">6"),
    ("hung", "hung", ">5"),
    ("slowest_s", "slowest s", ">9.1f"),
)


def print_table(runs: Sequence[Run], *, as_json: bool) -> None:
    """Print a row for each case."""
    of_case: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        of_case[run.case].append(run)
    table = Table(COLUMNS, as_json=as_json)
    for case in CASES:
        if rows := of_case.get(case):
            row = {name: sum(getattr(run, name) for run in rows) for name in SUMMED}
            row["all_named"] = sum(run.named == run.judged for run in rows)
            slowest = max(run.seconds for run in rows)
            table.add({"case": case, "runs": len(rows), **row, "slowest_s": slowest})
    table.end()


if __name__ == "__main__":
    main()
