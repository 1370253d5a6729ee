"""Commands called in the test's own process, which costs nothing beside what the command does."""

from __future__ import annotations

import contextlib
import io
from importlib import import_module
from pathlib import Path
from subprocess import CompletedProcess

import pytest


def call_command(name: str, *arguments: str, cwd: Path | None = None) -> CompletedProcess[str]:
    """Call a command (`synth`) as its entry does, and return its exit code and what it prints.

    For what its process inherits (signals, ranks, file descriptors) use `launch.run_module`.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        if cwd is not None:
            patch.chdir(cwd)
        try:
            code = import_module(f"topoplan.cli.{name}").main(list(arguments))
        except SystemExit as ended:
            code = ended.code
    said = [stream.buffer.getvalue().decode("utf-8") for stream in (out, err)]
    return CompletedProcess([name, *arguments], code or 0, *said)
