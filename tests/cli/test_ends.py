"""How commands end where they cannot go on: in one line, with the right exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from launch import Ended, run_command

from topoplan.cli.commands import import_command
from topoplan.cli.topoplan import main

COMMANDS = ("probe", "synth", "run")
INTERRUPTED_AT = """
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[0]:
            sys.argv[0] = ""
            os.kill(os.getpid(), signal.SIGINT)
            {then}
sys.meta_path.insert(0, Interrupt())
signal.signal(signal.SIGINT, signal.default_int_handler)
from topoplan.cli import entry
command, sys.argv[0] = sys.argv[1:3]
del sys.argv[1:3]
sys.exit(getattr(entry, command)())
"""


def interrupt(command: str, at: str, *args: str, then: str = "pass") -> Ended:
    """Start a command that gets Ctrl-C when it begins to import the module `at`."""
    return run_command(sys.executable, "-c", INTERRUPTED_AT.format(then=then), command, at, *args)


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_in_the_first_moments_is_one_line(command: str) -> None:
    done = interrupt(command, f"topoplan.cli.{command}", "--help")
    assert (done.returncode, done.stdout, done.stderr) == (
        130,
        "",
        f"topo-{command}: interrupted\n",
    )


@pytest.mark.parametrize("then", ["pass", "raise ImportError('initialization failed')"])
def test_ctrl_c_while_a_command_imports_what_it_needs_is_one_line(then: str) -> None:
    asked = ("--collective", "allreduce", "--topology", "switch:2")
    done = interrupt("synth", "topoplan.topo.loader.resolve", *asked, then=then)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "topo-synth: interrupted\n")


SAYS = "error: standard output cannot be written: No space left on device\n"
needs_full_device = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="no /dev/full on this system"
)


def run_into_full_device(*arguments: str) -> Ended:
    """Run a command, its standard output a device that is full."""
    code = "import sys; from topoplan.cli import entry; sys.exit(getattr(entry, sys.argv.pop(1))())"
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )


@needs_full_device
def test_a_process_that_cannot_write_its_output_ends_in_one_line() -> None:
    done = run_into_full_device("probe", "dgx1", "--json")
    assert (done.returncode, done.stderr) == (1, f"topo-probe: {SAYS}")


@needs_full_device
@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--help"),
        ("probe", "dgx1", "--json"),
        ("synth", "--collective", "allreduce", "--topology", "switch:2", "--bound-only"),
        ("synth", "--collective", "broadcast", "--topology", "switch:2", "--strategy", "direct"),
    ],
)
def test_a_full_standard_output_is_one_line(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *given = arguments
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        try:
            code = import_command(command).main(given)
        except SystemExit as ended:  # of a parser
            assert isinstance(ended.code, int)
            code = ended.code
    assert (code, capsys.readouterr().err) == (1, f"topo-{command}: {SAYS}")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("probe", ["dgx1"]),
        ("synth", ["--collective", "allreduce", "--topology", "dgx1"]),
        ("run", ["plan.json"]),
    ],
)
def test_an_empty_name_of_a_file_is_refused(
    command: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, *arguments, "-o", ""])
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert len(said.err.splitlines()) == 1 and "the name is empty" in said.err
