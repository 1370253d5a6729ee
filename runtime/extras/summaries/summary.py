"""The data and text of a summary: which schedules a run's calls used, and the time saved.

The time saved is an estimate: each call counts with the time of its schedule, and of the stock
collective, in the race that chose the schedule for its size.

A race times several schedules at one message size and keeps the fastest; a stock collective is
gloo's, NCCL's or MPI's own, without a plan.
"""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from ...candidates import STOCK
from .steps import StepTimes

# Share of the estimated seconds a step that the clock must show.
_BORNE_OUT = 0.5
# Sizes that a line names; a longer line is not read.
_MAX_NAMED = 6
# Bytes per unit, the largest first.
_FACTORS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True)
class SizeSummary:
    """The calls of a collective at one size, rounded down to a power of two, by one schedule.

    `calls` are those since the race that chose the schedule, on the date `raced_on`; `used_us` and
    `stock_us` are the microseconds of the schedule and of the stock collective in it, at
    `size_bytes`; None without a race.
    """

    collective: str
    size_bytes: int
    schedule: str
    calls: int
    used_us: float | None = None
    stock_us: float | None = None
    raced_on: str | None = None


@dataclass(frozen=True)
class GroupSummary:
    """A process group's or DDP hook's calls, as this rank has made them.

    `name` is the group's; `ranks` are its global ranks; `sizes` has the calls by size and schedule.
    `untimed` counts calls without an estimate, by collective: those before a schedule was chosen
    for their size, and those left to gloo or NCCL. `is_off` says that plans are turned off.
    """

    name: str
    ranks: tuple[int, ...]
    sizes: tuple[SizeSummary, ...]
    untimed: dict[str, int]
    is_off: bool = False


@dataclass(frozen=True)
class Summary:
    """What the collectives of this process ran by so far, and an estimate of what that saved.

    `steps` are the times of the process's training steps, None before any. The text states the
    estimate only if the clock bears it out.
    """

    groups: tuple[GroupSummary, ...]
    steps: StepTimes | None = None

    @property
    def timed(self) -> list[SizeSummary]:
        """The sizes whose schedule raced against the stock collective."""
        return [size for group in self.groups for size in group.sizes if size.stock_us is not None]

    @property
    def used_s(self) -> float:
        """Estimated seconds of communication of the calls in `timed`."""
        return sum(size.calls * (size.used_us or 0.0) for size in self.timed) / 1e6

    @property
    def stock_s(self) -> float:
        """Estimated seconds that the stock collectives would have taken for the same calls."""
        return sum(size.calls * (size.stock_us or 0.0) for size in self.timed) / 1e6

    @property
    def saved(self) -> float | None:
        """Estimated share of the communication time saved against stock.

        None without a race, and if the clock does not bear it out (see `is_borne_out`). It is 0 if
        stock won all races.
        """
        if not self.stock_s or self._is_all_stock:
            return 0.0 if self.timed else None
        return 1 - self.used_s / self.stock_s if self.is_borne_out else None

    @property
    def _is_all_stock(self) -> bool:
        """Whether stock was the fastest in all races."""
        return all(size.schedule == STOCK for size in self.timed)

    @property
    def is_borne_out(self) -> bool:
        """Whether steps by plans are shorter than those by stock, by half of the estimate or more.

        Not all of it can be expected: communication that goes on beside backward is hidden. A
        race's times of stock can be too long, though, where a call waited behind others.
        """
        steps = self.steps
        if steps is None or steps.stock_s is None or steps.plan_s is None:
            return False
        estimate_s = (self.stock_s - self.used_s) / steps.plan_steps
        return steps.stock_s - steps.plan_s >= max(0.0, estimate_s * _BORNE_OUT)

    @property
    def untimed_calls(self) -> int:
        """The number of calls for which there is no estimate."""
        settled = sum(size.calls for group in self.groups for size in group.sizes)
        timed = sum(size.calls for size in self.timed)
        return settled - timed + sum(sum(group.untimed.values()) for group in self.groups)

    @property
    def is_off(self) -> bool:
        """Whether plans are turned off."""
        return bool(self.groups) and all(group.is_off for group in self.groups)

    @property
    def line(self) -> str:
        """The summary as one line: the share of time saved, from which races, and what ran."""
        if self.is_off:
            return "plans are off, gloo or NCCL made all calls"
        return "; ".join(filter(None, (self._say_saved(), self._say_used(), self._say_untimed())))

    def describe(self) -> str:
        """Format the summary as text: its line, then a row per group and size."""
        rows = [
            (
                group.name,
                size.collective,
                format_size(size.size_bytes),
                size.schedule,
                f"{size.calls:,}",
                *("" if us is None else f"{us:,.0f}" for us in (size.used_us, size.stock_us)),
                size.raced_on or "",
            )
            for group in self.groups
            for size in group.sizes
        ]
        if not rows:
            return self.line
        title = ("group", "collective", "size", "by", "calls", "us", "stock us", "raced on")
        widths = [max(map(len, column)) for column in zip(title, *rows, strict=True)]
        lines = (
            "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (title, *rows)
        )
        return "\n".join([self.line, *lines])

    __str__ = describe

    def __repr__(self) -> str:
        return f"<Summary {self.line}>"

    def to_json(self) -> dict[str, Any]:
        """Return the groups and the estimate as JSON data."""
        estimate = {"saved": self.saved, "used_s": self.used_s, "stock_s": self.stock_s}
        return {**estimate, "untimed_calls": self.untimed_calls, **asdict(self)}

    def _say_saved(self) -> str:
        if not self.timed:
            return "no estimate of what plans save: no size has raced against stock"
        sizes, dates = ([getattr(x, k) for x in self.timed] for k in ("size_bytes", "raced_on"))
        between = " to ".join(dict.fromkeys(map(format_size, (min(sizes), max(sizes)))))
        days = " to ".join(dict.fromkeys((min(dates), max(dates))))
        if self._is_all_stock:
            return f"nothing saved: stock was the fastest in races of {between} on {days}"
        steps = self.steps
        if steps is None:
            return "no estimate of what plans save: no optimizer has stepped, so no steps to time"
        if steps.plan_s is None:
            return "no estimate of what plans save: too few steps by plans to time"
        if steps.stock_s is None:
            return (
                f"steps take {steps.plan_s:.3g} s (median of {steps.plan_steps}); no estimate of "
                "what plans save: too few steps by stock; compare with TOPOPLAN_PLANS=off"
            )
        clock = (
            f"steps take {steps.plan_s:.3g} s by plans, {steps.stock_s:.3g} s by stock (medians of "
            f"{steps.plan_steps} and {steps.stock_steps})"
        )
        if not self.is_borne_out:
            return f"{clock}; no estimate of what plans save: the races promise more than the clock"
        share = 1 - self.used_s / self.stock_s
        return (
            f"{clock}; an estimated {100 * share:.0f} % of communication time saved against stock "
            f"({self.used_s:.3g} s for {self.stock_s:.3g} s, by races of {between} on {days})"
        )

    def _say_used(self) -> str:
        calls: Counter[tuple[str, int, str]] = Counter()
        for group in self.groups:
            for size in group.sizes:
                calls[size.collective, size.size_bytes, size.schedule] += size.calls
        used = [
            f"{name} {format_size(size)} by {schedule} ({count:,} call{'s' * (count > 1)})"
            for (name, size, schedule), count in calls.most_common(_MAX_NAMED)
        ]
        more = len(calls) - len(used)
        return ", ".join(used) + (f" and {more} more, see topoplan.summary()" if more > 0 else "")

    def _say_untimed(self) -> str:
        count = self.untimed_calls
        return f"{count:,} call{'s' * (count > 1)} without an estimate" if count else ""


def format_size(size_bytes: int) -> str:
    """Format a number of bytes in its largest unit: "4 MiB"."""
    for factor, unit in _FACTORS:
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes} B"
