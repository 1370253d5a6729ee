"""Compare in the background whether all ranks of a group make the same calls.

Each rank posts its calls in the group's store, and waits for no other. The first rank compares them
and posts which ranks differ; then waiting calls fail with that error on all ranks, even if gloo
would have computed wrong numbers, or waited. Only the first calls of a group and of each size are
posted: the tags of later calls differ if the calls do.

A stock collective is gloo's, NCCL's or MPI's own, without a plan.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from itertools import islice
from weakref import WeakSet

from torch._C._distributed_c10d import Store

from ....topo.errors import ExecutionError
from ...backend.call_check import CallCheck
from ...queues import BreakOff
from ...works import Failed, PlannedWork, Progress

log = logging.getLogger("topoplan")
# The key under which the first rank posts which ranks differ.
_MISMATCH = "mismatch"
# Polling interval of the store: shorter than people notice, and less than a hundredth of a core per
# rank.
_POLL_S = 0.02
# The same if a call waits for the answer: a few intervals delay the first call of a size.
_AWAITED_POLL_S = 0.002
# Time for which a call waits for other ranks to make it too: a later rank compares before it starts
# anything.
_AWAITED_S = 2.0
# Calls that are compared at once, and call numbers that are remembered: not all ranks post every
# call.
_COMPARED_AT_ONCE, _MAX_NUMBERS = 16, 256
# Time within which calls are compared once all ranks have posted them, even on a busy machine.
_COMPARED_WITHIN_S = 0.5
# Time for which a thread stays after the last call, so that a training loop does not start one per
# call.
_LINGER_S = 2.0
# Time for the thread to end: it may be in a request to a store that does not answer.
_END_S = 5.0


class ComparedCalls(CallCheck):
    """Compares this rank's calls with other ranks' in the background, in the group's store.

    `rank` is this rank's number in the group, `ranks` are the group's global ranks. `break_off` is
    called with the error if calls differ, to make all of the group's calls fail.
    """

    def __init__(self, store: Store, rank: int, ranks: Sequence[int], break_off: BreakOff) -> None:
        super().__init__(store, rank, ranks, break_off)
        self._waiting: WeakSet[Progress] = WeakSet()
        self._awaited: set[int] = set()
        self._same: set[int] = set()
        self._numbers: deque[int] = deque()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._last_post_s = 0.0
        self._to_post: deque[tuple[str, str, threading.Event]] = deque()
        self._stop, self._wake = threading.Event(), threading.Event()

    def post(self, number: int, what: str, *, is_awaited: bool = False) -> None:
        """Post this rank's call `number`, described by `what`, to be compared in the background.

        `is_awaited` says that all ranks call `wait_until_same` for it. Waits until the text is in
        the store; if that takes 2 s, no call is compared any more.
        """
        if self._stop.is_set():
            return
        is_posted = threading.Event()
        with self._guard:
            self._to_post.append((f"call/{number}/{self._rank}", what, is_posted))
            if is_awaited:
                self._awaited.add(number)
            if self._rank == 0:
                self._numbers.append(number)
            self._last_post_s = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="topoplan-check", daemon=True
                )
                self._thread.start()
        self._wake.set()
        # gloo may end the process. A store that is cut off would keep this call for ever.
        if not is_posted.wait(_AWAITED_S):
            log.info("calls are no longer compared, the store does not answer")
            self._stop.set()

    def wait_until_same(self, number: int) -> None:
        """Wait until all ranks posted call `number`; raise ExecutionError if they differ.

        Return after 2 s even if some rank has not posted it. Needed before stock collectives, since
        gloo ends the process if two ranks' calls differ in size.
        """
        deadline = time.monotonic() + _AWAITED_S
        while time.monotonic() < deadline and not self._stop.is_set():
            is_same = number in self._same
            if self.error is not None:
                raise self.error
            if is_same:
                break
            time.sleep(_AWAITED_POLL_S)
        with self._guard:
            self._awaited.discard(number)

    def compare(self, number: int, calls: Sequence[str]) -> None:
        """Raise ExecutionError unless all of `calls`, one per rank in rank order, are equal.

        `number` is the call's number in the group. `error` keeps the error, for later calls.
        """
        if text := explain_difference(number, self._ranks, calls):
            self.error = ExecutionError(text)
            raise self.error

    def watch(self, work: PlannedWork) -> None:
        """Make the call of `work` fail if the ranks' calls turn out to differ before it ends."""
        self._waiting.add(work.progress)

    def find_error(self) -> ExecutionError | None:
        """Return the error that names the ranks whose calls differ, None if no difference is known.

        Waits up to 0.5 s, as the posted calls may not have been compared yet.
        """
        deadline = time.monotonic() + _COMPARED_WITHIN_S
        while self.error is None and self._thread is not None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return self.error

    def close(self) -> None:
        """Stop comparing, and end the background thread."""
        self._stop.set()
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END_S)

    def _serve(self) -> None:
        """Compare calls, or wait for the first rank to do so, while any call waits."""
        while not self._stop.is_set():
            self._wake.clear()
            try:
                while self._to_post:
                    key, what, is_posted = self._to_post.popleft()
                    self._store.set(key, what)
                    is_posted.set()
                text = self._compare() if self._rank == 0 else self._read_mismatch()
            # Calls fail by themselves then, and are explained without the store.
            except RuntimeError as error:
                log.debug("calls are no longer compared, the store is gone: %s", error)
                self._stop.set()
                break
            if text:
                self._fail(ExecutionError(text))
                break
            with self._guard:
                waits = any(not progress.has_ended for progress in list(self._waiting))
                if (
                    not (waits or self._to_post)
                    and time.monotonic() > self._last_post_s + _LINGER_S
                ):
                    self._thread = None
                    return
            self._wake.wait(_AWAITED_POLL_S if self._awaited else _POLL_S)
        self._thread = None

    def _compare(self) -> str:
        """Compare the oldest calls that all ranks have posted; return which ranks differ, or "".

        Ranks learn at different calls that a size is settled, so not every rank posts every call.
        """
        for number in list(islice(self._numbers, _COMPARED_AT_ONCE)):
            keys = [f"call/{number}/{rank}" for rank in range(len(self._ranks))]
            if self._store.check(keys):
                text = explain_difference(
                    number, self._ranks, [self._store.get(key).decode() for key in keys]
                )
                if text:
                    self._store.set(_MISMATCH, text)
                    return text
                if number in self._awaited:
                    self._store.set(f"same/{number}", "")
                    self._same.add(number)
                for key in keys:
                    self._store.delete_key(key)
                self._numbers.remove(number)
        while len(self._numbers) > _MAX_NUMBERS:
            self._store.delete_key(f"call/{self._numbers.popleft()}/0")
        return ""

    def _read_mismatch(self) -> str:
        with self._guard:
            awaited = list(self._awaited)
        self._same.update(x for x in awaited if self._store.check([f"same/{x}"]))
        return self._store.get(_MISMATCH).decode() if self._store.check([_MISMATCH]) else ""

    def _fail(self, error: ExecutionError) -> None:
        self.error = error
        for progress in list(self._waiting):
            progress.finish(Failed(error), error)
        # Otherwise gloo's own works would wait on, and the process would wait for them at its end.
        self._break_off(error)


def explain_difference(number: int, ranks: Sequence[int], calls: Sequence[str]) -> str:
    """Return a text that names the ranks whose call differs from the majority's; "" if none does.

    `number` is the call's number in the group; `calls` has one description for each of the global
    `ranks`.
    """
    counts = Counter(calls)
    if len(counts) == 1:
        return ""
    (usual, most), (_, next_most) = counts.most_common(2)
    others = [
        (rank, call)
        for rank, call in zip(ranks, calls, strict=True)
        if call != usual or most == next_most
    ]
    differing = ", ".join(f"rank {rank} calls {call}" for rank, call in others)
    rest = "" if most == next_most else f", where the other ranks call {usual}"
    return (
        f"call {number} of the process group differs between ranks: {differing}{rest}; all ranks "
        "must make the same calls in the same order"
    )
