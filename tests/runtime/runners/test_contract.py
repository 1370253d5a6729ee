"""Runners that extras add: used where all ranks have them, and their absence named where one lacks
them; another package's runner by the same calls.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launch import run_ranks
from ranks import foreign_runner

from topoplan.extras import Names
from topoplan.runtime.ranks.control import find_first
from topoplan.runtime.runners import contract
from topoplan.topo.errors import InputError


class Kind:
    """A kind of runner that a test can see being opened."""

    def __init__(self) -> None:
        self.opened = 0

    def open(self, opening: contract.Opening) -> Any:
        self.opened += 1
        return "its bits differ" if opening.keeps_bits else self


class Transport:
    """What a runner is opened over: ranks of which another one may lack it."""

    def __init__(self, other: str | None) -> None:
        self.control: Any = SimpleNamespace(agree=lambda own: find_first([own, other]))
        self.parts: list[Any] = []
        self.attach = self.parts.append

    def find_part(self, _: object) -> Any:
        return next(iter(self.parts), None)


def open_one(transport: Any, *, keeps_bits: bool = False) -> object:
    plan: Any = None
    return contract.open_runner("gpus", contract.Opening(plan, transport, keeps_bits))


@pytest.mark.parametrize("other", [None, "it was not built"])
def test_what_one_rank_lacks_no_rank_opens(
    monkeypatch: pytest.MonkeyPatch, other: str | None
) -> None:
    kind = Kind()
    monkeypatch.setattr(Names, "find", lambda *_: kind)
    transport = Transport(other)
    found = open_one(transport)
    assert found == (kind if other is None else "rank 1: it was not built")
    assert kind.opened == (other is None)
    if other is None:
        assert open_one(transport, keeps_bits=True) == "its bits differ"


def test_a_copy_without_the_extra_names_it_to_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def lack(*_: object) -> None:
        raise InputError("gpus: the extra 'kernels' is not in this copy")

    monkeypatch.setattr(Names, "find", lack)
    assert open_one(Transport(None)) == "rank 0: gpus: the extra 'kernels' is not in this copy"


@pytest.fixture
def package(tmp_path: Path) -> str:
    """Return a folder that has the metadata of another package."""
    package = tmp_path / "objects-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: objects\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[topoplan.runners]\nby-objects = ranks.foreign_runner:KIND\n"
        "[topoplan.layers]\ncounting = ranks.foreign_runner:COUNTING\n"
    )
    return str(tmp_path)


def test_another_package_puts_a_layer_around_calls_that_a_policy_names(
    plans: Callable[..., str], package: str
) -> None:
    paths = plans("ring:2"), plans("ring:2", "broadcast")
    assert run_ranks(foreign_runner.count, 2, package, *paths) == [[5, 5, 5, 700]] * 2


def test_another_package_adds_a_runner_that_a_policy_names(
    plans: Callable[..., str], package: str
) -> None:
    paths = plans("ring:2"), plans("ring:2", "broadcast")
    (labels, others) = run_ranks(foreign_runner.use, 2, package, *paths)
    assert labels == others and "stock" in labels
    assert any(label.endswith(", by objects") for label in labels)
