"""All errors that topoplan raises on purpose, with the exit codes of its commands.

    TopoplanError            1  failed
    +-- InputError           2  usage: a bad argument or file
    +-- InfeasibleError      3  no schedule can exist (or none of the requested form)
    +-- TimeLimitError       4  the time limit passed before any plan was found
    +-- VerificationError    5  a schedule or plan failed the independent replay or its checks
    |   +-- PlanMismatchError   a valid plan, but for other ranks or another topology
    +-- StrategyError        1  a user's own strategy failed
    +-- ExecutionError       1  a plan could not be carried out: a peer failed, a deadline passed

Messages are one line each, and name parameters of the Python API, never options of a command. An
error about one parameter names it in `parameter`; cli/shared translates that into the option of the
command in use.
"""

from collections.abc import Iterable


class TopoplanError(RuntimeError):
    """Base of all errors that topoplan raises on purpose.

    `exit_code` is the exit code of a command that ends with this error. `parameter` is the name of
    the parameter that the caller should change, None if there is no single one. `is_common` says
    that all ranks of a group raise the same, so that one need print it. The class derives from
    RuntimeError, as the errors of torch.distributed do: scripts that catch those catch it.
    """

    exit_code = 1
    is_common = False

    def __init__(self, message: str = "", *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class InputError(TopoplanError):
    """A bad argument or file. The message says what, where, what was expected and what to do."""

    exit_code = 2


class InfeasibleError(TopoplanError):
    """No such schedule can exist; the message gives the reason (a cut, a missing link, a bound)."""

    exit_code = 3


class TimeLimitError(TopoplanError):
    """The time limit passed before any plan was found."""

    exit_code = 4


class VerificationError(TopoplanError):
    """A schedule or a plan failed the independent replay or an integrity check."""

    exit_code = 5


class PlanMismatchError(VerificationError):
    """The plan is valid, but for another topology, world size or group of ranks."""


class StrategyError(TopoplanError):
    """A user's own strategy, named in the message, failed or returned no schedules."""


class ExecutionError(TopoplanError):
    """A plan could not be carried out: a peer failed, or a deadline passed."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'ring'?)" with the known name nearest to `name`, else ""."""
    import difflib  # slow to import, and needed for messages only

    by_lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower().replace("_", "-"), by_lower, n=1, cutoff=0.6)
    return f" (did you mean {by_lower[near[0]]!r}?)" if near else ""
