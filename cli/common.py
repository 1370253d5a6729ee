"""Shared by all commands: one-line errors, exit codes, and quiet endings."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from ..topo.errors import InputError, TopoplanError, VerificationError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

_INTERRUPTED = 130
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)
"""What writing to standard output ends with; files that commands write raise errors of their own."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        say_error(self.prog, f"{message} (see {self.prog} --help)")
        raise SystemExit(2)

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Print the help; where it cannot be written, exit with code 1."""
        try:
            (file or sys.stdout).write(self.format_help())
        except OSError as error:
            raise SystemExit(_drop_output(self.prog, error, 0)) from None

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Exit, --help being written: with code 1 where it could not be."""
        super().exit(end_output(self.prog, status), message)
        raise AssertionError("ArgumentParser.exit does not return")


def file_name(text: str) -> str:
    """Return the argument of -o. Raises ArgumentTypeError where it is empty."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty; name a file")
    return text


def say_error(prog: str, message: str) -> None:
    """Print one line on standard error, where it can be written."""
    with contextlib.suppress(OSError):
        print(f"{prog}: error: {message}", file=sys.stderr, flush=True)


def run_command(prog: str, body: Callable[[], int], *, quiet: bool = False) -> int:
    """Run a command's body and return its exit code; a TopoplanError is printed as one line on standard error.

    `quiet`: print nothing about what another process reports too (bad input, a plan that is not for these ranks).
    """
    if sys.stdout is None:  # closed by the shell (>&-): a command may still be run for the file that it writes
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    try:
        return end_output(prog, body())
    except TopoplanError as error:
        if not quiet or not isinstance(error, (InputError, VerificationError)):
            say_error(prog, str(error))
        return end_output(prog, error.exit_code, silent=True)
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            print(f"{prog}: interrupted", file=sys.stderr, flush=True)
        return end_output(prog, _INTERRUPTED, silent=True)
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            raise
        return _drop_output(prog, error, 0)


def end_output(prog: str, code: int, *, silent: bool = False) -> int:
    """Write what is left of standard output and return the exit code: 1 and one line, unless `silent`, where 0 was meant but
    it cannot be written.
    """
    if sys.stdout is None:
        return code
    try:
        sys.stdout.flush()
        return code
    except OSError as error:
        return _drop_output(prog, error, code, silent=silent)


def _drop_output(prog: str, error: OSError, code: int, *, silent: bool = False) -> int:
    """Give up standard output, for the reason in `error`, and return the exit code, `code` being what was meant.

    A reader that has gone away (a pipe into `head`) is no failure.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return code
    if not silent:
        say_error(prog, f"standard output cannot be written: {error.strerror}")
    return code or 1
