"""The values that options have names for; commands show them without importing what they mean."""

from typing import Final

# How the schedule for a size is picked (Communicator explains it). With "same-bits" every schedule
# that races adds each element up in one bracketing (the same partial sums).
SAME_BITS = "same-bits"
MODES = ("race", "model", "plan", SAME_BITS)
# How schedules are executed.
POINT_TO_POINT, ONE_SIDED, AUTO = "point-to-point", "one-sided", "auto"
EXECUTORS = (AUTO, ONE_SIDED, POINT_TO_POINT)
# When values are rounded that are sent compressed: whenever they are sent, or each contribution
# once, and then the sum once.
REDUCTIONS = ("hops", "once")
# What to do when a link is lost, and when one becomes slow.
REPLAN: Final = "replan"
ON_FAULTS = ("raise", REPLAN)
ON_SLOWS = ("warn", REPLAN)
# The options that ask for a layer around calls if they are REPLAN; that of the first is innermost.
LAYER_OPTIONS = ("on_slow", "on_fault")
