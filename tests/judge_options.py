"""The bounds and alternatives that topo-judge names, searched once for each machine: several tests
judge what was measured on the same one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache

import pytest
from patience import PLANNING_S
from unhurried import make_effort

from topoplan.synth.extras.judge import judging, options
from topoplan.synth.extras.judge.options import (
    Limits,
    Options,
    find_limits,
    find_options,
    find_part_limits,
)
from topoplan.synth.ir.collective import Collective
from topoplan.topo.routes import Router

_ROUTERS: dict[str, Router] = {}


def judge_equal_machines_once(patch: pytest.MonkeyPatch) -> None:
    """Let topo-judge use what was found before for an equal machine, in the tests' process."""
    # The clock stops no search on a busy machine.
    patch.setattr(options, "Effort", lambda _: make_effort())
    patch.setattr(options, "TIME_LIMIT_S", PLANNING_S)
    patch.setattr(judging, "find_limits", find_limits_once)
    patch.setattr(judging, "find_part_limits", find_part_limits_once)
    patch.setattr(judging, "find_options", find_options_once)


def judge_by_bounds_alone(patch: pytest.MonkeyPatch) -> None:
    """Let topo-judge search no alternatives, for tests of what was measured and its bounds."""
    judge_equal_machines_once(patch)
    patch.setattr(judging, "find_options", find_no_options)


def find_options_once(collective: Collective, router: Router) -> Options:
    """Return what `find_options` does, from the first search on the same machine."""
    return _find_options(collective, _use_first(router))


def find_no_options(_: Collective, __: Router) -> Options:
    """Return what `find_options` does where nothing else is possible."""
    return Options((), None, ())


def find_limits_once(collective: Collective, router: Router) -> Limits:
    """Return what `find_limits` does, from the first search on the same machine."""
    return _find_limits(collective, _use_first(router))


def find_part_limits_once(
    collective: Collective, router: Router, members: Sequence[int], helpers: Sequence[int]
) -> Limits:
    """Return what `find_part_limits` does, from the first search on the same machine."""
    return _find_part_limits(collective, _use_first(router), tuple(members), tuple(helpers))


def _use_first(router: Router) -> Router:
    """Return the first router of the same topology, names and sources of rates included."""
    return _ROUTERS.setdefault(json.dumps(router.topology.to_json()), router)


_find_options: Callable[[Collective, Router], Options] = cache(find_options)
_find_limits: Callable[[Collective, Router], Limits] = cache(find_limits)
_find_part_limits: Callable[[Collective, Router, tuple[int, ...], tuple[int, ...]], Limits] = cache(
    find_part_limits
)
