"""Calls that go on while the caller does: run in the order in which they were made, with Works.

On CPUs a thread runs calls; a call that the caller waits for anyway runs in the caller's thread, if
no call is before it. On GPUs they are put on a stream, and only streams wait. The DDP hook and the
backend both make their calls here.
"""

from __future__ import annotations

import atexit
import ctypes
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist

from ..topo.errors import ExecutionError
from .calls import PersistentCall
from .ranks.set_up import end_past_waits
from .reductions import in_inference_mode

Function = Callable[[], object]
# Makes all calls of a group fail with an error, those in progress too.
BreakOff = Callable[[ExecutionError], object]
# Time for a thread to end: it may be in a call whose peers are gone.
_END_S = 5.0
# Time for it to end once its call was made to fail, which takes milliseconds, unless the ranks are
# exchanging reports of a failure by then (at most 5 s).
_FAIL_S = 10.0
# Threads in a call that did not end when their queue was closed, and what makes it fail.
_left: dict[threading.Thread, BreakOff] = {}


@atexit.register
def _end_left() -> None:
    """Make the calls fail, before the interpreter ends, that have not ended with their queues.

    A thread that returns from C++ to an interpreter that is finalizing is ended by Python, and C++
    aborts the process ("terminate called without an active exception").
    """
    for thread, break_off in _left.items():
        if thread.is_alive():
            break_off(ExecutionError("the process ended during the call"))
    for thread in _left:
        thread.join(_FAIL_S)
        if thread.is_alive():
            _stop_for_good(thread)


def _stop_for_good(thread: threading.Thread) -> None:
    """Keep a thread that nothing wakes from returning to Python, at the end of the process.

    It gets a signal whose handler, pause(), does not return. Python itself stops such threads from
    3.14 on. Then C++'s destructors are left out, too: they would wait for the thread.
    """
    number = getattr(signal, "SIGRTMAX", None)
    if number is None or thread.ident is None:  # not Linux
        return
    libc = ctypes.CDLL(None)
    libc.signal(int(number), ctypes.cast(libc.pause, ctypes.c_void_p))
    signal.pthread_kill(thread.ident, number)
    end_past_waits()


class Failed:
    """Takes the place of the tensors in the future of a call that failed.

    An exception raised while a future is chained would come out of C++ as a RuntimeError with a C++
    trace in its message, and one stored in it as an object that is no tensor. Whatever C++ does
    with this object, to find tensors in it or to format it, raises the error itself.

    Only DDP's reducer would raise a RuntimeError ("Cannot extract tensors from value") instead of
    the error. It looks for tensors at the end of a backward pass, so there it gets those of the
    call, and the pass raises the error as its very last act.
    """

    def __init__(self, error: BaseException, tensors: Sequence[torch.Tensor] = ()) -> None:
        self.error, self._tensors = error, tensors

    # C++ pickles an object to find the tensors in it.
    def __reduce__(self) -> tuple[type[list[torch.Tensor]], tuple[list[torch.Tensor]]]:
        engine: Any = torch.autograd.Variable._execution_engine
        if not self._tensors:
            raise self.error
        try:
            engine.queue_callback(self._fail)
        except RuntimeError:  # no backward pass is in progress in this thread
            raise self.error from None
        return list, (list(self._tensors),)

    def __str__(self) -> str:
        raise self.error

    def _fail(self) -> NoReturn:
        raise self.error


class Progress:
    """The state of a call, which C++ may hold: it has no reference to the work (see CpuWork).

    `future` gets the call's tensors, or a Failed in their place. The work's maker sets it.
    """

    __slots__ = ("__weakref__", "_ending", "error", "future", "has_ended", "in_progress")

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.future: torch.futures.Future[Any]
        self.in_progress = threading.Lock()
        self.in_progress.acquire()
        self._ending, self.has_ended = threading.Lock(), False

    def finish(self, value: object, error: BaseException | None) -> None:
        """Mark the call as ended, or as failed with `error`, and give the future `value`.

        Only the first call counts.
        """
        with self._ending:
            if self.has_ended:
                return
            self.has_ended, self.error = True, error
            # Released first: a callback of the future may wait for this very work.
            self.in_progress.release()
        try:
            self.future.set_result(value)
        except RuntimeError:
            if not self.future.done():  # else C++ filled it, at the timeout of a wait
                raise

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return True once the call has ended; None waits without limit.

        Raise the call's error, or ExecutionError at `timeout`.
        """
        self._wait_for_end(timeout)
        if self.error is not None:
            raise self.error
        return True

    def wait_for_future(self, timeout: timedelta | None = None) -> bool:
        """Return True once the call has ended and the future has its value; raises like `wait`.

        C++ calls this, and fills a future that has no value when a wait is over.
        """
        self._wait_for_end(timeout)
        self.future.wait()
        return self.wait()

    def _wait_for_end(self, timeout: timedelta | None) -> None:
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        if not self.in_progress.acquire(timeout=seconds if seconds > 0 else -1):
            raise ExecutionError(f"a collective did not end within {seconds:g} s")
        self.in_progress.release()


class PlannedWork(dist.Work if TYPE_CHECKING else object):  # type: ignore[misc]
    """The Work of a call that topoplan runs; `wait` raises the call's error unchanged."""

    _tensors: list[torch.Tensor]
    progress: Progress
    _registered: dist.Work | None = None

    def stand_for(self, stock: dist.Work) -> None:
        """Wait for `stock` in the caller's `wait`, too, if torch registers works.

        It does so, by thread, for functions that it compiles, and a work leaves its registry when
        it is waited for (`allow_inflight_collective_as_graph_input_ctx`).
        """
        if torch._C._distributed_c10d._allow_inflight_collective_as_graph_input():
            self._registered = stock

    def finish(self, error: BaseException | None = None) -> None:
        """Mark the call as ended, or as failed with `error`. Only the first call counts."""
        self.progress.finish(
            self._tensors if error is None else Failed(error, self._tensors), error
        )

    def carry_out(self, function: Function) -> None:
        """Run this work's call by `function`, in this thread; `wait` raises its error, not this."""
        try:
            in_inference_mode(function)
            error = None
        except Exception as raised:
            error = raised
        self.finish(error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call has ended; on GPUs the current stream waits.

        Raise ExecutionError after `timeout`.
        """
        self.progress.wait(timeout)
        if self._registered is not None:
            self._registered.wait()
        return True

    def synchronize(self) -> None:
        """Wait until the call has ended."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the call has ended or failed; on GPUs, whether it is on its stream."""
        return not self.progress.in_progress.locked()

    def is_success(self) -> bool:
        """Return whether the call has ended without an error."""
        return self.is_completed() and self.progress.error is None

    def exception(self) -> BaseException | None:
        """Return the call's error; None if it has not failed, or is in progress."""
        return self.progress.error

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that hold, or will hold, the result."""
        return self._tensors

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the result's tensors, which raises the call's error if it fails."""
        return self.progress.future.then(tensors_or_raise)


class _OlderWork(dist.Work):
    """Replaces torch's PythonCallbackWork if torch has none; valid only while Python holds it."""

    def __init__(self, wait: Callable[..., bool]) -> None:
        super().__init__()
        self._future: torch.futures.Future[Any] = torch.futures.Future()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future that is not done."""
        return self._future


_CallbackWork: Any = getattr(torch._C._distributed_c10d, "PythonCallbackWork", _OlderWork)


class CpuWork(PlannedWork, _CallbackWork):  # type: ignore[misc]
    """The work of a call on CPU tensors.

    torch passes works on to C++ (DDP those of join, functional collectives those of their tensors),
    and the Python part of an object ends when Python releases it. So the C++ part, which has a
    future and a function to wait with, must work without the Python part.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors, self.progress = tensors, Progress()
        _CallbackWork.__init__(self, self.progress.wait_for_future)
        self.progress.future = _CallbackWork.get_future(self)


@cache
def get_done_work() -> CpuWork:
    """Return the finished work shared by all callers that have already waited for their call.

    It has no tensors: such callers do not read them (over NCCL they get no work at all).
    """
    work = CpuWork([])
    work.finish()
    return work


class GpuWork(PlannedWork, dist.Work):
    """The work of a call on a GPU's tensors, which is on a stream.

    Its future makes streams wait, which that of a CpuWork would not: it is valid while Python holds
    it.
    """

    def __init__(
        self, tensors: list[torch.Tensor], reads: Sequence[torch.Tensor], stream: torch.cuda.Stream
    ) -> None:
        dist.Work.__init__(self)
        self._tensors, self.progress = tensors, Progress()
        self.progress.future = torch.futures.Future(devices=[stream.device])
        self._stream, self._used = stream, [*tensors, *reads]
        self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._ready.record(torch.cuda.current_stream(stream.device))

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """Work on the call's stream inside the context, after the caller's earlier work.

        That is all work on the caller's stream when the call was made.
        """
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._ready)
            # Otherwise the allocator would reuse freed memory that the stream still uses.
            for tensor in self._used:
                tensor.record_stream(self._stream)
            yield
        self._used = []

    def carry_out(self, function: Function) -> None:
        """Put the call on its stream by `function`; errors are raised by `wait`.

        Its future must be completed there, too, for other streams to wait for it.
        """
        with self.on_stream():
            super().carry_out(function)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Make the current stream wait for the call; raises like PlannedWork.wait."""
        self.progress.wait(timeout)
        self.progress.future.wait()
        return True


def tensors_or_raise(future: torch.futures.Future[Any]) -> Any:
    """Return a future's tensors, or raise the error that took their place."""
    result = future.value()
    if isinstance(result, Failed):
        raise result.error
    return result


class _Line:
    """The calls in a thread's queue, and how many are pending.

    `pending` counts those that have not ended, `pending_stock` those of them that may start stock
    collectives. A separate object, since its owner may be destroyed while the thread is in a call.
    """

    def __init__(self) -> None:
        # SimpleQueue, not Queue, whose locks are Python's and cost as much as a call.
        self.calls: queue.SimpleQueue[tuple[Function, PlannedWork, bool] | None]
        self.calls = queue.SimpleQueue()
        self.pending = self.pending_stock = 0
        self._lock = threading.Lock()

    def count(self, change: int, *, may_be_stock: bool) -> None:
        """Count a call as added (1) or ended (-1)."""
        with self._lock:
            self.pending += change
            self.pending_stock += change * may_be_stock


class ThreadQueue:
    """Calls of one group on CPU tensors, run in order by a thread that starts with the first.

    Only calls that may start a stock collective must stay in order with others that do
    (`holds_stock`): stock collectives must start in one order on all ranks, and whether a call is
    one may not be known when it is made.
    """

    def __init__(self) -> None:
        self._line = _Line()
        self._thread: threading.Thread | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no call waits or is in progress."""
        return not self._line.pending

    @property
    def holds_stock(self) -> bool:
        """Whether a call that may be a stock one waits or is in progress: new ones must wait."""
        return bool(self._line.pending_stock)

    def carry_out(
        self,
        function: Function,
        tensors: list[torch.Tensor],
        *,
        waits: bool,
        name: str = "",
        reads: Sequence[torch.Tensor] = (),
        may_be_stock: bool = False,
    ) -> PlannedWork:
        """Run a call by `function` after the calls before it, and return its Work.

        Its result will be in `tensors`; it also `reads` other tensors. If the caller `waits`, the
        call has ended on return (on GPUs the current stream waits), and its error is raised here;
        if no call is before it, it then runs in the caller's thread. `may_be_stock` says that it
        may start a stock collective. torch.profiler shows it by its `name` for as long as the
        caller is in here.
        """
        if not name or not torch.autograd.profiler._is_profiler_enabled:
            return self._carry_out(function, tensors, reads, waits, may_be_stock)
        # Around all of it: a profile that ends before the work's future is there crashes (torch
        # 2.13).
        with torch.profiler.record_function(name):
            return self._carry_out(function, tensors, reads, waits, may_be_stock)

    def _carry_out(
        self,
        function: Function,
        tensors: list[torch.Tensor],
        reads: Sequence[torch.Tensor],
        waits: bool,
        may_be_stock: bool,
    ) -> PlannedWork:
        work = self._make_work(tensors, reads)
        # A call made by the queue's own thread (in a future's callback) runs at once too: no other
        # thread could run it.
        if (waits and not self._line.pending) or threading.current_thread() is self._thread:
            self._run_now(function, work)
            return work
        if self._thread is None:
            self._thread = threading.Thread(
                target=_serve, args=(self._line,), name="topoplan", daemon=True
            )
            self._thread.start()
        self._line.count(1, may_be_stock=may_be_stock)
        self._line.calls.put((function, work, may_be_stock))
        if waits:
            work.wait()
        return work

    def _make_work(self, tensors: list[torch.Tensor], reads: Sequence[torch.Tensor]) -> PlannedWork:
        return CpuWork(tensors)

    def _run_now(self, function: Function, work: PlannedWork) -> None:
        in_inference_mode(function)
        work.finish()

    def close(self, break_off: BreakOff) -> None:
        """End the thread after the calls that are in the queue.

        If they have not ended after some seconds, they may end later, but not after the process:
        `break_off` makes them fail then.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._line.calls.put(None)
        if thread is not threading.current_thread():
            thread.join(_END_S)
            if thread.is_alive():
                _left[thread] = break_off


def _serve(line: _Line) -> None:
    """Run one call after the other.

    Nothing is held between them: groups must be free to be destroyed.
    """
    while (entry := line.calls.get()) is not None:
        function, work, may_be_stock = entry
        work.carry_out(function)
        del entry, function, work
        # Only now is the queue idle: callbacks of the work may have made calls of their own.
        line.count(-1, may_be_stock=may_be_stock)


class StreamQueue(ThreadQueue):
    """Calls of one group on CUDA tensors, all on one stream, since they share buffers.

    The caller puts a call on the stream at once, unless it may have to wait for other ranks first
    (`may_be_stock`: the choice is not made), or one before it does: such calls are left to the
    thread. The call follows the work on the current stream, which waits if the caller does.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def _carry_out(
        self,
        function: Function,
        tensors: list[torch.Tensor],
        reads: Sequence[torch.Tensor],
        waits: bool,
        may_be_stock: bool,
    ) -> PlannedWork:
        if not may_be_stock and self.is_idle:
            work = self._make_work(tensors, reads)
            self._run_now(function, work)
        else:
            work = super()._carry_out(function, tensors, reads, False, may_be_stock)
        if waits:
            work.wait()
        return work

    def _make_work(self, tensors: list[torch.Tensor], reads: Sequence[torch.Tensor]) -> PlannedWork:
        return GpuWork(tensors, reads, self.stream)

    def _run_now(self, function: Function, work: PlannedWork) -> None:
        assert isinstance(work, GpuWork)
        with work.on_stream():
            super()._run_now(function, work)

    def close(self, break_off: BreakOff) -> None:
        """End the thread, and wait for the stream."""
        super().close(break_off)
        self.stream.synchronize()


def make_queue(device: torch.device) -> ThreadQueue:
    """Return a queue for calls on tensors of a device."""
    return StreamQueue(device) if device.type == "cuda" else ThreadQueue()


def start(
    call: PersistentCall,
    calls: ThreadQueue,
    results: list[torch.Tensor],
    *,
    waits: bool,
    name: str,
    reads: Sequence[torch.Tensor] = (),
    first: Function = lambda: None,
    number: int | None = None,
) -> PlannedWork:
    """Start a collective whose result will be in `results`, and return its Work.

    The collective also `reads` other tensors; `first` is called right before it. On CPUs a stock
    collective whose use is settled starts at once and runs concurrently with others, unless
    `holds_stock`. All other calls go to the queue `calls`, with `waits` and `name` as in
    `carry_out`. `number` is the call's number in its group if it was drawn before (None: the next
    one).
    """
    number = number or call.draw_number()
    path, is_bound = call.path, call.play is not None
    is_settled = is_bound or path.is_settled(call.buffers)
    uses_stock = not is_bound and is_settled and path.starts_stock(call.buffers)
    if uses_stock and path.base.device.type == "cpu" and not calls.holds_stock:
        first()
        stock = path.base.start(call.buffers, call.finish, number)
        work = CpuWork(results)
        work.stand_for(stock.work)
        if stock.call_when_done(work.finish):
            return work
        return calls.carry_out(stock.wait, results, waits=waits, name=name)

    def carry_out() -> None:
        first()
        call.run(number)

    return calls.carry_out(
        carry_out,
        results,
        waits=waits,
        name=name,
        reads=[call.buffers.source, call.buffers.target, *reads],
        may_be_stock=not is_settled or (uses_stock and not calls.is_idle),
    )
