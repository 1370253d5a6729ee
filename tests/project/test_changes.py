"""The changelog and the news fragments that its next version is made of."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from launch import run_command

ROOT = Path(__file__).resolve().parents[2]
FRAGMENTS = sorted((ROOT / "docs" / "changes").glob("*.md"))
# In the changelog, whose other lines are as wide as in any document.
MOST_CHARACTERS = 400


def test_a_fragment_is_one_short_paragraph_of_sentences() -> None:
    for fragment in FRAGMENTS:
        text = fragment.read_text(encoding="utf-8").strip()
        assert re.match(r"[A-Z`]", text) and text.endswith("."), text
        assert "\n\n" not in text and len(text) <= MOST_CHARACTERS, text


def test_the_next_version_has_every_fragment() -> None:
    """The tool refuses a fragment whose name is not of the form."""
    pytest.importorskip("towncrier", reason="towncrier is not installed (extra dev)")
    done = run_command(
        sys.executable, "-m", "towncrier", "build", "--draft", "--version", "1.2.3", cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    written = done.stdout.split()
    for fragment in FRAGMENTS:
        words = fragment.read_text(encoding="utf-8").split()
        starts = [place for place, word in enumerate(written) if word == words[0]]
        assert any(written[place : place + len(words)] == words for place in starts), fragment


def test_the_changelog_has_the_place_where_the_next_version_begins() -> None:
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (mark,) = re.findall(r'^start_string = "(.*)\\n"$', settings, re.MULTILINE)
    assert (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").count(f"{mark}\n") == 1
