"""An allowance of work for searches in tests, whose clock stops none on a busy machine."""

from __future__ import annotations

import patience

from topoplan.synth.numeric.effort import USUAL_LIMIT_S, Effort


def make_effort() -> Effort:
    """Return the usual allowance of work. It ends a search; the clock ends one that hangs."""
    effort = Effort()
    effort.ends_at += patience.seconds(patience.LIMIT_S) - USUAL_LIMIT_S
    return effort
