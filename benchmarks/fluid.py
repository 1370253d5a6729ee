"""Replay plans in SimGrid, and compare the times with the predicted ones.

    pip install -r benchmarks/requirements.txt       (or Debian's python3-simgrid)
    python -m benchmarks fluid                       18 machines, 4 sizes
    python -m benchmarks fluid --only rome --results fluid.jsonl
    python -m benchmarks fluid --plans plan.json     these plan files instead

SimGrid (https://simgrid.org) knows nothing of topoplan's predictions. Each rank is an actor that
posts all messages of a tick at once, one for each rank that it sends to, and waits for them and for
those that it receives. A message crosses all links of its route at once, and messages that cross a
link at the same time share it equally (max-min). Rates and latencies of links, and the fixed time
of a step, are those of the plan's topology.

"predicted" is the plan's own time in us, "loads" what it would be if each tick lasted as long as
its most loaded link needs. "together" is SimGrid's time if all ranks begin a tick together, as
predictions assume, and "alone" if each rank goes on as soon as its own messages of the last tick
are through, as over NCCL; both are shown over the prediction. "played" is "alone" over what
topoplan predicts where hosts were measured: it plays messages, too (synth/cost/simulate.py), here
with no cost of a host but the fixed time of a step. Recorded machines are those of ../shared, where
it is present. Exit code 1 if "together" or "played" is not within .98 and 1.03.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import Results, Table, make_parser
from single_path import SHARED

from topoplan.synth.cost.host_costs import OVER_NCCL, step_us
from topoplan.synth.cost.segmentation import reroute
from topoplan.synth.cost.simulate import predict_us
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.plan import Plan
from topoplan.synth.planner.api import synthesize
from topoplan.topo.graph import Topology

_XML = SHARED / "machines" / "nccl_xml"
PRESETS = (
    "dgx1", "dgx2", "dgx-a100", "dgx-a100:2", "pcie-2socket", "mesh:4x4", "torus:4x4", "ring:8",
    "hypercube:3", "spark-ring:3", "spark-ring:4", "mac-mesh:4",
)  # fmt: skip
RECORDED = (
    _XML / "rccl/topo_8p_rome.xml",
    _XML / "rccl/topo_8p6l.xml",
    _XML / "rccl/topo_4p3l.xml",
    _XML / "rccl/topo_8p_pcie.xml",
    _XML / "rccl/topo_8p_940.xml",
    _XML / "azure/ncv4-topo.xml",
)
SIZES_MB = (1, 16, 64, 256)
_LEAST, _MOST = 0.98, 1.03
_COLUMNS = (
    ("machine", "machine", "<18"),
    ("MB", "MB", ">4"),
    ("schedule", "schedule", "<18"),
    ("loads_us", "loads", ">10.1f"),
    ("predicted_us", "predicted", ">10.1f"),
    ("replayed_us", "SimGrid", ">10.1f"),
    ("of_loads", "of loads", ">9.3f"),
    ("together", "together", ">9.3f"),
    ("alone", "alone", ">7.3f"),
    ("played", "played", ">7.3f"),
    ("met", "met", "<4"),
)
# SimGrid's seconds are us here, and its bytes bytes, so that its tolerances are far below what is
# compared. CM02 with these settings is max-min sharing alone: no losses to protocols, no traffic
# of acknowledgements, no limit by a window.
_SETTINGS = (
    "network/model:CM02",
    "network/crosstraffic:0",
    "network/TCP-gamma:0",
    "network/bandwidth-factor:1",
    "network/latency-factor:1",
    "network/weight-S:0",
)


def list_messages(schedule: Schedule) -> dict[int, dict[tuple[int, int], float]]:
    """Return the share of the buffer that each message carries, by tick and pair of ranks."""
    messages: dict[int, dict[tuple[int, int], float]] = defaultdict(lambda: defaultdict(float))
    for t in schedule.transfers:
        share = float(schedule.chunks[t.chunk].share) / schedule.segments
        for segment in range(schedule.segments):
            messages[schedule.tick(t.step, segment)][t.src, t.dst] += share
    return messages


def replay(schedule: Schedule, topology: Topology, size_bytes: int, *, together: bool) -> float:
    """Return SimGrid's time of a schedule in us. Its engine exists once in a process.

    `together`: all ranks begin a tick together.
    """
    import simgrid as sg

    settings = (f"--cfg={setting}" for setting in _SETTINGS)
    engine = sg.Engine(["fluid", *settings, "--log=root.thres:error"])
    routes = {(t.src, t.dst): t.route for t in schedule.transfers}
    messages = list_messages(schedule)
    zone = sg.NetZone.create_full_zone("machine")
    hosts = [zone.create_host(name, 1.0) for name in topology.ranks]
    links: dict[tuple[str, str], Any] = {}
    latency_us = {}
    for (src, dst), between in routes.items():
        hops = list(pairwise((topology.ranks[src], *between, topology.ranks[dst])))
        for hop in hops:
            if hop not in links:
                rate = float(topology.capacity_GBps[hop]) * 1e3  # bytes per us
                links[hop] = zone.create_link("-".join(hop), rate).set_latency(0.0).seal()
        latency_us[src, dst] = sum(float(topology.latency_us[hop]) for hop in hops)
        crossed = [sg.LinkInRoute(links[hop]) for hop in hops]
        zone.add_route(hosts[src].netpoint, hosts[dst].netpoint, None, None, crossed, False)
    zone.seal()
    fixed_us = float(step_us(topology))
    everyone = sg.Barrier(len(hosts))

    def act(rank: int) -> None:
        """Carry out a rank's part."""
        for tick in range(schedule.ticks):
            mine = {pair: share for pair, share in messages[tick].items() if rank in pair}
            if together:
                everyone.wait()
            elif not mine:
                continue
            sg.this_actor.sleep_for(fixed_us)
            posted, slots = [], []  # SimGrid writes into the slots, so they must stay
            for (src, dst), share in mine.items():
                mailbox = sg.Mailbox.by_name(f"{tick} {src} {dst}")
                if src == rank:
                    posted.append((0.0, mailbox.put_async("", round(share * size_bytes))))
                else:
                    message, slot = mailbox.get_async()
                    posted.append((latency_us[src, dst], message))
                    slots.append(slot)
            # A message is there one latency after its last byte has left.
            ready = 0.0
            for later_us, message in posted:
                message.wait()
                ready = max(ready, message.finish_time + later_us)
            sg.this_actor.sleep_until(ready)

    for rank in range(len(hosts)):
        sg.Actor.create(str(rank), hosts[rank], act, rank)
    engine.run()
    return float(sg.Engine.clock)


def time_loads_us(schedule: Schedule, topology: Topology, size_bytes: int) -> float:
    """Return the time if each tick lasted as long as its most loaded link needs, in us."""
    paths = {(t.src, t.dst): t.route for t in schedule.transfers}
    total = 0.0
    for sent in list_messages(schedule).values():
        busy: dict[tuple[str, str], float] = defaultdict(float)
        latest = 0.0
        for (src, dst), share in sent.items():
            hops = list(pairwise((topology.ranks[src], *paths[src, dst], topology.ranks[dst])))
            latest = max(latest, sum(float(topology.latency_us[hop]) for hop in hops))
            for hop in hops:
                busy[hop] += share * size_bytes * 1e-3 / float(topology.capacity_GBps[hop])
        total += float(step_us(topology)) + latest + max(busy.values())
    return total


def replay_apart(
    schedule: Schedule, topology: Topology, size_bytes: int, *, together: bool
) -> float:
    """Return SimGrid's time in us from a process of its own, since SimGrid cannot begin again."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def work() -> None:
        theirs.send(replay(schedule, topology, size_bytes, together=together))
        os._exit(0)  # SimGrid's threads do not end by themselves

    process = context.Process(target=work)
    process.start()
    theirs.close()
    try:
        return float(ours.recv())
    finally:
        process.join()


def measure(plan: Plan, size_bytes: int) -> dict[str, Any]:
    """Return the figures of a plan at a size."""
    entry = plan.entry_for(size_bytes)
    schedule = reroute(entry.schedule, plan.router)
    predicted = plan.time_s(entry, size_bytes) * 1e6
    loads = time_loads_us(schedule, plan.topology, size_bytes)
    together, alone = (
        replay_apart(schedule, plan.topology, size_bytes, together=flag) for flag in (True, False)
    )
    host = replace(OVER_NCCL, wake_us=float(step_us(plan.topology)), wire=1.0)
    played = predict_us(schedule, plan.topology, host, size_bytes, batched=True)
    return {
        "schedule": entry.schedule.label,
        "loads_us": loads,
        "predicted_us": predicted,
        "replayed_us": together,
        "of_loads": together / loads,
        "together": together / predicted,
        "alone": alone / predicted,
        "played": alone / played if played else None,
        "met": all(
            _LEAST <= each <= _MOST
            for each in (together / predicted, alone / played if played else 1.0)
        ),
    }


def list_plans(args: Any, is_done: Any) -> Iterator[tuple[str, Plan]]:
    """Yield the plans to replay, by machine; machines that need no more rows are not planned."""
    if args.plans:
        yield from ((Path(file).stem[-18:], Plan.load(file)) for file in args.plans)
        return
    for machine in (*PRESETS, *map(str, RECORDED)):
        name = Path(machine).stem
        if args.only not in name or is_done(name):
            continue
        if name != machine and not Path(machine).exists():
            print(f"{name:<18} skipped: it is not in {SHARED}", file=sys.stderr)
            continue
        yield name, synthesize("allreduce", machine)


def main() -> int:
    """Print the table; return 1 if a prediction is off."""
    parser = make_parser(__doc__)
    parser.add_argument("--only", default="", help="machines whose name contains this")
    parser.add_argument("--plans", nargs="*", default=[], help="plan files instead of machines")
    parser.add_argument("--results", type=Path, help="JSON lines, continued by a second start")
    args = parser.parse_args()
    try:
        import simgrid  # noqa: F401
    except ImportError as error:
        parser.error(f"SimGrid is missing ({error}): pip install -r benchmarks/requirements.txt")
    table = Table(_COLUMNS, as_json=args.json)
    results = Results(args.results, ("machine", "MB"))
    for name, plan in list_plans(
        args, lambda name: all(results.has(machine=name, MB=size) for size in SIZES_MB)
    ):
        for size in SIZES_MB:
            if not results.has(machine=name, MB=size):
                row = {"machine": name, "MB": size, **measure(plan, size * 10**6)}
                results.add(row)
                table.add(row)
    table.end()
    return int(not all(row["met"] for row in results.rows))


if __name__ == "__main__":
    sys.exit(main())
