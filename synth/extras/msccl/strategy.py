"""Plan by `--strategy file:PATH`: take the schedule from an MSCCL file, on the topology at hand.

A strategy returns candidate schedules for a request (synth/request.py). This one is planned like
any other: routes are the hardware's, the verifier replays it, and its gap is against the topology's
bound. The file's name is part of the strategy's.
"""

from dataclasses import replace
from pathlib import Path

from ....topo.errors import VerificationError
from ....topo.printable import printable
from ...ir.schedule import Schedule
from ...request import Request, Strategy, build_schedule, check_size, segment_counts
from ...verify import replay as verify_sums
from .lower import lower
from .read import read_algorithm
from .replay import replay

_PREFIX = "file:"


def file_strategy(name: str) -> Strategy:
    """Return the strategy that reads an MSCCL file; `name` is "file:" and its path.

    The file is read when the strategy is called, which raises InputError, InfeasibleError or
    VerificationError if it cannot be used.
    """
    path = name.removeprefix(_PREFIX)
    label = _PREFIX + printable(Path(path).name)

    def build(request: Request) -> list[Schedule]:
        algorithm = read_algorithm(path, request.collective)
        outcome = replay(algorithm)
        check_size(label, request.collective.ranks, len(outcome.messages))
        schedule = build_schedule(request, label, *lower(algorithm, outcome))
        try:
            verify_sums(schedule)
        except VerificationError as error:
            raise VerificationError(f"{path}: {error}") from None
        return [replace(schedule, segments=m) for m in segment_counts(len(schedule.chunks))]

    return Strategy(label, build)
