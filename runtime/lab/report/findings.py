"""Summarize in sentences what a report's figures show; each is computed from the results."""

from __future__ import annotations

from collections.abc import Iterator

from ..systems import SERIAL
from .results import RunResult

# Percentage points within which an accuracy counts as that of serial training.
POINTS = 0.5


def list_findings(rows: list[RunResult], tested: int) -> list[str]:
    """Return the findings, the most significant of each kind; `tested` samples were held out."""
    done = [row for row in rows if row.epoch_s is not None]
    out: list[str] = []
    for site in dict.fromkeys(row.site for row in done if row.system != SERIAL):
        out += _compare_systems([row for row in done if row.site == site])
    out += _compare_with_serial(done)
    out += _compare_accuracy(done, tested)
    out += _compare_replicas(done)
    out += _describe_spread(done)
    out += _list_missing(rows)
    return out


def _compare_systems(rows: list[RunResult]) -> Iterator[str]:
    """Compare the systems of one site: times against stock's, then bytes."""
    where = f"{rows[0].network}, {rows[0].ranks} ranks"
    by_name = {row.system: row for row in rows}
    stock = by_name.get("stock")
    others = [row for row in rows if row is not stock]
    if stock is None or not others:
        fastest = min(rows, key=_seconds)
        yield f"{where}: {fastest.system} is the fastest of {len(rows)}, {_s(fastest)} an epoch."
        return
    fastest = min(others, key=_seconds)
    if _seconds(fastest) < _seconds(stock):
        sentence = (
            f"{where}: {fastest.system} takes {_s(fastest)} an epoch, stock {_s(stock)}: "
            f"{_times(stock, fastest)}"
        )
    else:
        sentence = (
            f"{where}: stock is the fastest, {_s(stock)} an epoch; {fastest.system} is "
            f"{_times(stock, fastest)}"
        )
    also = [row for row in others if row is not fastest and row.system in ("plan", "ring")]
    sentence += "".join(f"; {row.system} {_times(stock, row)}" for row in also)
    yield sentence + "."
    if stock.bytes_per_epoch:
        shares = [
            f"{row.system} {row.bytes_per_epoch / stock.bytes_per_epoch:.3f}"
            for row in others
            if row.bytes_per_epoch is not None
        ]
        if shares:
            yield (
                f"{where}: bytes sent, as parts of stock's {_mb(stock.bytes_per_epoch)}: "
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
    if _seconds(fastest) < _seconds(serial):
        yield (
            f"Serial training takes {_s(serial)} an epoch; the fastest of the others is {where}: "
            f"{_times(serial, fastest)}."
        )
    else:
        yield (
            f"No run is faster than serial training ({_s(serial)} an epoch), the nearest is "
            f"{where}: at this size, on this "
            "machine, several ranks do not pay."
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
    one_sample = 100 / tested
    within = [row for row in compared if abs(row.serial_points or 0) <= POINTS]
    share = (
        "all runs are"
        if len(within) == len(compared)
        else f"{len(within)} of {len(compared)} runs are"
    )
    yield (
        f"Accuracy: {share} within {POINTS:g} points of serial training; farthest is "
        f"{farthest.system} on {farthest.network} "
        f"with {farthest.ranks} ranks, {farthest.serial_points:+.2f} points. One of the {tested} "
        "samples held out is "
        f"{one_sample:.2f} points."
    )


def _compare_replicas(done: list[RunResult]) -> Iterator[str]:
    unequal = [row for row in done if row.replicas_equal is False]
    if all(row.system == SERIAL for row in done):
        return
    if unequal:
        yield (
            "Replicas differ in "
            f"{', '.join(f'{row.system} ({row.network}, {row.ranks} ranks)' for row in unequal)}."
        )
    else:
        yield "In every run all ranks ended with the same bits."


def _describe_spread(done: list[RunResult]) -> Iterator[str]:
    spreads = [row.spread for row in done if row.spread is not None]
    if spreads:
        median = sorted(spreads)[len(spreads) // 2]
        yield (
            f"Epochs of one run differ: the middle half of their times spans {median:.0%} of the "
            "median in the median run, "
            f"{max(spreads):.0%} in the worst. Smaller differences between systems say nothing."
        )


def _list_missing(rows: list[RunResult]) -> Iterator[str]:
    reasons: dict[tuple[str, bool], list[RunResult]] = {}
    for row in rows:
        if row.reason is not None:
            reasons.setdefault((row.reason, row.failed), []).append(row)
    for (reason, failed), left in reasons.items():
        sites = dict.fromkeys(f"{row.network} with {row.ranks} ranks" for row in left)
        names = dict.fromkeys(row.system for row in left)
        yield (
            f"{'Failed' if failed else 'Not run'}: {', '.join(names)} on {', '.join(sites)}: "
            f"{reason}"
        )


def _seconds(row: RunResult) -> float:
    return row.epoch_s if row.epoch_s is not None else float("inf")


def _times(slower: RunResult, row: RunResult) -> str:
    return f"{_seconds(slower) / _seconds(row):.2f} times as fast"


def _s(row: RunResult) -> str:
    return f"{_seconds(row):.3g} s"


def _mb(count: int) -> str:
    return f"{count / 1e6:.4g} MB"
