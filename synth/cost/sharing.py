"""How long the messages of a tick take if they share links equally (max-min fair).

A tick is a step of a schedule, or what its segments do at once. All messages of a tick, one for
each pair of ranks and route, begin together. Sockets, DMA engines and switches give messages that
cross a link equal parts of it, whatever their sizes; a message that is held up on another link
leaves its part to the others. So a large message beside small ones has less than it needs at first,
and ends later than its most loaded link would need for all of them (Bertsekas and Gallager, Data
Networks, section 6.5.2: progressive filling). Benchmark: benchmarks/fluid.py, by SimGrid.

Rates are floats. They only stretch a load, which is exact (loads.py).
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...topo.graph import Topology
from ..ir.schedule import Schedule
from .loads import Loads, computes_in_network

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
# Stretches are rounded to this many parts; a load that is stretched by less stays as it is.
_PARTS = 10**6
# Times that differ by less, relatively, are the same.
_NOTHING = 1e-9
# Of more messages than this, those that end within this share of the most loaded link's time end
# together, as far as the others are concerned. On seven machines this changed no tick by more than
# .4 %; planning for dgx-h100:4 takes 2.7 s of a core with it, and 4.7 s without.
_MANY, _GRAIN = 128, 1 / 128
# Parts of links that differ by less, relatively, are the same.
_SAME = 1e-12


class Sharing:
    """The messages of a schedule's steps, which share the links of its topology.

    `loads` are the link loads of its steps. A path is a pair of ranks with a route; `latency_us`
    has each path's latency. Times are in seconds per GB of buffer.
    """

    def __init__(self, schedule: Schedule, loads: Loads, topology: Topology) -> None:
        transfers = schedule.transfers
        shares = np.array([float(chunk.share) for chunk in schedule.chunks])
        listed, path_of = transfers.paths()
        ranks, number = topology.ranks, {link: i for i, link in enumerate(loads.links)}
        # The time of each link, and of one after the last, which takes none.
        self._s_per_GB = np.array(
            [*(float(1 / topology.capacity_GBps[link]) for link in loads.links), 0.0]
        )
        # The links that each path crosses; short paths are filled up with that last one.
        longest = max((len(route) + 1 for _, _, route in listed), default=1)
        self._crossed = np.full((len(listed), longest), len(loads.links), np.int64)
        for row, (src, dst, route) in enumerate(listed):
            hops = pairwise((ranks[src], *route, ranks[dst]))
            self._crossed[row, : len(route) + 1] = [number[hop] for hop in hops]
        latency_us = [float(topology.latency_us[link]) for link in loads.links]
        self.latency_us: _Floats = np.array([*latency_us, 0.0])[self._crossed].sum(axis=1)
        # A message for each step and path, by step.
        count = max(1, len(listed))
        keys, message_of = np.unique(transfers.step * count + path_of, return_inverse=True)
        self._sizes = np.bincount(message_of.reshape(-1), shares[transfers.chunk], len(keys))
        step_of, self._paths = np.divmod(keys, count)
        self._first = np.searchsorted(step_of, np.arange(len(loads.latency) + 1))
        # Messages that cross one link each share nothing else, so the link is never idle before it
        # has sent them all.
        self._is_direct = longest == 1
        # Where switches copy or add, loads are those of streams.
        self._streams_s = None
        if computes_in_network(topology):
            self._streams_s = loads.seconds.astype(float) / loads.scale
        self._known: dict[tuple[bytes, bytes], Fraction] = {}
        self._timed: dict[tuple[bytes, bytes], tuple[_Ints, _Floats]] = {}

    def find_stretch(self, low: int, high: int) -> Fraction:
        """Return by what factor steps `low` to `high` - 1 outlast their busiest link's load.

        All their messages begin together. The result is at least 1, and exactly 1 where nothing is
        held up.
        """
        if self._is_direct or self._streams_s is not None:
            return Fraction(1)
        paths, sizes = self._messages(low, high)
        key = paths.tobytes(), sizes.tobytes()
        if key not in self._known:
            self._known[key] = self._compute_stretch(paths, sizes)
        return self._known[key]

    def time_paths(self, low: int, high: int) -> tuple[_Ints, _Floats]:
        """Return the paths with a message in steps `low` .. `high` - 1, and when each has ended.

        Paths are numbers, ends in seconds per GB of buffer; all begin at 0. Steps with the same
        messages have one result, the same object.
        """
        paths, sizes = self._messages(low, high)
        crossed = self._crossed[paths]
        if self._streams_s is not None:
            streams_s = np.append(self._streams_s[low:high].sum(axis=0), 0.0)
            return paths, streams_s[crossed].max(axis=1)
        key = paths.tobytes(), sizes.tobytes()
        if key not in self._timed:
            self._timed[key] = paths, end_messages(sizes, crossed, self._s_per_GB)
        return self._timed[key]

    def _messages(self, low: int, high: int) -> tuple[_Ints, _Floats]:
        """Return the paths that have a message in the steps low .. high - 1, and their sizes."""
        places = slice(self._first[low], self._first[high])
        paths, message_of = np.unique(self._paths[places], return_inverse=True)
        sizes = np.bincount(message_of.reshape(-1), self._sizes[places], len(paths))
        return paths, sizes.astype(np.float64)

    def _compute_stretch(self, paths: _Ints, sizes: _Floats) -> Fraction:
        crossed, links = self._crossed[paths], len(self._s_per_GB)
        sent = np.repeat(sizes, crossed.shape[1])
        busy_s = np.bincount(crossed.ravel(), sent, links) * self._s_per_GB
        longest_s = float(busy_s.max(initial=0.0))
        # A message has at least the even part of each link that it crosses at first, since others
        # can only end. Often this shows that none ends late.
        even_s = np.bincount(crossed.ravel(), minlength=links) * self._s_per_GB
        slowest_s = float((sizes * even_s[crossed].max(axis=1)).max(initial=0.0))
        if slowest_s <= longest_s * (1 + _NOTHING):
            return Fraction(1)
        stretch = float(end_messages(sizes, crossed, self._s_per_GB).max()) / longest_s
        return max(Fraction(1), Fraction(round(stretch * _PARTS), _PARTS))


def end_messages(sizes: _Floats, crossed: _Ints, s_per_GB: _Floats) -> _Floats:
    """Return when each message ends, in seconds, if all begin at 0 and share links max-min fair.

    `sizes` are in GB. `crossed` has a row for each message, the links that it crosses: numbers in
    `s_per_GB`, whose last entry is 0 and stands for none.
    """
    ends, left, clock = np.zeros(len(sizes)), sizes.astype(float), 0.0
    going = np.flatnonzero(left > 0)
    busy_s = np.bincount(crossed.ravel(), np.repeat(sizes, crossed.shape[1]), len(s_per_GB))
    together_s = float((busy_s * s_per_GB).max()) * (_NOTHING if len(going) <= _MANY else _GRAIN)
    while len(going):
        rates = share_links(crossed[going], s_per_GB)
        needed = left[going] / rates
        ended = needed <= needed.min() + together_s
        # The others have new rates from the mean of these ends on: what is shared out too early
        # and too late is about the same.
        passed = float(needed[ended].mean())
        ends[going[ended]] = clock + needed[ended]
        clock += passed
        left[going] -= rates * passed
        going = going[~ended]
    return ends


def share_links(crossed: _Ints, s_per_GB: _Floats) -> _Floats:
    """Return the max-min fair rate of each message in GB/s.

    `crossed` has a row for each message, the links that it crosses: numbers in `s_per_GB` (seconds
    per GB), whose last entry is 0 and stands for none.
    """
    rates, links, hops = np.zeros(len(crossed)), len(s_per_GB), crossed.shape[1]
    with np.errstate(divide="ignore"):
        free = 1 / s_per_GB
    unsettled = np.arange(len(crossed))
    while len(unsettled):
        sharing = np.maximum(np.bincount(crossed.ravel(), minlength=links), 1)
        part = free / sharing
        lowest = part[crossed].min(axis=1)
        # A link holds up all its messages if none of them has less elsewhere. What is left to other
        # links can only grow, so several such links are settled at once.
        least = np.full(links, np.inf)
        np.minimum.at(least, crossed, lowest[:, None])
        holds = least >= part * (1 - _SAME)
        holds[-1] = False
        settled = holds[crossed].any(axis=1)
        rates[unsettled[settled]] = lowest[settled]
        used = np.bincount(crossed[settled].ravel(), np.repeat(lowest[settled], hops), links)
        free = np.maximum(free - used, 0.0)
        unsettled, crossed = unsettled[~settled], crossed[~settled]
    return rates
