"""A thread for calls that can be abandoned while they wait."""

import queue
import threading
from collections.abc import Callable
from typing import Any

from ...reductions import in_inference_mode


class Worker:
    """A thread that runs functions in the order in which `begin` gets them.

    Once a function has ended, the queue `events` gets a tuple: this worker, the function's number,
    and the error that it raised or None. If a function hangs, the caller can leave the worker alone
    and make another one; its thread ends after the function does, if `stop` was called.
    """

    def __init__(self, events: "queue.SimpleQueue[Any]") -> None:
        self._events, self._count = events, 0
        self._functions: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="topoplan-guarded", daemon=True).start()

    def begin(self, function: Callable[[], object]) -> int:
        """Queue `function` for the thread; return its number. Does not wait."""
        self._count += 1
        self._functions.put(function)
        return self._count

    def stop(self) -> None:
        """End the thread, once it has run the functions already queued."""
        self._functions.put(None)

    def _serve(self) -> None:
        count = 0
        while (function := self._functions.get()) is not None:
            count, error = count + 1, None
            try:
                # The buffers of calls are made in this mode (guarded.py).
                in_inference_mode(function)
            except BaseException as raised:
                error = raised
            del function
            self._events.put((self, count, error))
