"""Share the rows of a benchmark's table with helper and idle ranks, which measure nothing."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta

from ....topo.errors import ExecutionError
from ...communicator import Communicator
from ...measuring.bench import BenchRow
from ...ranks.addresses import find_ended
from ...ranks.store import put, take
from ...ranks.transport import Transport

_KEY = "rows"
# A benchmark takes as long as it takes; a member that ends is noticed.
_FOREVER = timedelta(days=30)


def hand_out_rows(
    communicator: Communicator, transport: Transport, rows: Sequence[BenchRow]
) -> None:
    """Let the communicator's helpers go, and publish the rows in the store for all ranks.

    Called by members; the first of them publishes. `transport` has the store of all ranks.
    """
    communicator.close()
    if communicator.rank == communicator.plan.collective.members[0]:
        put(transport.faults.store, _KEY, [asdict(row) for row in rows])


def await_rows(communicator: Communicator, transport: Transport) -> list[BenchRow]:
    """Return the members' rows; if this rank is a helper, serve their calls until then.

    Raise ExecutionError if the first member ends before.
    """
    communicator.serve()
    first = communicator.plan.collective.members[0]
    addresses = {first: transport.faults.addresses[first]}

    def look() -> None:
        if find_ended(addresses):
            raise ExecutionError(f"rank {first}, a member of the plan, has ended")

    rows = take(transport.faults.store, _KEY, _FOREVER, look=look)
    communicator.close()
    return [BenchRow(**row) for row in rows]
