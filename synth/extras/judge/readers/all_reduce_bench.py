"""The output of all_reduce_bench.py (stas00/ml-engineering, network/benchmarks), of all versions.

Newer versions print a table of payloads, or one payload's trials; older ones a single payload in
units of 1e9 bytes. Rates are in 1e9 bytes a second; payloads of tables in powers of two, also where
they are called KB. Launchers' prefixes may be before the lines.
"""

import re
from collections.abc import Sequence

from ..file_contents import BenchmarkResults, Location, Measurement
from .runs import Runs

_TABLE = re.compile(r"average bandwidth of all_reduce over (\d{1,7}) ranks")
_TRIALS = re.compile(r"The ([\d.]{1,12})GiB payload bandwidth of all_reduce over (\d{1,7}) ranks")
_SINGLE = re.compile(
    r"average bandwidth of all_reduce with a ([\d.]{1,12})\s?GB payload "
    r"\(\d+ trials, (\d{1,7}) ranks"
)
_ANY = re.compile(r"bandwidth of all_reduce (?:over \d|with a [\d.]+\s?GB payload)")
_NAMES = re.compile(r"\b(busbw|algbw)\b")
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s?GBps\b")
_PAYLOAD = re.compile(r"(?:^|[\s|:])(\d{1,6}(?:\.\d{1,6})?)\s?([KMGT]?)i?B\b")
_OF_SINGLE = re.compile(r"\b(algbw|busbw): (\d{1,9}(?:\.\d{1,9})?) GBps")
_MODEL = re.compile(r"_CudaDeviceProperties\(name='([^']{1,80})'")
# Most ranks to give a place: larger numbers are damage.
_MAX_RANKS = 1 << 16
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def looks_like(text: str) -> bool:
    """Return whether a text has this benchmark's results."""
    return "of all_reduce" in text and _ANY.search(text) is not None


def read(lines: Sequence[str], where: str) -> BenchmarkResults:
    """Return the measurements, of trials the median, and each rank's GPU model if one is named.

    `where` is the file's name, which all readers are given; this one does not need it.
    """
    reader, models = _Reader(), set()
    for line in lines:
        reader.take(line)
        if "_CudaDeviceProperties" in line:
            models |= set(_MODEL.findall(line))
    measured = reader.finish()
    ranks = max((m.ranks for m in measured), default=0)
    location = Location(model=next(iter(models)) if len(models) == 1 else None)
    known = range(min(ranks, _MAX_RANKS)) if location.model else ()
    return BenchmarkResults(measured, dict.fromkeys(known, location))


class _Reader:
    """Collector of the tables of a text."""

    def __init__(self) -> None:
        self._runs, self._table = Runs(), 0
        self._ranks, self._size = 0, 0.0
        # The order of columns, the (algbw, busbw) of trials, and the rates by name that an older
        # version has printed so far.
        self._names: list[str] = []
        self._trials: list[tuple[float, float]] = []
        self._single: dict[str, float] = {}

    def take(self, line: str) -> None:
        """Parse one line."""
        if (match := _TABLE.search(line)) is not None:
            self._begin(int(match[1]), 0)
        elif (match := _TRIALS.search(line)) is not None:
            self._begin(int(match[2]), float(match[1]) * (1 << 30))
        elif (match := _SINGLE.search(line)) is not None:
            self._begin(int(match[2]), float(match[1]) * 1e9)
        elif not self._ranks:
            return
        elif (match := _OF_SINGLE.search(line)) is not None:
            self._single[match[1]] = float(match[2])
            if len(self._single) == 2:
                self._add(round(self._size), self._single["algbw"], self._single["busbw"])
                self._single = {}
        elif len(names := _NAMES.findall(line)) == 2:
            self._names = names
        elif len(rates := _RATE.findall(line)) == 2:
            named = dict(zip(self._names or ("busbw", "algbw"), map(float, rates), strict=True))
            payload = _PAYLOAD.search(line)
            if self._size:
                self._trials.append((named["algbw"], named["busbw"]))
            elif payload is not None:
                size = round(float(payload[1]) * _UNITS[payload[2]])
                self._add(size, named["algbw"], named["busbw"])

    def _begin(self, ranks: int, size: float) -> None:
        self._end_trials()
        self._table += 1
        self._ranks, self._size, self._names, self._single = ranks, size, [], {}

    def _end_trials(self) -> None:
        if self._trials:
            median = sorted(self._trials)[len(self._trials) // 2]
            self._add(round(self._size), *median, how=f"median of {len(self._trials)}")
            self._trials = []

    def _add(self, size: int, algbw: float, busbw: float, how: str = "") -> None:
        if size > 0 and algbw > 0:
            time_us = size / algbw * 1e-3
            m = Measurement("allreduce", self._ranks, size, algbw, busbw, time_us, how)
            self._runs.add(self._table, [m])

    def finish(self) -> tuple[Measurement, ...]:
        """Return the measurements, after the last line."""
        self._end_trials()
        return self._runs.number()
