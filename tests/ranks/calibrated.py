"""Host costs that ranks fit together."""

from __future__ import annotations

import os

import patience
import torch
import torch.distributed as dist

from ranks.faults import die_at_call, survive
from topoplan import Communicator
from topoplan.runtime.extras.calibration.calibrate import calibrate
from topoplan.runtime.ranks.transport import Transport


def fitted(path: str) -> str:
    """Return the host costs that were fitted. Launchers bind each rank to its own cores: a host has
    those of all ranks.
    """
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(own)[dist.get_rank() % len(own)]})
    assert Communicator(path).dispatcher.machine.host.cores == min(len(own), dist.get_world_size())
    os.sched_setaffinity(0, own)
    communicator = Communicator(path)
    before = communicator.dispatcher.machine.host
    host = calibrate(communicator)
    assert host == communicator.dispatcher.machine.host != before
    assert host.source == "topo-run --calibrate"
    assert host.cores == before.cores
    assert communicator.dispatcher.machine.topology is None
    assert communicator.dispatcher.machine.what == "one host's memory"
    communicator.allreduce(torch.ones(1000))
    return str(host)


def dies_meanwhile(path: str) -> str | None:
    communicator = Communicator(path, timeout=patience.deadline(4))
    if dist.get_rank() == 1:
        die_at_call(Transport, "meet", 5)
    survive(lambda: calibrate(communicator))
