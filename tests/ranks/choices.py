"""Which schedule, or the stock collective, a size gets."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ranks.checks import MEANS, SUMS, refused
from topoplan import Communicator
from topoplan.runtime.choose import Choice
from topoplan.runtime.measuring.calibrate import calibrate


def chosen(communicator: Communicator, size_bytes: int) -> Choice:
    """Return the choice for a size that was used."""
    choice = communicator.choice(size_bytes)
    assert choice is not None
    return choice


def by_race_and_by_model(path: str) -> list[tuple[str, int, str, list[str]]]:
    """Return mode, length, label and entrants of every choice."""
    choices = []
    for choose in ("race", "model"):
        communicator = Communicator(path, choose=choose)
        assert communicator.choice(4096) is None
        for numel in (1024, 60_000, 400_000):
            x = torch.full((numel,), float(dist.get_rank()))
            communicator.allreduce(x)
            assert (x == 6).all()
            choice = chosen(communicator, x.nbytes)
            choices.append((choose, numel, choice.label, sorted(choice.raced)))
    with refused("expected one of race, model, plan"):
        Communicator(path, choose="fastest")
    return choices


def stock_wins(slow: str) -> None:
    """Sums, averages, and a dtype that gloo does not have: a race that stock has won says nothing of that."""
    communicator = Communicator(slow)
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


def calibrated(path: str) -> str:
    """Return the host costs that were fitted."""
    communicator = Communicator(path)
    before = communicator.engine.machine.host
    host = calibrate(communicator)
    assert host == communicator.engine.machine.host != before
    assert host.source == "topo-run --calibrate"
    assert host.cores == before.cores
    assert communicator.engine.machine.topology is None
    assert communicator.engine.machine.what == "one host's memory"
    communicator.allreduce(torch.ones(1000))
    return str(host)
