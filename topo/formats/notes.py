"""Doubts about a file, in the few lines that people read."""

from __future__ import annotations

from dataclasses import dataclass, field

_NAMED = 3


@dataclass
class Notes:
    """Doubts about a file; equal ones are told once, with the things they are about."""

    _subjects: dict[str, dict[str, None]] = field(default_factory=dict)

    def add(self, about: str, doubt: str) -> None:
        """Note a doubt about one thing."""
        self._subjects.setdefault(doubt, {})[about] = None

    def lines(self) -> list[str]:
        """One line a doubt."""
        return [f"{_and_more(list(subjects))}: {doubt}" for doubt, subjects in self._subjects.items()]


def _and_more(subjects: list[str]) -> str:
    named = ", ".join(subjects[:_NAMED])
    more = len(subjects) - _NAMED
    return f"{named} and {more} more" if more > 0 else named
