"""The executor's way over NCCL, on a stand-in with NCCL's rules (nccl_standin.py): every strategy's
programs on random machines, and faults that the stand-in must find.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from nccl_standin import NcclError, NcclStandIn
from needs import long_cases
from played import PARTED, expected
from random_graphs import graphs, on
from sample_helped import build_helped
from unhurried import make_effort

from topoplan.runtime import compiled
from topoplan.runtime.candidates import Candidate
from topoplan.runtime.compiled import NCCL_BATCH, Buffers, make_bindings
from topoplan.runtime.dispatcher import Dispatcher
from topoplan.runtime.policy import Policy
from topoplan.runtime.program.instructions import (
    Combine,
    Exchange,
    Instruction,
    Post,
    Program,
    Span,
)
from topoplan.runtime.program.layout import ends_numel
from topoplan.runtime.program.lowering import lower
from topoplan.runtime.ranks.transport import Transport
from topoplan.runtime.runners.programs import Messages
from topoplan.synth.ir.collective import COLLECTIVES, Collective
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.ir.transfers import Transfer
from topoplan.synth.plan import Plan
from topoplan.synth.request import Request
from topoplan.synth.strategies.built_in import STRATEGIES
from topoplan.topo.errors import InfeasibleError
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.presets import preset

DTYPES = (torch.float32, torch.float64, torch.int64, torch.int16, torch.uint8)


@st.composite
def boxes(draw: st.DrawFn) -> Topology:
    """Two or three equal boxes, each around a switch, which a slower network joins."""
    count, gpus = draw(st.integers(2, 3)), draw(st.integers(1, 2))
    fast, slow = draw(st.integers(3, 9)), draw(st.integers(1, 2))
    names = [[f"b{b}g{i}" for i in range(gpus + 1)] for b in range(count)]
    devices = [Device("net", "switch", family="network")]
    links = []
    for b, members in enumerate(names):
        devices += [Device(f"b{b}s", "switch"), *(Device(name, "gpu") for name in members)]
        links += [Link(name, f"b{b}s", Fraction(fast)) for name in members]
        links.append(Link(f"b{b}s", "net", Fraction(slow)))
    return Topology(
        "boxes", tuple(devices), tuple(way for link in links for way in both_directions(link))
    )


def machines(strategy: str) -> st.SearchStrategy[Topology]:
    """Random machines on which a strategy has schedules often enough."""
    if strategy == "exact":
        return graphs(most=3, two_way=False)
    if strategy == "hierarchical":
        return boxes()
    if strategy in ("packing", "greedy"):
        return graphs(most=4, two_way=False, switches=1 if strategy == "packing" else 0)
    switches = st.sampled_from(["switch:5", "switch:2", "switch:3", "switch:8"]).map(preset)
    return st.one_of(switches, boxes(), graphs(most=5, switches=2))


def make_inputs(schedule: Schedule, numel: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Small whole numbers for each rank: all sums are exact."""
    made = torch.Generator().manual_seed(numel)
    ranks, brings_part = (
        schedule.collective.ranks,
        schedule.collective.name in ("allgather", "gather"),
    )
    brings = numel // ranks if brings_part else numel
    return [torch.randint(0, 20, (brings,), generator=made).to(dtype) for _ in range(ranks)]


def check_outputs(
    schedule: Schedule, numel: int, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
) -> None:
    name, n, root = (
        schedule.collective.name,
        schedule.collective.ranks,
        schedule.collective.root or 0,
    )
    arrays = [x.numpy() for x in inputs]
    for rank, output in enumerate(outputs):
        wanted = expected(name, arrays, rank, root, numel // n)
        if wanted is not None:
            assert torch.equal(output, torch.from_numpy(wanted).to(output.dtype)), (
                f"{schedule.label}: rank {rank}"
            )


def play(
    calls: Sequence[tuple[Schedule, int]],
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    most: int = NCCL_BATCH,
) -> NcclStandIn:
    """Make calls, all in flight at once, over one transport by the product's executor, and check
    what they end with.
    """
    ranks = calls[0][0].collective.ranks
    standin = NcclStandIn(ranks, most)
    inputs = [make_inputs(schedule, numel, dtype) for schedule, numel in calls]
    outputs: list[list[torch.Tensor]] = [[] for _ in calls]
    for rank in range(ranks):
        sender = None
        for number, (schedule, numel) in enumerate(calls):
            source = inputs[number][rank]
            if schedule.collective.name in PARTED:
                target = source.new_zeros(ends_numel(schedule.collective, rank, numel)[1])
            else:
                source = target = source.clone()
            outputs[number].append(target)
            with standin.host_of(rank) as transport:
                sender = sender or Messages(transport, None)
                sender.run(Candidate(schedule), Buffers(numel, source, target))
    standin.play(seed)
    for (schedule, numel), brought, ended in zip(calls, inputs, outputs, strict=True):
        check_outputs(schedule, numel, brought, ended)
    return standin


def build(strategy: str, topology: Topology, collective: str) -> list[Schedule]:
    """Return a strategy's schedules, each once whatever its segments; none where it has none."""
    with suppress(InfeasibleError):
        found = STRATEGIES[strategy](
            Request(on(collective, topology), topology, make_effort(), quick=True)
        )
        return list(dict.fromkeys(schedule.uncut for schedule in found))
    return []


# Each kind of program has a shorter case.
LONG = (
    "chains",
    "double-tree",
    "exact",
    "halving-doubling",
    "parameter-server",
    "recursive-doubling",
)


@pytest.mark.parametrize("strategy", long_cases(STRATEGIES, *LONG))
def test_every_program_is_right_by_nccls_rules(strategy: str) -> None:
    played = set()

    most = settings().max_examples // {"exact": 60}.get(strategy, 30)

    @settings(max_examples=most, phases=[Phase.generate])  # a failure is small already
    @given(topology=machines(strategy), data=st.data())
    def play_all(topology: Topology, data: st.DataObject) -> None:
        ranks = len(topology.ranks)
        for collective in COLLECTIVES:
            for schedule in build(strategy, topology, collective):
                cut = data.draw(st.sampled_from([(3, False), (1, False), (3, True)]))
                numel = data.draw(st.sampled_from([57, 130, 7, 1, 0])) * (
                    ranks if collective in PARTED else 1
                )
                dtype = data.draw(st.sampled_from(DTYPES))
                play(
                    [(replace(schedule, segments=cut[0], stepwise=cut[1]), numel)],
                    dtype,
                    data.draw(st.integers(0, 99)),
                )
                played.add(collective)

    play_all()
    assert "allreduce" in played


def ring() -> Schedule:
    """An allreduce around four ranks, one way, written here: what is said of its faults depends on
    no strategy.
    """
    collective = Collective("allreduce", 4)
    rows = tuple(
        Transfer(step, rank, (rank + 1) % 4, (rank - step) % 4, "reduce" if step < 3 else "copy")
        for step in range(6)
        for rank in range(4)
    )
    return Schedule(collective, "by hand", collective.even_chunks(4), rows, (Fraction(1),) * 6)  # type: ignore[arg-type]


def test_calls_of_several_programs_may_be_in_flight_at_once() -> None:
    """Hosts run ahead of the streams: rank 0 has made all calls before rank 3 makes its first."""
    halves = [
        (build("ring", preset("ring:4"), name)[0], 64) for name in ("allgather", "reduce-scatter")
    ]
    whole = replace(ring(), segments=5)
    for seed in range(3):
        play([(whole, 100), *halves, (ring(), 7), (whole, 100)], torch.int64, seed)


def test_a_tensor_that_comes_again_is_reduced_again() -> None:
    """All calls run on the tensor itself, each reduction by a program of its own."""
    standin, schedule = NcclStandIn(4), replace(ring(), segments=3)
    tensors = [torch.full((50,), float(rank)) for rank in range(4)]
    for rank, tensor in enumerate(tensors):
        with standin.host_of(rank) as transport:
            sender = Messages(transport, None)
            bindings = make_bindings(tensor)
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG, dist.ReduceOp.SUM):
                sender.run(Candidate(schedule), Buffers(50, tensor, tensor, op, None, bindings))
    standin.play()
    assert all(torch.equal(tensor, torch.full((50,), 24.0)) for tensor in tensors)


@pytest.mark.parametrize("seed", range(4))
def test_calls_on_two_streams_share_their_buffers_in_turn(seed: int) -> None:
    """A user who overlaps calls on streams of their own waits for neither: the buffers are the
    executor's.
    """
    standin, schedule = NcclStandIn(4), ring()
    tensors = [[torch.full((50,), float(rank + call)) for call in range(4)] for rank in range(4)]
    for rank in range(4):
        sender = None
        for call, tensor in enumerate(tensors[rank]):
            with standin.host_of(rank, stream=call % 2) as transport:
                sender = sender or Messages(transport, None)
                sender.run(Candidate(schedule), Buffers(50, tensor, tensor))
    standin.play(seed)
    for call in range(4):
        assert all(
            torch.equal(tensors[rank][call], torch.full((50,), 6.0 + 4 * call)) for rank in range(4)
        )


@pytest.mark.parametrize("seed", range(4))
def test_helpers_exchange_batches_with_members(seed: int) -> None:
    """Both ends of a message put it into the same batch, though not all ranks are members."""
    standin, schedule = NcclStandIn(4), build_helped("allreduce", 4, [0, 2], [1, 3], None, seed)
    tensors = {rank: torch.full((5000,), float(rank + 1)) for rank in (0, 2)}
    for rank in schedule.participants:
        with standin.host_of(rank) as transport:
            tensor = tensors.get(rank, torch.empty(0))
            Messages(transport, None).run(
                Candidate(schedule), Buffers(5000, tensor, tensor, dist.ReduceOp.AVG)
            )
    standin.play()
    assert all(torch.equal(tensor, torch.full((5000,), 2.0)) for tensor in tensors.values())


def test_a_plan_is_carried_out_by_its_own_choice(plans: Callable[..., str], tmp_path: Path) -> None:
    standin, plan = NcclStandIn(4), Plan.load(plans("ring:4"))
    tensors = [torch.full((5000,), rank + 0.5) for rank in range(4)]
    for rank, tensor in enumerate(tensors):
        with standin.host_of(rank) as transport:
            dispatcher = Dispatcher(
                plan,
                transport,
                Policy(choose="plan", cache=tmp_path),
                [Messages(transport, plan.topology)],
            )
            dispatcher.run(Buffers(5000, tensor, tensor, dist.ReduceOp.AVG))
    standin.play()
    assert all(torch.equal(tensor, torch.full((5000,), 2.0)) for tensor in tensors)


def star(ranks: int) -> Schedule:
    """A broadcast in one step: rank 0 sends to every other."""
    collective = Collective("broadcast", ranks, 0)
    rows = tuple(Transfer(0, 0, peer, 0, "copy") for peer in range(1, ranks))
    return Schedule(collective, "star", collective.even_chunks(1), rows, (Fraction(1),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "most"), long_cases([("direct", 2), ("direct", 6), ("packing", 4)], "packing")
)
def test_ticks_are_cut_alike_by_all_ranks(
    name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "NCCL_BATCH", most)
    for collective in ("allreduce", "alltoall", "gather", "scatter"):
        for schedule in build(name, preset("switch:7"), collective)[:2]:
            standin = play([(schedule, 70), (replace(schedule, segments=2), 70)], most=most)
            assert max(host.posted for host in standin.hosts) > 1


def test_no_batch_has_more_operations_than_nccl_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The root sends 39 messages in one tick, in three batches of the 32 that are taken here."""
    assert NCCL_BATCH == 256
    monkeypatch.setattr(compiled, "NCCL_BATCH", 32)
    # distances 1 to 16, to 32, to 39
    assert play([(star(40), 2)], most=32).hosts[0].posted == 3


def test_257_operations_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "NCCL_BATCH", 1000)
    with pytest.raises(NcclError, match="rank 0, batch 0 has 257 operations; at most 256"):
        play([(star(258), 2)])


def test_batches_that_each_rank_cuts_by_its_own_count_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each rank takes its peers in turn from its own place on, for sends and receives alike:
    circles wait for each other.
    """

    def cut(
        self: compiled.Compiled, exchange: Exchange, view: Callable[[Span], torch.Tensor]
    ) -> object:
        batches = whole(self, exchange, view)
        operations = [x for batch in batches for x in batch]
        turn = {
            x: (post.peer - self.program.rank) % self.ranks
            for x, post in zip(operations, exchange.posts, strict=True)
        }
        return [
            [x for x in operations if turn[x] == number] for number in sorted(set(turn.values()))
        ]

    whole = compiled.Compiled.make_batches
    monkeypatch.setattr(compiled.Compiled, "make_batches", cut)
    with pytest.raises(
        NcclError, match="nobody can go on; without a partner: rank 0, batch 0, operation 0: "
    ):
        play([(build("direct", preset("switch:5"), "alltoall")[0], 50)])


def mutate(
    monkeypatch: pytest.MonkeyPatch, rank: int, change: Callable[[list[Instruction]], None]
) -> None:
    """Let `change` alter the instructions of one rank, whenever a program is compiled for it."""

    def lower_and_change(schedule: Schedule, own_rank: int, *args: Any, **kwargs: Any) -> Program:
        program = lower(schedule, own_rank, *args, **kwargs)
        instructions = list(program.instructions)
        if own_rank == rank:
            change(instructions)
        return replace(program, instructions=tuple(instructions))

    monkeypatch.setattr(compiled, "lower", lower_and_change)


def change_posts(instructions: list[Instruction], change: Callable[[Post], Post | None]) -> None:
    for place, x in enumerate(instructions):
        if isinstance(x, Exchange):
            posts = [changed for changed in map(change, x.posts) if changed is not None]
            instructions[place] = Exchange(tuple(posts))


@pytest.mark.parametrize("number", range(6))
def test_a_missing_receive_is_found(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next receive takes what is not meant for it, or a sum lacks it; of the last one only its
    sender knows.
    """

    def drop(instructions: list[Instruction]) -> None:
        dropped = "receive", 1, number
        change_posts(
            instructions,
            lambda post: None if (post.kind, post.peer, post.number) == dropped else post,
        )

    mutate(monkeypatch, 2, drop)
    sender = (
        r"nobody can go on; without a partner: rank 1, batch 5, operation \d: "
        r"send 32 x uint8 to rank 2$"
    )
    early = (
        "matched by their order, and are not meant .*rank 1, batch|rank 2: .* reads what was "
        "never written or received"
    )
    with pytest.raises(NcclError, match=sender if number == 5 else early):
        play([(ring(), 32)])


@pytest.mark.parametrize(("numel", "why"), [(32, "are not meant for each other"), (33, "differ")])
def test_two_sends_in_the_wrong_order_are_found(
    numel: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one size they would be taken for each other, silently."""

    def swap(instructions: list[Instruction]) -> None:
        posts = [post for x in instructions if isinstance(x, Exchange) for post in x.posts]
        sends = {post.number: post for post in posts if (post.kind, post.peer) == ("send", 0)}
        swapped = {sends[0]: sends[1], sends[1]: sends[0]}
        change_posts(instructions, lambda post: swapped.get(post, post))

    mutate(monkeypatch, 3, swap)
    with pytest.raises(
        NcclError,
        match=rf"matched by their order, and {why}.*: rank 3, batch 0, operation \d: send",
    ):
        play([(ring(), numel)])


def test_calls_in_another_order_at_one_rank_are_found() -> None:
    standin, tensors = NcclStandIn(4), torch.ones(4, 40)
    schedules = [ring(), replace(ring(), segments=2)]
    for rank in range(4):
        with standin.host_of(rank) as transport:
            sender = Messages(transport, None)
            for schedule in schedules if rank != 1 else reversed(schedules):
                sender.run(Candidate(schedule), Buffers(40, tensors[rank], tensors[rank]))
    with pytest.raises(NcclError, match="matched by their order, and"):
        standin.play()


def test_a_sum_that_is_read_before_its_receive_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def sum_first(instructions: list[Instruction]) -> None:
        place = next(i for i, x in enumerate(instructions) if isinstance(x, Combine))
        instructions[place - 1], instructions[place] = instructions[place], instructions[place - 1]

    mutate(monkeypatch, 1, sum_first)
    with pytest.raises(
        NcclError, match="rank 1: aten::_foreach_add_ reads what was never written or received"
    ):
        play([(ring(), 32)])


def test_an_executor_that_does_not_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def post_alone(batches: list[list[dist.P2POp]]) -> None:
        for batch in batches:
            dist.batch_isend_irecv(batch)

    monkeypatch.setattr("topoplan.runtime.players.in_order.exchange", post_alone)
    reads = (
        "rank 0, batch 0, operation 0: receive 32 x uint8 from rank 3: aten::_foreach_add_ reads "
        "the buffer before"
    )
    with pytest.raises(NcclError, match=reads):
        play([(ring(), 32)])
    schedule = star(2)
    with pytest.raises(
        NcclError,
        match="rank 0, batch 0, operation 0: send 32 x uint8 to rank 1: aten::copy_ writes to the "
        "buffer",
    ):
        play([(schedule, 8), (schedule, 8)])


def exchange(standin: NcclStandIn, rank: int, *kinds: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Let a rank send to the other, or receive from it, in one batch, and wait. Returns what is
    sent and received.
    """
    with standin.host_of(rank) as transport:
        sent, received = torch.full((3,), float(rank + 1)), torch.empty(3)
        post(transport, rank, {"send": sent, "receive": received}, kinds).wait()
    return sent, received


def post(
    transport: Transport, rank: int, tensors: dict[str, torch.Tensor], kinds: Sequence[str]
) -> dist.Work:
    calls: dict[str, Any] = {"send": dist.isend, "receive": dist.irecv}
    peer = dist.get_global_rank(transport.group, 1 - rank)
    (work,) = dist.batch_isend_irecv(
        [dist.P2POp(calls[x], tensors[x], peer, transport.group) for x in kinds]
    )
    return work


@pytest.mark.parametrize("kinds", [("send", "receive"), ("receive", "send")])
def test_a_pair_sends_both_directions_in_one_batch_in_any_order(kinds: tuple[str, str]) -> None:
    standin = NcclStandIn(2)
    received = [exchange(standin, 0, "send", "receive")[1], exchange(standin, 1, *kinds)[1]]
    standin.play()
    assert [x.tolist() for x in received] == [[2.0] * 3, [1.0] * 3]


def test_a_pair_that_sends_first_in_batches_of_their_own_hangs() -> None:
    """A small send may get through in NCCL's buffers; nobody should count on it."""
    standin = NcclStandIn(2)
    for rank in range(2):
        exchange(standin, rank, "send")
        exchange(standin, rank, "receive")
    with pytest.raises(
        NcclError,
        match=r"rank 0, batch 0, operation 0: send .*; rank 1, batch 0, operation 0: send",
    ):
        standin.play()


def test_a_batch_is_complete_when_all_of_it_is() -> None:
    """Rank 1 gets what it waits for only with a send that nobody takes in the same batch."""
    standin = NcclStandIn(2)
    exchange(standin, 0, "send")
    exchange(standin, 1, "receive", "send")
    with pytest.raises(
        NcclError,
        match=r"without a partner: rank 1, batch 0, operation 1: send 3 x float32 to rank 0$",
    ):
        standin.play()


def test_what_is_in_flight_may_not_be_touched_or_forgotten() -> None:
    standin, tensors = NcclStandIn(2), {"send": torch.ones(3), "receive": torch.empty(3)}
    with standin.host_of(0) as transport:
        work = post(transport, 0, tensors, ["send", "receive"])
        assert len(tensors["send"][1:].clone()) == 2
        with pytest.raises(NcclError, match="add_ writes to the buffer before it is sent"):
            tensors["send"][1:].add_(1)
        with pytest.raises(NcclError, match="clone reads the buffer before anything has waited"):
            tensors["receive"][1:].clone()
        work.wait()
        tensors["receive"][1:].clone()
        with pytest.raises(NcclError, match="the host waits for the stream"):
            tensors["receive"].sum().item()
        with pytest.raises(NcclError, match="into the buffer of operation 0"):
            post(
                transport,
                0,
                dict.fromkeys(("send", "receive"), tensors["send"]),
                ["send", "receive"],
            )
    with standin.host_of(1) as transport:
        post(transport, 1, {"send": torch.ones(3), "receive": torch.empty(3)}, ["send", "receive"])
    with pytest.raises(NcclError, match="rank 1, batch 0 is never awaited"):
        standin.play()


def test_what_is_received_into_is_held_until_it_is_there() -> None:
    """By the caller: torch's engine nccl2 holds what is sent alone."""
    standin = NcclStandIn(2)
    for rank, kinds in enumerate((["receive"], ["send"])):
        with standin.host_of(rank) as transport:
            work = post(transport, rank, {kinds[0]: torch.zeros(3)}, kinds)
            if rank == 1:
                work.wait()
                continue
            with pytest.raises(
                NcclError,
                match=r"operation 0: receive .*: its buffer was let go before anything has waited",
            ):
                work.wait()
