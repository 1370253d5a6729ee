"""What every rank of a test does first and last: join the other ranks, run a function of `ranks/`,
hand back its result.

`launch.run_ranks` starts these processes and says through the environment who each is and where the
ranks meet.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import forked_planners
import patience
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

MEETING = "TOPOPLAN_TEST_MEETING"
# Where this process hands back its result; none in a rank that mpirun started.
_results: list[Connection] = []


def main(
    module: str,
    function: str,
    arguments: Sequence[object],
    backend: str,
    environment: Mapping[str, str],
    output: Path,
    result: Connection,
) -> None:
    """Join the others, call the function, hand back what it returns through the pipe `result`; what
    is printed goes to the file `output`.
    """
    _results.append(result)
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    os.environ.update(environment)
    forked_planners.use_forked()
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(0)
    init(backend=backend)
    if backend == "gloo":
        # a body that begins by ending this group would hang up on ranks that still join it
        dist.barrier()
    returned = getattr(importlib.import_module(module), function)(*arguments)
    if dist.is_initialized():
        dist.destroy_process_group()
    leave(returned)


def meeting(name: str = "") -> str:
    """Return an init_method that is the same on all ranks of this launch; another one for each
    name.
    """
    return f"file://{os.environ[MEETING]}{name}"


def init(
    name: str = "",
    world: int | None = None,
    backend: str = "gloo",
    quiet_s: float = 60,
    options: object = None,
) -> None:
    """Make the default process group of all ranks, or of the first `world`."""
    dist.init_process_group(
        backend,
        init_method=meeting(name),
        rank=int(os.environ["RANK"]),
        world_size=world or int(os.environ["WORLD_SIZE"]),
        timeout=patience.deadline(quiet_s),
        pg_options=options,
    )


def leave(result: object = None) -> NoReturn:
    """Hand back a result and end at once, without a word to the other ranks.

    It is also how ranks end that have succeeded: gloo may abort an interpreter that ends while
    something still holds on to a process group.
    """
    for pipe in _results:
        pipe.send_bytes(json.dumps(result).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Events:
    """Events that ranks wait for, by name, whatever becomes of their process groups; of one launch,
    or of all that give the same new file.
    """

    def __init__(self, file: str | Path | None = None) -> None:
        self.store = FileStore(str(file or f"{os.environ[MEETING]}-events"))

    def tell(self, name: str) -> None:
        """Say that an event has come."""
        self.store.set(name, "yes")

    def meet(self, name: str) -> None:
        """Wait until all ranks have come here."""
        self.tell(f"{name}: {os.environ['RANK']}")
        for rank in range(int(os.environ["WORLD_SIZE"])):
            self.wait(f"{name}: {rank}")

    def wait(self, name: str) -> None:
        """Wait for an event."""
        self.store.wait([name], patience.deadline(patience.LIMIT_S))
