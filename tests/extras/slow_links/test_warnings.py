"""A link that becomes slow is warned of by name; a rank that is late blames no link."""

from __future__ import annotations

import threading

import pytest
from torch._C._distributed_c10d import HashStore

from topoplan.runtime.extras.slow_links import warnings as slow_links
from topoplan.runtime.extras.slow_links.warnings import CallListener, SlowLinks
from topoplan.runtime.program.contract import ObservedCalls
from topoplan.runtime.program.instructions import Post, Span

SENT = Post("send", 1, 0, 0, 0, Span("work", 0, 0))
RECEIVED = Post("receive", 0, 0, 0, 0, Span("work", 0, 0))
# A slow call's time: beside it, the calls before take none.
LONG_S = 0.05


class Clock:
    """Stands in for the module `time`: time passes in `pass_s` alone."""

    def __init__(self) -> None:
        self._now_s = 1000.0

    def pass_s(self, seconds: float) -> None:
        self._now_s += seconds

    def time(self) -> float:
        return self._now_s

    monotonic = time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stopped = Clock()
    monkeypatch.setattr(slow_links, "time", stopped)
    return stopped


CALLS = ObservedCalls("a call", "ring", 1 << 20, sent_bytes=1 << 20, crosses_links=True)


def watch(links: SlowLinks) -> CallListener:
    """Return the listener for calls of one kind."""
    listener = links.listen(CALLS)
    assert listener is not None
    return listener


def make_slow_calls(clock: Clock, *, is_sender_late: bool) -> None:
    """Make calls in which rank 0 sends rank 1 a message, first fast and then slow ones."""
    store = HashStore()
    links = [SlowLinks(rank, range(2), store, "link {} -> {}".format) for rank in range(2)]
    source, target = (watch(one) for one in links)
    for number in range(20):
        pause_s = 0.0 if number < 5 else LONG_S
        sends, receives = source.begin(), target.begin()
        if receives is not None:
            receives.before_wait()
        if is_sender_late:
            clock.pass_s(pause_s)
        if sends is not None:
            sends(SENT)
        if not is_sender_late:
            clock.pass_s(pause_s)
        if receives is not None:
            receives(RECEIVED)
        source.end(number)
        target.end(number)
    for thread in threading.enumerate():
        if thread.name == "topoplan-slow":
            thread.join()


def test_programs_that_are_called_no_more_hold_up_no_warning(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(slow_links, "_PAUSE_S", 0.0)
    links = SlowLinks(0, range(2), HashStore(), "link {} -> {}".format)
    for watched in (watch(links), watch(links)):
        for pause_s in (0.0, LONG_S, LONG_S, LONG_S):
            watched.begin()
            clock.pass_s(pause_s)
            watched.end(0)
    assert watched.begin() is not None


def test_a_slow_link_is_warned_of_once(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    make_slow_calls(clock, is_sender_late=False)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1, warnings
    assert warnings[0].startswith("rank 1: link 0 -> 1 is slow: a call (a call) takes")
    assert warnings[0].endswith("this rank was blocked on messages that rank 0 had sent")


def test_a_rank_that_sends_late_is_no_slow_link(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    make_slow_calls(clock, is_sender_late=True)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
