"""Races: heats, one rule of decision, what an earlier race lets expect, and races on a crowded
host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from launch import run_ranks
from ranks import scripted

from topoplan.runtime.race import Expected, OnCalls, Race, is_worthwhile
from topoplan.runtime.ranks.race_timing import is_open

TIMES_S = {None: 5e-3, "ring": 4e-3, "tree": 4.9e-3, "ring x4": 3e-3}


def play(race: Race[str], times_s: Mapping[str | None, float]) -> list[str | None]:
    """Hold a race on calls that take these times; return who made them."""
    calls, made = OnCalls(race), []
    while not calls.is_over:
        made.append(calls.entrant)
        calls.record(times_s[calls.entrant])
    assert calls.calls == len(made)
    return made


def expect(winner: str | None, own: str = "ring") -> Expected[str]:
    return Expected(winner, own, TIMES_S[winner], {"ring": 4000.0, "stock": 5000.0}, "2026-11-29")


def test_the_fastest_wins_if_it_is_worth_leaving_the_usual() -> None:
    race = Race[str]([None, "ring", "tree"])
    assert {*play(race, TIMES_S)} == {None, "ring", "tree"}
    assert race.outcome is not None and race.outcome.winner == race.outcome.own == "ring"
    near = Race[str]([None, "tree"])  # 2 % faster than stock
    play(near, TIMES_S)
    assert near.outcome is not None
    assert (near.outcome.winner, near.outcome.own) == (None, "tree")
    assert is_worthwhile(0.95, 1.0) and not is_worthwhile(0.95e-3, 0.99e-3)


def test_what_is_usual_need_not_be_stock() -> None:
    race = Race[str](["tree", "ring", None], usual="tree", short=0.95)
    play(race, {**TIMES_S, "ring": 4.8e-3, None: 4.7e-3})
    assert race.outcome is not None and race.outcome.winner == "tree"
    race = Race[str](["tree", "ring", None], usual="tree", short=0.95)
    play(race, {**TIMES_S, None: 2e-3})
    assert race.outcome is not None
    assert (race.outcome.winner, race.outcome.own) == (None, "ring")


def test_heats_go_on_while_there_is_something_to_refine() -> None:
    asked = []

    def refine(times_s: Mapping[str | None, float]) -> Sequence[str]:
        asked.append(len(times_s))
        return ["ring x4"]

    race = Race[str]([None, "ring", "tree"], refine=refine)
    play(race, TIMES_S)
    assert asked == [3, 4]
    assert race.outcome is not None and race.outcome.winner == "ring x4"
    assert race.outcome.times_s == TIMES_S


@pytest.mark.parametrize("winner", ["ring", None])
def test_what_is_expected_is_tried_alone_and_stays(winner: str | None) -> None:
    times_s = TIMES_S if winner else {**TIMES_S, None: 3e-3}
    race = Race[str]([None, "ring", "tree"], expected=expect(winner))
    assert {*play(race, times_s)} == {None, "ring"}
    assert race.outcome is not None and race.outcome.winner == winner
    assert race.surprise is None


def test_what_is_not_as_expected_is_raced_anew() -> None:
    race = Race[str]([None, "ring", "tree"], expected=expect("ring"))
    times_s = {None: 2e-3, "ring": 4e-3, "tree": 1e-3}
    assert {*play(race, times_s)} == {None, "ring", "tree"}
    assert race.surprise == {None: 2e-3, "ring": 4e-3}
    assert race.outcome is not None and race.outcome.winner == "tree"


def test_a_race_that_is_disturbed_has_more_turns_and_the_right_winner(
    plans: Callable[..., str],
) -> None:
    ((wrong, quiet, disturbed),) = run_ranks(scripted.disturbed_races, 1, plans("ring:3"), 50)
    assert wrong == 0
    assert disturbed > 1.5 * quiet


def test_a_race_is_open_while_the_spread_of_times_is_wider_than_their_distance() -> None:
    assert not is_open([[1.0, 1.1, 0.9], [2.0, 2.1, 1.9]])
    assert is_open([[1.0, 5.0, 0.9, 4.0], [2.0, 2.1, 6.0, 1.9]])
    assert not is_open([[1.0, 1.0, 1.0], [1.01, 1.0, 1.02]])  # as good as equal, and steady
    assert not is_open([[1.0, 5.0, 0.9, 4.0] * 400, [9.0, 20.0, 10.0, 9.5] * 400])
