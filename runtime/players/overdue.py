"""Carries out collectives of MPI's own, which cannot be interrupted: an overdue one would wait for ever."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from ...topo.errors import TopoplanError
from ..mpi.alarm import Alarm
from ..ranks.faults import Call, Faults

_LAST_WORDS_S = 1.0
"""Seconds before this process ends, so that others can say what they are stuck in: mpirun ends them with the first."""


class WatchedCollective:
    """Calls `collective`, which cannot be interrupted, then `finish`; `what` names it."""

    def __init__(
        self, collective: Callable[[], object], faults: Faults, what: str, finish: Callable[[], object] | None = None
    ) -> None:
        self._collective, self._faults, self._what, self._finish = collective, faults, what, finish
        self._call: Call | None = None
        self._alarm = Alarm(self._end)

    def run(self, number: int | None = None) -> None:
        """Carry it out; `number` is the call's, if it was drawn.

        Raises ExecutionError where it fails; where it is overdue, this process prints who is to blame, and ends with exit
        code 1.
        """
        self._call = call = self._faults.begin(self._what, None, number)
        alarm = self._alarm
        alarm.deadline = call.deadline
        try:
            self._collective()
        except TopoplanError:
            raise
        except RuntimeError as error:
            raise self._faults.stuck_in_stock(call, error) from error
        finally:
            alarm.stop(call.deadline)
        if self._finish is not None:
            self._finish()

    def _end(self) -> None:
        """End the process, with a line that says who is to blame."""
        if self._call is not None:
            error = self._faults.stuck_in_stock(self._call, RuntimeError("it did not end"))
            print(f"topoplan: {error}", file=sys.stderr, flush=True)
            time.sleep(_LAST_WORDS_S)
            os._exit(1)
