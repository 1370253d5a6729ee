"""Counts of calls by schedule and size, from which summaries of a run are made."""

from collections.abc import Callable, Container, Iterator

from ...program.contract import ObservedCalls

# Calls of one size from one report of progress to the next: a race takes at most ten calls, so a
# size that is called once per step has settled when another one has had this many calls since.
REPORTED_EVERY = 20


def _ignore(*_: object) -> None:
    """Take no notice of calls."""


class Tally:
    """The calls of one schedule, or of the stock collective, at one size; see Listener."""

    __slots__ = ("_bits", "_label", "_owner", "calls")

    def __init__(self, owner: "Tallies", label: str, bits: int) -> None:
        self.calls, self._owner, self._label, self._bits = 0, owner, label, bits

    def begin(self) -> None:
        """Take note that a call begins; return what is to be called with each message, if any."""
        self._owner.note(self._label, self._bits)

    def end(self, number: int | None) -> None:
        """Count a call, and report every REPORTED_EVERY-th one."""
        self.calls += 1
        if self.calls % REPORTED_EVERY == 0:
            self._owner.report(self.calls)


class Tallies:
    """The tallies of one communicator, by a schedule's label and the size in bits; an Observer.

    `report` gets the calls of a size whenever they are a multiple of REPORTED_EVERY, and `note` the
    label and the size in bits of each call that begins.
    """

    def __init__(
        self,
        report: Callable[[int], None] = _ignore,
        note: Callable[[str, int], None] = _ignore,
    ) -> None:
        self.report, self.note = report, note
        self._raced = 0
        self._tallies: dict[tuple[str, int], Tally] = {}

    def listen(self, calls: ObservedCalls) -> Tally:
        """Return the tally of a schedule at a size, rounded down to a power of two."""
        key = calls.label, calls.size_bytes.bit_length()
        if key not in self._tallies:
            self._tallies[key] = Tally(self, *key)
        return self._tallies[key]

    def begin_anew(self, size_bytes: int) -> None:
        """Count a size's calls from 0 again: those so far were a race's."""
        for (_, bits), tally in self._tallies.items():
            if bits == size_bytes.bit_length():
                self._raced += tally.calls
                tally.calls = 0

    def count_raced(self, sizes_in_race: Container[int]) -> int:
        """Return the calls made in races; of races in progress, the sizes' bits are given."""
        now = (calls for _, bits, calls in self.list_calls() if bits in sizes_in_race)
        return self._raced + sum(now)

    def list_calls(self) -> Iterator[tuple[str, int, int]]:
        """Yield a schedule's label, the size in bits, and the calls, for all that had calls."""
        for (label, bits), tally in list(self._tallies.items()):
            if tally.calls:
                yield label, bits, tally.calls
