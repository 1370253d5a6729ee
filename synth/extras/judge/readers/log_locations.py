"""The locations of ranks that any line of a log states, as those that end a communicator do.

A log may be cut before its channels, or have only a test's table and what stands around it.
"""

import re

from ..file_contents import Location
from .log_lines import Signatures, read_bus_id

_PLACE = re.compile(
    r"\brank (?P<rank>\d{1,6}) nranks (?P<ranks>\d{1,6})\b(?: cudaDev (?P<cuda>\d{1,6}))?"
    r"(?: nvmlDev (?P<nvml>\d{1,6}))?(?: busId (?P<bus>[0-9a-f]{1,16})\b)?"
)


class LocationCollector:
    """Collector of the sizes of communicators, and of where their ranks are.

    `signatures` finds the host that writes a line.
    """

    def __init__(self, signatures: Signatures) -> None:
        self._signatures = signatures
        self._sizes: set[int] = set()
        # None for a rank that has several locations.
        self._locations: dict[int, Location | None] = {}

    def take(self, line: str) -> None:
        """Record what a line of the library states of ranks."""
        for thread, _, text in self._signatures.split(line):
            if (match := _PLACE.search(text)) is None:
                continue
            self._sizes.add(int(match["ranks"]))
            if match["bus"] is None:
                continue
            location = read_stated_location(match, thread[0] if thread is not None else None)
            if self._locations.setdefault(int(match["rank"]), location) != location:
                self._locations[int(match["rank"])] = None

    @property
    def size(self) -> int | None:
        """The number of ranks of each communicator; None if it differs, or none is stated."""
        return next(iter(self._sizes)) if len(self._sizes) == 1 else None

    def find(self) -> dict[int, Location]:
        """Return the location of each rank, by its number.

        The result is empty unless all communicators have the same number of ranks, and the lines
        state one location for each rank, the same in all communicators.
        """
        known = {
            rank: location for rank, location in self._locations.items() if location is not None
        }
        return known if self.size == len(known) == len(self._locations) else {}


def read_stated_location(match: re.Match[str], host: str | None) -> Location:
    """Return the location on `host` that the groups cuda, nvml and bus of a match state."""
    device = match["nvml"] or match["cuda"]
    return Location(
        host,
        None if device is None else int(device),
        read_bus_id(match["bus"] or ""),
        bool(match["nvml"]),
    )
