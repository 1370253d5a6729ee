"""Shared by all commands: one-line errors, exit codes, and quiet endings."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from ..topo.errors import InputError, TopoplanError, VerificationError


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def run_command(prog: str, body: Callable[[], int], *, quiet: bool = False) -> int:
    """Run a command's body and return its exit code; a TopoplanError is printed as one line on standard error.

    `quiet`: print nothing about what another process reports too (bad input, a plan that is not for these ranks).
    """
    try:
        code = body()
        sys.stdout.flush()
        return code
    except TopoplanError as error:
        if not quiet or not isinstance(error, (InputError, VerificationError)):
            print(f"{prog}: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
