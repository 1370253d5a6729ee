"""Calls that go on while the caller does: carried out in the order in which they were made, with a Work for each.

On CPUs a thread carries calls out; what the caller waits for anyway it does itself, if no call is before it. On GPUs they
are put on a stream, and only streams wait. The DDP hook and the backend both make their calls here.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist

from ..topo.errors import ExecutionError
from .reductions import in_inference_mode
from .task import Task

Call = Callable[[], object]
_END_S = 5.0
"""Seconds that a thread may take to come to its end: it may be in a call whose peers are gone."""


class Failed:
    """What stands in a future for the tensors of a call that failed.

    An exception raised while a future is chained would come out of C++ as a RuntimeError with a C++ trace in its message, and
    one stored in it as an object that is no tensor. Whatever C++ does with this, to find tensors in it or to put into words
    what it is, raises the error as itself.

    Only DDP's reducer would raise a RuntimeError ("Cannot extract tensors from value") in the error's place. It looks for
    tensors at the end of a backward pass, so there it gets those of the call, and the pass raises the error as its very last.
    """

    def __init__(self, error: BaseException, tensors: Sequence[torch.Tensor] = ()) -> None:
        self.error, self._tensors = error, tensors

    def __reduce__(self) -> tuple[type[list[torch.Tensor]], tuple[list[torch.Tensor]]]:
        engine: Any = torch.autograd.Variable._execution_engine
        if not self._tensors:
            raise self.error
        try:
            engine.queue_callback(self._fail)
        except RuntimeError:  # no backward pass is under way in this thread
            raise self.error from None
        return list, (list(self._tensors),)

    def __str__(self) -> str:
        raise self.error

    def _fail(self) -> NoReturn:
        raise self.error


class _Progress:
    """How far a call is. It knows nothing of the work, so that C++ may keep hold of it (see CpuWork)."""

    __slots__ = ("error", "future", "under_way")

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.future: torch.futures.Future[Any]
        self.under_way = threading.Lock()
        self.under_way.acquire()

    def finish(self, value: object, error: BaseException | None) -> None:
        """Mark the call as through, or as failed, and give the future its value."""
        self.error = error
        # Released first: a callback of the future may wait for this very work.
        self.under_way.release()
        try:
            self.future.set_result(value)
        except RuntimeError:
            if not self.future.done():  # else C++ filled it, at the timeout of a wait
                raise

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return True once the call is through. Raises what went wrong, or ExecutionError after `timeout`."""
        self._wait_for_end(timeout)
        if self.error is not None:
            raise self.error
        return True

    def wait_for_future(self, timeout: timedelta | None = None) -> bool:
        """Wait until the future has its value as well: C++ fills one that has none when a wait is over."""
        self._wait_for_end(timeout)
        self.future.wait()
        return self.wait()

    def _wait_for_end(self, timeout: timedelta | None) -> None:
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        if not self.under_way.acquire(timeout=seconds if seconds > 0 else -1):
            raise ExecutionError(f"a collective did not end within {seconds:g} s")
        self.under_way.release()


class PlannedWork(dist.Work if TYPE_CHECKING else object):  # type: ignore[misc]
    """A call under way, or done. `wait` raises what went wrong, as itself."""

    _tensors: list[torch.Tensor]
    _progress: _Progress

    def finish(self, error: BaseException | None = None) -> None:
        """Mark the call as through, or as failed with an error."""
        self._progress.finish(self._tensors if error is None else Failed(error, self._tensors), error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call is through; on GPUs the current stream waits. Raises ExecutionError after `timeout`."""
        return self._progress.wait(timeout)

    def synchronize(self) -> None:
        """Wait until the call is through."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the call is through, or has failed (on GPUs: whether all of it is on its stream)."""
        return not self._progress.under_way.locked()

    def is_success(self) -> bool:
        """Return whether the call is through."""
        return self.is_completed() and self._progress.error is None

    def exception(self) -> BaseException | None:
        """Return what went wrong, if anything has."""
        return self._progress.error

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that hold, or will hold, the result."""
        return self._tensors

    def outcome(self) -> torch.futures.Future[list[torch.Tensor] | Failed]:
        """Return a future of the tensors, or of the error as a value."""
        return self._progress.future

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the tensors."""
        return self._progress.future.then(tensors_or_raise)


class _OlderWork(dist.Work):
    """What stands in for torch's PythonCallbackWork where there is none: good for as long as Python keeps hold of it."""

    def __init__(self, wait: Callable[..., bool]) -> None:
        super().__init__()
        self._future: torch.futures.Future[Any] = torch.futures.Future()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future that is not done."""
        return self._future


_CallbackWork: Any = getattr(torch._C._distributed_c10d, "PythonCallbackWork", _OlderWork)


class CpuWork(PlannedWork, _CallbackWork):  # type: ignore[misc]
    """The work of a call on CPU tensors.

    Torch hands works on to C++ (DDP those of join, functional collectives those of their tensors), where Python's part of an
    object ends when Python lets go of it. So C++'s part, which has a future and a function to wait with, serves alone.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors, self._progress = tensors, _Progress()
        _CallbackWork.__init__(self, self._progress.wait_for_future)
        self._progress.future = _CallbackWork.get_future(self)


@cache
def get_done_work() -> CpuWork:
    """Return the one finished work that every call gets whose caller waited for it. It has no tensors: such a caller asks it
    for nothing (over NCCL it gets no work at all).
    """
    work = CpuWork([])
    work.finish()
    return work


class GpuWork(PlannedWork, dist.Work):
    """The work of a call on a GPU's tensors, which is on a stream.

    Its future has streams wait, as that of a CpuWork would not: it is good for as long as Python keeps hold of it.
    """

    def __init__(self, tensors: list[torch.Tensor], device: torch.device) -> None:
        dist.Work.__init__(self)
        self._tensors, self._progress = tensors, _Progress()
        self._progress.future = torch.futures.Future(devices=[device])

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Have the current stream wait."""
        self._progress.wait(timeout)
        self._progress.future.wait()
        return True


def tensors_or_raise(future: torch.futures.Future[Any]) -> Any:
    """Return a future's tensors, or raise the error that stands for them."""
    result = future.value()
    if isinstance(result, Failed):
        raise result.error
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


class _Line:
    """Calls that wait for a thread, and how many of them are not through; its owner may go while the thread is in a call."""

    def __init__(self) -> None:
        # SimpleQueue, not Queue: that one's locks are Python's, and cost a call as much again.
        self.calls: queue.SimpleQueue[tuple[Call, PlannedWork] | None] = queue.SimpleQueue()
        self.pending = 0
        self._lock = threading.Lock()

    def add(self, call: Call, work: PlannedWork) -> None:
        """Have a call wait."""
        with self._lock:
            self.pending += 1
        self.calls.put((call, work))

    def mark_done(self) -> None:
        """Count a call as through."""
        with self._lock:
            self.pending -= 1


class ThreadQueue:
    """Calls on CPU tensors, carried out by a thread that starts with the first of them."""

    def __init__(self) -> None:
        self._line = _Line()
        self._thread: threading.Thread | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no call waits or is under way."""
        return not self._line.pending

    @_shown
    def carry_out(
        self, call: Call, tensors: list[torch.Tensor], *, waits: bool, reads: Sequence[torch.Tensor] = ()
    ) -> PlannedWork:
        """Carry out `call` after those before it; at once, in the caller's thread, where the caller waits and none is before.

        A call that is made by the queue's own thread (in a future's callback) is carried out at once too: nobody else
        could.
        """
        work = CpuWork(tensors)
        if (waits and not self._line.pending) or threading.current_thread() is self._thread:
            in_inference_mode(call)
            work.finish()
            return work
        if self._thread is None:
            self._thread = threading.Thread(target=_serve, args=(self._line,), name="topoplan", daemon=True)
            self._thread.start()
        self._line.add(call, work)
        if waits:
            work.wait()
        return work

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._line.calls.put(None)
            if self._thread is not threading.current_thread():
                self._thread.join(_END_S)
            self._thread = None


def _serve(line: _Line) -> None:
    """Carry out one call after the other. Nothing is kept between them: groups must be free to be destroyed."""
    while (task := line.calls.get()) is not None:
        call, work = task
        try:
            in_inference_mode(call)
            error = None
        except Exception as raised:  # handed to whoever waits
            error = raised
        del task, call
        work.finish(error)
        del work, error
        line.mark_done()  # only now is the queue idle: callbacks of the work may have made calls of their own


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
        work = GpuWork(tensors, self.device)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            for tensor in (*tensors, *reads):
                tensor.record_stream(self.stream)
            in_inference_mode(call)
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
        work = CpuWork(results)
        if stock.call_when_done(work.finish):
            return work
        return calls.carry_out(stock.wait, results, waits=waits, name=name)
    number = task.engine.draw_number()

    def carry_out() -> None:
        if first is not None:
            first()
        task.run(number)

    reads = [task.source, task.target, *reads]
    return calls.carry_out(carry_out, results, waits=waits or not is_settled, reads=reads, name=name)
