"""A strategy of one's own: sums meet in the middle of a line of ranks and go back from there, in
pipelined segments.

python examples/own_strategy.py [TOPOLOGY]             default: path:8
"""

import sys
from dataclasses import replace

import topoplan


@topoplan.strategy("middle")
def meet_in_the_middle(request: topoplan.Request) -> list[topoplan.Schedule]:
    """Return the schedule in several numbers of segments; which of them is best at a size, the cost
    model says.
    """
    if request.collective.name != "allreduce":
        raise topoplan.InfeasibleError(f"it has only allreduce, not {request.collective.name}")
    last = request.collective.ranks - 1
    middle = (last + 1) // 2
    sends: list[topoplan.Send] = []  # (step, from rank, to rank, chunk, operation)
    for step in range(middle):
        sends.append((step, step, step + 1, 0, "reduce"))
        sends.append((2 * middle - 1 - step, step + 1, step, 0, "copy"))
    for step in range(last - middle):
        sends.append((step, last - step, last - step - 1, 0, "reduce"))
        sends.append((2 * middle - 1 - step, last - step - 1, last - step, 0, "copy"))
    chunks = request.collective.even_chunks(1)
    schedule = topoplan.build_schedule(request, "middle", chunks, sends)
    return [replace(schedule, segments=segments) for segments in (1, 4, 16, 64, 256)]


def main() -> None:
    """Plan with it, and beside it with all strategies, of which it is one now."""
    machine = sys.argv[1] if len(sys.argv) > 1 else "path:8"
    mine = topoplan.synthesize("allreduce", machine, "middle")
    best = topoplan.synthesize("allreduce", machine)
    print(mine.describe("16M"))
    print(best.describe("16M"))

    # Whatever a strategy returns is replayed before it counts; a schedule can also be checked by
    # itself.
    schedule = mine.entries[-1].schedule
    topoplan.verify(schedule, machine)
    print(schedule.describe())


if __name__ == "__main__":
    try:
        main()
    except topoplan.TopoplanError as error:
        sys.exit(str(error))
