"""Rows of tables grouped into runs: of which collective each is, and on how many ranks.

Tables are those of nccl-tests. A half of a row is what was measured out of place, or in place.
"""

from collections.abc import Sequence
from dataclasses import replace

from .....topo.grouping import group_by_key
from ..file_contents import FileFinding, Location, Measurement
from .runs import Runs
from .table_collective import infer_collective, is_of_sendrecv
from .table_ranks import TOLERANCE, Half, choose_ranks, describe_separate_jobs
from .table_rows import Row, find_odd_factors, find_parts, read_half

# Lines from the prose to the table that it is about: the command and a list of devices.
_MAX_LINES = 50


class RowsMeasurer:
    """Makes measurements of rows: `measure` them, once.

    It fills `findings`: how tests were started wrongly; `others`: tests that are no collective
    here, with the line that names them; and `left_out`: lines with a row, or a half of one, that is
    left out, and why. `asked` is the collective that the user named, if any, and `file` the one in
    the name of the file; `knows_hosts` is whether a log around the tables names its hosts.
    """

    def __init__(self, asked: str | None, file: str | None, knows_hosts: bool) -> None:
        self._asked, self._file, self._knows_hosts = asked, file, knows_hosts
        # The types of elements that each test measured, by the identity of what started it.
        self._kinds: dict[int, set[str]] = {}
        self.findings: list[FileFinding] = []
        self.others: dict[str, int] = {}
        self.left_out: list[tuple[int, str]] = []

    def measure(self, rows: Sequence[Row]) -> tuple[Measurement, ...]:
        """Return the measurements of all rows, with the number of their run."""
        runs = Runs()
        for row in rows:
            self._kinds.setdefault(id(row.started), set()).add(row.kind)
        tables = group_by_key(
            ((row.table, row.command, row.operation not in (None, "none"), row.root), row)
            for row in rows
        )
        measured = [(rows[0], self._measure(rows)) for rows in tables.values()]
        if any(m.ranks > 1 for _, run in measured for m in run):
            measured = self._leave_out_alone(measured)
        for first, run in measured:
            runs.add(first.table, run, joins=first.started.jobs > 1)
        return runs.number()

    def _leave_out_alone(
        self, measured: list[tuple[Row, list[Measurement]]]
    ) -> list[tuple[Row, list[Measurement]]]:
        """Return runs of several ranks; those of one say nothing of a text that has others."""
        self.findings = [finding for finding in self.findings if finding.name != "single-rank"]
        alone = {first.line for first, run in measured if run and run[0].ranks == 1}
        why = "a run of one rank, which sends nothing, is left out"
        self.left_out += [(line, why) for line in sorted(alone)]
        return [(first, run) for first, run in measured if first.line not in alone]

    def _measure(self, rows: list[Row]) -> list[Measurement]:
        """Return the measurements of one table; none if it is of no collective."""
        self._leave_out_odd(rows)
        # Rates of several types are no spread of one: each is a variant of its own.
        has_types = len(self._kinds[id(rows[0].started)]) > 1
        by_how = _read_halves(rows, has_types)
        halves = [half for _, _, half in by_how]
        name = infer_collective(rows, halves, self._asked, self._file)
        if name is None:
            unnamed = "sendrecv" if is_of_sendrecv(rows) else "a test that nothing names"
            self.others.setdefault(rows[0].command or unnamed, rows[0].line)
            return []
        ranks = choose_ranks(name, halves, rows[0].started, find_parts(rows))
        started = rows[0].started
        locations = {
            rank: location
            for rank, location in started.locate().items()
            if rank < ranks or started.locations
        }
        if not any(location.host for location in locations.values()):
            locations = self._place(rows[0], ranks, locations)
        finding = describe_separate_jobs(rows[0].started, ranks, halves, rows[0].line)
        if finding is not None and finding not in self.findings:
            self.findings.append(finding)
        return [
            Measurement(name, ranks, size, algbw, busbw, time_us, how, wrong, locations=locations)
            for size, how, (time_us, algbw, busbw, wrong) in by_how
            if size > 0
        ]

    def _place(self, row: Row, ranks: int, locations: dict[int, Location]) -> dict[int, Location]:
        """Return locations with the hosts that the command line states, else those of prose.

        The ranks of a table have to be on all alike. Else note what prose states: on which hosts
        they are is not known.
        """
        hosts, said = row.started.hosts, row.said
        if said is not None and row.line - said.line > _MAX_LINES:
            said = None
        is_one_process = row.started.gpus == ranks and row.started.processes < 2
        if self._knows_hosts or not ranks or hosts == 1 or is_one_process:
            return locations
        if not hosts and said is not None and said.hosts * said.gpus == ranks:
            hosts = said.hosts
        if not hosts and said is not None:
            where = "on which hosts they were is not known"
            self.left_out.append(
                (said.line, f"the text says {said}, and a table has {ranks} ranks: {where}")
            )
        if not hosts or ranks % hosts:
            return locations
        each = ranks // hosts
        return {
            rank: replace(locations.get(rank, Location()), host=f"host {rank // each + 1}")
            for rank in range(ranks)
        }

    def _leave_out_odd(self, rows: Sequence[Row]) -> None:
        """Leave out the halves that end within the digits of busbw."""
        places = [(row, how) for row in rows for how in row.halves]
        for at in sorted(find_odd_factors([row.halves[how] for row, how in places])):
            row, how = places[at]
            del row.halves[how]
            which = how.replace("-", " ")
            self.left_out.append((row.line, f"the row is cut {which}, which is left out"))


def _read_halves(rows: Sequence[Row], has_types: bool) -> list[tuple[int, str, Half]]:
    """Return the size, the variant and the values of each half of each row.

    The variant names the type of elements if there are several (`has_types`).
    Times of the oldest tables are in milliseconds. Until June 2020 allgather and reduce-scatter
    printed busbw in place of algbw, so the time gives their algbw.
    """
    read = [
        (row.size, f"{how} {row.kind}".rstrip() if has_types else how, half)
        for row in rows
        for how, values in row.halves.items()
        if (half := read_half(values)) is not None
    ]
    size, _, (time, algbw, busbw, _) = max(
        read, key=lambda entry: entry[2][1], default=(0, "", (0.0, 0.0, 0.0, False))
    )
    if time == 0 or algbw < 1:
        return read
    in_us = size / time * 1e-3 / algbw
    unit = 1e-3 if in_us > 100 else 1.0
    excess = in_us * unit
    is_old = abs(busbw - algbw) <= TOLERANCE and 1 + TOLERANCE / 4 < excess < 2 + TOLERANCE
    is_old = is_old and (rows[0].root is None or rows[0].root < 0)
    return [
        (size, how, (time / unit, size / time * unit * 1e-3 if is_old else algbw, busbw, wrong))
        for size, how, (time, algbw, busbw, wrong) in read
        if time > 0
    ]
