"""Define the rows of a report, and summarize their figures in sentences."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .systems import SERIAL

# Percentage points within which an accuracy counts as that of serial training: two of the 449
# samples that digits holds out.
POINTS = 0.5


@dataclass(frozen=True)
class RunResult:
    """The figures of one system over one network with one number of ranks, a row of the report.

    Times are the slowest rank's, in seconds. `epoch_s` is the median without the first epoch (if
    there are others), in which schedules race and DDP settles its buckets. `bytes_per_epoch` is the
    total of all ranks, with the same median. `reason` says why there are no figures; `failed` is
    set if the run was started and failed.
    """

    network: str
    ranks: int
    system: str
    schedule: str = ""
    first_epoch_s: float | None = None
    epoch_s: float | None = None
    spread: float | None = None
    bytes_per_epoch: int | None = None
    accuracy_percent: float | None = None
    serial_points: float | None = None
    loss: float | None = None
    replicas_equal: bool | None = None
    reason: str | None = None
    failed: bool = False

    @property
    def site(self) -> tuple[str, int]:
        """Network and number of ranks; results of one site are compared."""
        return self.network, self.ranks


def summarize(network: str, ranks: int, measured: dict[str, Any], tested: int) -> RunResult:
    """Return a system's result from rank 0's measurements; `tested` samples were held out."""
    seconds, sent = measured["seconds"], measured["bytes"]
    later = seconds[1:] or seconds
    # Three epochs or fewer have no middle half.
    quarters = statistics.quantiles(later, n=4) if len(later) > 3 else None
    return RunResult(
        network=network,
        ranks=ranks,
        system=measured["system"],
        schedule=measured["schedule"],
        first_epoch_s=seconds[0],
        epoch_s=statistics.median(later),
        spread=None if quarters is None else (quarters[2] - quarters[0]) / statistics.median(later),
        bytes_per_epoch=None if sent is None else round(statistics.median(sent[1:] or sent)),
        accuracy_percent=100 * measured["correct"] / tested,
        loss=measured["loss"],
        replicas_equal=measured["replicas_equal"],
    )


def list_findings(rows: list[RunResult], tested: int) -> list[str]:
    """Return the findings, the most significant of each kind; `tested` samples were held out."""
    done = [row for row in rows if row.epoch_s is not None]
    sites = dict.fromkeys(row.site for row in done if row.system != SERIAL)
    return [
        *(line for s in sites for line in _compare_systems([x for x in done if x.site == s])),
        *_compare_with_serial(done),
        *_compare_accuracy(done, tested),
        *_compare_replicas(done),
        *_describe_spread(done),
        *_list_missing(rows),
    ]


def _compare_systems(rows: list[RunResult]) -> Iterator[str]:
    """Compare the systems of one site: times against stock's, then bytes."""
    where = f"{rows[0].network}, {rows[0].ranks} ranks"
    stock = next((row for row in rows if row.system == "stock"), None)
    others = [row for row in rows if row is not stock]
    if stock is None or not others:
        fastest = min(rows, key=_seconds)
        yield f"{where}: {fastest.system} is the fastest of {len(rows)}, {_s(fastest)} an epoch."
        return
    fastest = min(others, key=_seconds)
    sentence = (
        f"{where}: {fastest.system} takes {_s(fastest)} an epoch, stock {_s(stock)}: "
        if _seconds(fastest) < _seconds(stock)
        else f"{where}: stock is the fastest, {_s(stock)} an epoch; {fastest.system} is "
    ) + _times(stock, fastest)
    yield (
        sentence
        + "".join(
            f"; {row.system} {_times(stock, row)}"
            for row in others
            if row is not fastest and row.system in ("plan", "ring")
        )
        + "."
    )
    if stock.bytes_per_epoch:
        shares = [
            f"{row.system} {row.bytes_per_epoch / stock.bytes_per_epoch:.3f}"
            for row in others
            if row.bytes_per_epoch is not None
        ]
        if shares:
            yield (
                f"{where}: bytes sent, as parts of stock's {stock.bytes_per_epoch / 1e6:.4g} "
                f"MB: "
                f"{', '.join(shares)}."
            )


def _compare_with_serial(done: list[RunResult]) -> Iterator[str]:
    serial = next((row for row in done if row.system == SERIAL), None)
    others = [row for row in done if row is not serial]
    if serial is None or not others:
        return
    fastest = min(others, key=_seconds)
    where = (
        f"{fastest.system} on {fastest.network} with {fastest.ranks} ranks, {_s(fastest)} an epoch"
    )
    yield (
        f"Serial training takes {_s(serial)} an epoch; the fastest of the others is {where}: "
        f"{_times(serial, fastest)}."
        if _seconds(fastest) < _seconds(serial)
        else f"No run is faster than serial training ({_s(serial)} an epoch), the nearest is "
        f"{where}: at this size, on this machine, several ranks do not pay."
    )


def _compare_accuracy(done: list[RunResult], tested: int) -> Iterator[str]:
    compared = [row for row in done if row.serial_points is not None and row.system != SERIAL]
    if not compared:
        return
    if not any(row.serial_points for row in compared):
        yield (
            f"Accuracy: all runs get as many of the {tested} samples held out right as serial "
            "training."
        )
        return
    farthest = max(compared, key=lambda row: abs(row.serial_points or 0))
    within = sum(abs(row.serial_points or 0) <= POINTS for row in compared)
    share = "all" if within == len(compared) else f"{within} of {len(compared)}"
    yield (
        f"Accuracy: {share} runs are within {POINTS:g} points of serial training; farthest is "
        f"{farthest.system} on {farthest.network} with {farthest.ranks} ranks, "
        f"{farthest.serial_points:+.2f} points. One of the {tested} samples held out is "
        f"{100 / tested:.2f} points."
    )


def _compare_replicas(done: list[RunResult]) -> Iterator[str]:
    unequal = [
        f"{row.system} ({row.network}, {row.ranks} ranks)"
        for row in done
        if row.replicas_equal is False
    ]
    if unequal:
        yield f"Replicas differ in {', '.join(unequal)}."
    elif any(row.system != SERIAL for row in done):
        yield "In every run all ranks ended with the same bits."


def _describe_spread(done: list[RunResult]) -> Iterator[str]:
    spreads = [row.spread for row in done if row.spread is not None]
    if spreads:
        yield (
            "Epochs of one run differ: the middle half of their times spans "
            f"{sorted(spreads)[len(spreads) // 2]:.0%} of the median in the median run, "
            f"{max(spreads):.0%} in the worst. Smaller differences between systems say nothing."
        )


def _list_missing(rows: list[RunResult]) -> Iterator[str]:
    reasons: dict[tuple[str, bool], list[RunResult]] = {}
    for row in rows:
        if row.reason is not None:
            reasons.setdefault((row.reason, row.failed), []).append(row)
    for (reason, failed), left in reasons.items():
        sites = dict.fromkeys(f"{row.network} with {row.ranks} ranks" for row in left)
        yield (
            f"{'Failed' if failed else 'Not run'}: "
            f"{', '.join(dict.fromkeys(row.system for row in left))} on {', '.join(sites)}: "
            f"{reason}"
        )


def _seconds(row: RunResult) -> float:
    return row.epoch_s if row.epoch_s is not None else float("inf")


def _times(slower: RunResult, row: RunResult) -> str:
    return f"{_seconds(slower) / _seconds(row):.2f} times as fast"


def _s(row: RunResult) -> str:
    return f"{_seconds(row):.3g} s"
