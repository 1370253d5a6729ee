"""What earlier starts have found: plans, and how races ended. An extra keeps them (`caches`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

import torch

from ..extras import CACHES, Names
from ..synth.plan import Plan
from ..synth.request import Request
from .race import Expected, Outcome
from .ranks.machine import Machine

log = logging.getLogger("topoplan")
E = TypeVar("E", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Contest(Generic[E]):
    """What decides the races of a plan on one machine, besides their sizes, and who may race.

    `with_stock` says whether the stock collective races, too, `wire_format` in which codec values
    are sent, if any, and `players` names what may play schedules, if that differs between races of
    one plan. `name` returns an entrant's label (None: the stock collective), `number` its number,
    the same in all starts, and `find` the entrant with a number, None if there is none that may
    race.
    """

    plan_hash: str
    machine: Machine
    device: torch.device
    with_stock: bool
    wire_format: str | None = None
    players: str = ""
    name: Callable[[E | None], str]
    number: Callable[[E], int]
    find: Callable[[int], E | None]


class Cache:
    """Keeps plans and races for later starts in a folder; keeps nothing itself.

    The folder is None if `environment.find_cache_folder` found none.
    """

    def find_race(
        self, folder: Path | None, contest: Contest[E], size_bytes: int
    ) -> Expected[E] | None:
        """Return what an earlier race at a size, rounded down to a power of two, lets expect.

        None without one between entrants of today.
        """
        return None

    def keep_race(
        self, folder: Path | None, contest: Contest[E], size_bytes: int, outcome: Outcome[E]
    ) -> None:
        """Keep how a race ended, in place of an earlier one at its size."""

    def find_plan(self, folder: Path | None, request: Request) -> Plan | None:
        """Return the plan that an earlier start made for the same request, verified, or None."""
        return None

    def keep_plan(self, folder: Path | None, request: Request, plan: Plan) -> None:
        """Keep the plan for a request, in place of an earlier one."""


@cache
def find_cache() -> Cache:
    """Return what keeps plans and races in this copy."""
    found: Cache | None = Names(CACHES).find_only(None)
    if found is None:
        log.info("this copy of topoplan keeps no plans and races for later starts")
    return found or Cache()
