"""Calls that go on while the caller does: carried out in the order in which they were made, with a Work for each.

On CPUs a thread carries calls out; what the caller waits for anyway it does itself, if no call is before it. On GPUs they
are put on a stream, and only streams wait. The DDP hook and the backend both make their calls here.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from ..topo.errors import ExecutionError
from .task import Task

Call = Callable[[], object]
_END_S = 5.0
"""Seconds that a thread may take to come to its end: it may be in a call whose peers are gone."""


class PlannedWork(dist.Work):
    """A call under way, or done. `wait` raises what went wrong, as itself."""

    def __init__(self, tensors: list[torch.Tensor], device: torch.device | None = None) -> None:
        super().__init__()
        self._tensors = tensors
        self._on_gpu = device is not None
        self._future: torch.futures.Future[Any] = torch.futures.Future(devices=[device] if device is not None else None)
        self._error: BaseException | None = None
        self._under_way = threading.Lock()
        self._under_way.acquire()

    def finish(self, error: BaseException | None = None) -> None:
        """Mark the call as through, or as failed with an error."""
        self._error = error
        # Released first: a callback of the future may wait for this very work.
        self._under_way.release()
        self._future.set_result(self._tensors if error is None else error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call is through; on GPUs the current stream waits. Raises ExecutionError after `timeout`."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        if not self._under_way.acquire(timeout=seconds if seconds > 0 else -1):
            raise ExecutionError(f"a collective did not end within {seconds:g} s")
        self._under_way.release()
        if self._error is not None:
            raise self._error
        if self._on_gpu:
            self._future.wait()
        return True

    def synchronize(self) -> None:
        """Wait until the call is through."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the call is through, or has failed (on GPUs: whether all of it is on its stream)."""
        return not self._under_way.locked()

    def is_success(self) -> bool:
        """Return whether the call is through."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Return what went wrong, if anything has."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that hold, or will hold, the result."""
        return self._tensors

    def outcome(self) -> torch.futures.Future[list[torch.Tensor] | BaseException]:
        """Return a future of the tensors, or of the error as a value."""
        return self._future

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the tensors."""
        # An exception stored in a future reaches C++ (DDP) as an object that is no tensor; raised while a future is
        # chained it arrives as itself.
        return self._future.then(result_or_raise)


class StartedWork(PlannedWork):
    """A call that goes on by itself, and ends with a future of None, or of the error."""

    def __init__(self, tensors: list[torch.Tensor], ended: torch.futures.Future[ExecutionError | None]) -> None:
        super().__init__(tensors)
        ended.add_done_callback(lambda future: self.finish(future.value()))


def result_or_raise(future: torch.futures.Future[Any]) -> Any:
    """Return a future's value, or raise it where it is an error."""
    result = future.value()
    if isinstance(result, BaseException):
        raise result
    return result


def _shown(carry_out: Callable[..., PlannedWork]) -> Callable[..., PlannedWork]:
    """Let calls have a `name`, under which torch.profiler shows them for as long as the caller is in them."""

    @wraps(carry_out)
    def show(*args: Any, name: str = "", **kwargs: Any) -> PlannedWork:
        if not name or not torch.autograd.profiler._is_profiler_enabled:
            return carry_out(*args, **kwargs)
        # Not until the work's future is there: a profile that ends before that crashes (torch 2.13).
        with torch.profiler.record_function(name):
            return carry_out(*args, **kwargs)

    return show


class ThreadQueue:
    """Calls on CPU tensors, carried out by a thread that starts with the first of them."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[tuple[Call, PlannedWork] | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    @_shown
    def carry_out(
        self, call: Call, tensors: list[torch.Tensor], *, waits: bool, reads: Sequence[torch.Tensor] = ()
    ) -> PlannedWork:
        """Carry out `call` after those before it; at once, in the caller's thread, where the caller waits and none is before.

        A call that is made by the queue's own thread (in a future's callback) is carried out at once too: nobody else
        could.
        """
        work = PlannedWork(tensors)
        is_idle = self._waiting.unfinished_tasks == 0
        if (waits and is_idle) or threading.current_thread() is self._thread:
            _run(call)
            work.finish()
            return work
        if self._thread is None:
            self._thread = threading.Thread(target=_serve, args=(self._waiting,), name="topoplan", daemon=True)
            self._thread.start()
        self._waiting.put((call, work))
        if waits:
            work.wait()
        return work

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._waiting.put(None)
            if self._thread is not threading.current_thread():
                self._thread.join(_END_S)
            self._thread = None


def _serve(waiting: queue.Queue[tuple[Call, PlannedWork] | None]) -> None:
    """Carry out one call after the other. Nothing is kept between them: groups must be free to be destroyed."""
    while (task := waiting.get()) is not None:
        call, work = task
        try:
            _run(call)
            error = None
        except Exception as raised:  # handed to whoever waits
            error = raised
        del task, call
        work.finish(error)
        del work, error
        waiting.task_done()  # only now is the queue idle: callbacks of the work may have made calls of their own


def _run(call: Call) -> None:
    # Buffers are kept from call to call: made in inference mode, they serve callers inside and outside of it.
    with torch.inference_mode():
        call()


class StreamQueue:
    """Calls on CUDA tensors. One stream for all, as they share buffers."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @_shown
    def carry_out(
        self, call: Call, tensors: list[torch.Tensor], *, waits: bool, reads: Sequence[torch.Tensor] = ()
    ) -> PlannedWork:
        """Put `call` on the stream, after what the current stream is doing; the latter waits if the caller does.

        The stream uses the memory of `tensors`, which get the result, and of what the call `reads`.
        """
        work = PlannedWork(tensors, self.device)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            for tensor in (*tensors, *reads):
                tensor.record_stream(self.stream)
            _run(call)
            work.finish()
        if waits:
            work.wait()
        return work

    def close(self) -> None:
        """Wait for what is on the stream."""
        self.stream.synchronize()


CallQueue = ThreadQueue | StreamQueue


def make_queue(device: torch.device) -> CallQueue:
    """Return a queue for calls on tensors of a device."""
    return StreamQueue(device) if device.type == "cuda" else ThreadQueue()


def start(
    task: Task,
    calls: CallQueue,
    results: list[torch.Tensor],
    *,
    waits: bool,
    name: str,
    reads: Sequence[torch.Tensor] = (),
    first: Call | None = None,
) -> PlannedWork:
    """Start a collective whose result will be in `results`, and which also `reads` others; `first` comes before anything else.

    On CPUs the stock collective, where it is what is used, goes on by itself, several at a time. Stock collectives, races
    among them, are made in one order on all ranks: while the caller waits.
    """
    is_settled = task.is_settled
    if is_settled and task.engine.device.type == "cpu" and task.uses_stock:
        if first is not None:
            first()
        stock = task.start_stock()
        future = stock.find_future()
        if future is not None:
            return StartedWork(results, future)
        return calls.carry_out(stock.wait, results, waits=waits, name=name)
    number = task.engine.draw_number()

    def carry_out() -> None:
        if first is not None:
            first()
        task.run(number)

    reads = [task.source, task.target, *reads]
    return calls.carry_out(carry_out, results, waits=waits or not is_settled, reads=reads, name=name)
