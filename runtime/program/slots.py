"""Room in one buffer, given out and taken back in program order: what is free again is used again."""

from __future__ import annotations


class Slots:
    """First fit among what is free, else new room at the end; `size` is what was ever needed."""

    def __init__(self) -> None:
        self.size = 0
        self._free: list[tuple[int, int]] = []

    def take(self, length: int) -> int:
        """Where `length` elements may lie."""
        for i, (lo, hi) in enumerate(self._free):
            if hi - lo >= length:
                self._free[i : i + 1] = [(lo + length, hi)] if hi - lo > length else []
                return lo
        if self._free and self._free[-1][1] == self.size:
            at, _ = self._free.pop()
        else:
            at = self.size
        self.size = at + length
        return at

    def give(self, at: int, length: int) -> None:
        """Take back what `take` gave."""
        merged: list[tuple[int, int]] = []
        for lo, hi in sorted([*self._free, (at, at + length)]):
            if merged and merged[-1][1] == lo:
                merged[-1] = merged[-1][0], hi
            else:
                merged.append((lo, hi))
        self._free = merged
