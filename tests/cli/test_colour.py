"""Colours: on terminals, and where the variables that people set ask for them."""

from __future__ import annotations

import sys

import pytest

from topoplan.cli.topoplan import main

ESCAPE = "\x1b["
NAMES = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "COLORTERM")


def strip(text: str) -> str:
    """Return a text without colours, and without blanks that were coloured at ends of lines."""
    first, *rest = text.split(ESCAPE)
    whole = first + "".join(part.partition("m")[2] for part in rest)
    return "\n".join(line.rstrip() for line in whole.split("\n") if " verified in " not in line)


def test_variables_decide_on_colours_and_on_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(is_terminal: bool = False, /, **variables: str) -> str:
        with monkeypatch.context() as patched:
            for name in NAMES:
                patched.delenv(name, raising=False)
            for name, value in {"TERM": "xterm", "COLUMNS": "100", **variables}.items():
                patched.setenv(name, value)
            patched.setattr(sys.stdout, "isatty", lambda: is_terminal)
            assert main(["probe", "dgx1"]) == 0
        return capsys.readouterr().out

    plain = run()
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):
        forced = run(**{name: "1"})
        assert ESCAPE in forced and strip(forced) == strip(plain)
        for off in ("", "0"):
            assert strip(run(**{name: off})) == strip(plain)
            assert ESCAPE not in run(**{name: off})
        assert ESCAPE not in run(NO_COLOR="1", **{name: "1"})
    assert ESCAPE in run(True)
    assert ESCAPE not in run(True, NO_COLOR="1")
    assert ESCAPE in run(True, NO_COLOR="")  # empty is not set
