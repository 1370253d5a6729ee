"""Message programs split by host: no rank waits for one that waits for it, and the bits stay."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from played import PARTED, PlayedHosts, play
from sample_schedules import SCHEDULES
from thorough import count_examples
from unhurried import make_effort

from topoplan.runtime.extras.shared_memory.parts import Outside, split_by_host
from topoplan.runtime.program.instructions import Post
from topoplan.runtime.program.lowering import lower
from topoplan.synth.ir.collective import Collective
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.request import Request, Send, build_schedule
from topoplan.topo.presets import preset


def check(schedule: Schedule, part: int, seed: int) -> None:
    """Play a schedule with a part or buffer of `part` elements on random hosts, and as messages."""
    draw, n, name = random.Random(seed), schedule.collective.ranks, schedule.collective.name
    numel = part * (n if name in PARTED else 1)
    brings, gets = (
        numel // n if name in names else numel
        for names in (("allgather", "gather"), ("reduce-scatter", "scatter"))
    )
    data = np.random.default_rng(seed)
    inputs = [data.standard_normal(brings).astype(np.float32) for _ in range(n)]
    programs = [lower(schedule, rank, numel) for rank in range(n)]
    hosts = PlayedHosts([draw.randrange(3) for _ in range(n)], draw.choice((1, 2, 7, 50)))
    outputs = [
        play(programs, inputs, name not in PARTED, gets, seed, how, hosts=hosts)
        for how in ("run", "run_within_hosts")
    ]
    for wanted, got in zip(*outputs, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert not any(hosts.pipes.values())


@settings(max_examples=count_examples(15))
@given(
    name=st.sampled_from(list(SCHEDULES)),
    part=st.integers(1, 60),
    cut=st.sampled_from([1, 3]),
    seed=st.integers(0, 10**6),
)
def test_every_schedule_ends_with_the_bits_of_messages(
    name: str, part: int, cut: int, seed: int
) -> None:
    check(replace(SCHEDULES[name], segments=cut), part, seed)


@settings(max_examples=count_examples(25))
@given(ranks=st.integers(3, 7), part=st.integers(1, 60), seed=st.integers(0, 10**6))
def test_no_random_schedule_waits_for_itself(ranks: int, part: int, seed: int) -> None:
    check(build_random(ranks, seed), part, seed)


def build_random(ranks: int, seed: int) -> Schedule:
    """Return an allreduce in which chunks wait for random times at random ranks of random trees."""
    draw, machine = random.Random(seed), preset(f"full:{ranks}")
    request = Request(Collective("allreduce", ranks), machine, make_effort())
    chunks = request.collective.even_chunks(draw.randint(1, 12))
    slack = draw.randint(1, 5)
    sends: list[Send] = []
    for chunk in range(len(chunks)):
        order = draw.sample(range(ranks), ranks)
        came = dict.fromkeys(order, -1)
        for place in range(ranks - 1, 0, -1):
            child, parent = order[place], order[draw.randrange(place)]
            step = came[child] + draw.randint(1, slack)
            came[parent] = max(came[parent], step)
            sends.append((step, child, parent, chunk, "reduce"))
        for place in range(1, ranks):
            child, parent = order[place], order[draw.randrange(place)]
            came[child] = max(came[child], came[parent]) + draw.randint(1, slack)
            sends.append((came[child], parent, child, chunk, "copy"))
    return build_schedule(request, "random", chunks, sends)


def test_messages_to_other_hosts_go_out_before_those_within_the_host() -> None:
    parts = split_by_host(lower(SCHEDULES["direct"], 0, 400), [1, 2])
    posts = [
        x
        for part in parts
        for x in ([part.post] * part.begins if isinstance(part, Outside) else part)
        if isinstance(x, Post) and x.kind == "send"
    ]
    assert [x.peer for x in posts if x.tick == 0] == [3, 4, 1, 2]
