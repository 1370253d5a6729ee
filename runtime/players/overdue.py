"""Carries out collectives of MPI's own, which cannot be interrupted: an overdue one would wait for ever."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from ...topo.errors import TopoplanError
from ..mpi.alarm import set_alarm, stop_alarm
from ..ranks.faults import Call, Faults

_LAST_WORDS_S = 1.0
"""Seconds before this process ends, so that others can say what they are stuck in: mpirun ends them with the first."""


def carry_out(
    collective: Callable[[], object],
    faults: Faults,
    what: str,
    finish: Callable[[], object] | None = None,
    number: int | None = None,
) -> None:
    """Call `collective`, which cannot be interrupted, then `finish`; `what` names it, `number` is the call's, if it was drawn.

    Raises ExecutionError where it fails; where it is overdue, this process prints who is to blame, and ends with exit code 1.
    """
    call = faults.begin(what, number=number)
    set_alarm(call.deadline, _end, (faults, call))
    try:
        collective()
    except TopoplanError:
        raise
    except RuntimeError as error:
        raise faults.stuck_in_stock(call, error) from error
    finally:
        stop_alarm()
    if finish is not None:
        finish()


def _end(faults: Faults, call: Call) -> None:
    error = faults.stuck_in_stock(call, RuntimeError("it did not end"))
    print(f"topoplan: {error}", file=sys.stderr, flush=True)
    time.sleep(_LAST_WORDS_S)
    os._exit(1)
