"""Cache plans and races in the folder that an option or TOPOPLAN_CACHE names.

A race times several schedules for one message size and picks the fastest.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import TypeVar

from ....synth.plan import Plan
from ....synth.request import Request
from ...cache import Cache, Contest
from ...race import Expected, Outcome, name_times_us
from . import plans
from .races import CachedRace, CachedRaces

E = TypeVar("E", bound=Hashable)


class FolderCache(Cache):
    """Caches plans in a `folder`, and results of races in a folder within it; None: nothing."""

    def find_race(
        self, folder: Path | None, contest: Contest[E], size_bytes: int
    ) -> Expected[E] | None:
        """Return what to expect of a race at this size by an earlier start; None if unknown.

        Results are kept by size, rounded down to a power of two. `contest` is the race that would
        be run.
        """
        cached = CachedRaces(folder, contest).find(size_bytes)
        return None if cached is None else _expect(contest, cached)

    def keep_race(
        self, folder: Path | None, contest: Contest[E], size_bytes: int, outcome: Outcome[E]
    ) -> None:
        """Cache the `outcome` of the race `contest` at a size in bytes.

        It replaces an earlier one at that size, rounded down to a power of two.
        """
        winner, own, name = outcome.winner, outcome.own, contest.name
        race = CachedRace(
            winner=None if winner is None else contest.number(winner),
            own=contest.number(own),
            labels=(name(winner), name(own)),
            time_us=outcome.times_s[winner] * 1e6,
            raced_us=name_times_us(outcome.times_s, name),
            raced_on=outcome.raced_on,
        )
        CachedRaces(folder, contest).save(size_bytes, race)

    def find_plan(self, folder: Path | None, request: Request) -> Plan | None:
        """Return the verified plan that an earlier start made for the same request, or None."""
        return plans.find(folder, request)

    def keep_plan(self, folder: Path | None, request: Request, plan: Plan) -> None:
        """Cache the plan made for a request, replacing an earlier one."""
        plans.save(folder, request, plan)


def _expect(contest: Contest[E], cached: CachedRace) -> Expected[E] | None:
    """Return what a cached race lets expect, None if its entrants are not those of today."""
    own = contest.find(cached.own)
    winner = None if cached.winner is None else contest.find(cached.winner)
    is_usable = (
        own is not None
        and (contest.with_stock if cached.winner is None else winner is not None)
        and cached.labels == (contest.name(winner), contest.name(own))
        and cached.labels[0] in cached.raced_us
    )
    if own is None or not is_usable:
        return None
    return Expected(winner, own, cached.time_us * 1e-6, cached.raced_us, cached.raced_on)


CACHE = FolderCache()
