"""Lowering: all ranks' programs, played on numpy arrays over FIFO channels, give the collective's
result for any length.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import has_extra
from played import PARTED, expected, play
from sample_helped import build_helped
from sample_schedules import ALLREDUCES, SCHEDULES
from thorough import count_examples

from topoplan.runtime.program.instructions import (
    Await,
    Divide,
    Exchange,
    Instruction,
    Pack,
    Post,
    Program,
)
from topoplan.runtime.program.lowering import lower
from topoplan.synth.ir.addition_order import is_uniform
from topoplan.synth.ir.collective import COLLECTIVES, Collective
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.ir.transfers import Transfer

WAYS = ["run", "batched", *(["run_in_any_order", "run_in_waves"] if has_extra("mpi") else [])]


def check(
    schedule: Schedule, numel: int, rounds: bool = False, seed: int = 1, averages: bool = False
) -> None:
    name, n, root = (
        schedule.collective.name,
        schedule.collective.ranks,
        schedule.collective.root or 0,
    )
    part = numel // n
    brings = {"allgather": part, "gather": part}.get(name, numel)
    gets = {"reduce-scatter": part, "scatter": part}.get(name, numel)
    data = np.random.default_rng(numel)
    inputs = [data.integers(0, 1000, brings).astype(float) for _ in range(n)]
    programs = [
        lower(schedule, rank, numel, batched=rounds, averages=averages) for rank in range(n)
    ]
    outputs = play(programs, inputs, name not in PARTED, gets, seed)
    for rank, output in enumerate(outputs):
        wanted = expected(name, inputs, rank, root, part)
        if wanted is not None:
            np.testing.assert_array_equal(output, wanted / n if averages else wanted)


@pytest.mark.parametrize("name", SCHEDULES)
@settings(max_examples=count_examples(4))
@given(
    cut=st.sampled_from(["whole", "x3", "/3"]),
    rounds=st.booleans(),
    numel=st.one_of(st.sampled_from([0, 1, 2, 7]), st.integers(8, 3000)),
    seed=st.integers(0, 10**6),
)
def test_programs_compute_the_collective(
    name: str, cut: str, rounds: bool, numel: int, seed: int
) -> None:
    schedule = replace(SCHEDULES[name], segments=1 if cut == "whole" else 3, stepwise=cut == "/3")
    if schedule.collective.name in PARTED:
        numel *= schedule.collective.ranks
    check(schedule, numel, rounds, seed)


@pytest.mark.parametrize("name", ALLREDUCES)
@settings(max_examples=count_examples(3))
@given(
    rounds=st.booleans(),
    numel=st.integers(0, 3000),
    cut=st.sampled_from([1, 3]),
    stepwise=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_averages_are_divided_once_where_sums_are_completed(
    name: str, rounds: bool, numel: int, cut: int, stepwise: bool, seed: int
) -> None:
    schedule = replace(SCHEDULES[name], segments=cut, stepwise=stepwise and cut > 1)
    check(schedule, numel, rounds, seed, averages=True)


@settings(max_examples=count_examples(30))
@given(
    name=st.sampled_from(COLLECTIVES),
    gpus=st.integers(3, 7),
    part=st.integers(0, 60),
    cut=st.sampled_from(["whole", "x3", "/3"]),
    how=st.sampled_from(WAYS),
    averages=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_helpers_relay_and_add(
    name: str, gpus: int, part: int, cut: str, how: str, averages: bool, seed: int
) -> None:
    """Programs of members and of helpers, which have no values of their own."""
    draw = random.Random(seed)
    members = sorted(draw.sample(range(gpus), draw.randint(2, gpus - 1)))
    helpers = [rank for rank in range(gpus) if rank not in members and draw.random() < 0.8]
    root = draw.choice(members) if name in ("broadcast", "reduce", "gather", "scatter") else None
    schedule = build_helped(name, gpus, members, helpers, root, seed)
    schedule = replace(schedule, segments=1 if cut == "whole" else 3, stepwise=cut == "/3")
    n, averages = len(members), averages and name == "allreduce"
    numel = part * n + (0 if name in PARTED else seed % n)
    brings, gets = (
        dict.fromkeys(names, part).get(name, numel)
        for names in (("allgather", "gather"), ("reduce-scatter", "scatter"))
    )
    order = list(schedule.participants)
    programs = [
        number_from_0(
            lower(schedule, rank, numel, batched=how == "batched", averages=averages), order
        )
        for rank in order
    ]
    data = np.random.default_rng(seed)
    inputs = {rank: data.integers(0, 1000, brings).astype(float) for rank in members}
    outputs = play(
        programs,
        [
            inputs.get(rank, np.full(program.work_numel, -1e9))
            for rank, program in zip(order, programs, strict=True)
        ],
        name not in PARTED,
        gets,
        seed,
        "run" if how == "batched" else how,
        n,
    )
    at = members.index(schedule.collective.root or members[0])
    for place, rank in enumerate(members):
        wanted = expected(name, list(inputs.values()), place, at, part)
        if wanted is not None:
            np.testing.assert_allclose(
                outputs[order.index(rank)], wanted / n if averages else wanted
            )


def number_from_0(program: Program, order: list[int]) -> Program:
    """Return a program whose rank and peers are places in `order`."""

    def number(x: Instruction) -> Instruction:
        if isinstance(x, Post):
            return replace(x, peer=order.index(x.peer))
        if isinstance(x, Exchange):
            return Exchange(tuple(replace(post, peer=order.index(post.peer)) for post in x.posts))
        return x

    instructions = tuple(map(number, program.instructions))
    return replace(program, rank=order.index(program.rank), instructions=instructions)


def test_few_ranks_divide_where_few_complete_a_sum() -> None:
    """Around a ring each rank completes its own part: all divide one vector together, not one
    each.
    """
    schedule, numel = SCHEDULES["ring"], 1200
    divided = 0
    for rank in range(schedule.collective.ranks):
        program = lower(schedule, rank, numel, averages=True)
        divided += sum(
            span.length for x in program.instructions if isinstance(x, Divide) for span in x.spans
        )
    assert divided == numel


def test_all_of_a_tick_between_two_ranks_is_one_message() -> None:
    """Halving-doubling sends half the vector first: one message, not one a chunk."""
    program = lower(SCHEDULES["halving-doubling"], 0, 800)
    assert [p.span.length for p in program.posts if p.kind == "send"] == [
        400,
        200,
        100,
        100,
        200,
        400,
    ]
    packed = lower(SCHEDULES["packing"], 0, 4800)
    assert any(isinstance(x, Pack) for x in packed.instructions)
    sends = [(p.peer, p.tick) for p in packed.posts if p.kind == "send"]
    assert len(set(sends)) == len(sends)


def test_a_send_waits_for_nothing_but_its_own_pieces() -> None:
    """A chain of three: the middle rank hands on rank 0's half before it has awaited anything of
    rank 2's.
    """
    collective = Collective("allgather", 3)
    chunks = collective.even_chunks(1)
    rows = (
        Transfer(0, 0, 1, 0),
        Transfer(0, 2, 1, 2),
        Transfer(1, 1, 2, 0),
        Transfer(1, 1, 0, 2),
    )
    schedule = Schedule(collective, "by hand", chunks, rows, (1, 1))  # type: ignore[arg-type]
    program = lower(schedule, 1, 30)
    order = [
        ("await", program.posts[x.post].peer) if isinstance(x, Await) else (x.kind, x.peer)
        for x in program.instructions
        if isinstance(x, (Await, Post))
    ]
    assert order.index(("send", 0)) > order.index(("await", 2))
    first_send, first_await = order.index(("send", 2)), order.index(("await", 0))
    assert first_await < first_send


def test_memory_in_flight_is_bounded() -> None:
    """A pipeline of many segments stages a few of them at a time."""
    whole = lower(SCHEDULES["packing"], 0, 48_000).staging_numel
    cut = lower(replace(SCHEDULES["packing"], segments=64), 0, 48_000).staging_numel
    assert cut < whole / 4


def test_a_dropped_transfer_is_seen_by_this_test() -> None:
    schedule = SCHEDULES["ring"]
    with pytest.raises(AssertionError):
        check(replace(schedule, transfers=schedule.transfers[:-1]), 64)


@pytest.mark.parametrize(
    "name", ["ring", "doubling, 6 ranks", "halving-doubling", "direct", "one-shot", "packing"]
)
def test_classic_schedules_give_all_ranks_the_same_bits(name: str) -> None:
    assert is_uniform(SCHEDULES[name])


def test_different_orders_of_addition_are_seen() -> None:
    """Three ranks: rank 0 adds (0+1)+2, rank 2 adds 0+(1+2)."""
    collective = Collective("allreduce", 3)
    rows = (
        Transfer(0, 1, 0, 0, "reduce"),
        Transfer(0, 1, 2, 0, "reduce"),
        Transfer(1, 2, 1, 0, "copy"),
        Transfer(2, 0, 2, 0, "copy"),
    )
    schedule = Schedule(collective, "by hand", collective.even_chunks(1), rows, (1, 1, 1))  # type: ignore[arg-type]
    assert not is_uniform(schedule)
