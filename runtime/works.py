"""The Works of calls that go on while the caller does, and their futures.

A Work is torch's object to wait for a collective.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist

from ..topo.errors import ExecutionError
from .reductions import in_inference_mode

Function = Callable[[], object]


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
    """The state of a call, which C++ may hold: it has no reference to the work.

    `future` gets the call's tensors, or a Failed in their place; the maker of the work sets it.
    `error` is why the call failed, None if it did not.
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

        Only the first mark counts.
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
        """Return True once the call has ended.

        Raise the call's error, or ExecutionError at `timeout` (None: no limit).
        """
        self._wait_for_end(timeout)
        if self.error is not None:
            raise self.error
        return True

    def wait_for_future(self, timeout: timedelta | None = None) -> bool:
        """Return True once the call has ended and the future has its value.

        C++ calls this, and fills a future that has no value when a wait is over. Raise the call's
        error, or ExecutionError at `timeout` (None: no limit).
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
    """The Work of a call that topoplan runs; `wait` raises the call's error unchanged.

    `progress` has the call's state, `_tensors` hold its result; a subclass must set both when it is
    made. At run time the base is `object`: each subclass also has the class of torch's Work that
    suits its device.
    """

    _tensors: list[torch.Tensor]
    progress: Progress
    _registered: dist.Work | None = None

    def stand_for(self, stock: dist.Work) -> None:
        """Let `wait` also wait for `stock`, a work of the backend's own, if torch registers works.

        This is for works on CPU tensors; `wait` of a GpuWork does not.

        It does so, by thread, for functions that it compiles, and a work leaves its registry when
        it is waited for (`allow_inflight_collective_as_graph_input_ctx`).
        """
        if torch._C._distributed_c10d._allow_inflight_collective_as_graph_input():
            self._registered = stock

    def finish(self, error: BaseException | None = None) -> None:
        """Mark the call as ended, or as failed with `error`; only the first mark counts."""
        self.progress.finish(
            self._tensors if error is None else Failed(error, self._tensors), error
        )

    def execute(self, function: Function) -> None:
        """Run this work's call, `function`, in this thread; its error is raised by `wait`."""
        try:
            in_inference_mode(function)
            error = None
        except Exception as raised:
            error = raised
        self.finish(error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call has ended, and return True; on GPUs the current stream waits.

        Raise the call's error, or ExecutionError after `timeout` (None: no limit).
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
    """The work of a call on a GPU's tensors, which is queued on a CUDA stream.

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

    def execute(self, function: Function) -> None:
        """Put the call, `function`, on its stream; its error is kept for `wait`.

        Its future must be completed there, too, for other streams to wait for it.
        """
        with self.on_stream():
            super().execute(function)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Make the current stream wait for the call, and return True.

        Raise the call's error, or ExecutionError at `timeout`.
        """
        self.progress.wait(timeout)
        self.progress.future.wait()
        return True


def tensors_or_raise(future: torch.futures.Future[Any]) -> Any:
    """Return a future's tensors, or raise the error that took their place."""
    result = future.value()
    if isinstance(result, Failed):
        raise result.error
    return result
