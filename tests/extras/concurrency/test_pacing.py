"""Programs whose sends wait for their turn: played in random orders, over gloo, and as batches."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from launch import run_joined
from nccl_standin import NcclStandIn

import topoplan
from topoplan.runtime.candidates import Candidate
from topoplan.runtime.compiled import Buffers
from topoplan.runtime.extras.concurrency.pacing import pace
from topoplan.runtime.extras.concurrency.runner import TURNS, Turns
from topoplan.runtime.program.instructions import Await, Exchange, Post, Program
from topoplan.runtime.program.lowering import lower
from topoplan.runtime.ranks.links import Links
from topoplan.runtime.runners.contract import Opening
from topoplan.synth.extras.concurrency.handovers import find_handovers
from topoplan.synth.extras.concurrency.limits import Port, list_ports, parse_limits
from topoplan.synth.ir.collective import CollectiveName
from topoplan.synth.plan import Plan
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.routes import Router

Key = tuple[int, int, int]
CASES = [
    (name, limit)
    for name in ("allreduce", "alltoall", "broadcast")
    for limit in ("gpu=1", "switch=1")
]


def build_box() -> Topology:
    """Two switches under one root, with two GPUs each."""
    ends = [(f"gpu{i}", f"plx{i // 2}") for i in range(4)] + [("plx0", "cpu0"), ("plx1", "cpu0")]
    links = [x for a, b in ends for x in both_directions(Link(a, b, Fraction(1)))]
    devices = [Device(f"gpu{i}") for i in range(4)]
    devices += [Device("plx0", "switch", "pcie"), Device("plx1", "switch", "pcie")]
    return Topology("box", (*devices, Device("cpu0", "cpu")), tuple(links))


@cache
def plan_box(name: str, limit: str) -> Plan:
    return topoplan.synthesize(
        cast(CollectiveName, name), build_box(), constraints={"concurrent": limit}
    )


class Player:
    """Plays the programs of all ranks one action at a time, any that is possible.

    A message is under way from when it is sent until it has arrived.
    """

    def __init__(self, programs: Sequence[Program], watch: Callable[[set[Key]], None]) -> None:
        self.programs, self.watch = programs, watch
        self.at = [0] * len(programs)
        self.posted: list[list[Key]] = [[] for _ in programs]
        self.sent: set[Key] = set()
        self.expected: set[Key] = set()
        self.arrived: set[Key] = set()
        self.open: list[list[Key]] = [[] for _ in programs]

    def play(self, chance: random.Random) -> None:
        while (steps := self.list_steps()) or self.list_arrivals():
            arriving = self.list_arrivals()
            number = chance.randrange(len(steps) + len(arriving))
            if number < len(steps):
                self.step(steps[number])
            else:
                self.arrived.add(arriving[number - len(steps)])
            self.watch(self.sent - self.arrived)
        for rank, program in enumerate(self.programs):
            assert self.at[rank] == len(program.instructions), f"rank {rank} waits for ever"
            assert {*self.posted[rank]} <= self.arrived
        assert self.sent == self.expected == self.arrived

    def list_arrivals(self) -> list[Key]:
        return sorted((self.sent & self.expected) - self.arrived)

    def list_steps(self) -> list[int]:
        return [rank for rank in range(len(self.programs)) if self.may_step(rank)]

    def may_step(self, rank: int) -> bool:
        if not {*self.open[rank]} <= self.arrived:
            return False
        instructions = self.programs[rank].instructions
        if self.at[rank] == len(instructions):
            return False
        now = instructions[self.at[rank]]
        return not isinstance(now, Await) or self.posted[rank][now.post] in self.arrived

    def step(self, rank: int) -> None:
        now = self.programs[rank].instructions[self.at[rank]]
        self.at[rank] += 1
        self.open[rank] = []
        posts = now.posts if isinstance(now, Exchange) else (now,)
        for post in (x for x in posts if isinstance(x, Post)):
            is_sent = post.kind == "send"
            ends = (rank, post.peer) if is_sent else (post.peer, rank)
            key: Key = (*ends, post.number)
            (self.sent if is_sent else self.expected).add(key)
            self.posted[rank].append(key)
            if isinstance(now, Exchange):
                self.open[rank].append(key)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(("name", "limit"), CASES)
def test_limits_hold_however_far_ranks_run_ahead(name: str, limit: str, batched: bool) -> None:
    box = build_box()
    plan = plan_box(name, limit)
    limited, router = parse_limits(limit).find_ports(box), Router(box)
    is_broken_without = False
    for schedule in {entry.schedule: None for entry in plan.entries}:
        plain = [lower(schedule, rank, 64, batched=batched) for rank in range(4)]
        data = {
            (rank, post.peer, post.number)
            for rank, program in enumerate(plain)
            for post in program.posts
            if post.kind == "send"
        }
        most: dict[Port, int] = defaultdict(int)

        def watch(under_way: set[Key], most: dict[Port, int] = most, data: set[Key] = data) -> None:
            now: dict[Port, set[tuple[int, int]]] = defaultdict(set)
            for src, dst, _ in under_way & data:
                route = router.route(src, dst)
                assert route is not None
                for port in list_ports(route, limited):
                    now[port].add((src, dst))
            for port, pairs in now.items():
                most[port] = max(most[port], len(pairs))

        handovers = find_handovers(schedule, box, limited)
        for seed in range(3):
            Player([pace(x, handovers) for x in plain], watch).play(random.Random(seed))
        assert all(most[port] <= limited[port] for port in most), (schedule, dict(most))
        for seed in range(3):
            Player(plain, watch).play(random.Random(seed))
        is_broken_without |= any(most[port] > limited[port] for port in most)
    # The tokens of one ring, or of one transfer after the other, may follow from the data alone.
    assert is_broken_without or name != "alltoall", (
        "the steps alone keep to these limits: the test shows nothing"
    )


@pytest.mark.parametrize(
    ("name", "limit", "mode"), [("allreduce", "switch=1", "plan"), ("alltoall", "gpu=1", "model")]
)
def test_limited_plans_run_over_gloo(name: str, limit: str, mode: str, tmp_path: Path) -> None:
    plan_box(name, limit).save(tmp_path / "plan.json")
    asked = ("-b", "1K", "-e", "64K", "-f", "64", "-n", "1", "-w", "0", "--choose", mode)
    ended = run_joined("topoplan.cli.run", str(tmp_path / "plan.json"), *asked, ranks=4)
    assert all(done.returncode == 0 for done in ended), ended[0].stderr
    assert "# wrong elements: 0" in ended[0].stdout


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limit", ["gpu=1", "switch=1"])
def test_batches_of_words_go_by_nccls_rules(limit: str, seed: int) -> None:
    plan, standin = plan_box("allreduce", limit), NcclStandIn(4)
    tensors = [torch.full((5000,), rank + 0.5) for rank in range(4)]
    for rank, tensor in enumerate(tensors):
        with standin.host_of(rank) as transport:
            runner = TURNS.open(Opening(plan, transport, keeps_bits=False))
            assert isinstance(runner, Turns)
            for entry in plan.entries:
                runner.run(Candidate(entry.schedule), Buffers(5000, tensor, tensor))
    standin.play(seed)
    total = 8.0 * 4 ** (len(plan.entries) - 1)
    assert all(torch.equal(tensor, torch.full((5000,), total)) for tensor in tensors)


def test_the_runner_takes_plans_with_limits_alone() -> None:
    plan, standin = plan_box("allreduce", "gpu=1"), NcclStandIn(4)
    with standin.host_of(0) as transport:
        runner = TURNS.open(Opening(plan, transport, keeps_bits=False))
        assert isinstance(runner, Turns)
        schedule = plan.entries[-1].schedule
        assert runner.takes(schedule)
        assert not runner.takes(replace(schedule, segments=2))
        without = replace(plan, extensions=())
        assert "no limits" in str(TURNS.open(Opening(without, transport, keeps_bits=False)))
        transport.links = cast(Any, OtherOrder())
        assert "another order" in str(TURNS.open(Opening(plan, transport, keeps_bits=False)))


class OtherOrder(Links):
    """Links that play programs in an order of their own, as MPI's."""

    def __init__(self) -> None:
        """Join no ranks."""

    def prepare(self, *args: Any, **options: Any) -> None:
        """See Links."""


def test_an_allreduce_of_few_elements_leaves_no_word_behind() -> None:
    """Pieces without elements are not sent, and tokens go all the same."""
    box = build_box()
    plan = plan_box("alltoall", "switch=1")
    limited = parse_limits("switch=1").find_ports(box)
    for schedule in plan.schedules:
        handovers = find_handovers(schedule, box, limited)
        programs = [pace(lower(schedule, rank, 0), handovers) for rank in range(4)]
        Player(programs, lambda under_way: None).play(random.Random(0))
