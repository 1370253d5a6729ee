"""The number of ranks of a table: stated by its text, or implied by its rates.

Tables are those of nccl-tests. A half of a row is what was measured out of place, or in place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, floor, inf

from ..file_contents import FileFinding, Location

# Tolerance of busbw / algbw against the factor of a collective: tables print two decimals.
TOLERANCE = 0.02
# Half of the last printed digit of algbw and busbw in GB/s, with room for the rounding of sums.
_ROUNDING_GBps = 0.006
# Rates in GB/s below which two decimals say nothing about a ratio.
_MIN_GBps = 1.0
# More ranks than any job has: larger numbers come from damage.
_MAX_RANKS = 1 << 20

# Collectives whose rows count all elements of their size; others count those of one rank's part.
WHOLE = ("allreduce", "reduce", "broadcast")

# Time in us, algbw and busbw in GB/s, and whether results were wrong.
Half = tuple[float, float, float, bool]


@dataclass
class Started:
    """What a text says of how a test was started, before its table.

    `locations` are the listed ranks. `gpus` is the number of GPUs of each process and `processes`
    that of the launcher's command line, on `hosts` hosts, 0 if unknown; `options` are those that
    the test prints; `visible` are the GPUs that CUDA_VISIBLE_DEVICES names, in the order in which
    the test numbers them. `jobs` counts how often rank 0 is listed. `calls` are the collectives
    that the library logged, None for other calls, and `called` the numbers of ranks of what it
    logged. `has_header` and `has_rows` say whether the table below it has them. `is_open` is True
    if the list ends in dots, so its last rank is not the last there was.
    """

    locations: dict[int, Location] = field(default_factory=dict)
    gpus: int = 0
    processes: int = 0
    hosts: int = 0
    options: str = ""
    visible: tuple[int, ...] = ()
    jobs: int = 0
    calls: set[str | None] = field(default_factory=set)
    called: set[int] = field(default_factory=set)
    has_header: bool = False
    has_rows: bool = False
    is_open: bool = False

    def locate(self) -> dict[int, Location]:
        """Return where ranks are, by rank: as listed, else one on each visible GPU in their order.

        The table may have fewer ranks than there are visible GPUs.
        """
        return self.locations or {rank: Location(dev=gpu) for rank, gpu in enumerate(self.visible)}

    @property
    def listed(self) -> int:
        """The number of ranks by the list of devices: the last rank in it plus one.

        Ranks are not counted, since people often cut out the middle of the list.
        """
        return max(self.locations, default=-1) + 1


def choose_ranks(name: str | None, halves: Sequence[Half], started: Started, parts: int) -> int:
    """Return the number of ranks of a table of the collective `name`; 0 if unknown.

    `halves` are the values of all rows, `started` is what the text says before the table. `parts`
    is how often the elements that the column `count` states make the size of a row: once for each
    rank if the size is that of all ranks' parts; 0 if unknown.

    Return 1 if every rank ran alone. Otherwise the first of these numbers that busbw / algbw allows
    wins: the parts, if the collective has one for each rank; the ranks in the list of devices; the
    ranks of the logged calls; the ranks by the command line; the GPUs of one process. If busbw /
    algbw allows none of them, it decides itself, if it allows just one number, or just one multiple
    of the GPUs of a process.
    """
    if ran_alone(halves):
        return 1
    low, high = _bound_ranks(name, halves)
    # A list that has fewer devices than a process has GPUs is cut.
    is_cut = started.is_open or started.listed < started.gpus
    listed = 0 if is_cut else started.listed
    stated = (
        0 if name in WHOLE else parts,
        listed,
        max(started.called) if len(started.called) == 1 else 0,
        started.processes * max(started.gpus, 1),
        started.gpus,
    )
    for ranks in stated:
        if ranks > 1 and low <= ranks <= high:
            return ranks
    if high == inf:
        return int(started.listed == 1 and low <= 2)
    step = started.gpus if started.gpus > 1 and floor(high) > ceil(low) else 1
    fits = range(-(-ceil(low) // step) * step, floor(high) + 1, step)
    return fits[0] if len(fits) == 1 else 0


def ran_alone(halves: Sequence[Half]) -> bool:
    """Return whether busbw is 0 at every rate: each rank was a job of its own."""
    return any(algbw > _MIN_GBps for _, algbw, _, _ in halves) and not any(
        busbw for _, _, busbw, _ in halves
    )


def _bound_ranks(name: str | None, halves: Sequence[Half]) -> tuple[float, float]:
    """Return the least and the largest number of ranks that all rows' busbw / algbw allow."""
    if name in (None, "broadcast", "reduce"):
        return 2, inf
    low, high = 2.0, inf
    passes = 2 if name == "allreduce" else 1
    # The fastest rows are the most exact, so a row that contradicts them is ignored.
    for _, algbw, busbw, _ in sorted(halves, key=lambda half: -half[1]):
        if algbw < _MIN_GBps:
            break
        part = busbw / algbw / passes
        doubt = _ROUNDING_GBps / algbw * (1 + busbw / algbw) / passes
        if not 0.4 < part < 1 + doubt:
            continue
        least = 1 / (1 - part + doubt)
        most = 1 / (1 - part - doubt) if part + doubt < 1 else inf
        if least <= high and most >= low:
            low, high = max(low, least), min(high, most)
    return low, high if high < _MAX_RANKS else inf


def describe_separate_jobs(
    started: Started, ranks: int, halves: Sequence[Half], line: int
) -> FileFinding | None:
    """Return a finding if the processes of a table were jobs of their own; None if they were not.

    `started` is what the text says before the table, `ranks` the number of ranks of each job,
    `halves` are the values of the table's rows, `line` is the number of its first row's line.
    """
    advice = (
        "rebuild nccl-tests with MPI (make clean; make MPI=1), or give one process several GPUs "
        "(-g); then give the new table"
    )
    if ranks == 1:
        jobs = f" ({started.jobs} jobs of one rank)" if started.jobs > 1 else ""
        why = (
            f"busbw is 0: every rank ran alone{jobs}" if ran_alone(halves) else "one rank is listed"
        )
        return FileFinding(
            "single-rank",
            f"{why}, so nothing was sent and nothing is judged",
            advice,
            line,
        )
    if started.jobs > 1 and started.listed > 1:
        return FileFinding(
            "separate-jobs",
            f"rank 0 is listed {started.jobs} times: that many jobs of {started.listed} ranks ran "
            "side by side, not one job of all",
            advice,
            line,
        )
    return None
