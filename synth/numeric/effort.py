"""Limit searches by an amount of work and by the clock.

Work does not depend on the machine's load. It is counted, never measured: trees priced, simplex
iterations, CP-SAT's deterministic time, schedules judged. Each search turns its counts into seconds
of an idle core by a rate of its own, so that allowances read like times; only the counts decide.
The clock only stops a search that is still running at the user's time limit, and each search that
it stopped is recorded: if nothing is recorded, the same request gives the same plan.
"""

from __future__ import annotations

import time

# The time limit at which work allowances hold as written. A longer one raises them all in
# proportion; a shorter one leaves them unchanged, and the clock may stop the search first.
USUAL_LIMIT_S = 60.0


class Effort:
    """An allowance of work, with a time limit, for searches.

    `limit_s` is the time limit in seconds, `left_s` the work left in seconds of an idle core, and
    `ends_at` the end of the time limit on time.monotonic. A limit above `usual_limit_s` raises the
    work in proportion. `cut_short` lists the names of the searches that the clock has stopped; all
    allowances derived from one share this list, except those of `watch` and `begin_anew`.
    """

    def __init__(
        self,
        time_limit_s: float = USUAL_LIMIT_S,
        usual_limit_s: float = USUAL_LIMIT_S,
        began: float | None = None,
    ) -> None:
        """Begin the time limit now, or at `began` (time.monotonic)."""
        # A shorter limit does not lower the work, or plans would depend on the machine's speed.
        self.limit_s = time_limit_s
        self.scale = max(1.0, time_limit_s / usual_limit_s)
        self.ends_at = (time.monotonic() if began is None else began) + time_limit_s
        # The lists that a stopped search is recorded in; the first is this allowance's own.
        self._records: tuple[list[str], ...] = ([],)
        self._left_s = usual_limit_s * self.scale
        self._parent: Effort | None = None

    @property
    def cut_short(self) -> list[str]:
        """The names of the searches that the clock has stopped, in the order of their ends."""
        return self._records[0]

    @property
    def left_s(self) -> float:
        """Work left, in seconds of an idle core; negative if more was done than allowed."""
        return self._left_s if self._parent is None else min(self._left_s, self._parent.left_s)

    @property
    def clock_s(self) -> float:
        """Seconds until the clock stops the search; negative once that time has passed."""
        return self.ends_at - time.monotonic()

    def grant(self, work_s: float, share_of_clock: float = 1.0) -> Effort:
        """Return an allowance of `work_s` out of this one, with a share of the time left.

        Work spent in it counts in this one too, and it ends when this one is used up. `work_s` is
        in seconds of an idle core, at the usual time limit; a longer limit raises it in proportion.
        """
        # The constructor is not used here: it would start a new time limit.
        part = Effort.__new__(Effort)
        part.limit_s, part.scale = self.limit_s, self.scale
        part._records, part._parent = self._records, self
        part._left_s = work_s * self.scale
        part.ends_at = self.ends_at - max(0.0, self.clock_s) * (1 - share_of_clock)
        return part

    def watch(self) -> Effort:
        """Return this allowance with a `cut_short` of its own: what is stopped from now on.

        It is recorded in this one's list, too.
        """
        part = self.grant(self.left_s / self.scale)
        part._records = ([], *self._records)
        return part

    def extend(self, work_s: float) -> Effort:
        """Return an allowance of `work_s` beyond this one, with the same end.

        Work spent in it does not count in this one. `work_s` is in seconds of an idle core, as for
        `grant`. Use it for a cheap last step that must run even if this allowance is used up.
        """
        part = self.grant(work_s)
        part._parent = None
        return part

    def begin_anew(self, share: float) -> Effort:
        """Return an allowance that begins now, with a share of this one's time limit.

        Work spent in it does not count in this one, and it has a `cut_short` of its own.
        """
        return Effort(self.limit_s * share)

    def spend(self, work_s: float) -> None:
        """Count work as done, in this allowance and in those it was derived from."""
        self._left_s -= work_s
        if self._parent is not None:
            self._parent.spend(work_s)

    def is_over(self, search: str) -> bool:
        """Return whether `search` must stop: its work is used up, or its time is over.

        If its time is over, this is recorded in `cut_short`.
        """
        # Running out of work is not recorded: it happens in the same place on every machine.
        if self.left_s <= 0:
            return True
        if self.clock_s > 0:
            return False
        self.record_cut(search)
        return True

    def record_cut(self, search: str) -> None:
        """Record that the clock has stopped a search."""
        for record in self._records:
            if search not in record:
                record.append(search)
