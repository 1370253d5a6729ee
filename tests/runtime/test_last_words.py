"""What ranks print of the error that ends them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator

import pytest

from topoplan.runtime.ranks.last_words import shorten_last_words
from topoplan.topo.errors import ExecutionError, InputError

End = Callable[[str, BaseException], list[BaseException]]


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> Iterator[End]:
    """End a rank by an error; returns the errors that the usual hook was given."""
    monkeypatch.setenv("WORLD_SIZE", "3")
    usual: list[BaseException] = []

    def end_rank(rank: str, error: BaseException) -> list[BaseException]:
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setattr(sys, "excepthook", lambda _, error, __: usual.append(error))
        shorten_last_words()
        shorten_last_words()  # changes nothing any more
        sys.excepthook(type(error), error, None)
        return usual

    yield end_rank


def test_rank_0_alone_prints_a_traceback(end: End, capfd: pytest.CaptureFixture[str]) -> None:
    error = ExecutionError("rank 2 does not answer")
    assert end("1", error) == []
    assert capfd.readouterr().err == "topoplan: error: rank 2 does not answer\n"
    assert end("0", error) == [error]
    assert capfd.readouterr().err == ""


def test_what_all_ranks_say_is_said_once(end: End, capfd: pytest.CaptureFixture[str]) -> None:
    error = InputError("nowhere.json: cannot be read")
    error.is_common = True
    for rank, said in (("0", "topoplan: error: nowhere.json: cannot be read\n"), ("1", "")):
        with pytest.raises(SystemExit) as left:
            end(rank, error)
        assert left.value.code == 2
        assert capfd.readouterr().err == said


def test_other_errors_and_debugging_keep_tracebacks(
    end: End, caplog: pytest.LogCaptureFixture
) -> None:
    mistake, error = ValueError("the script's own"), InputError("a bad tensor")
    assert end("1", mistake) == [mistake]
    caplog.set_level(logging.DEBUG, "topoplan")
    assert end("1", error) == [mistake, error]


def test_what_is_no_rank_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    before = sys.excepthook
    shorten_last_words()
    assert sys.excepthook is before
