"""Find, check and train on hosts that cables join, emulated ones.

    python -m benchmarks cables [find] [miscabled] [train] [cut] ...

Emulated hosts without forwarding (topo-emulate --cables), on which nothing knows the machine but
what the ranks find. `find`: the seconds of topo-probe --fabric from its start to the written file,
whether the links are right, and whether the doctor is silent; also Sparks, each of whose connectors
is two interfaces. `miscabled`: twelve faults of cabling and addresses; whether the doctor names the
port and the fault. `train`: DDP with the backend "topo" and no settings, gradients against the sum,
the rate of the allreduce that DDP waits for against bound_one_way, that of backward as a whole, and
what stock gloo does in the same place. `cut`: a cable is cut while DDP trains with a deadline of
15 s; whether the error of every rank names it, and the seconds from the cut to the last error.
--runs is the number of runs of each row, and --seed that of the first, which decides ports and
cables of a fault.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from fractions import Fraction
from itertools import combinations, count
from pathlib import Path
from typing import Any

from harness import Results, Table, make_parser

from topoplan.runtime.extras.emulate.blueprint import parse_rate
from topoplan.runtime.extras.emulate.cabled_network import CabledNetwork, emulate_cabling
from topoplan.runtime.extras.emulate.cabling import CablePlan, Cabling, plan_cabling
from topoplan.runtime.extras.emulate.ranks import start_rank
from topoplan.synth.bounds.single_path import find_bounds
from topoplan.synth.ir.collective import collective_on
from topoplan.topo.extras.cables import find_faults
from topoplan.topo.extras.cables.facts import load_facts
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

PARTS = ("find", "miscabled", "train", "cut")
SIZES_MB = (4, 16)
_COMMAND_s = 120.0
# Races have settled each size by then, and DDP its buckets.
_SETTLED_STEPS, _STEPS = 20, 32
# Stock gloo tries until then to connect ranks that do not reach each other.
_STOCK_s = 10
# Of the cables where one is cut, so that a cut strikes a call; the deadline of calls there, and how
# long DDP trains before.
_CUT_RATE, _CUT_DEADLINE_s, _CUT_AFTER_s = "20Mbit", 15, 3.0


def join(
    name: str, hosts: int, pairs: Sequence[tuple[str, str]], switches: Sequence[str] = ()
) -> Topology:
    """Return hosts h0, h1, ... with a link of 1 GB/s for each pair."""
    devices = [Device(f"h{i}") for i in range(hosts)]
    devices += [Device(switch, "switch", "network") for switch in switches]
    links = [x for a, b in pairs for x in both_directions(Link(a, b, Fraction(1)))]
    return Topology(name, tuple(devices), tuple(links))


def list_machines() -> dict[str, Topology]:
    """Return the machines of the bars."""
    mesh = [(f"h{a}", f"h{b}") for a, b in combinations(range(4), 2)]
    leaves = [(f"h{i}", f"leaf{i // 2}") for i in range(4)]
    leaves += [("leaf0", "spine"), ("leaf1", "spine")]
    return {
        "ring of 3": preset("ring:3"),
        "ring of 4": preset("ring:4"),
        "ring of 6": preset("ring:6"),
        "mesh of 4": join("mesh", 4, mesh),
        "pair, two cables": join("pair", 2, [("h0", "h1"), ("h0", "h1")]),
        "leaf and spine 2:1": join("leaves", 4, leaves, ("leaf0", "leaf1", "spine")),
    }


@dataclass(frozen=True)
class Outcome:
    """What the ranks of a command printed, its start and seconds, and the highest exit code.

    `began_at` is a time of the clock that files have, in seconds.
    """

    printed: list[str]
    began_at: float
    seconds: float
    code: int


def run_ranks(
    network: CabledNetwork, command: Sequence[str], folder: Path, limit_s: float = _COMMAND_s
) -> Outcome:
    """Run a command once per rank, for `limit_s` at most; return what each printed."""
    began, began_at = time.monotonic(), time.time()
    files = [(folder / f"out{rank}").open("w+b") for rank in range(len(network.cabling.seats))]
    ranks = [
        start_rank(network, rank, list(command), folder, output)
        for rank, output in enumerate(files)
    ]
    codes = []
    for rank in ranks:
        try:
            codes.append(rank.wait(max(0.1, began + limit_s - time.monotonic())))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()
            codes.append(124)
    seconds = time.monotonic() - began
    printed = []
    for file in files:
        file.seek(0)
        printed.append(file.read().decode(errors="replace"))
        file.close()
    return Outcome(printed, began_at, seconds, max(abs(code) for code in codes))


def probe(plan: Cabling, folder: Path) -> tuple[Outcome, Topology | None]:
    """Run topo-probe --fabric on an emulated machine; return its outcome and what it wrote."""
    written = folder / "found.json"
    written.unlink(missing_ok=True)
    command = [sys.executable, "-m", "topoplan.cli.probe", "--fabric", "-o", str(written)]
    with emulate_cabling(plan) as network:
        name_connectors(network)
        outcome = run_ranks(network, command, folder)
    return outcome, Topology.load(written) if written.exists() else None


# Sparks: a connector is a bridge, which two of its host's ports lead to, and the cable. Rates are
# those of a PCIe link and of the cable, whose sum and minimum are far enough from the cable's.
_PCIE, _CABLE = Fraction(1), Fraction(4, 3)


def join_sparks(name: str, cables: Sequence[tuple[str, str]]) -> Topology:
    """Return Sparks h0, h1, ... with cables between their connectors, such as h0-nic0."""
    nics = sorted({nic for cable in cables for nic in cable})
    hosts = sorted({nic.partition("-")[0] for nic in nics})
    links = [Link(nic.partition("-")[0], nic, _PCIE) for nic in nics for _ in range(2)]
    links += [Link(*cable, _CABLE) for cable in cables]
    return Topology(
        name,
        (*map(Device, hosts), *(Device(nic, "switch", "network") for nic in nics)),
        tuple(x for link in links for x in both_directions(link)),
    )


def address_sparks(topology: Topology, name_subnet: Callable[[int, int], str]) -> Cabling:
    """Return the plan of `join_sparks`, with subnets named by the cable and the PCIe link."""
    plan = plan_cabling(topology)
    nics = [x for x in plan.cables if x.a.device >= len(plan.hosts)]
    number_of = {port.device: i for i, x in enumerate(nics) for port in (x.a, x.b)}
    links: Counter[int] = Counter()
    cables = []
    for last, cable in enumerate(plan.cables, start=1):
        if cable.a.device < len(plan.hosts):
            nic = cable.b.device
            address = name_subnet(number_of[nic], links[nic]).format(last)
            links[nic] += 1
            cable = replace(cable, a=replace(cable.a, address=address))
        cables.append(cable)
    return replace(plan, cables=tuple(cables))


def follow_playbook(cable: int, link: int) -> str:
    """Return a subnet of its own for each cable and PCIe link."""
    return f"192.168.{100 + 2 * cable + link}.{{}}/24"


def use_link_local(cable: int, link: int) -> str:
    """Return the subnet of addresses that ports give themselves, for all cables and links."""
    return "169.254.7.{}/16"


def name_connectors(network: CabledNetwork) -> None:
    """Let each host's /sys say which ports share a connector, as a ConnectX's driver does."""
    plan = network.cabling
    for host in range(len(plan.hosts)):
        leads_to = {
            x.a.name: x.b.device
            for x in plan.cables
            if x.a.device == host and x.b.device >= len(plan.hosts)
        }
        if max(Counter(leads_to.values()).values(), default=0) < 2:
            continue
        # Else hosts answer for one port over the other, and rates depend on which was first.
        arp = "/proc/sys/net/ipv4/conf/all/arp_"
        lines = [f"echo 1 > {arp}ignore; echo 2 > {arp}announce", "mount -t tmpfs tmpfs /sys/class"]
        for port in (*leads_to, "mgmt0"):
            folder = f"/sys/class/net/{port}"
            own = f"/sys/devices/virtual/net/{port}"
            files = " ".join(f"{own}/{x}" for x in ("type", "ifindex", "flags", "carrier", "mtu"))
            lines.append(f"mkdir -p {folder}; ln -s {files} {folder}")
        for port, device in leads_to.items():
            lines.append(f"echo 4bb00000fb98 > /sys/class/net/{port}/phys_switch_id")
            lines.append(f"echo p{device} > /sys/class/net/{port}/phys_port_name")
        command = [*network.enter(host), "sh", "-e", "-s"]
        subprocess.run(command, input="\n".join(lines), text=True, check=True)


def list_sparks() -> dict[str, tuple[Cabling, Topology]]:
    """Return Sparks with the addresses of NVIDIA's playbooks, and what is to be found."""
    ring = [(f"h{i}-nic0", f"h{(i + 1) % 3}-nic1") for i in range(3)]
    pair = [("h0-nic0", "h1-nic0")]
    return {
        name: (
            address_sparks(join_sparks(name, cables), follow_playbook),
            join(name, hosts, [(a.partition("-")[0], b.partition("-")[0]) for a, b in cables]),
        )
        for name, hosts, cables in (("pair of Sparks", 2, pair), ("ring of 3 Sparks", 3, ring))
    }


def count_links(topology: Topology) -> Counter[tuple[str, ...]]:
    """Return how many links there are between each two kinds of devices, by rates as ratios."""
    slowest = min(x.bandwidth_GBps for x in topology.links)
    number = {gpu: f"rank{i}" for i, gpu in enumerate(topology.ranks)}
    return Counter(
        (
            number.get(x.src, "switch"),
            number.get(x.dst, "switch"),
            f"{float(x.bandwidth_GBps / slowest):.1f}",
        )
        for x in topology.links
        for _ in range(x.count)
    )


def find(plan: Cabling, topology: Topology, folder: Path) -> dict[str, Any]:
    """Find a machine that is cabled rightly; `rate` is that of its fastest link."""
    outcome, found = probe(plan, folder)
    written = folder / "found.json"
    seconds = outcome.seconds if found is None else written.stat().st_mtime - outcome.began_at
    facts = None if found is None else load_facts(found.extra, topology.name)
    rate = max(x.bandwidth_GBps for x in plan.topology.links)
    return {
        "seconds": round(seconds, 2),
        "right": found is not None and count_links(found) == count_links(topology),
        "rate": None
        if found is None
        else round(float(max(x.bandwidth_GBps for x in found.links) / rate), 3),
        "alarms": -1 if facts is None else len(find_faults(facts)),
    }


# Miscablings. Each returns the machine with the fault, words of the finding, and whether hosts
# reach each other through the management network.

Miscabled = tuple[Cabling, tuple[str, ...], bool]


def change(plan: Cabling, **changed: Any) -> Cabling:
    """Return a machine with some cables changed: by number, `cable0` and so on."""
    cables = list(plan.cables)
    for name, cable in changed.items():
        cables[int(name.removeprefix("cable"))] = cable
    return replace(plan, cables=tuple(cables))


def name_port(plan: Cabling, port: Any) -> str:
    """Return a port as the doctor writes it."""
    return f"{plan.hosts[port.device]}:{port.name}"


def cross(draw: random.Random) -> Miscabled:
    """Cross the cables of equal port numbers between two hosts.

    There is one way, so `draw` is not used.
    """
    plan = plan_cabling(list_machines()["pair, two cables"])
    one, two = plan.cables
    crossed = change(plan, cable0=replace(one, b=two.b), cable1=replace(two, b=one.b))
    return crossed, (name_port(plan, one.a), "are crossed"), False


def deafen(draw: random.Random) -> Miscabled:
    """Let nothing pass in one direction of a cable."""
    plan = plan_cabling(preset("ring:4"))
    number = draw.randrange(4)
    cable = plan.cables[number]
    ends = (cable.a, cable.b)
    side = draw.choice(("rate_ab", "rate_ba"))
    broken = change(plan, **{f"cable{number}": replace(cable, **{side: None})})
    return broken, (name_port(plan, ends[side == "rate_ba"]), "one direction only"), False


def need_management(draw: random.Random) -> Miscabled:
    """Unplug both cables of a host, which then is only in the management network."""
    plan = plan_cabling(preset("ring:3"))
    host = draw.randrange(3)
    left = tuple(x for x in plan.cables if host not in (x.a.device, x.b.device))
    return (
        replace(plan, cables=left),
        (f"{plan.hosts[host]}:mgmt0", "management network has to carry data"),
        True,
    )


def slow_down(draw: random.Random) -> Miscabled:
    """Give one cable a quarter of the others' rate."""
    plan = plan_cabling(preset("ring:4"))
    number = draw.randrange(4)
    cable = plan.cables[number]
    assert cable.rate_ab is not None
    slow = cable.rate_ab // 4
    broken = change(plan, **{f"cable{number}": replace(cable, rate_ab=slow, rate_ba=slow)})
    return broken, (name_port(plan, cable.a), "others of its kind"), False


def shrink_packets(draw: random.Random) -> Miscabled:
    """Give one end of a cable another MTU."""
    plan = plan_cabling(preset("ring:4"))
    number = draw.randrange(4)
    cable = plan.cables[number]
    broken = change(plan, **{f"cable{number}": replace(cable, b=replace(cable.b, mtu=1500))})
    return broken, (name_port(plan, cable.b), "MTU differs"), False


def share_subnet(draw: random.Random) -> Miscabled:
    """Put both cables between two hosts into one subnet.

    There is one way, so `draw` is not used.
    """
    plan = plan_cabling(list_machines()["pair, two cables"])
    two = plan.cables[1]
    moved = replace(
        two, a=replace(two.a, address="10.130.0.3/24"), b=replace(two.b, address="10.130.0.4/24")
    )
    return change(plan, cable1=moved), (name_port(plan, two.a), "cables between two hosts"), False


def crowd_subnet(draw: random.Random) -> Miscabled:
    """Put both interfaces of each Spark's connector into one subnet, with no names for it.

    There is one way, so `draw` is not used.
    """
    plan = address_sparks(join_sparks("pair", [("h0-nic0", "h1-nic0")]), use_link_local)
    return plan, ("h0:port0, h0:port1, h1:port0, h1:port1: on one cable", "/24 at h0:port"), False


def share_link_local(draw: random.Random) -> Miscabled:
    """Let all interfaces of three Sparks in a ring give themselves addresses.

    There is one way, so `draw` is not used.
    """
    ring = [(f"h{i}-nic0", f"h{(i + 1) % 3}-nic1") for i in range(3)]
    plan = address_sparks(join_sparks("ring", ring), use_link_local)
    return plan, ("169.254.0.0/16 is used on 3 cables", "192.168.100.1/24 at h"), False


def isolate(draw: random.Random) -> Miscabled:
    """Let nothing pass over both cables of a host."""
    plan = plan_cabling(preset("ring:4"))
    host = draw.randrange(4)
    cables = tuple(
        replace(x, rate_ab=None, rate_ba=None) if host in (x.a.device, x.b.device) else x
        for x in plan.cables
    )
    return replace(plan, cables=cables), (f"{plan.hosts[host]}:port0", "is alone"), False


def repeat_subnet(draw: random.Random) -> Miscabled:
    """Use the subnet of one cable on another one, between other hosts."""
    plan = plan_cabling(preset("ring:4"))
    one, two = _draw_apart(plan, draw)
    cable = plan.cables[two]
    first = plan.cables[one].a.address.rpartition(".")[0]
    moved = replace(
        cable,
        a=replace(cable.a, address=f"{first}.3/24"),
        b=replace(cable.b, address=f"{first}.4/24"),
    )
    ports = name_port(plan, cable.a), name_port(plan, plan.cables[one].a)
    return change(plan, **{f"cable{two}": moved}), (*ports, "is used on 2 cables"), False


def answer_for_another(draw: random.Random) -> Miscabled:
    """Lead a cable to a host that has the address of the right one."""
    plan = plan_cabling(preset("ring:4"))
    one, two = _draw_apart(plan, draw)
    x, y = plan.cables[one], plan.cables[two]
    swapped = change(
        plan,
        **{
            f"cable{one}": replace(x, b=replace(y.b, address=x.b.address)),
            f"cable{two}": replace(y, b=x.b),
        },
    )
    return swapped, (f"{name_port(plan, x.b)}: its address", "answers from"), False


def mislead(draw: random.Random) -> Miscabled:
    """Swap the ends of two cables between four hosts."""
    plan = plan_cabling(preset("ring:4"))
    one, two = _draw_apart(plan, draw)
    x, y = plan.cables[one], plan.cables[two]
    swapped = change(plan, **{f"cable{one}": replace(x, b=y.b), f"cable{two}": replace(y, b=x.b)})
    return swapped, (f"{name_port(plan, x.a)}: its cable leads to {name_port(plan, y.b)}",), False


def _draw_apart(plan: Cabling, draw: random.Random) -> tuple[int, int]:
    """Return the numbers of two cables without a host in common."""

    def hosts(cable: CablePlan) -> set[int]:
        return {cable.a.device, cable.b.device}

    apart = [
        (i, j)
        for i, j in combinations(range(len(plan.cables)), 2)
        if not hosts(plan.cables[i]) & hosts(plan.cables[j])
    ]
    return draw.choice(apart)


FAULTS: dict[str, Callable[[random.Random], Miscabled]] = {
    "ports crossed": cross,
    "one direction only": deafen,
    "management used for data": need_management,
    "a slow cable": slow_down,
    "another MTU": shrink_packets,
    "one subnet, two cables": share_subnet,
    "one subnet, two interfaces": crowd_subnet,
    "link-local everywhere": share_link_local,
    "a rank alone": isolate,
    "a subnet used twice": repeat_subnet,
    "another host answers": answer_for_another,
    "a cable to another host": mislead,
}


def miscable(name: str, run: int, folder: Path) -> dict[str, Any]:
    """Find a machine with a fault, and look for the fault in what the doctor prints."""
    plan, words, opens = FAULTS[name](random.Random(run))
    command = [sys.executable, "-m", "topoplan.cli.probe", "--fabric", "--check"]
    with emulate_cabling(plan, opens_management=opens) as network:
        outcome = run_ranks(network, command, folder)
    printed = " ".join(" ".join(outcome.printed).split())
    return {
        "seconds": round(outcome.seconds, 2),
        "right": all(word in printed for word in words),
        "printed": printed[:400],
    }


def train(topology: Topology, size: int, slowest: str | None, folder: Path) -> dict[str, Any]:
    """Train by DDP with the backend "topo", and then with gloo in the same network."""
    plan = plan_cabling(topology, None if slowest is None else parse_rate(slowest))
    collective = collective_on("allreduce", plan.topology)
    bound = find_bounds(collective, Router(plan.topology)).single_path.algbw_GBps
    command = [sys.executable, str(Path(__file__).resolve()), "rank", "--size", str(size)]
    with emulate_cabling(plan) as network:
        outcome = run_ranks(network, [*command, "--backend", "topo"], folder)
        # gloo's rank 0 may wait for the others to connect beyond its timeout.
        limit_s = outcome.seconds + _STOCK_s
        stock = run_ranks(network, [*command, "--backend", "gloo"], folder, limit_s)
    row = {
        "seconds": round(outcome.seconds, 2),
        "right": outcome.code == 0,
        "size": size,
        "slowest": slowest,
        "load": os.getloadavg()[0],
    }
    lines = [line for line in outcome.printed[0].splitlines() if line.startswith("{")]
    if lines:
        measured = json.loads(lines[-1])
        row |= {
            "rate": round(size / measured["allreduce_s"] / 1e9 / float(bound), 3),
            "of_found": round(size / measured["allreduce_s"] / 1e9 / measured["bound_GBps"], 3),
            "backward": round(size / measured["backward_s"] / 1e9 / float(bound), 3),
            "plan": measured["plan"],
            "raced_us": measured["raced_us"],
        }
    row["right"] = row["right"] and bool(lines)
    errors = [" ".join(text.split())[-160:] for text in stock.printed if "Error" in text]
    row["stock"] = (
        "starts" if stock.code == 0 else errors[0] if errors else f"no end in {limit_s:.0f} s"
    )
    if not row["right"]:
        row["printed"] = " ".join(" ".join(outcome.printed).split())[-600:]
    return row


def cut(topology: Topology, run: int, folder: Path) -> dict[str, Any]:
    """Cut a cable while DDP trains, and see what the ranks say."""
    plan = plan_cabling(topology, parse_rate(_CUT_RATE))
    ends = random.Random(run).choice([(x.a.device, x.b.device) for x in plan.cables])
    a, b = (plan.topology.devices[number].id for number in ends)
    command = [sys.executable, str(Path(__file__).resolve()), "rank", "--size", str(1 << 20)]
    cut_at: list[float] = []

    def cut_later() -> None:
        printed = folder / "out0"
        while not (printed.exists() and "trains" in printed.read_text(errors="replace")):
            time.sleep(0.1)
        time.sleep(_CUT_AFTER_s)
        network.cut(a, b)
        cut_at.append(time.monotonic())

    with emulate_cabling(plan) as network:
        threading.Thread(target=cut_later, daemon=True).start()
        outcome = run_ranks(network, [*command, "--backend", "topo", "--until-cut"], folder)
    # Ranks name what carries nothing: "link a -> b" or "link a - b".
    names = [f"link {x} {sign} {y} " for x, y in ((a, b), (b, a)) for sign in ("->", "-")]
    named = [any(name in text for name in names) for text in outcome.printed]
    failed_at = [
        json.loads(line)["failed_at"]
        for text in outcome.printed
        for line in text.splitlines()
        if line.startswith('{"failed_at"')
    ]
    seconds = round(max(failed_at) - cut_at[0], 2) if failed_at and cut_at else None
    return {
        "seconds": seconds,
        "right": all(named) and seconds is not None and seconds <= _CUT_DEADLINE_s,
        "cable": f"{a} - {b}",
        "printed": " ".join(" ".join(text.split())[-1500:] for text in outcome.printed),
    }


def be_rank(args: argparse.Namespace) -> None:
    """Train one parameter of `size` bytes for some steps, and print the time of a step."""
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    import topoplan.runtime.register  # noqa: F401

    usual_s = _STOCK_s if args.backend == "gloo" else 120
    timeout = timedelta(seconds=_CUT_DEADLINE_s if args.until_cut else usual_s)
    dist.init_process_group(args.backend, timeout=timeout)
    rank, ranks = dist.get_rank(), dist.get_world_size()

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(args.size // 4))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return (self.weight * inputs).sum()

    model = Model()
    trained = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1024)
    rows = [torch.arange(args.size // 4).remainder(97).float() + r for r in range(ranks)]
    expected, times, calls = sum(rows) / ranks, [], []

    def average(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        began = time.perf_counter()
        done = allreduce_hook(dist.group.WORLD, bucket)

        def end(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            calls.append(time.perf_counter() - began)
            return future.value()

        return done.then(end)

    trained.register_comm_hook(None, lambda _, bucket: average(bucket))
    if args.until_cut:
        trained(rows[rank]).backward()
        print("trains", flush=True)
    for _ in count() if args.until_cut else range(_STEPS):
        trained.zero_grad()
        loss = trained(rows[rank])
        if not args.until_cut:
            dist.barrier()
        began = time.perf_counter()
        try:
            loss.backward()
        except RuntimeError:
            print(json.dumps({"failed_at": time.monotonic()}), flush=True)
            raise
        times.append(time.perf_counter() - began)
        assert model.weight.grad is not None
        if not torch.allclose(model.weight.grad, expected):
            sys.exit("wrong gradients")
    if args.backend == "topo":
        plans = [x for x in dist.group.WORLD.communicators.values() if x is not None]
        one = next(x for x in plans if x.plan.collective.name == "allreduce")
        choice = one.choice(args.size)
        print(
            json.dumps(
                {
                    "allreduce_s": statistics.median(calls[_SETTLED_STEPS:]),
                    "backward_s": statistics.median(times[_SETTLED_STEPS:]),
                    "bound_GBps": float(one.plan.bound_one_way.algbw_GBps),
                    "plan": str(choice and choice.label),
                    "raced_us": {k: round(v) for k, v in choice.raced.items()} if choice else {},
                }
            ),
            flush=True,
        )
    dist.destroy_process_group()


def main() -> None:
    """Run the parts that were named."""
    if sys.argv[1:2] == ["rank"]:
        parser = argparse.ArgumentParser()
        parser.add_argument("--backend")
        parser.add_argument("--size", type=int)
        parser.add_argument("--until-cut", action="store_true")
        be_rank(parser.parse_args(sys.argv[2:]))
        return
    parser = make_parser(__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--seed", type=int, default=1, help="number of the first run")
    parser.add_argument("--runs", type=int, default=1, help="runs of each row (default: 1)")
    parser.add_argument("--results", type=Path, help="JSON lines, continued by a second start")
    parser.add_argument("--size", type=int, action="append", help="MB; default: 4 and 16")
    parser.add_argument(
        "--slowest", help="rate of the slowest cable in training, such as 40Mbit; see topo-emulate"
    )
    parser.add_argument("--only", default="", help="rows whose names contain this")
    args = parser.parse_args()
    results = Results(args.results, ("part", "name", "run"))
    columns = [
        ("part", "part", "<10"),
        ("name", "machine or fault", "<26"),
        ("run", "run", ">3d"),
        ("seconds", "s", ">7.2f"),
        ("right", "right", ">5"),
        ("alarms", "alarms", ">6d"),
        ("rate", "rate", ">6.3f"),
        ("of_found", "found", ">6.3f"),
        ("backward", "step", ">6.3f"),
    ]
    table = Table(columns, as_json=args.json)
    for part, name, run, measure in list_jobs(args):
        if args.only not in name or results.has(part=part, name=name, run=run):
            continue
        with tempfile.TemporaryDirectory(prefix="topoplan-") as folder:
            row = {"part": part, "name": name, "run": run, **measure(Path(folder))}
        results.add(row)
        table.add(row, "" if row["right"] else row.get("printed", ""))
    table.end()


def list_jobs(
    args: argparse.Namespace,
) -> Iterator[tuple[str, str, int, Callable[[Path], dict[str, Any]]]]:
    """Yield part, name and number of each run, and the function that makes it."""
    parts = args.parts or PARTS
    for run in range(args.seed, args.seed + args.runs):
        for name, topology in list_machines().items():
            if "find" in parts:
                yield (
                    "find",
                    name,
                    run,
                    lambda folder, t=topology: find(plan_cabling(t), t, folder),
                )
            for size in args.size or SIZES_MB if "train" in parts else ():
                yield (
                    "train",
                    f"{name}, {size} MB" + (f", {args.slowest}" if args.slowest else ""),
                    run,
                    lambda folder, t=topology, s=size: train(t, s << 20, args.slowest, folder),
                )
            if "cut" in parts and name.startswith(("ring", "mesh")):
                yield "cut", name, run, lambda folder, t=topology, r=run: cut(t, r, folder)
        for name, (plan, topology) in list_sparks().items() if "find" in parts else ():
            yield "find", name, run, lambda folder, p=plan, t=topology: find(p, t, folder)
        for name in FAULTS:
            if "miscabled" in parts:
                yield (
                    "miscabled",
                    name,
                    run,
                    lambda folder, n=name, r=run: miscable(n, r, folder),
                )


if __name__ == "__main__":
    main()
