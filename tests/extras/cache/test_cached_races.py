"""Cached races: found at the next start, whatever was fitted; damaged ones, full folders."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from launch import run_ranks
from ranks import choices, scripted
from ranks.scripted import MACHINE

from topoplan.runtime.cache import Contest
from topoplan.runtime.extras.cache import races
from topoplan.runtime.extras.cache.races import CachedRace, CachedRaces

Plans = Callable[..., str]
RACE = CachedRace(None, 0, ("stock", "ring"), 12.5, {"stock": 12.5, "ring": 20.0}, "2026-11-23")


def races_in(folder: Path | None, plan_hash: str = "plan") -> CachedRaces:
    contest = Contest[str](
        plan_hash=plan_hash,
        machine=MACHINE,
        device=torch.device("cpu"),
        with_stock=True,
        name=str,
        number=int,
        find=str,
    )
    return CachedRaces(folder, contest)


def test_a_cached_winner_stays_while_it_beats_stock_and_is_found_whatever_was_fitted(
    plans: Plans, tmp_path: Path
) -> None:
    run_ranks(scripted.verdicts, 1, plans("ring:3"), str(tmp_path))


@pytest.mark.long
def test_a_cached_race_is_used_and_raced_again_where_it_is_wrong(
    plans: Plans, tmp_path: Path
) -> None:
    path = plans("ring:3", "allreduce", "ring")
    winners = run_ranks(choices.raced_and_cached, 3, path, str(tmp_path))
    assert all(of_rank == winners[0] for of_rank in winners)


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        "[" * 5000,
        '{"a":' * 5000,
        "1" * 5000,
        " " * 100_000,
        json.dumps({"winner": 0}),
        "{}\x00",
        json.dumps(
            {
                "winner": None,
                "own": 0,
                "labels": ["stock", "ring"],
                "time_us": float("inf"),
                "raced_us": {"stock": 1.0},
                "raced_on": "today",
            }
        ),
    ],
    ids=[
        "empty",
        "half",
        "list",
        "deep",
        "deep-objects",
        "digits",
        "long",
        "another",
        "nul",
        "infinite",
    ],
)
def test_a_damaged_race_is_one_warning_and_is_replaced(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    cached = races_in(tmp_path)
    assert cached.find(4096) is None and not caplog.messages
    cached.save(4096, RACE)
    assert cached.find(4096) == RACE and cached.find(8192) is None
    (path,) = tmp_path.glob("races/*")
    path.write_text(damage, encoding="utf-8")
    assert cached.find(4096) is None
    (message,) = caplog.messages
    assert message.startswith(f"{path}: not a cached race (") and "\n" not in message
    cached.save(4096, RACE)
    assert cached.find(4096) == RACE and len(caplog.messages) == 1


def test_what_is_no_file_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A FIFO would be read for ever."""
    cached = races_in(tmp_path)
    cached.save(4096, RACE)
    (path,) = tmp_path.glob("races/*")
    path.unlink()
    os.mkfifo(path)
    assert cached.find(4096) is None
    path.unlink()
    path.write_bytes(b"\xff\xfe\x80")
    assert cached.find(4096) is None
    assert len(caplog.messages) == 2


def test_the_oldest_races_are_removed_and_nobody_elses_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(races, "MAX_FILES", 5)
    folder = tmp_path / "races"
    folder.mkdir()
    others = [folder / "notes.json", folder / "results"]
    for path in others:
        path.write_text("mine", encoding="utf-8")
    for number in range(8):
        races_in(tmp_path, f"plan {number}").save(4096, RACE)
        newest = max(folder.glob("*-13.json"), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (number, number))
    found = [races_in(tmp_path, f"plan {number}").find(4096) is not None for number in range(8)]
    assert found == [False] * 3 + [True] * 5
    assert all(path.read_text(encoding="utf-8") == "mine" for path in others)


def test_a_folder_that_cannot_be_used_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        for size_bytes in (4096, 8192):
            cached = races_in(file)
            assert cached.find(size_bytes) is None
            cached.save(size_bytes, RACE)
    (message,) = caplog.messages
    assert str(file) in message and "set TOPOPLAN_CACHE" in message
