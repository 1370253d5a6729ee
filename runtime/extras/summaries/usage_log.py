"""Log which schedules a run used and how much time they saved, on its first rank.

Two lines per run say what plans save, one after the first steps and one at the end. They are shown
unless TOPOPLAN_LOG=warning, since whoever trains should see whether plans help. With
TOPOPLAN_LOG=info a line per group says which schedules were used, and why. `summary` returns the
same as data.

A race times several schedules at one message size and keeps the fastest; a stock collective is
gloo's, NCCL's or MPI's own, without a plan.
"""

import atexit
import logging
import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from weakref import WeakValueDictionary

import torch.distributed as dist

from ...candidates import STOCK
from ...communicator import Communicator
from ...dispatcher import Dispatcher
from ...policy import ChooseMode
from ...usage_log import CountedGroup, GroupUsage, UsageLog
from .steps import StepClock
from .summary import GroupSummary, SizeSummary, Summary, format_size
from .tallies import Tallies

log = logging.getLogger("topoplan")
# Of the two lines on what plans save. It has a level of its own: programs leave the root logger at
# WARNING, which says nothing about these lines.
_savings_log = logging.getLogger("topoplan.savings")
_savings_log.setLevel(logging.INFO)
# Choices are listed for buffers below 2**48 bytes: more than any host has.
_MAX_BITS = 48
# Groups that have ended and are still part of the summary: a long run may make and end many.
_MAX_ENDED = 64
# The line on the first steps comes after this many calls of a size even if others still race.
_LATEST_REPORT = 1_000


def _shows_savings() -> bool:
    """Return whether the lines on what plans save are not turned off."""
    return log.level == logging.NOTSET or log.isEnabledFor(logging.INFO)


def _show_savings(line: str) -> None:
    """Log a line on what plans save, or print it if the program does not log."""
    if not _shows_savings():
        return
    # Asked now, not when the group was made: a handler added in between would show it twice.
    if _savings_log.hasHandlers():
        _savings_log.info("%s", line)
    else:
        print(f"topoplan: INFO: {line}", file=sys.stderr, flush=True)


class LoggedUsage(GroupUsage):
    """Counts the calls of a group or DDP hook; the first rank logs them if `is_wanted`."""

    def __init__(self, whose: CountedGroup) -> None:
        self.name, self.ranks = whose.name, tuple(whose.ranks)
        self.is_first, self.is_hook = whose.is_first, whose.is_hook
        engine = f", stock by {whose.stock}" if whose.stock.startswith("nccl") else ""
        self._title = f"{self.name}, ranks {_shorten(list(self.ranks))}{engine}"
        self._list_used, self._mode = whose.list_used, whose.mode
        self.is_wanted = self.is_first and log.isEnabledFor(logging.INFO)
        self._left: Counter[tuple[str, str]] = Counter()
        self._stock_calls: Counter[str] = Counter()
        self._is_open = True

    @property
    def used(self) -> Mapping[str, Communicator]:
        """The communicators that have made calls so far, by collective."""
        return {} if self._list_used is None else self._list_used()

    def count_stock(self, collective: str) -> None:
        """Count a call that gloo or NCCL made, of a collective (its name) that may have plans."""
        self._stock_calls[collective] += 1
        steps.note(STOCK)

    def note_stock_reason(self, collective: str, why: str) -> None:
        """Record why the calls of a collective are left to the stock collective, for the log."""
        if not self.is_wanted:
            return
        if (collective, why) not in self._left:
            log.debug("%s: %s stock: %s", self._title, collective, why)
        self._left[collective, why] += 1

    def summarize(self) -> GroupSummary:
        """Return counts and times, by schedule and size, of the group's calls so far."""
        sizes: list[SizeSummary] = []
        untimed = Counter(self._stock_calls)
        for name, communicator in self.used.items():
            dispatcher = communicator.dispatcher
            tallies = dispatcher.find_observer(Tallies)
            if tallies is not None:
                untimed[name] += tallies.count_raced(dispatcher.races)
            sizes += _list_sizes(name, communicator)
        return GroupSummary(
            self.name, self.ranks, tuple(sizes), dict(+untimed), is_off=self._list_used is None
        )

    def close(self) -> None:
        """Log the group's line, and the run's if no group is left; later calls do nothing."""
        if not self._is_open:
            return
        self._is_open = False
        if self.is_wanted:
            parts = [f"{name} by {_describe(one, self._mode)}" for name, one in self.used.items()]
            parts += [
                f"{collective} stock: {why} ({calls} call{'s' * (calls > 1)})"
                for (collective, why), calls in self._left.items()
            ]
            log.info("%s: %s", self._title, "; ".join(parts) or "no collective that plans are for")
        usage_log.close(self)


class ProcessUsageLog(UsageLog):
    """All accounts of this process; logs the lines on what plans save in it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # Weak: a group that is dropped without an end is no longer in the summary.
        self._open: WeakValueDictionary[int, LoggedUsage] = WeakValueDictionary()
        self._ended: deque[GroupSummary] = deque(maxlen=_MAX_ENDED)
        self._opened = 0
        self.is_rank_0 = self._has_reported = self._has_unsaid = False
        self._trial_calls = 0
        self._pid = os.getpid()
        atexit.register(self._end)

    def open(self, whose: CountedGroup) -> LoggedUsage:
        """Start counting the calls of the group or hook `whose`, and return its counter."""
        usage = LoggedUsage(whose)
        steps.start()
        with self._lock:
            self._opened += 1
            self._open[self._opened] = usage
            self.is_rank_0 |= usage.is_first and usage.ranks[:1] == (0,)
            self._has_unsaid, self._pid = True, os.getpid()
        return usage

    def observe(self, dispatcher: Dispatcher) -> None:
        """Count the calls of a dispatcher from now on."""
        races = dispatcher.races
        dispatcher.observe(
            Tallies(self.report, lambda label, bits: steps.note(label, is_racing=bits in races))
        )

    def summarize(self, usages: Iterable[GroupUsage]) -> Summary:
        """Return what the calls of some groups ran by so far."""
        own = (x for x in usages if isinstance(x, LoggedUsage))
        return Summary(tuple(x.summarize() for x in own), steps.times)

    def close(self, usage: LoggedUsage) -> None:
        """Keep only the summary of a group; log the run's line if the run ends with it.

        The run ends with the last group of the backend, or with the process. A hook ends with its
        model, and another model may follow.
        """
        with self._lock:
            self._ended.append(usage.summarize())
            for number in [key for key, one in self._open.items() if one is usage]:
                del self._open[number]
            if not self._open and not (usage.is_hook and dist.is_initialized()):
                self._show_end()

    def _end(self) -> None:
        """Close the usage of all groups, when the process ends."""
        with self._lock:
            for usage in list(self._open.values()):
                usage.close()
            self._show_end()

    def _show_end(self) -> None:
        # A process that the rank has forked, such as a loader of data, says nothing.
        # Neither does a short run, of which nothing is known but that nothing has raced.
        if self.is_rank_0 and self._has_unsaid and self._pid == os.getpid():
            whole = self.summarize_all()
            if whole.timed or whole.is_off:
                _show_savings(f"the whole run: {whole.line}")
        self._has_unsaid = False

    def summarize_all(self) -> Summary:
        """Return the summary of all accounts of this process, closed ones included."""
        with self._lock:
            now = self.summarize(self._open.values())
            return Summary((*self._ended, *now.groups), now.steps)

    def report(self, calls: int) -> None:
        """Log the line of the first steps once no size is in a race any more.

        `calls` are those of a size since its schedule was chosen. A size that was called a few
        times, before DDP changed its buckets, stays in its race for ever: races without progress
        since the last report are ignored.
        """
        if self._has_reported or not self.is_rank_0 or not _shows_savings():
            return
        with self._lock:
            used = [one for usage in self._open.values() for one in usage.used.values()]
            before = self._trial_calls
            self._trial_calls = sum(
                race.calls for one in used for race in list(one.dispatcher.races.values())
            )
            if self._trial_calls == before or calls >= _LATEST_REPORT:
                self._has_reported = True
                _show_savings(f"the first steps: {self.summarize_all().line}")


# One of each per process.
steps = StepClock()
usage_log = ProcessUsageLog()


def summary() -> Summary:
    """Return which schedules this process's collectives used so far, and the time that saved.

    It covers the groups of the backend "topo" and the DDP hooks, as this rank has called them; the
    time saved against stock is estimated from the races that settled each size. `print` shows a
    table. A group and a hook have a method `summary` for themselves alone.
    """
    return usage_log.summarize_all()


def _list_sizes(name: str, communicator: Communicator) -> Iterator[SizeSummary]:
    """Yield the sizes of a communicator that are settled, with their calls by each schedule."""
    dispatcher = communicator.dispatcher
    tallies = dispatcher.find_observer(Tallies)
    for label, bits, calls in () if tallies is None else tallies.list_calls():
        if bits in dispatcher.races:
            continue
        choice = dispatcher.choices.by_bits.get(bits)
        raced = {} if choice is None else choice.raced
        # A dtype that the stock collective lacks goes by a plan even if stock won.
        is_timed = choice is not None and label == choice.label and STOCK in raced
        yield SizeSummary(
            name,
            1 << (bits - 1) if choice is None else choice.raced_bytes or 1 << (bits - 1),
            label,
            calls,
            raced[label] if is_timed else None,
            raced[STOCK] if is_timed else None,
            None if choice is None else choice.raced_on,
        )


def _describe(communicator: Communicator, mode: ChooseMode) -> str:
    """Describe the plan, and the choice at each settled size."""
    plan, used = communicator.plan, []
    if callable(mode):
        used = ["as the function says"]
    elif mode == "plan":
        used = [f"{x.schedule.label} from {format_size(x.min_bytes)}" for x in plan.entries]
    else:
        for bits in range(1, _MAX_BITS):
            choice = communicator.choice((1 << bits) - 1)
            if choice is not None:
                raced_us = dict(choice.raced)
                times = [f"{raced_us.pop(choice.label, 0.0):.0f} us"]
                times += [f"{label} {us:.0f} us" for label, us in raced_us.items()]
                took = f" ({', '.join(times)})" if choice.raced else ""
                used.append(f"{choice.label} at {format_size(1 << (bits - 1))}{took}")
    return f"plan {plan.hash[:16]} for {plan.topology.name}: {', '.join(used) or 'no size settled'}"


def _shorten(ranks: list[int]) -> str:
    """Return consecutive ranks as a range such as 0-3, other ranks as a list."""
    if len(ranks) > 1 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return " ".join(map(str, ranks))
