"""Plans over some GPUs: members make the calls, helpers serve them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import patience
import torch
import torch.distributed as dist
from rank_process import Events, leave

from ranks.checks import MEANS, SUMS, refused
from topoplan import Communicator, ExecutionError, PlanMismatchError, Schedule

TIMEOUT = timedelta(seconds=60)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8)


def draw(rank: int, numel: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return small whole numbers, whose sums are exact in all dtypes."""
    generator = torch.Generator().manual_seed(seed * 1000 + rank)
    return torch.randint(0, 4, (numel,), generator=generator).to(dtype)


def call(communicator: Communicator, numel: int, dtype: torch.dtype, op: object, seed: int) -> None:
    """Make the plan's collective once on random data, and check the result."""
    collective = communicator.plan.collective
    members, own = list(collective.members), communicator.rank
    root = members[0] if collective.root is None else collective.root
    part, name, place = numel // len(members), collective.name, list(collective.members).index(own)
    sent = {"allgather": part, "gather": part}.get(name, numel)
    inputs = [draw(rank, sent, dtype, seed) for rank in members]
    mine, at_root = inputs[place].clone(), own == root
    cut = slice(place * part, (place + 1) * part)
    total = torch.stack(inputs).double().sum(0)
    if op == MEANS:
        total /= len(members)
    got: torch.Tensor | None
    if name == "allreduce":
        got, wanted = communicator.allreduce(mine, op), total
    elif name == "reduce":
        got, wanted = communicator.reduce(mine, op), total
    elif name == "broadcast":
        got, wanted = communicator.broadcast(mine), inputs[members.index(root)]
    elif name == "allgather":
        got, wanted = communicator.allgather(mine.new_empty(numel), mine), torch.cat(inputs)
    elif name == "gather":
        got = communicator.gather(mine.new_empty(numel) if at_root else None, mine)
        wanted = torch.cat(inputs)
    elif name == "reduce-scatter":
        got, wanted = communicator.reduce_scatter(mine.new_empty(part), mine, op), total[cut]
    elif name == "scatter":
        got = communicator.scatter(mine.new_empty(part), mine if at_root else None)
        wanted = inputs[members.index(root)][cut]
    else:
        got = communicator.alltoall(mine.new_empty(numel), mine)
        wanted = torch.cat([x[cut] for x in inputs])
    if got is not None and (at_root or name not in ("reduce", "gather")):
        assert torch.equal(got.double(), wanted.to(dtype).double()), (name, numel, dtype, op)


def choose_helped(size_bytes: int, candidates: Sequence[Schedule]) -> Schedule:
    """Choose a schedule with helpers, another one for each size."""
    return random.Random(size_bytes).choice([x for x in candidates if x.helpers])


def random_calls(paths: list[str], calls: int) -> list[int]:
    """Make random calls of several plans in turn, each with its own members and helpers."""
    sent = []
    for path in paths:
        communicator = Communicator(path, timeout=TIMEOUT, choose=choose_helped)
        draws = random.Random(Path(path).name)  # the same calls every time, in any folder
        if communicator.rank in communicator.plan.collective.members:
            for seed in range(calls):
                dtype = draws.choice(DTYPES)
                numel = draws.choice((0, 1, 7, 1000, 40_000)) * communicator.size
                means = dtype.is_floating_point and communicator.plan.collective.reduces
                call(
                    communicator, numel, dtype, draws.choice((SUMS, MEANS if means else SUMS)), seed
                )
        else:
            communicator.serve()
        sent.append(communicator.wire_bytes)
        communicator.close()
    return sent


def miss_the_goodbye(path: str) -> int:
    """Return how many calls a helper serves that comes back when the members have closed."""
    communicator, events = Communicator(path, timeout=TIMEOUT, choose=choose_helped), Events()
    if communicator.rank in communicator.plan.collective.members:
        call(communicator, 3000, torch.float32, SUMS, 1)
        communicator.close()
        events.tell(f"{communicator.rank} closed")
        return 1
    served = communicator.serve(1)
    events.wait(f"{communicator.plan.collective.members[0]} closed")
    return served + communicator.serve()


def come_late(path: str) -> int:
    """Return how many calls this rank serves, beginning when the others have long made theirs."""
    communicator, events = Communicator(path, timeout=TIMEOUT, choose=choose_helped), Events()
    members = communicator.plan.collective.members
    if communicator.rank in members:
        call(communicator, 3000, torch.float32, SUMS, 1)
        events.tell(f"{communicator.rank} closes")
        communicator.close()
        return 0
    events.wait(f"{members[0]} closes")
    return communicator.serve()


def race(path: str) -> list[Any]:
    """Race stock, schedules without helpers and with them; the helper is slow at first, and leaves
    in the end.
    """
    communicator, events = Communicator(path, timeout=TIMEOUT, choose=race_at_first), Events()
    if communicator.rank not in communicator.plan.collective.members:
        with refused("helpers call serve"):
            communicator.allreduce(torch.ones(4))
        assert communicator.serve(1) == 1
        for rank in communicator.plan.collective.members:
            events.wait(f"{rank} needs help")
        patience.be_late(0.5, "a call that does not wait for its helper has ended by then")
        events.tell("helped")
        communicator.serve(1)
        return [communicator.serve(), communicator.wire_bytes > 0]
    with refused("only helpers serve"):
        communicator.serve()
    call(communicator, 3000, torch.float32, SUMS, 0)
    events.tell(f"{communicator.rank} needs help")
    call(communicator, 3000, torch.float32, SUMS, 1)
    waited = events.store.check(["helped"])
    call(communicator, 1 << 16, torch.float32, MEANS, 3)
    choice = communicator.choice(4 << 16)
    assert choice is not None
    counts = communicator.count_relayed_bytes()
    communicator.close()
    with refused("the process group was destroyed", ExecutionError):
        communicator.allreduce(torch.ones(3000))
    return [waited, sorted(choice.raced), counts]


def race_at_first(size_bytes: int, candidates: Sequence[Schedule]) -> Schedule | str:
    """Race large buffers, and use helpers for small ones."""
    return "race" if size_bytes > 1 << 16 else choose_helped(size_bytes, candidates)


def lose_helper(path: str, how: str) -> str:
    """Make calls until a helper ends, stops or leaves; return what the members' errors say."""
    communicator = Communicator(path, timeout=patience.deadline(2), choose=choose_helped)
    events, members = Events(), communicator.plan.collective.members
    if communicator.rank not in members:
        communicator.serve(1)
        dist.barrier()
        if how == "ended":
            leave("")
        if how == "stopped":
            for rank in members:
                events.wait(f"{rank} gave up")
        communicator.close()
        return ""
    call(communicator, 3000, torch.float32, SUMS, 1)
    dist.barrier()
    said = ""
    try:
        for seed in range(100):
            call(communicator, 3000, torch.float32, SUMS, seed)
    except ExecutionError as error:
        said = str(error)
    events.tell(f"{communicator.rank} gave up")
    with refused("an earlier call failed", ExecutionError):
        communicator.allreduce(torch.ones(3000))
    return said


def lose_member(path: str) -> str:
    """Serve a member that ends without a word."""
    communicator = Communicator(path, timeout=timedelta(seconds=20), choose=choose_helped)
    if communicator.rank in communicator.plan.collective.members:
        call(communicator, 3000, torch.float32, SUMS, 1)
        if communicator.rank == communicator.plan.collective.members[0]:
            leave("")
        return ""
    try:
        communicator.serve()
    except ExecutionError as error:
        return str(error)
    return "not noticed"


def refuse_number(path: str) -> str:
    """Return the error of a plan for another number of ranks."""
    try:
        Communicator(path)
    except PlanMismatchError as error:
        return str(error)
    return ""


def compress(path: str, codecs: list[str]) -> None:
    """Encode what members and helpers send: all members end with the same bits, near the sum."""
    for codec in codecs:
        communicator = Communicator(path, timeout=TIMEOUT, choose="plan", compress=codec)
        if communicator.rank not in communicator.plan.collective.members:
            communicator.serve()
            continue
        members = list(communicator.plan.collective.members)
        inputs = [torch.randn(5000, generator=torch.Generator().manual_seed(x)) for x in members]
        mine = inputs[members.index(communicator.rank)].clone()
        wanted = torch.stack(inputs).sum(0)
        communicator.allreduce(mine)
        assert (mine - wanted).abs().max() < 0.1 * wanted.abs().max(), codec
        others = communicator.dispatcher.transport.control.exchange(mine.tolist())
        assert all(other == mine.tolist() for other in others), codec
        communicator.close()
