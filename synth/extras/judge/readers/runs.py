"""The runs of a text: a table that measures again what an earlier one did is another run."""

from collections.abc import Sequence
from dataclasses import replace

from ..file_contents import Measurement


class Runs:
    """Collector of the tables of a text: `add` each, then call `number`."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int], list[list[Measurement]]] = {}
        self._tables: dict[tuple[str, int], int] = {}

    def add(self, table: int, measured: Sequence[Measurement], joins: bool = False) -> None:
        """Add the measurements of the table with the number `table`.

        If they equal those of an earlier run, they are left out: the table was printed twice (tee,
        then cat). If they measure again what the latest run did, they begin another run, unless
        `joins`: then the table is one of several that ranks which were jobs of their own printed.
        """
        keys = {(m.collective, m.ranks) for m in measured}
        if any(list(measured) in self._runs.get(key, []) for key in keys):
            return
        for m in measured:
            key = m.collective, m.ranks
            runs, last = self._runs.setdefault(key, [[]]), self._tables.get(key)
            done = {(other.size_bytes, other.how) for other in runs[-1]}
            is_other = last not in (None, table) and not joins and m.ranks != 1
            if is_other and any((x.size_bytes, x.how) in done for x in measured):
                runs.append([])
            self._tables[key] = table
            runs[-1].append(m)

    def number(self) -> tuple[Measurement, ...]:
        """Return all measurements, each with the number of its run; 0 if there is just one run."""
        return tuple(
            replace(m, run=number if len(runs) > 1 else 0)
            for runs in self._runs.values()
            for number, run in enumerate(runs, 1)
            for m in run
        )
