"""Cut or slow links of emulated machines while ranks run, and see how they go on.

    python -m benchmarks carry_on carry_on.jsonl               108 single cuts (over an hour)
    python -m benchmarks carry_on carry_on.jsonl --runs 4 --machines mesh:2x2 --cases cut flap

Each run emulates a machine and starts a rank on each GPU with on_fault="replan": they make
allreduces of integers, whose sums are exact (`calls`), or train a model with
DistributedDataParallel, with the hook (`training`) or on the backend (`backend`). At a moment drawn
by --seed a fault strikes: `cut` takes one link after the other; `two` cuts two links at once;
`again` cuts a second one while the ranks recover from the first; `flap` cuts a link, mends it and
cuts it again; `slow` (not on the backend) halves the rate of a link, of one between hosts if there
are any, for 80 s, with on_slow="replan"; `both` (calls only) does so, and cuts another after 20 s.

Right is: all sums are exact, or all parameters equal bit for bit on all ranks and within 1e-6 of
those without a fault; where the links left do not connect the ranks, an error on every rank.
`slowest s` is from the cut to the end of the call that it struck (the last one unless the case is
`cut`), or from slowing a link to having another plan; `of bound` is the rate afterwards, of the
certified bound of what is left (calls only). RESULTS has a line for each run; a second start with
the same seed goes on where the first ended. Plans and races are kept beside it; plans have spares
for single losses (topo-synth --spare links) unless --no-spares is given.
Needs root and iproute2 (see topo-emulate).
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import Table, be_emulated_rank, make_parser

if TYPE_CHECKING:
    from topoplan.runtime.extras.emulate import Network
    from topoplan.topo.graph import Topology

MACHINES = {"mesh:2x2": "25Mbit", "dgx1": "6Mbit", "two-rails": "12Mbit"}
CASES = ("cut", "two", "again", "flap", "slow", "both")
PROGRAMS = ("calls", "training", "backend")
# Cases that are not for all programs.
PROGRAMS_OF = {"slow": ("calls", "training"), "both": ("calls",)}
COLUMNS = (
    ("machine", "machine", "10"), ("program", "program", "9"), ("case", "case", "6"),
    ("runs", "runs", ">5"), ("went_on", "went on", ">8"), ("refused", "refused", ">8"),
    ("wrong", "wrong", ">6"), ("hung", "hung", ">5"), ("slowest_s", "slowest s", ">10.2f"),
    ("slowest_recovery_s", "recovery s", ">11.2f"), ("least_of_bound", "of bound", ">9.3f"),
    ("median_of_bound", "median", ">7.3f"), ("returned", "returned", ">9"),
)  # fmt: skip
# Elements of a call: 16 MB, as DistributedDataParallel's buckets have, and less where many calls
# have to show that a link is slow.
_NUMEL, _NUMEL_SLOW = 1 << 20, 1 << 20
_STEPS = 30
# The first run on a machine also races. A call has 60 s, which begin later on ranks that notice a
# fault later.
_START_S, _AFTER_S, _END_S = 240.0, 40.0, 90.0
# Calls after the one that the fault struck, of which the last five give the rate.
_CALLS_AFTER = 12
# Calls after which links have been measured: one that is slow before that goes unnoticed.
_MEASURED_CALLS = 14
# Longest wait for other ranks before a call.
_MEET_S = 0.5
_FLAP_S = (1.5, 6.0)
# A call or step was struck by a fault if it takes so much longer than the median before the fault.
_HIT_S = 2.0
# Times that a link stays slow, and after it has recovered.
_SLOW, _SLOW_S, _RETURN_S = 0.5, 80.0, 60.0
# Training ends so many steps after the last one that a log has, all of which no rank has made.
_STEPS_MORE = 10
# Seconds between the two faults of `both`.
_BOTH_S = 20.0


@dataclass(frozen=True)
class Run:
    """How one run ended: `wrong` and `hung` count ranks; `refused` that all ranks raised an error
    since the links left do not connect them, `recoveries` those of rank 0. `returned` says whether
    the plan did after a slow link was as fast as before.
    """

    machine: str
    program: str
    case: str
    run: int
    seed: int
    links: list[str]
    seconds: float | None
    recovery_s: float | None
    of_bound: float | None
    wrong: int
    hung: int
    refused: bool
    recoveries: int
    last_lines: list[str]
    returned: bool | None = None


def build_two_rails() -> Topology:
    """Return two hosts of four GPUs in a ring, with two NICs each, on two switches (rails)."""
    from topoplan.topo.graph import Device, Link, Topology

    devices, links = [], []
    for host in range(2):
        gpus = [f"gpu{4 * host + i}" for i in range(4)]
        devices += [Device(gpu, "gpu") for gpu in gpus]
        pairs = [(gpus[i], gpus[(i + 1) % 4]) for i in range(4)]
        for rail in range(2):
            nic = f"nic{2 * host + rail}"
            devices.append(Device(nic, "nic"))
            pairs += [(gpus[2 * rail + i], nic) for i in range(2)]
            pairs.append((nic, f"rail{rail}"))
        links += [Link(x, y, 2) for a, b in pairs for x, y in ((a, b), (b, a))]
    devices += [Device(f"rail{rail}", "switch") for rail in range(2)]
    return Topology("two-rails", tuple(devices), tuple(links))


def find_machine(name: str) -> Topology:
    """Return a machine by its name in MACHINES."""
    from topoplan.topo.loader.resolve import resolve

    return build_two_rails() if name == "two-rails" else resolve(name)


def carry_out(
    machine: str, program: str, case: str, run: int, seed: int, plan: str, context: Any
) -> Run:
    """Carry out one run."""
    from topoplan.runtime.extras.emulate import emulate, parse_rate
    from topoplan.runtime.extras.emulate.ranks import list_rank_variables, write_topology

    draw = random.Random(f"{seed} {machine} {program} {case} {run}")
    with (
        emulate(find_machine(machine), parse_rate(MACHINES[machine])) as network,
        tempfile.TemporaryDirectory() as name,
    ):
        folder = Path(name)
        write_topology(network, folder)
        ranks, logs = [], []
        for rank in range(len(network.blueprint.home)):
            logs.append(folder / f"{rank}.log")
            logs[-1].touch()
            variables = {
                **list_rank_variables(network, rank, folder),
                # Only the first run on a machine races.
                "TOPOPLAN_CACHE": f"{Path(plan).with_suffix('')}-cache",
            }
            namespace = network.namespace_of(network.blueprint.home[rank])
            arguments = (work, variables, namespace, str(logs[-1]), program, case, plan, folder)
            ranks.append(context.Process(target=be_emulated_rank, args=arguments))
        links = choose_links(network, case, run, draw)
        try:
            for process in ranks:
                process.start()
            _wait_until(logs, "ready")
            time.sleep(draw.uniform(0.0, 1.0))
            struck = strike(network, case, links)
            if case == "slow":
                time.sleep(_RETURN_S)
            elif program == "calls":
                _await_calls(logs[0], time.time())
            if program == "calls":
                (folder / "stop").touch()
            elif case == "slow":
                _stop_training(folder, logs[0])
            ends = time.monotonic() + _END_S
            for process in ranks:
                process.join(max(0.0, ends - time.monotonic()))
            hung = sum(process.is_alive() for process in ranks)
        finally:
            for process in ranks:
                process.kill()
                process.join()
        texts = [log.read_text() for log in logs]
        return judge(network, texts, struck, hung, machine, program, case, run, seed, links)


def choose_links(
    network: Network, case: str, run: int, draw: random.Random
) -> list[tuple[str, str]]:
    """Return the links to cut: one after the other by the run's number, a second one at random."""
    devices = network.blueprint.devices
    cables = [(devices[x.a], devices[x.b]) for x in network.blueprint.cables]
    if case in ("slow", "both"):
        nics = {device.id for device in network.blueprint.topology.devices if device.kind == "nic"}
        switches = {x.id for x in network.blueprint.topology.devices if x.kind == "switch"}
        cables = [x for x in cables if nics & {*x} and switches & {*x}] or cables
    first = cables[run % len(cables)]
    if case in ("cut", "flap", "slow"):
        return [first]
    return [first, draw.choice([cable for cable in cables if cable != first])]


def strike(network: Network, case: str, links: Sequence[tuple[str, str]]) -> float:
    """Cause the faults of a case; return the time of the first, of `both` that of the cut."""
    struck = time.time()
    if case in ("slow", "both"):
        network.scale_rates(*links[0], Fraction(_SLOW))
        time.sleep(_SLOW_S if case == "slow" else _BOTH_S)
        if case == "slow":
            network.scale_rates(*links[0], Fraction(1))
            return struck
        struck = time.time()
        network.cut(*links[1])
        return struck
    network.cut(*links[0])
    if case == "two":
        network.cut(*links[1])
    elif case == "again":
        time.sleep(random.Random(str(links)).uniform(3.0, 6.0))  # detection takes 3 s
        network.cut(*links[1])
    elif case == "flap":
        for pause_s in _FLAP_S:
            time.sleep(pause_s)
            network.mend(*links[0])
            time.sleep(1.0)
            network.cut(*links[0])
    return struck


def judge(
    network: Network,
    texts: Sequence[str],
    struck: float,
    hung: int,
    machine: str,
    program: str,
    case: str,
    run: int,
    seed: int,
    links: Sequence[tuple[str, str]],
) -> Run:
    """Return how a run ended, from what its ranks have printed."""
    said = [
        [json.loads(line) for line in text.splitlines() if line.startswith("{")] for text in texts
    ]
    errors = [next((x["error"] for x in rows if "error" in x), None) for rows in said]
    ends = [next((x for x in rows if "end" in x), None) for rows in said]
    cut = {"slow": [], "both": links[1:]}.get(case, links)
    is_left = is_connected(network.blueprint.topology, cut)
    refused = all(errors) and not is_left
    wrong = 0 if refused else sum(end is None or not end["right"] for end in ends) - hung
    if program != "calls" and not refused and not hung and not wrong:
        wrong = sum(end["hash"] != ends[0]["hash"] for end in ends if end and ends[0])
    times = [x for x in said[0] if "call" in x]
    hit = find_struck(times, struck)
    end = ends[0] or {"recoveries": []}
    if case == "slow":  # the first change of the plan
        begun = next((x["start"] for x in said[0] if "start" in x), 0.0)
        hit = [{"at": begun + x["at"] + x["seconds"]} for x in end["recoveries"][:1]]
    of_bound = None
    if program == "calls" and not refused and case in ("cut", "two", "slow") and hit and times:
        until = struck + _SLOW_S if case == "slow" else float("inf")
        after = [x["seconds"] for x in times if hit[-1]["at"] < x["at"] < until]
        bound = find_bound_GBps(network.blueprint.topology, links, is_slow=case == "slow")
        if case == "cut" and end["recoveries"] and end["recoveries"][-1]["bound_GBps"]:
            # Both are certified, and either search may have ended before its bound was as low.
            planned = end["recoveries"][-1]["bound_GBps"] * float(network.blueprint.scale)
            bound = min(bound, planned)
        if len(after) > 2 and bound:
            numel = numel_of(case)
            of_bound = numel * 4 / statistics.median(after[-5:]) / 1e9 / bound
    return Run(
        machine,
        program,
        case,
        run,
        seed,
        ["-".join(link) for link in links],
        hit[0 if case == "cut" else -1]["at"] - struck if hit else None,
        max((x["seconds"] for x in end["recoveries"]), default=None),
        of_bound,
        max(0, wrong),
        hung,
        refused,
        len(end["recoveries"]),
        [text.strip().splitlines()[-1][-300:] if text.strip() else "(nothing)" for text in texts],
        any(x["kind"] == "recovered" for x in end["recoveries"]) if case == "slow" else None,
    )


def numel_of(case: str) -> int:
    """Return the elements of a call."""
    return _NUMEL_SLOW if case in ("slow", "both") else _NUMEL


def find_struck(calls: Sequence[dict[str, Any]], since: float) -> list[dict[str, Any]]:
    """Return the calls after a moment that took much longer than those before it."""
    before = [x["seconds"] for x in calls if x["at"] <= since]
    limit_s = statistics.median(before or [0.0]) + _HIT_S
    return [x for x in calls if x["at"] > since and x["seconds"] > limit_s]


def is_connected(topology: Topology, links: Sequence[tuple[str, str]]) -> bool:
    """Return whether GPUs can pass data to all others without the links."""
    import networkx as nx

    graph = nx.Graph(list(topology.capacity_GBps))
    graph.remove_edges_from(links)
    return all(nx.has_path(graph, topology.ranks[0], gpu) for gpu in topology.ranks)


def find_bound_GBps(
    topology: Topology, links: Sequence[tuple[str, str]], *, is_slow: bool
) -> float:
    """Return the certified bound of an allreduce on what is left, in GB/s."""
    from planned import synthesize

    from topoplan.synth.ir.collective import collective_on
    from topoplan.topo.derived.degrade import Change, degrade

    named = tuple(f"{a}:{b}" for a, b in links)
    slow = Change(scale_links=tuple(f"{link}={_SLOW}" for link in named))
    left = degrade(topology, slow if is_slow else Change(without_links=named))
    plan = synthesize(collective_on("allreduce", left), left, "auto", 2).plan
    return float(plan.bound_one_way.algbw_GBps)


def _wait_until(logs: Sequence[Path], sign: str) -> None:
    ends = time.monotonic() + _START_S
    while not all(sign in log.read_text() for log in logs):
        if time.monotonic() > ends:
            raise SystemExit(
                "ranks did not start: " + " | ".join(x.read_text()[-500:] for x in logs)
            )
        time.sleep(0.01)


def _await_calls(log: Path, since: float) -> None:
    """Wait until a rank has made some calls after the last one struck since; not for ever.

    The next call begins when all ranks have the sums of the last one, so that calls that go on show
    a cut that struck none.
    """
    ends = time.monotonic() + _AFTER_S
    while time.monotonic() < ends:
        calls = [json.loads(x) for x in _read_lines(log) if x.startswith('{"call"')]
        later = find_struck(calls, since) or [x for x in calls if x["at"] > since][:1]
        if later and calls[-1]["call"] >= later[-1]["call"] + _CALLS_AFTER:
            break
        time.sleep(0.1)


def _stop_training(folder: Path, log: Path) -> None:
    """Let all ranks end their training after the same step."""
    last = max(json.loads(x)["call"] for x in _read_lines(log) if x.startswith('{"call"'))
    (folder / "steps.new").write_text(str(last + _STEPS_MORE))
    (folder / "steps.new").rename(folder / "steps")


def _read_lines(log: Path) -> list[str]:
    """Return the lines of a log that are complete."""
    return log.read_text().rpartition("\n")[0].splitlines()


def say(**values: Any) -> None:
    """Print a line for the benchmark."""
    print(json.dumps(values), flush=True)


def work(program: str, case: str, plan: str, folder: Path) -> int:
    """Join the others and run a program; print how it ended."""
    import torch
    import torch.distributed as dist

    import topoplan

    torch.set_num_threads(1)
    logging.basicConfig(format="%(message)s")
    on_backend = program == "backend"
    options = {"pg_options": topoplan.backend_options(plan, "plan", on_fault="replan")}
    dist.init_process_group(
        "topo" if on_backend else "gloo",
        init_method="env://",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=60),
        **(options if on_backend else {}),
    )
    try:
        option = {} if case == "slow" else {"on_fault": "replan"}
        if case in ("slow", "both"):
            option["on_slow"] = "replan"
        if program == "calls":
            end = make_calls(plan, folder, numel_of(case), option)
        else:
            steps = None if case == "slow" else _STEPS
            end = train(plan, folder, steps, None if on_backend else option)
    except (topoplan.ExecutionError, RuntimeError) as error:
        say(error=str(error))
        return 3
    say(end=True, **end)
    return 0


def meet(folder: Path, number: int, rank: int, size: int) -> None:
    """Wait until all ranks are ready for a call, without the network; not for ever.

    Checking the sums takes them different times, which are not the call's.
    """
    (folder / f"ready-{number}-{rank}").touch()
    ends = time.monotonic() + _MEET_S
    while time.monotonic() < ends:
        if all((folder / f"ready-{number}-{other}").exists() for other in range(size)):
            return
        time.sleep(0.002)


def make_calls(plan: str, folder: Path, numel: int, option: dict[str, str]) -> dict[str, Any]:
    """Make allreduces until rank 0 finds the file `stop`."""
    import torch
    import torch.distributed as dist

    from topoplan import Communicator

    say(start=time.time())
    communicator = Communicator(plan, **option)
    rank, size = dist.get_rank(), dist.get_world_size()
    base, number, right = torch.arange(numel) % 1000, 0, True
    x = torch.empty(numel)  # the same memory for all calls, as a gradient bucket
    while True:
        torch.add(base, rank * (number % 50), out=x)
        # The last element says whether to stop.
        x[-1] = float(rank == 0 and (folder / "stop").exists())
        meet(folder, number, rank, size)
        began = time.time()
        communicator.allreduce(x)
        ended = time.time()
        total = base * size + (number % 50) * size * (size - 1) // 2
        right &= torch.equal(x[:-1].long(), total[:-1])
        if rank == 0:
            say(call=number, at=ended, seconds=ended - began)
        if number == (_MEASURED_CALLS if "on_slow" in option else 2):
            print("ready", flush=True)
        number += 1
        if x[-1] > 0:
            break
    communicator.close()
    return {"right": right, "recoveries": communicator.recoveries}


def train(
    plan: str, folder: Path, steps: int | None, option: dict[str, str] | None
) -> dict[str, Any]:
    """Train a model for some steps, of which the fault may strike each.

    With None, their number comes later, in the file `steps`.
    """
    import hashlib

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import topoplan

    say(start=time.time())
    torch.manual_seed(0)
    rank = dist.get_rank()
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.3)
    hook = None if option is None else topoplan.ddp_hook(plan, choose="plan", **option)
    if hook is not None:
        parallel.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    step = 0
    while steps is None or step < steps:
        numbers = torch.Generator().manual_seed(1000 * step + rank)
        began = time.time()
        optimizer.zero_grad()
        parallel(torch.randn(8, 256, generator=numbers)).square().mean().backward()
        optimizer.step()
        if rank == 0:
            say(call=step, at=time.time(), seconds=time.time() - began)
        if step == (_MEASURED_CALLS if option and "on_slow" in option else 3):
            print("ready", flush=True)
        step += 1
        if steps is None and (folder / "steps").exists():
            steps = int((folder / "steps").read_text())
    parameters = torch.cat([x.detach().flatten() for x in model.parameters()])
    # All ranks have the same bits, as their hashes show.
    right = rank > 0 or torch.allclose(
        parameters, train_alone(dist.get_world_size(), step), rtol=0, atol=1e-6
    )
    if hook is None:
        recoveries = dist.group.WORLD.planned.around.recoveries
        dist.destroy_process_group()
    else:
        recoveries = hook.communicator.recoveries
        hook.communicator.close()
    digest = hashlib.sha256(parameters.numpy().tobytes()).hexdigest()
    return {"right": right, "hash": digest, "recoveries": recoveries}


def train_alone(ranks: int, steps: int) -> Any:
    """Return the parameters after the same steps in one process, the mean of all ranks' losses."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(ranks):
            numbers = torch.Generator().manual_seed(1000 * step + rank)
            loss = model(torch.randn(8, 256, generator=numbers)).square().mean() / ranks
            loss.backward()
        optimizer.step()
    return torch.cat([x.detach().flatten() for x in model.parameters()])


def main() -> None:
    """Carry out the runs that the results file lacks, and print the table."""
    parser = make_parser(__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--machines", nargs="*", choices=MACHINES, default=[*MACHINES])
    parser.add_argument("--programs", nargs="*", choices=PROGRAMS, default=PROGRAMS)
    parser.add_argument("--cases", nargs="*", choices=CASES, default=["cut"])
    parser.add_argument("--runs", type=int, default=12, help="of each machine, program and case")
    parser.add_argument(
        "--no-spares", action="store_true", help="plan for what is left at the fault"
    )
    parser.add_argument("--seconds", type=float, help="begin no run after so many seconds")
    parser.add_argument("--seed", type=int, default=1)
    args, began = parser.parse_args(), time.monotonic()
    from planned import synthesize

    from topoplan.synth.extras.spares.planning import add_spares
    from topoplan.synth.ir.collective import collective_on

    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["topoplan", "topoplan.runtime.communicator", "torch._dynamo", "__main__"]
    )
    runs = []
    if args.results.exists():
        runs = [Run(**json.loads(line)) for line in args.results.read_text().splitlines()]
    done = {(x.machine, x.program, x.case, x.run, x.seed) for x in runs}
    folder = args.results.with_suffix("")
    folder.mkdir(exist_ok=True)
    with args.results.open("a") as file:
        plans = {}
        for machine in args.machines:
            topology = find_machine(machine)
            kind = "" if args.no_spares else "-spares"
            plans[machine] = f"{folder}/{machine.replace(':', '-')}{kind}.json"
            if not Path(plans[machine]).exists():
                plan = synthesize(collective_on("allreduce", topology), topology, "auto", 3).plan
                if not args.no_spares:
                    plan = add_spares(plan, 60)
                plan.save(plans[machine])
        for number in range(args.runs):
            for case in args.cases:
                for machine in args.machines:
                    for program in args.programs:
                        if program not in PROGRAMS_OF.get(case, PROGRAMS):
                            continue
                        if (machine, program, case, number, args.seed) in done:
                            continue
                        if args.seconds and time.monotonic() > began + args.seconds:
                            continue
                        run = carry_out(
                            machine, program, case, number, args.seed, plans[machine], context
                        )
                        runs.append(run)
                        file.write(json.dumps(asdict(run)) + "\n")
                        file.flush()
                        if run.wrong or run.hung or run.refused:
                            print(f"  {run}", file=sys.stderr, flush=True)
    print_table([x for x in runs if x.seed == args.seed], as_json=args.json)


def print_table(runs: Sequence[Run], *, as_json: bool) -> None:
    """Print a row for each machine, program and case."""
    table = Table(COLUMNS, as_json=as_json)
    groups: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in runs:
        groups[run.machine, run.program, run.case].append(run)
    for (machine, program, case), some in groups.items():
        rates = [x.of_bound for x in some if x.of_bound is not None]
        table.add(
            {
                "machine": machine,
                "program": program,
                "case": case,
                "runs": len(some),
                "went_on": sum(x.recoveries > 0 and not x.wrong and not x.hung for x in some),
                "refused": sum(x.refused for x in some),
                "wrong": sum(x.wrong > 0 for x in some),
                "hung": sum(x.hung > 0 for x in some),
                "slowest_s": max((x.seconds for x in some if x.seconds), default=None),
                "slowest_recovery_s": max((x.recovery_s or 0 for x in some), default=None),
                "least_of_bound": min(rates, default=None),
                "median_of_bound": statistics.median(rates) if rates else None,
                "returned": sum(x.returned for x in some) if case == "slow" else None,
            }
        )
    table.end()


if __name__ == "__main__":
    main()
