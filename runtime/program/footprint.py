"""The scratch memory that a schedule takes, before anything is compiled for it."""

from __future__ import annotations

from functools import lru_cache

from ...synth.ir.schedule import Schedule
from .lowering import lower

# Elements of the buffer that is asked for: shares of it come out to a thousandth.
_SAMPLE_NUMEL = 1 << 20
# Schedules of more messages are cut into so small segments that few of them wait in staging;
# lowering this many takes about 50 ms.
_MOST_MESSAGES = 4096


@lru_cache(maxsize=256)  # a plan's candidates, for a few plans
def find_staging(schedule: Schedule, *, batched: bool) -> float:
    """Return the largest staging memory that any rank takes for a schedule, in multiples of the
    buffer.

    It is 0 for schedules that are cut into too many messages to look at, where it is small.
    """
    if len(schedule.transfers) * schedule.segments > _MOST_MESSAGES:
        return 0.0
    ranks = schedule.collective.ranks
    numel = _SAMPLE_NUMEL // ranks * ranks
    return (
        max(lower(schedule, rank, numel, batched=batched).staging_numel for rank in range(ranks))
        / numel
    )
