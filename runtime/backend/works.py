"""Calls in the order in which they were made, while the caller goes on: the Works that a process group hands out.

On CPUs a thread carries calls out; what the caller waits for anyway it does itself, if nothing is before it. On GPUs there
is a stream for them, and nobody waits but streams.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ...topo.errors import ExecutionError

Call = Callable[[], object]
_END_S = 5.0
"""How long a thread may take to come to an end: it may be in a call whose peers are gone."""


class PlannedWork(dist.Work):
    """A call under way, or done. `wait` raises what went wrong, as itself."""

    def __init__(self, result: list[torch.Tensor], device: torch.device | None = None) -> None:
        super().__init__()
        self._tensors = result
        self._on_gpu = device is not None
        self._future: torch.futures.Future[Any] = torch.futures.Future(devices=[device] if device is not None else None)
        self._error: BaseException | None = None
        self._under_way = threading.Lock()
        self._under_way.acquire()

    def finish(self, error: BaseException | None = None) -> None:
        """The call is through, or has failed."""
        self._error = error
        self._future.set_result(self._tensors if error is None else error)
        self._under_way.release()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Until the call is through; on GPUs it is the current stream that waits. ExecutionError after `timeout`."""
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
        """As `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the call is through, or has failed (on GPUs: whether all of it is on its stream)."""
        return not self._under_way.locked()

    def is_success(self) -> bool:
        """Whether the call is through."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """What went wrong, if anything has."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold, or will hold, the result."""
        return self._tensors

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors."""
        # An exception stored in a future reaches C++ (DDP) as an object that is no tensor; raised while a future is
        # chained it arrives as itself.
        return self._future.then(_result_or_raise)


class StartedWork(PlannedWork):
    """A call that goes on by itself, and ends with a future of its tensor, or of what went wrong."""

    def __init__(self, result: list[torch.Tensor], started: torch.futures.Future[object]) -> None:
        super().__init__(result)
        started.add_done_callback(self._ended)

    def _ended(self, started: torch.futures.Future[object]) -> None:
        ended = started.value()
        self.finish(ended if isinstance(ended, BaseException) else None)


def _result_or_raise(future: torch.futures.Future[Any]) -> Any:
    result = future.value()
    if isinstance(result, BaseException):
        raise result
    return result


class ThreadLine:
    """Calls on CPU tensors."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Call, PlannedWork] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: PlannedWork | None = None

    def carry_out(
        self, call: Call, result: list[torch.Tensor], *, waits: bool, reads: Sequence[torch.Tensor] = ()
    ) -> dist.Work:
        """`call`, after those before it; now, in the caller's thread, if the caller waits for it and none is before it."""
        work = PlannedWork(result)
        if waits and (self._last is None or self._last.is_completed()):
            self._last = None
            _do(call)
            work.finish()
            return work
        if self._thread is None:
            self._thread = threading.Thread(target=_serve, args=(self._waiting,), name="topoplan", daemon=True)
            self._thread.start()
        self._last = work
        self._waiting.put((call, work))
        if waits:
            work.wait()
        return work

    def close(self) -> None:
        """End the thread."""
        self._last = None
        if self._thread is not None:
            self._waiting.put(None)
            if self._thread is not threading.current_thread():
                self._thread.join(_END_S)
            self._thread = None


def _serve(waiting: queue.SimpleQueue[tuple[Call, PlannedWork] | None]) -> None:
    """One call after the other. Nothing is held on to between them: groups must be free to be destroyed."""
    while (task := waiting.get()) is not None:
        call, work = task
        try:
            _do(call)
            error = None
        except Exception as raised:  # handed to whoever waits
            error = raised
        work.finish(error)
        del task, call, work, error


def _do(call: Call) -> None:
    # Buffers are kept from call to call: made in inference mode, they serve callers inside and outside of it.
    with torch.inference_mode():
        call()


class StreamLine:
    """Calls on CUDA tensors. One stream for all, as they share buffers."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def carry_out(
        self, call: Call, result: list[torch.Tensor], *, waits: bool, reads: Sequence[torch.Tensor] = ()
    ) -> dist.Work:
        """`call`, on the stream, after what the current stream is doing; the latter waits if the caller does. The stream
        uses the memory of `result` and of what the call `reads`.
        """
        work = PlannedWork(result, self.device)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            for tensor in (*result, *reads):
                tensor.record_stream(self.stream)
            _do(call)
            work.finish()
        if waits:
            work.wait()
        return work

    def close(self) -> None:
        """What is on the stream comes to its end."""
        self.stream.synchronize()
