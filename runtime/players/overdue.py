"""The player of MPI's own collectives, which cannot be interrupted and may wait for ever."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from ...topo.errors import TopoplanError
from ..mpi.alarm import Alarm
from ..ranks.faults import Call, Faults

# Time before this process ends, in which others can report where they are stuck: mpirun ends all
# ranks when the first one ends.
_LAST_WORDS_S = 1.0


class CollectivePlayer:
    """Runs MPI's own collectives over one group, one at a time."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._call: tuple[str, int] | None = None
        self._alarm = Alarm(self._end)

    def carry_out(
        self,
        collective: Callable[[], object],
        what: str,
        finish: Callable[[], object] | None = None,
        number: int | None = None,
    ) -> None:
        """Call `collective`, then `finish`; `what` describes the call.

        `number` is the number of the call, if drawn before. Raise ExecutionError if it fails; if it
        is overdue, print which rank is to blame, and end this process with exit code 1.
        """
        alarm = self._alarm
        number, deadline = self._faults.admit(number)
        self._call = what, number
        alarm.deadline = deadline
        try:
            collective()
        except TopoplanError:
            raise
        except RuntimeError as error:
            raise self._faults.stuck_in_stock(Call(what, number, deadline), error) from error
        finally:
            alarm.stop(deadline)
        if finish is not None:
            finish()

    def _end(self) -> None:
        """End the process, with a line that says which rank is to blame."""
        if self._call is not None:
            call = Call(*self._call, self._alarm.struck)
            error = self._faults.stuck_in_stock(call, RuntimeError("it did not end"))
            print(f"topoplan: {error}", file=sys.stderr, flush=True)
            time.sleep(_LAST_WORDS_S)
            os._exit(1)
