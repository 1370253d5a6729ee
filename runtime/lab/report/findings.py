"""What follows from the figures of a report: sentences, each computed from rows."""

from __future__ import annotations

from collections.abc import Iterator

from ..systems import SERIAL
from .rows import Row

POINTS = 0.5
"""How far from serial training an accuracy may be, in points, before it is called another one."""


def findings(rows: list[Row], tested: int) -> list[str]:
    """One a line, the most telling of each kind. `tested`: how many samples were held out."""
    done = [row for row in rows if row.epoch_s is not None]
    out: list[str] = []
    for place in dict.fromkeys(row.place for row in done if row.system != SERIAL):
        here = [row for row in done if row.place == place]
        out += _of_place(here)
    out += _against_serial(done)
    out += _accuracy(done, tested)
    out += _replicas(done)
    out += _scatter(done)
    out += _left_out(rows)
    return out


def _of_place(here: list[Row]) -> Iterator[str]:
    """At one network and number of ranks: time beside stock's, then bytes."""
    where = f"{here[0].network}, {here[0].ranks} ranks"
    by_name = {row.system: row for row in here}
    stock = by_name.get("stock")
    others = [row for row in here if row is not stock]
    if stock is None or not others:
        fastest = min(here, key=_seconds)
        yield f"{where}: {fastest.system} is the fastest of {len(here)}, {_s(fastest)} an epoch."
        return
    fastest = min(others, key=_seconds)
    if _seconds(fastest) < _seconds(stock):
        said = f"{where}: {fastest.system} takes {_s(fastest)} an epoch, stock {_s(stock)}: {_times(stock, fastest)}"
    else:
        said = f"{where}: stock is the fastest, {_s(stock)} an epoch; {fastest.system} is {_times(stock, fastest)}"
    whole = [row for row in others if row is not fastest and row.system in ("plan", "ring")]
    said += "".join(f"; {row.system} {_times(stock, row)}" for row in whole)
    yield said + "."
    if stock.bytes_per_epoch:
        shares = [
            f"{row.system} {row.bytes_per_epoch / stock.bytes_per_epoch:.3f}"
            for row in others
            if row.bytes_per_epoch is not None
        ]
        if shares:
            yield f"{where}: bytes sent, as parts of stock's {_mb(stock.bytes_per_epoch)}: {', '.join(shares)}."


def _against_serial(done: list[Row]) -> Iterator[str]:
    serial = next((row for row in done if row.system == SERIAL), None)
    others = [row for row in done if row is not serial]
    if serial is None or not others:
        return
    fastest = min(others, key=_seconds)
    where = f"{fastest.system} on {fastest.network} with {fastest.ranks} ranks, {_s(fastest)} an epoch"
    if _seconds(fastest) < _seconds(serial):
        yield f"Serial training takes {_s(serial)} an epoch; the fastest of the others is {where}: {_times(serial, fastest)}."
    else:
        yield (
            f"No run is faster than serial training ({_s(serial)} an epoch), the nearest is {where}: at this size, on this "
            "machine, several ranks do not pay."
        )


def _accuracy(done: list[Row], tested: int) -> Iterator[str]:
    beside = [row for row in done if row.serial_points is not None and row.system != SERIAL]
    if not beside:
        return
    if not any(row.serial_points for row in beside):
        yield f"Accuracy: all runs get as many of the {tested} samples held out right as serial training."
        return
    farthest = max(beside, key=lambda row: abs(row.serial_points or 0))
    one = 100 / tested
    within = [row for row in beside if abs(row.serial_points or 0) <= POINTS]
    share = "all runs are" if len(within) == len(beside) else f"{len(within)} of {len(beside)} runs are"
    yield (
        f"Accuracy: {share} within {POINTS:g} points of serial training; farthest is {farthest.system} on {farthest.network} "
        f"with {farthest.ranks} ranks, {farthest.serial_points:+.2f} points. One of the {tested} samples held out is "
        f"{one:.2f} points."
    )


def _replicas(done: list[Row]) -> Iterator[str]:
    apart = [row for row in done if row.replicas_equal is False]
    if all(row.system == SERIAL for row in done):
        return
    if apart:
        yield f"Replicas differ in {', '.join(f'{row.system} ({row.network}, {row.ranks} ranks)' for row in apart)}."
    else:
        yield "In every run all ranks ended with the same bits."


def _scatter(done: list[Row]) -> Iterator[str]:
    spreads = [row.spread for row in done if row.spread is not None]
    if spreads:
        middle = sorted(spreads)[len(spreads) // 2]
        yield (
            f"Epochs of one run differ: the middle half of their times spans {middle:.0%} of the median in the median run, "
            f"{max(spreads):.0%} in the worst. Smaller differences between systems say nothing."
        )


def _left_out(rows: list[Row]) -> Iterator[str]:
    reasons: dict[tuple[str, bool], list[Row]] = {}
    for row in rows:
        if row.reason is not None:
            reasons.setdefault((row.reason, row.failed), []).append(row)
    for (reason, failed), left in reasons.items():
        places = dict.fromkeys(f"{row.network} with {row.ranks} ranks" for row in left)
        names = dict.fromkeys(row.system for row in left)
        yield f"{'Failed' if failed else 'Not run'}: {', '.join(names)} on {', '.join(places)}: {reason}"


def _seconds(row: Row) -> float:
    return row.epoch_s if row.epoch_s is not None else float("inf")


def _times(slower: Row, row: Row) -> str:
    return f"{_seconds(slower) / _seconds(row):.2f} times as fast"


def _s(row: Row) -> str:
    return f"{_seconds(row):.3g} s"


def _mb(count: int) -> str:
    return f"{count / 1e6:.4g} MB"
