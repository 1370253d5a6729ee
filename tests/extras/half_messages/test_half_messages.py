"""A message of which half has come when its connection is closed."""

from __future__ import annotations

from launch import run_ranks
from ranks import half_messages


def test_it_ends_with_its_connection() -> None:
    """Of which gloo tells all other messages: this one waited for its deadline."""
    error, _ = run_ranks(half_messages.dies_within_a_message, 2)
    assert "closed in the middle" in error
