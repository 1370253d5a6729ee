"""Messages under way, which share the links of their routes equally (max-min fair) as time passes.

Messages begin at any time: whenever one begins or ends, those that share links with it, directly or
over others, have new rates. (sharing.py is for messages that all begin together.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .sharing import share_links

# Where more messages than this are under way, this share of them begins or ends before rates are
# computed anew. On switch:32 (992 messages of an alltoall at once) this moved predictions by at
# most .13 %, and took .6 s of a core in place of 4 to 6.
_MANY, _GRAIN = 64, 1 / 32


class Flows:
    """The messages under way in a simulation; times are in microseconds.

    `us_per_byte` is the time of each link, `burst_bytes` what a link that was idle for long enough
    carries at once. Messages are known by numbers. `ends_us` says when each of them will have left,
    as far as is known; `changed_us` when one has begun or ended since `settle` was called, None if
    none has.
    """

    def __init__(self, us_per_byte: Sequence[float], burst_bytes: float) -> None:
        self.ends_us: dict[int, float] = {}
        self.changed_us: float | None = None
        self._us_per_byte = np.array([*us_per_byte, 0.0])  # share_links wants the last one
        self._bytes_per_us = [1 / us for us in us_per_byte]
        self._burst_bytes = burst_bytes
        links = len(us_per_byte)
        self._crossed: dict[int, tuple[int, ...]] = {}
        self._left_bytes: dict[int, float] = {}
        self._rates: dict[int, float] = {}  # in bytes per us
        self._known_us: dict[int, float] = {}  # when `_left_bytes` was right
        self._crossing: list[set[int]] = [set() for _ in range(links)]
        self._changed: set[int] = set()
        self._changes = 0
        # What each link has saved up for a burst, at which time, and the rate at which it is used.
        self._saved = [(float(burst_bytes), 0.0)] * links
        self._used = [0.0] * links

    def begin(self, number: int, links: tuple[int, ...], size_bytes: float, now_us: float) -> None:
        """Let message `number`, of `size_bytes`, begin now; it crosses `links` (at least one).

        Its end is not known before `settle` is called, and `changed_us` is now.
        """
        if self._burst_bytes:
            size_bytes -= self._take_burst(links, size_bytes, now_us)
        self._crossed[number] = links
        self._left_bytes[number] = size_bytes
        self._rates[number] = 0.0
        self._known_us[number] = now_us
        for link in links:
            self._crossing[link].add(number)
        self._note_change(links, now_us)

    def end(self, number: int, now_us: float) -> None:
        """Remove message `number`, which has left now; `changed_us` is now."""
        links, rate = self._crossed.pop(number), self._rates.pop(number)
        del self._left_bytes[number], self._known_us[number], self.ends_us[number]
        for link in links:
            self._crossing[link].discard(number)
            if self._burst_bytes:
                self._use(link, -rate, now_us)
        self._note_change(links, now_us)

    def settle(self) -> list[tuple[float, int]]:
        """Give messages the rates that they have since the last change, at `changed_us`.

        Return those that now end at another time than before, as (end in us, number); `ends_us` has
        these times too. It must not be called while `changed_us` is None.
        """
        assert self.changed_us is not None
        now_us, self.changed_us = self.changed_us, None
        if len(self._rates) > _MANY and self._changes < len(self._rates) * _GRAIN:
            return self._give_even_parts(now_us)
        self._changes = 0
        concerned = self._find_sharing(self._changed)
        self._changed.clear()
        if not concerned:
            return []
        if len(concerned) == 1:  # alone on all of its links
            rates = [min(self._bytes_per_us[link] for link in self._crossed[concerned[0]])]
        else:
            longest = max(len(self._crossed[number]) for number in concerned)
            none = len(self._bytes_per_us)
            crossed = np.full((len(concerned), longest), none, np.int64)
            for row, number in enumerate(concerned):
                links = self._crossed[number]
                crossed[row, : len(links)] = links
            rates = share_links(crossed, self._us_per_byte).tolist()
        return self._set_rates(zip(concerned, rates, strict=True), now_us)

    def _give_even_parts(self, now_us: float) -> list[tuple[float, int]]:
        """Give messages without a rate an even part of their links until all rates are computed."""
        new = [
            number
            for link in self._changed
            for number in self._crossing[link]
            if number not in self.ends_us
        ]
        return self._set_rates(
            (
                (
                    number,
                    min(
                        self._bytes_per_us[link] / len(self._crossing[link])
                        for link in self._crossed[number]
                    ),
                )
                for number in dict.fromkeys(new)
            ),
            now_us,
        )

    def _find_sharing(self, links: Iterable[int]) -> list[int]:
        """Return the messages that cross one of these links, or share one with such a message."""
        seen, to_visit, found = set(links), list(links), dict[int, None]()
        while to_visit:
            for number in self._crossing[to_visit.pop()]:
                if number not in found:
                    found[number] = None
                    further = [link for link in self._crossed[number] if link not in seen]
                    seen.update(further)
                    to_visit.extend(further)
        return list(found)

    def _set_rates(
        self, rates: Iterable[tuple[int, float]], now_us: float
    ) -> list[tuple[float, int]]:
        """Set the rates of messages; return those that end at another time, with the time in us."""
        moved = []
        for number, rate in rates:
            before = self._rates[number]
            if rate == before and number in self.ends_us:
                continue
            left = self._left_bytes[number] - before * (now_us - self._known_us[number])
            self._left_bytes[number], self._known_us[number] = max(0.0, left), now_us
            self._rates[number] = rate
            if self._burst_bytes:
                for link in self._crossed[number]:
                    self._use(link, rate - before, now_us)
            self.ends_us[number] = now_us + self._left_bytes[number] / rate
            moved.append((self.ends_us[number], number))
        return moved

    def _note_change(self, links: Iterable[int], now_us: float) -> None:
        self._changed.update(links)
        self._changes += 1
        self.changed_us = now_us

    def _take_burst(self, links: tuple[int, ...], size_bytes: float, now_us: float) -> float:
        """Return how many bytes pass at once, and take them from what the links have saved up."""
        for link in links:
            self._use(link, 0.0, now_us)
        taken = min(size_bytes, *(self._saved[link][0] for link in links))
        for link in links:
            self._saved[link] = self._saved[link][0] - taken, now_us
        return taken

    def _use(self, link: int, added: float, now_us: float) -> None:
        """Note that a link is used at `added` more bytes per us from now on."""
        saved, since_us = self._saved[link]
        idle = max(0.0, self._bytes_per_us[link] - self._used[link])
        self._saved[link] = min(self._burst_bytes, saved + idle * (now_us - since_us)), now_us
        self._used[link] += added
