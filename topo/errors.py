"""Every error that topoplan raises on purpose, with the exit code that its commands give it.

    TopoplanError            1  failed
    +-- InputError           2  usage: a bad argument or a bad file; says what, where, what was expected, what to do
    +-- InfeasibleError      3  no schedule can exist (or none of the asked form), with the reason
    +-- TimeLimitError       4  the time limit passed before any plan was found
    +-- VerificationError    5  a schedule or plan did not survive the independent replay or its checks
    |   +-- PlanMismatchError   a sound plan, but not for this topology, world size or group of ranks
    +-- StrategyError        1  a strategy of a user's own failed
    +-- ExecutionError       1  a plan could not be carried out: a peer failed, a deadline passed

Messages are one line each.
"""

from __future__ import annotations

from collections.abc import Iterable


class TopoplanError(RuntimeError):
    """Base of all errors that topoplan raises on purpose; `exit_code` is what a command ends with.

    A RuntimeError, as torch.distributed's own errors are: scripts that catch those catch these.
    """

    exit_code = 1


class InputError(TopoplanError):
    """A bad argument or file. The message says what, where, what was expected and what to do."""

    exit_code = 2


class InfeasibleError(TopoplanError):
    """Something was asked for that cannot exist; the message gives the reason (a cut, a missing
    link, a bound).
    """

    exit_code = 3


class TimeLimitError(TopoplanError):
    """The time limit passed before any plan was found."""

    exit_code = 4


class VerificationError(TopoplanError):
    """A schedule or a plan failed the independent replay or an integrity check."""

    exit_code = 5


class PlanMismatchError(VerificationError):
    """A sound plan that is not for this topology, world size or group of ranks."""


class StrategyError(TopoplanError):
    """A strategy of a user's own failed, or returned something else than schedules; the message
    names it.
    """


class ExecutionError(TopoplanError):
    """A plan could not be carried out."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'ring'?)" with the known name that is nearest to `name`; nothing where
    none is near.
    """
    import difflib  # only for messages

    by_lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower().replace("_", "-"), by_lower, n=1, cutoff=0.6)
    return f" (did you mean {by_lower[near[0]]!r}?)" if near else ""
