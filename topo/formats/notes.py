"""Collect a reader's doubts about a file and write them in a few lines."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..names import join_first

_NAMED = 3


@dataclass
class Notes:
    """A reader's doubts about a file; a doubt about several things becomes one line."""

    _subjects: dict[str, dict[str, None]] = field(default_factory=dict)

    def add(self, about: str, doubt: str) -> None:
        """Note a `doubt` about one thing."""
        self._subjects.setdefault(doubt, {})[about] = None

    def add_shared_ports(self, ports: list[str]) -> None:
        """Note that several NICs are ports of one adapter; a single one is not noted."""
        if len(ports) > 1:
            doubt = "ports of one adapter: they share one PCI link, though each is given it all"
            self.add(" and ".join(ports), doubt)

    def format_lines(self) -> list[str]:
        """Return one line for each doubt, with the first few things that it is about."""
        return [
            f"{join_first(subjects, _NAMED)}: {doubt}" for doubt, subjects in self._subjects.items()
        ]
