"""End waits for messages of gloo whose connection was closed when they were half transferred.

gloo tells all messages of a closed connection of it but the one that is being transferred, whose
wait ends at its deadline alone: `Pair::signalException` (gloo/transport/tcp/pair.cc at 70dc360)
looks neither at the receive in progress (`rx_.ubuf`) nor at the unbound buffer of a send in
progress (`op.ubuf` of `tx_`). A thread looks a few times a second for waits that last, and aborts
those whose connection is closed. It asks gloo whether it is: then a receive of a message that
nobody sends fails at once.
"""

import ctypes
import os
import threading
import time
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..ranks.waits import NEVER_SENT, Waiting, WaitWatch

# Polling interval of the thread, which takes some 20 us for each wait that lasts longer.
_POLL_S = 0.25
# Later on, one in so many polls.
_SELDOM = 4
# For a message that has come although its wait was aborted; gloo takes 0 for no limit.
_AT_ONCE = timedelta(milliseconds=1)


class _Watch(WaitWatch):
    """The waits in progress of this process, and the thread that looks at them."""

    def __init__(self) -> None:
        self.waits: dict[int, Waiting] = {}
        self._has_waits = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def begin(self, waiting: Waiting) -> None:
        """Look at a thread's waits from now on; see `end`."""
        self.waits[id(waiting)] = waiting
        if not self._has_waits.is_set():
            self._has_waits.set()
            if self._thread is None:
                self._start()

    def end(self, waiting: Waiting) -> None:
        """Look at them no more."""
        waiting.awaited = None
        self.waits.pop(id(waiting), None)

    def check_arrived(self, work: Any) -> None:
        """Return if the message of `work`, whose wait was ended, has been received or sent.

        Raise RuntimeError if not; gloo then closes all of the group's connections.
        """
        try:
            work.wait(_AT_ONCE)
        except RuntimeError as error:
            raise RuntimeError("the connection was closed in the middle of this message") from error

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="topoplan-half-messages", daemon=True
                )
                self._thread.start()

    def _serve(self) -> None:
        seen: dict[int, tuple[int, int]] = {}
        while True:
            if not self.waits:
                self._has_waits.clear()
                if not self.waits:  # else one began meanwhile, and found the event set
                    self._has_waits.wait()
            time.sleep(_POLL_S)
            seen = self._look(seen)

    def _look(self, seen: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        """Abort waits whose connection is closed; return which ones were seen, and how often.

        `seen` has the work of each wait, and how many times it was seen before.
        """
        lasting = {}
        for number, waiting in list(self.waits.items()):
            if (awaited := waiting.awaited) is None:
                continue
            work, peer = awaited
            known, times = seen.get(number, (id(work), 0))
            times = times if known == id(work) else 0
            lasting[number] = id(work), times + 1
            # Each time is a message of gloo's to the peer: of long waits fewer are tried.
            is_due = times in (1, 2) or (times > 0 and times % _SELDOM == 0)
            if is_due and _is_closed(waiting.backend, peer):
                for part in getattr(work, "works", (work,)):
                    _abort_wait(part)
        return lasting

    def forget(self) -> None:
        """Begin anew in a forked process, which has no such thread, and none of the waits."""
        _Watch.__init__(self)


# One per process.
WATCH = _Watch()
os.register_at_fork(after_in_child=WATCH.forget)


def _is_closed(backend: Any, peer: int) -> bool:
    try:
        backend.recv([torch.empty(1)], peer, NEVER_SENT)
    except RuntimeError:
        return True
    return False


def _abort_wait(work: object) -> None:
    """Make the wait for a message of gloo return False, now or when it begins.

    Do nothing if `work` is none of gloo's messages, or this torch is not as expected. torch has no
    binding for that (2.9 to 2.15), so the method of C++ is called on the object of C++, which
    pybind11 keeps behind the head of the Python object. It is known by its table of virtual
    functions.
    """
    if not isinstance(work, dist.Work):
        return
    own = ctypes.c_void_p.from_address(id(work) + object.__basicsize__).value
    table = None if own is None else ctypes.c_void_p.from_address(own).value
    abort = _find_aborts().get(table or 0)
    if abort is not None:
        abort(ctypes.c_void_p(own))


@cache
def _find_aborts() -> dict[int, Any]:
    """Return the methods that abort waits, by the address of their class's virtual functions."""
    aborts = {}
    try:
        (path,) = (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")
        library = ctypes.CDLL(str(path))
        for name in ("RecvWork", "SendWork"):
            of_class = f"N4c10d16ProcessGroupGloo{len(name)}{name}"
            table = ctypes.c_char.in_dll(library, f"_ZTV{of_class}E")
            # An object points behind the first two words of the table.
            at = ctypes.addressof(table) + 2 * ctypes.sizeof(ctypes.c_void_p)
            aborts[at] = getattr(library, f"_Z{of_class}5abortEv")
    except (OSError, ValueError, AttributeError):  # another build: waits end at their deadline
        return {}
    return aborts
