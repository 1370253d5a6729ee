"""Choose how many segments to cut a schedule into if only few can be tried on a job's own calls."""

import math
from collections.abc import Sequence

from ....synth.ir.schedule import Schedule

# Without a race, segments are of several packets each, and not so many that hosts are busy with
# them.
_SEGMENT_BYTES, _MAX_SEGMENTS = 16 << 10, 64


def choose_segments(schedule: Schedule, size_bytes: int) -> int:
    """Return how many segments to cut a schedule's chunks into, by a model instead of trials.

    `size_bytes` is the size of the buffer.
    """
    chunk_bytes = int(size_bytes * max(chunk.share for chunk in schedule.chunks))
    return min(max(1, chunk_bytes // _SEGMENT_BYTES), _MAX_SEGMENTS)


def find_nearest(schedule: Schedule, segments: float, variants: Sequence[Schedule]) -> Schedule:
    """Return the variant of `schedule` with the number of segments closest to `segments`.

    `variants` are schedules in several segmentations, one of them `schedule` in some. The one
    returned is pipelined if the schedule is, else step by step.
    """
    return min(
        (x for x in variants if (x.uncut, x.stepwise) == (schedule.uncut, schedule.stepwise)),
        key=lambda x: abs(math.log(x.segments / segments)),
    )


def cut_like(
    used: Schedule, schedule: Schedule, variants: Sequence[Schedule], size_bytes: int
) -> Schedule:
    """Return the variant of `schedule` whose messages are about as long as those of `used`.

    `variants` are as for `find_nearest`. A race has found that length for buffers of `size_bytes`;
    the costs of messages, which decide on it, do not change with the rates of links. If `used` is
    not cut, a model chooses.
    """
    if used.segments == 1:
        segments: float = choose_segments(schedule, size_bytes)
    else:
        share, usual = (float(max(y.share for y in x.chunks)) for x in (schedule, used))
        segments = used.segments * share / usual
    return find_nearest(schedule, segments, variants)
