"""How recorded values are shortened, written and compared; the public interface."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from goldens import interface, store


def test_long_values_are_a_beginning_and_a_hash() -> None:
    text, items = "x" * 500, list(range(50))
    short = store.shorten({"text": text, "few": [1, 2], "items": items})
    assert short["text"].startswith("xxx") and "(500 characters, " in short["text"]
    assert short["few"] == [1, 2]
    assert short["items"][:2] == [0, 1] and short["items"][2].startswith("... (50 items, ")
    assert store.shorten(items) != store.shorten([*items[:-1], 0])


def test_a_difference_is_named_with_both_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RECORDED", tmp_path)
    store.write("plans", {"ring": {"hash": "ab", "steps": [1, 2]}, "gone": 1})
    assert json.loads((tmp_path / "plans.json").read_text())["ring"]["steps"] == [1, 2]
    assert store.compare("plans", {"ring": {"hash": "ab", "steps": (1, 2)}, "gone": 1}) == []
    lines = store.compare("plans", {"ring": {"hash": "ab", "steps": [1, 3]}, "new": 2})
    assert lines == [
        "plans: ring > steps > 1\n    recorded: 2\n    now:      3",
        "plans: gone\n    recorded: 1\n    now:      (absent)",
        "plans: new\n    recorded: (absent)\n    now:      2",
    ]


def test_the_public_interface_is_as_recorded() -> None:
    assert store.compare("interface", interface.record()) == []
