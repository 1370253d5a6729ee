"""The cache of plans and race results of earlier starts; an extra stores them (group `caches`).

A plan holds schedules of one collective; a Request (synth/request.py) is what it is made for: a
collective on a topology, with options. A race times several ways to carry out a collective at one
size, its entrants, and keeps the fastest; one entrant may be the stock collective, which is gloo's
or NCCL's own. An Outcome (race.py) is a race's result, an Expected that of an earlier start.
"""

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
    """What a plan's races on one machine are cached by, besides their sizes.

    `plan_hash` names the plan, `machine` describes the ranks' hosts and links, `device` is that of
    tensors. `with_stock` says whether the stock collective races, too, `wire_format` which codec
    compresses messages, if any; `players` names what may carry out schedules, if that differs
    between races of one plan. `name(entrant)` returns a label (None: the stock collective),
    `number(entrant)` a number that is the same in all starts, `find(number)` the entrant again,
    None if it may not race now.
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
    """A cache that keeps nothing: the base of the one that an extra adds.

    In all methods `folder` is where plans and races are; None if there can be no such folder.
    """

    def find_race(
        self, folder: Path | None, contest: Contest[E], size_bytes: int
    ) -> Expected[E] | None:
        """Return what an earlier race at a size found, to be checked again; None without one.

        `contest` says which race; `size_bytes`, the buffer's as it is sent, counts rounded down to
        a power of two. None, too, if its entrants can no longer race.
        """
        return None

    def keep_race(
        self, folder: Path | None, contest: Contest[E], size_bytes: int, outcome: Outcome[E]
    ) -> None:
        """Store the outcome of the race `contest` at a size, in place of an earlier one."""

    def find_plan(self, folder: Path | None, request: Request) -> Plan | None:
        """Return the verified plan that an earlier start stored for the same request, else None."""
        return None

    def keep_plan(self, folder: Path | None, request: Request, plan: Plan) -> None:
        """Store the plan for a request, in place of an earlier one."""


@cache
def find_cache() -> Cache:
    """Return the cache that is installed, else one that keeps nothing."""
    found: Cache | None = Names(CACHES).find_only(None)
    if found is None:
        log.info("this copy of topoplan keeps no plans and races for later starts")
    return found or Cache()
