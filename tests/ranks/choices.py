"""Which schedule, or the stock collective, a size gets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ranks.checks import MEANS, SUMS, always_stock, refused
from ranks.topo_backend import start
from topoplan import Communicator, ExecutionError
from topoplan.runtime import race as races
from topoplan.runtime.candidates import Choice
from topoplan.runtime.ranks.transport import Transport
from topoplan.synth.ir.schedule import Schedule


def chosen(communicator: Communicator, size_bytes: int) -> Choice:
    """Return the choice for a size that was used."""
    choice = communicator.choice(size_bytes)
    assert choice is not None
    return choice


def make_up_times() -> None:
    """Let races take place whose entrants are each slower than the one before: they end soon."""
    Transport.find_slowest_s = (  # type: ignore[method-assign]
        lambda self, seconds: [float(number) for number, _ in enumerate(seconds, start=1)]
    )


def by_race_and_by_model(path: str) -> list[tuple[str, int, str, list[str]]]:
    """Return mode, length, label and entrants of every choice."""
    choices = []
    for mode in ("race", "model"):
        communicator = Communicator(path, choose=mode)
        assert communicator.choice(4096) is None
        for numel in (1024, 100_000)[: 1 if mode == "race" else 2]:
            x = torch.full((numel,), float(dist.get_rank()))
            communicator.allreduce(x)
            assert (x == 6).all()
            choice = chosen(communicator, x.nbytes)
            choices.append((mode, numel, choice.label, sorted(choice.raced)))
            assert (
                mode == "model"
                or communicator.plan.entry_for(x.nbytes).schedule.label in choice.raced
            )
    with refused("expected one of race, model, plan"):
        Communicator(path, choose="fastest")
    return choices


def raced_and_cached(path: str, folder: str) -> list[str]:
    """Race, start anew, and start anew with what was cached wrong, damaged, or for other
    candidates; return the winners.
    """
    x = torch.ones(2000)

    def race() -> Choice:
        communicator = Communicator(path, cache=folder)
        communicator.allreduce(x.zero_())
        dist.barrier()
        return chosen(communicator, x.nbytes)

    first = race()
    (cached_file,) = Path(folder).glob("races/*.json")
    text = cached_file.read_text()
    dist.barrier()
    # From here on times are made up: the machine may be busier now than it was.
    make_up_times()
    # So that it can be told from a new race: a time that nobody takes.
    found = json.loads(text) | {"raced_us": {first.label: 1.0}}
    winners = [first.label]
    for wrong in ({"time_us": 1e12}, {"labels": ["another", "another"]}, {"winner": 10**6}):
        if dist.get_rank() == 0:
            cached_file.write_text(json.dumps(found | wrong))
        dist.barrier()
        choice = race()
        assert len(choice.raced) > 1, wrong
        assert json.loads(cached_file.read_text())["raced_us"] == pytest.approx(choice.raced)
        dist.barrier()
        winners.append(choice.label)
    if dist.get_rank() == 0:
        cached_file.write_text(json.dumps(found))
    dist.barrier()
    races.FAR_OFF, usual = 1e9, races.FAR_OFF
    choice = race()
    races.FAR_OFF = usual
    assert (choice.label, choice.raced) == (first.label, {first.label: 1.0})
    dist.barrier()
    if dist.get_rank() == 0:
        cached_file.write_text("{")
    dist.barrier()
    assert len(race().raced) > 1
    return winners


def stock_is_chosen(path: str) -> None:
    """Sums, averages, and a dtype that gloo does not have: that stock was chosen says nothing of
    that.
    """
    communicator = Communicator(path, choose=always_stock)
    rank, world = dist.get_rank(), dist.get_world_size()
    for op, wanted in ((SUMS, sum(range(world))), (MEANS, sum(range(world)) / world)):
        x = torch.full((1000,), float(rank))
        communicator.allreduce(x, op)
        assert (x == wanted).all()
    assert chosen(communicator, 4000).label == "stock"
    whole = torch.full((2000,), rank, dtype=torch.int16)
    sent = communicator.wire_bytes
    communicator.allreduce(whole)
    assert (whole == sum(range(world))).all()
    assert communicator.wire_bytes > sent


def by_a_function(path: str) -> list[str]:
    """Return what was used where a function chose: the last candidate, the stock collective, a mode
    by name.
    """

    def choose(size_bytes: int, schedules: Sequence[Schedule]) -> Schedule | str | None:
        return {4096: schedules[-1], 8192: None, 16384: "plan"}[size_bytes]

    communicator = Communicator(path, choose=choose)
    labels = []
    for numel in (1024, 2048, 4096):
        x = torch.full((numel,), float(dist.get_rank()))
        communicator.allreduce(x)
        assert (x == sum(range(dist.get_world_size()))).all()
        labels.append(chosen(communicator, x.nbytes).label)
    wrong = Communicator(
        path, choose=lambda size_bytes, schedules: replace(schedules[0], strategy="none")
    )
    with refused("expected one of the schedules"):
        wrong.allreduce(torch.ones(1024))
    for useless in (5, ["race"]):
        wrong = Communicator(path, choose=lambda *_, answer=useless: answer)
        with refused("expected one of race, model, plan"):
            wrong.allreduce(torch.ones(1024))
    communicator.close()
    try:
        communicator.allreduce(torch.ones(1024))
    except ExecutionError as error:
        assert "was destroyed" in str(error), error
    else:
        raise AssertionError("a closed communicator went on")
    return [
        *labels,
        communicator.dispatcher.candidates.all[-1].label,
        communicator.plan.entry_for(16384).schedule.label,
    ]


def in_a_callback(path: str) -> float:
    """A collective that a future's callback calls and waits for ends; return its sum."""
    dist.destroy_process_group()
    start(plans=path)
    first, second = torch.ones(3000), torch.ones(2000)

    def reduce_again(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        dist.all_reduce(second)
        return second

    ended = dist.all_reduce(first, async_op=True).get_future().then(reduce_again).wait()
    dist.all_reduce(first)
    return float(ended[0] + first[0])
