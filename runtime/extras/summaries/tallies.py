"""Count calls by schedule and size, for the summaries of a run.

A size in bits is the bit length of a number of bytes: 11 for 1024 to 2047 bytes.

A race times several schedules at one message size and keeps the fastest; a stock collective is
gloo's, NCCL's or MPI's own, without a plan.
"""

from collections.abc import Callable, Container, Iterator

from ...program.contract import ObservedCalls

# Calls of one size from one report of progress to the next: a race takes at most ten calls, so a
# size that is called once per step has settled when another one has had this many calls since.
REPORTED_EVERY = 20


def _ignore(*_: object) -> None:
    """Take no notice of calls."""


class Tally:
    """The number of calls of one schedule, or of the stock collective, at one size.

    `label` is the schedule's, `bits` the size in bits; `owner` is told of each call.
    """

    __slots__ = ("_bits", "_label", "_owner", "calls")

    def __init__(self, owner: "Tallies", label: str, bits: int) -> None:
        self.calls, self._owner, self._label, self._bits = 0, owner, label, bits

    def begin(self) -> None:
        """Do nothing: a call counts when it ends, and messages are of no interest."""

    def end(self, number: int | None) -> None:
        """Count a call, whatever its `number`, and report every REPORTED_EVERY-th one."""
        self.calls += 1
        self._owner.note(self._label, self._bits)
        if self.calls % REPORTED_EVERY == 0:
            self._owner.report(self.calls)


class Tallies:
    """Counts one communicator's calls by (schedule's label, size in bits), observing each.

    `report` gets the calls of a size whenever they are a multiple of REPORTED_EVERY, and `note` the
    label and the size in bits of each call that ends.
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
        """Return the counter for calls of one schedule and size, rounded down to a power of two."""
        key = calls.label, calls.size_bytes.bit_length()
        if key not in self._tallies:
            self._tallies[key] = Tally(self, *key)
        return self._tallies[key]

    def begin_anew(self, size_bytes: int) -> None:
        """Count a size's calls from 0 again: those so far were made in a race."""
        for (_, bits), tally in self._tallies.items():
            if bits == size_bytes.bit_length():
                self._raced += tally.calls
                tally.calls = 0

    def count_raced(self, sizes_in_race: Container[int]) -> int:
        """Return the number of calls made in races, ended or in progress.

        `sizes_in_race` are the bit lengths of sizes whose race is in progress.
        """
        now = (calls for _, bits, calls in self.list_calls() if bits in sizes_in_race)
        return self._raced + sum(now)

    def list_calls(self) -> Iterator[tuple[str, int, int]]:
        """Yield (schedule's label, size in bits, number of calls) where there were calls."""
        for (label, bits), tally in list(self._tallies.items()):
            if tally.calls:
                yield label, bits, tally.calls
