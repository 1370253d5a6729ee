"""Say in few lines why a rank ends: Python prints a traceback on each, which buries what counts."""

import logging
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from ...topo.errors import TopoplanError
from ...topo.printable import printable
from .launch import announce_error, is_rank

log = logging.getLogger("topoplan")

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def shorten_last_words() -> None:
    """Have errors of topoplan's that end a launched rank printed as one line, but on rank 0.

    Those that all ranks raise alike are one line on rank 0 alone, and the rank exits with the
    error's exit code. With TOPOPLAN_LOG=debug all tracebacks are printed as usual.
    """
    if is_rank() and not isinstance(sys.excepthook, _LastWords):
        sys.excepthook = _LastWords(sys.excepthook)


class _LastWords:
    """A hook for uncaught errors, in place of the `usual` one."""

    def __init__(self, usual: _Hook) -> None:
        self._usual = usual

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        is_first = os.environ["RANK"] == "0"
        if not isinstance(error, TopoplanError) or log.isEnabledFor(logging.DEBUG):
            self._usual(kind, error, trace)
        elif error.is_common:
            _leave(error, is_silent=not is_first)
        else:
            announce_error(str(error))
            if is_first:
                self._usual(kind, error, trace)
            else:
                _print_line(str(error))


def _leave(error: TopoplanError, *, is_silent: bool) -> NoReturn:
    if not is_silent:
        _print_line(str(error))
    # What Python does with any SystemExit of a hook.
    raise SystemExit(error.exit_code)


def _print_line(text: str) -> None:
    # Not sys.stderr: torch replaces it while it calls a hook, and drops it after a SystemExit.
    if sys.__stderr__ is not None:
        print(f"topoplan: error: {printable(text)}\n", end="", file=sys.__stderr__, flush=True)
