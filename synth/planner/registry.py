"""List all strategies by name: built-in ones and those of users.

Users add a strategy by a decorator or an entry point:

    @topoplan.strategy("mine")
    def build(request: topoplan.Request) -> list[topoplan.Schedule]: ...

or, in the pyproject.toml of an installed package,

    [project.entry-points."topoplan.strategies"]
    mine = "package.module:build"

A user's strategy is used like a built-in one: by its name, and by auto, after the built-in ones.
Its schedules are verified and costed in the same way. Any failure in it becomes a one-line error
that names it.

Extras, the optional features that extras.py at the root lists, add strategies by name (these are
among the built-in ones), or by a prefix, such as "file" for strategies "file:PATH".
"""

import logging
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TypeVar

from ...extras import WORDS, Names
from ...topo.errors import (
    InfeasibleError,
    InputError,
    StrategyError,
    TopoplanError,
    VerificationError,
)
from ..ir.schedule import MAX_SEGMENTS, Schedule
from ..request import Request, Strategy
from ..strategies.built_in import STRATEGIES
from ..strategy_names import AUTO, DECORATED, GROUP, find_prefix, refuse_unknown
from ..verify import verify

log = logging.getLogger("topoplan")

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}")

# A user's function, from a request to schedules; it raises InfeasibleError if it has none.
UserFunction = Callable[[Request], Iterable[Schedule]]
F = TypeVar("F", bound=UserFunction)


def strategy(name: str) -> Callable[[F], F]:
    """Return a decorator that registers a function as the strategy `name`, in this process.

    The function takes a Request and returns schedules for its collective on its topology
    (`build_schedule` makes them of sends); it raises InfeasibleError if it has none. It is called
    if a plan is synthesized with `strategy=name`, and by "auto" after the built-in strategies. Its
    schedules are verified and costed like theirs. A later function of the same name replaces an
    earlier one. To register it for all processes, including topo-synth, name the function in the
    entry point group `topoplan.strategies` of a package. Raise InputError if a built-in strategy
    has the name, or it is not a valid name.
    """
    if not isinstance(name, str):
        raise InputError(
            f'strategy({name!r:.60}): expected a name, as in @topoplan.strategy("mine")'
        )
    _check_name(name, "the decorator")

    def register(build: F) -> F:
        if not callable(build):
            raise InputError(
                f"strategy {name!r} is {build!r:.60}; expected a function that takes a Request"
            )
        DECORATED[name] = _guard(name, lambda: build)
        return build

    return register


def list_strategies() -> dict[str, Strategy]:
    """Return every strategy by name: built-in ones first, then those of users.

    Strategies with a prefix, such as "file:PATH", are not listed.
    """
    return {**STRATEGIES, **list_installed(), **DECORATED}


def find_strategy(name: str) -> Strategy:
    """Return the strategy of that name; raise InputError if there is none.

    A name may also be an extra's prefix, a colon and what the extra takes, such as "file:" and a
    path.
    """
    prefix = find_prefix(name)
    if prefix is not None:
        make: Callable[[str], Strategy] = Names(WORDS).find(prefix)
        return make(name)
    # Built-in ones come first, since listing installed packages takes time.
    strategy = STRATEGIES.get(name) or DECORATED.get(name) or list_installed().get(name)
    if strategy is None:
        raise refuse_unknown(name, list_strategies())
    return strategy


@cache
def list_installed() -> Mapping[str, Strategy]:
    """Return the strategies of installed packages by name; each is imported at its first use."""
    by_name: dict[str, EntryPoint] = {}
    # A fault of another package must not prevent planning, so its entry points are omitted.
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        other = by_name.get(point.name, point)
        try:
            _check_name(point.name, f"the entry point {point.value}")
            if other.value != point.value:
                raise InputError(
                    f"strategy {point.name!r} of the entry point {point.value}: {other.value} has "
                    "that name too; rename one of them"
                )
        except InputError as error:
            log.warning("%s; it is left out", error)
        else:
            by_name[point.name] = other
    return {name: _guard(name, point.load) for name, point in by_name.items()}


def _check_name(name: str, where: str) -> None:
    """Raise InputError unless `name` is allowed for a user's strategy."""
    if name in STRATEGIES or name == AUTO:
        raise InputError(
            f"strategy {name!r} of {where}: topoplan has one of that name; choose another"
        )
    if not _NAME.fullmatch(name):
        raise InputError(
            f"strategy {name!r:.60} of {where}: expected at most 40 lower-case letters, digits "
            "and - _ . as a name"
        )


def _guard(name: str, load: Callable[[], UserFunction]) -> Strategy:
    """Return a user's strategy with checks around it.

    Its schedules get its name and are verified, and each of its errors becomes one line with its
    name.
    """

    def build(request: Request) -> list[Schedule]:
        try:
            returned: object = load()(request)
            schedules = list(returned) if isinstance(returned, Iterable) else []
        except TopoplanError as error:
            error.args = (f"strategy {name!r}: {error}",)
            raise
        except Exception as error:
            raise StrategyError(f"strategy {name!r} failed: {_describe_failure(error)}") from error
        if not isinstance(returned, Iterable):
            raise StrategyError(
                f"strategy {name!r} returned {returned!r:.60}; expected a list of topoplan.Schedule"
            )
        if not schedules:
            raise InfeasibleError(f"strategy {name!r} returned no schedule")
        return [
            _check_schedule(name, number, schedule, request)
            for number, schedule in enumerate(schedules, 1)
        ]

    return Strategy(name, build)


def _check_schedule(name: str, number: int, schedule: object, request: Request) -> Schedule:
    """Return a schedule of a user's strategy under its name.

    Raise StrategyError if it is not a schedule, VerificationError if it is wrong.
    """
    if not isinstance(schedule, Schedule):
        raise StrategyError(
            f"strategy {name!r} returned {schedule!r:.60}; expected a list of topoplan.Schedule"
        )
    if schedule.collective != request.collective:
        raise StrategyError(
            f"strategy {name!r}: schedule {number} is for {schedule.collective}; expected "
            f"{request.collective}"
        )
    if not 1 <= schedule.segments <= MAX_SEGMENTS:
        raise StrategyError(
            f"strategy {name!r}: schedule {number} has {schedule.segments} segments; expected "
            f"from 1 to {MAX_SEGMENTS}"
        )
    try:
        verify(schedule.uncut, request.topology)
    except VerificationError as error:
        raise VerificationError(f"strategy {name!r}: schedule {number} is wrong: {error}") from None
    except Exception as error:  # its parts may be of any type
        raise StrategyError(
            f"strategy {name!r}: schedule {number} cannot be verified: {_describe_failure(error)}"
        ) from error
    return replace(schedule, strategy=name)


def _describe_failure(error: Exception) -> str:
    """Return one line with an error's type, its first line and where it was raised."""
    lines, frames = str(error).splitlines(), traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{f': {lines[0]}' if lines else ''}{where}"
