"""One rank of programs of calls: makes its calls, and compares each result with its own arithmetic.

Programs run one after the other, each in process groups of its own.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import patience
import torch
import torch.distributed as dist
from call_programs import KEY, MESSAGE, REDUCING, Operation, Program, Step, Strand
from rank_process import Events
from torch._C._distributed_c10d import PrefixStore, TCPStore

from ranks.checks import all_gather_single, reduce_scatter_single

# Groups time out later: until then every rank stands where the program hangs.
_TIMEOUT_S_PER_HANG_S = 4 / 3
# Still later: a rank that holds the interpreter's lock never learns of a timeout.
_END_S_PER_HANG_S = 2
_OPS = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "product": dist.ReduceOp.PRODUCT,
}


def run_programs(
    programs: list[dict[str, Any]],
    backend: str,
    variables: Mapping[str, str],
    folder: str,
    hang_s: float,
) -> None:
    """Run programs until one fails; append a line each to the rank's file of results in `folder`.

    `variables` are added to the environment. A program that takes `hang_s` hangs, and leaves this
    rank's stacks.
    """
    hang_s = patience.seconds(hang_s)
    timeout = timedelta(seconds=_TIMEOUT_S_PER_HANG_S * hang_s)
    os.environ.update(variables)
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    store = _connect(rank, world, timeout)
    stacks_path = Path(folder) / f"{rank}.stacks"
    with stacks_path.open("w") as stacks, (Path(folder) / f"{rank}.jsonl").open("a") as results:
        for number, data in enumerate(programs):
            own = PrefixStore(f"program{number}", store)
            begin = time.monotonic()
            with _watch(stacks, hang_s):
                error = _run_program(Program.from_json(data), backend, rank, world, own, timeout)
                all_right = _agree(error, rank, world, own)
                if all_right:
                    dist.destroy_process_group()
            hung = stacks_path.stat().st_size > 0
            line = {"number": number, "error": error, "hung": hung, "s": time.monotonic() - begin}
            results.write(json.dumps(line) + "\n")
            results.flush()
            if hung or not all_right:  # its groups are in no state to go on
                return


def _connect(rank: int, world: int, timeout: timedelta) -> TCPStore:
    """Return a TCP store of these ranks, as users have, served by rank 0."""
    events = Events().store
    if rank == 0:
        store = TCPStore("127.0.0.1", 0, world, True, timeout, wait_for_workers=False)
        events.set("orders", str(store.port))
        return store
    port = int(events.get("orders"))
    return TCPStore("127.0.0.1", port, world, False, timeout, wait_for_workers=False)


@contextmanager
def _watch(stacks: TextIO, hang_s: float) -> Iterator[None]:
    """Write all threads' stacks if the body hangs, and end the process if it goes on hanging.

    Both work where a thread that hangs holds the interpreter's lock.
    """
    faulthandler.enable(stacks)  # also for what crashes
    faulthandler.dump_traceback_later(hang_s, file=stacks)
    signal.setitimer(signal.ITIMER_REAL, _END_S_PER_HANG_S * hang_s)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)


def _agree(error: str | None, rank: int, world: int, store: PrefixStore) -> bool:
    """Return whether the program succeeded on all ranks, when it has ended on all."""
    store.set(f"end{rank}", error or "")
    try:
        return not any(store.get(f"end{other}") for other in range(world))
    except RuntimeError:  # another rank was ended, or has not come
        return False


def _run_program(
    program: Program,
    backend: str,
    rank: int,
    world: int,
    store: PrefixStore,
    timeout: timedelta,
) -> str | None:
    """Run a rank's part in new groups; return what went wrong, or None."""
    try:
        dist.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=world,
            timeout=timeout,
        )
        rest = [dist.new_group(list(members)) for members in program.groups[1:]]
        groups = [dist.group.WORLD, *rest]
        players = [_Player(program, rank, groups, strand) for strand in program.strands[rank]]
        threads = [threading.Thread(target=player.run, daemon=True) for player in players[1:]]
        for thread in threads if rank % 2 == 0 else threads[::-1]:
            thread.start()
            patience.be_late(program.skew_ms / 1000, "threads that begin apart")
        players[0].run()
        for thread in threads:
            thread.join()
        return next((player.error for player in players if player.error), None)
    except Exception as error:  # of making the groups; handed to whoever reads the results
        return f"{type(error).__name__}: {error}"


class _Player:
    """A thread's part of a program."""

    def __init__(self, program: Program, rank: int, groups: list[Any], strand: Strand) -> None:
        self.error: str | None = None
        self._program, self._rank, self._groups, self._strand = program, rank, groups, strand
        self._started: dict[int, tuple[Any, list[torch.Tensor]]] = {}

    def run(self) -> None:
        """Take all steps; `error` says what went wrong."""
        for step in self._strand:
            try:
                self._take(step)
            except Exception:  # handed to whoever reads the results
                text = traceback.format_exc().strip()
                self.error = f"rank {self._rank} at {step.action} {step.number}: {text}"
                return

    def _take(self, step: Step) -> None:
        number = step.number
        if step.action == "pause":
            patience.be_late(number / 1000, "the program has it so")
        elif step.action == "run":
            _, results = self._call(number, False)
            self._check(number, results)
        elif step.action == "start":
            self._started[number] = self._call(number, True)
        elif step.action == "drop":
            self._call(number, True)
        else:
            work, results = self._started.pop(number)
            if step.action == "poll":
                patience.wait_until(work.is_completed, f"operation {number}")
            work.wait()
            self._check(number, results)

    def _call(self, number: int, asynchronous: bool) -> tuple[Any, list[torch.Tensor]]:
        """Make a call; return its work and the tensors that will hold its result."""
        operation = self._program.operations[number]
        if operation.kind == KEY:
            self._use_store(number, operation)
            return None, []
        own = make_input(self._program, number, self._rank)
        group = self._groups[operation.group]
        if operation.kind == MESSAGE:
            return _send_or_receive(operation, own, self._rank, group, asynchronous)
        members = self._program.groups[operation.group]
        return _call_collective(operation, own, self._rank, members, group, asynchronous)

    def _use_store(self, number: int, operation: Operation) -> None:
        store = dist.distributed_c10d._get_default_store()
        if self._rank == operation.root:
            store.set(f"key{number}", "set")
        else:
            store.wait([f"key{number}"])

    def _check(self, number: int, results: list[torch.Tensor]) -> None:
        wanted = compute(self._program, number, self._rank)
        if wanted is None:
            return
        got = torch.cat([result.reshape(-1) for result in results])
        if not torch.equal(got, wanted):
            wrong = int((got != wanted).sum())
            raise ValueError(
                f"{wrong} of {len(got)} elements are wrong: {got[:4]}, not {wanted[:4]}",
            )


def _send_or_receive(
    operation: Operation, own: torch.Tensor, rank: int, group: Any, asynchronous: bool
) -> tuple[Any, list[torch.Tensor]]:
    if rank == operation.root:
        send = dist.isend if asynchronous else dist.send
        return send(own, operation.peer, group, operation.tag), [own]
    received = torch.full_like(own, -1)
    receive = dist.irecv if asynchronous else dist.recv
    return receive(received, operation.root, group, operation.tag), [received]


def _call_collective(
    operation: Operation,
    own: torch.Tensor,
    rank: int,
    members: tuple[int, ...],
    group: Any,
    asynchronous: bool,
) -> tuple[Any, list[torch.Tensor]]:
    kind, root, op = operation.kind, operation.root, _OPS[operation.reduction]
    parts = [torch.full_like(own, -1) for _ in members]
    whole = torch.full((len(members) * operation.numel,), -1, dtype=own.dtype)
    one = whole[: operation.numel].clone()
    more: dict[str, Any] = {"group": group, "async_op": asynchronous}
    if kind == "all_reduce":
        return dist.all_reduce(own, op, **more), [own]
    if kind == "broadcast":
        return dist.broadcast(own, root, **more), [own]
    if kind == "reduce":
        return dist.reduce(own, root, op, **more), [own]
    if kind == "all_gather":
        return dist.all_gather(parts, own, **more), parts
    if kind == "all_gather_into_tensor":
        return all_gather_single(whole, own, **more), [whole]
    if kind == "reduce_scatter_tensor":
        return reduce_scatter_single(one, own, op=op, **more), [one]
    if kind == "all_to_all_single":
        return dist.all_to_all_single(whole, own, **more), [whole]
    if kind == "gather":
        at_root = parts if rank == root else None
        return dist.gather(own, at_root, root, **more), parts
    if kind == "scatter":
        given = list(own.chunk(len(members))) if rank == root else None
        return dist.scatter(one, given, root, **more), [one]
    return dist.barrier(**more), []


def make_input(program: Program, number: int, rank: int) -> torch.Tensor:
    """Return what a rank gives to an operation: small integers, so that all sums are exact."""
    operation = program.operations[number]
    many = operation.kind in ("reduce_scatter_tensor", "all_to_all_single", "scatter")
    parts = len(program.groups[operation.group]) if many else 1
    values = (torch.arange(operation.numel * parts) * 7 + number * 13 + rank * 31) % 11 - 5
    return values.to(getattr(torch, operation.dtype))


def compute(program: Program, number: int, rank: int) -> torch.Tensor | None:
    """Return what a rank must get from an operation; None where nothing is promised."""
    operation = program.operations[number]
    kind, root = operation.kind, operation.root
    if kind in (KEY, "barrier") or (kind in ("reduce", "gather") and rank != root):
        return None
    if kind in (MESSAGE, "broadcast"):
        return make_input(program, number, root)
    members = program.groups[operation.group]
    place, size = members.index(rank), operation.numel
    own = slice(place * size, (place + 1) * size)
    if kind == "scatter":
        return make_input(program, number, root)[own]
    inputs = [make_input(program, number, member) for member in members]
    if kind in REDUCING:
        reduced = _reduce(torch.stack(inputs), operation.reduction)
        return reduced[own] if kind == "reduce_scatter_tensor" else reduced
    return torch.cat([x[own] for x in inputs] if kind == "all_to_all_single" else inputs)


def _reduce(rows: torch.Tensor, reduction: str) -> torch.Tensor:
    if reduction == "max":
        return rows.amax(0)
    if reduction == "min":
        return rows.amin(0)
    return (rows.prod(0) if reduction == "product" else rows.sum(0)).to(rows.dtype)
