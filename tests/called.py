"""Commands called in the test's own process, which costs nothing beside what the command does."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from topoplan.cli.commands import import_command


def call_command(name: str, *arguments: str, cwd: Path | None = None) -> CompletedProcess[str]:
    """Call a command (`synth`) as its entry does, and return its exit code and what it prints.

    For what its process inherits (signals, ranks, file descriptors) use `launch.run_module`.
    """
    raw = io.BytesIO(), io.BytesIO()
    out, err = (io.TextIOWrapper(into, "utf-8", write_through=True) for into in raw)
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        if cwd is not None:
            patch.chdir(cwd)
        try:
            code = import_command(name).main(list(arguments))
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    said = [into.getvalue().decode("utf-8") for into in raw]
    return CompletedProcess([name, *arguments], code, *said)


def call_synth(*args: str, code: int = 0) -> str:
    """Return what topo-synth prints; with a `code` other than 0 the one line of its error."""
    done = call_command("synth", *args)
    assert done.returncode == code, done.stderr
    if not code:
        return done.stdout
    assert not done.stdout
    assert len(done.stderr.splitlines()) == 1
    return done.stderr
