"""What a rank does that has to wait for reports of others, with connections that are made up."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from topoplan.runtime.extras.culprits.reports import POLL_S
from topoplan.runtime.extras.recovery import agreement
from topoplan.runtime.extras.recovery.agreement import RankStatus, Recovery
from topoplan.topo.errors import ExecutionError


class MadeUpRelay:
    """Connections and reports as a test says; what a rank reports of itself is heard by it."""

    def __init__(self, reach: Mapping[int, str], heard: Mapping[int, dict[str, Any]]) -> None:
        self.reach, self.heard = dict(reach), dict(heard)

    def add(self, key: str, rank: int, edition: int, report: dict[str, Any]) -> None:
        """Hear the rank's own report."""
        self.heard[rank] = report

    def hear(self, key: str) -> dict[int, dict[str, Any]]:
        """Return what was heard in the first recovery."""
        return self.heard if key.endswith(" 1") else {}

    def list_reach(self, key: str) -> dict[int, str]:
        """Return the fate of the connections to the others."""
        return self.reach

    def do_nothing(self, *_: object) -> None:
        """Neither join nor dial nor go on relaying."""

    join = dial = extend_relaying = do_nothing


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that only sleeping moves: how busy the machine is changes nothing."""
    made = SimpleNamespace(now=0.0)

    def sleep(seconds: float) -> None:
        made.now += seconds

    monkeypatch.setattr(agreement, "time", SimpleNamespace(monotonic=lambda: made.now, sleep=sleep))
    return made


def test_a_rank_does_not_wait_for_reports_whose_only_route_is_lost(
    monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace
) -> None:
    """Rank 2 reached rank 3 alone, whose report it has; rank 1's would have come through rank 3."""
    relay = MadeUpRelay(
        {0: "failed", 1: "failed", 3: "reached"},
        {0: {"part": {"ended": 3, "address": {}, "ports": [], "unreached": [2]}},
         3: {"part": {"ended": 3, "address": {}, "ports": [], "unreached": []}}},
    )  # fmt: skip
    monkeypatch.setattr(agreement, "relay", relay)
    recovery = Recovery("group", 1, 2, dict.fromkeys(range(4)), deadline=300.0)
    assert recovery.find_unreached() == [0, 1]
    recovery.report(RankStatus(3, {}, [], [0, 1]))
    relay.reach[3] = "failed"
    with pytest.raises(
        ExecutionError, match="rank 3 went out of reach meanwhile, and nothing is heard of rank 1"
    ):
        recovery.wait_for_parts()
    assert clock.now < 10


def test_a_rank_waits_for_reports_that_come_by_another_route(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection that was lost and is back again, as after a busy moment, ends no recovery."""
    part = {"ended": 3, "address": {}, "ports": [], "unreached": []}
    relay = MadeUpRelay({0: "reached", 1: "reached"}, {0: {"part": part}})
    monkeypatch.setattr(agreement, "relay", relay)
    recovery = Recovery("group", 1, 2, dict.fromkeys(range(3)), deadline=300.0)
    recovery.find_unreached()
    recovery.report(RankStatus(3, {}, [], []))
    # Out of reach twice, each time for less than what a lost route takes, together for more.
    polls = int(0.7 * agreement._SPLIT_S / POLL_S)
    fates = iter([*["failed"] * polls, "reached", *["failed"] * polls])

    def hear_at_the_end(key: str) -> dict[int, str]:
        fate = next(fates, None)
        if fate is None:
            relay.heard[1] = {"part": part}
        return {0: fate or "reached", 1: "reached"}

    monkeypatch.setattr(relay, "list_reach", hear_at_the_end)
    assert len(recovery.wait_for_parts()) == 3
