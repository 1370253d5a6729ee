"""Calls that go on while the caller does: run in the order in which they were made, with Works.

A Work is torch's object to wait for a call. On CPUs a thread runs calls; a call that the caller
waits for anyway runs in the caller's thread, if no call is before it. On GPUs they are put on a
stream, and only streams wait. The DDP hook and the backend both make their calls here. A
PersistentCall is a call that is checked and ready to run; a stock call is one by the backend's own
collective, without a plan.
"""

from __future__ import annotations

import atexit
import ctypes
import queue
import signal
import threading
from collections.abc import Callable, Sequence

import torch

from ..topo.errors import ExecutionError
from .persistent_calls import PersistentCall
from .ranks.set_up import end_past_waits
from .reductions import in_inference_mode
from .works import CpuWork, Function, GpuWork, PlannedWork

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
        """Whether no call is queued or in progress."""
        return not self._line.pending

    @property
    def holds_stock(self) -> bool:
        """Whether new stock calls must queue: one that may be stock is queued or in progress."""
        return bool(self._line.pending_stock)

    def submit(
        self,
        function: Function,
        tensors: list[torch.Tensor],
        *,
        waits: bool,
        name: str = "",
        reads: Sequence[torch.Tensor] = (),
        may_be_stock: bool = False,
    ) -> PlannedWork:
        """Queue a call, run by `function` after the calls before it, and return its Work.

        Its result will be in `tensors`; it also `reads` other tensors. If the caller `waits`, the
        call has ended on return (on GPUs the current stream waits), and its error is raised here;
        if no call is before it, it then runs in the caller's thread. `may_be_stock` says that it
        may start a stock collective. torch.profiler shows it by its `name` until this returns.
        """
        if not name or not torch.autograd.profiler._is_profiler_enabled:
            return self._submit(function, tensors, reads, waits, may_be_stock)
        # Around all of it: a profile that ends before the work's future is there crashes (torch
        # 2.13).
        with torch.profiler.record_function(name):
            return self._submit(function, tensors, reads, waits, may_be_stock)

    def _submit(
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
        """End the thread after the calls that are in the queue, waiting some seconds for that.

        Calls that take longer go on; when the process exits, `break_off` makes them fail.
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
        work.execute(function)
        del entry, function, work
        # Only now is the queue idle: callbacks of the work may have made calls of their own.
        line.count(-1, may_be_stock=may_be_stock)


class StreamQueue(ThreadQueue):
    """Calls of one group on CUDA tensors, all on one stream, since they share buffers.

    The caller puts a call on the stream at once, unless the call, or one before it, may have to
    wait for other ranks first (`may_be_stock`): such calls are left to the thread. A call comes
    after the work on the caller's current stream, which waits for it if the caller does.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def _submit(
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
            work = super()._submit(function, tensors, reads, False, may_be_stock)
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
        """End the thread as ThreadQueue does, and wait for the stream."""
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
    collective that is chosen already starts at once and runs concurrently with others, unless a
    queued call may be stock. All other calls go to the queue `calls`, which wakes the caller at the
    end if it `waits`; `name` is for the profiler. `number` is the call's number in its group if it
    was drawn before (None: the next one).
    """
    number = number or call.draw_number()
    path, is_bound = call.path, call.play is not None
    is_settled = is_bound or path.is_settled(call.buffers)
    uses_stock = not is_bound and is_settled and path.can_start_stock(call.buffers)
    if uses_stock and path.base.device.type == "cpu" and not calls.holds_stock:
        first()
        stock = path.base.start(call.buffers, call.finish, number)
        work = CpuWork(results)
        work.stand_for(stock.work)
        if stock.call_when_done(work.finish):
            return work
        return calls.submit(stock.wait, results, waits=waits, name=name)

    def run_call() -> None:
        first()
        call.run(number)

    return calls.submit(
        run_call,
        results,
        waits=waits,
        name=name,
        reads=[call.buffers.source, call.buffers.target, *reads],
        may_be_stock=not is_settled or (uses_stock and not calls.is_idle),
    )
