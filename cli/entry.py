"""Entry points of the console commands.

They import nothing slow at first, so that Ctrl-C ends a command with one line from the start.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from functools import partial

TYPE_CHECKING = False  # not from typing, whose import takes longer than all else in this module
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

# Exit code after Ctrl-C, as shells report it: 128 + SIGINT.
_INTERRUPTED = 130
# Delay in seconds of a repeated Ctrl-C: the callback that swallowed the first one has returned.
_RETRY_S = 0.01
# A search makes millions of small objects and hardly any cycles; collecting garbage as often as
# Python's default (700) takes a tenth of the search's time.
_OBJECTS_BEFORE_GARBAGE = 50_000


def _run(prog: str, name: str) -> int:
    """Import a command's module and return the exit code of its main; 130 after Ctrl-C."""
    gc.set_threshold(_OBJECTS_BEFORE_GARBAGE, 20, 20)
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        # Ignored, as in a shell's background jobs.
        return int(_import_main(prog, name)())
    interrupted = False

    def leave(signum: int, frame: FrameType | None) -> None:
        # During imports nothing needs an orderly end, and a module could swallow an exception.
        _say_interrupted(prog)
        os._exit(_INTERRUPTED)

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    def repeat(problem: sys.UnraisableHookArgs) -> None:
        # Python drops exceptions of some callbacks: interrupt again when the callback is over.
        if isinstance(problem.exc_value, KeyboardInterrupt):
            signal.signal(signal.SIGALRM, interrupt)
            signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
        else:
            sys.__unraisablehook__(problem)

    signal.signal(signal.SIGINT, leave)
    main = _import_main(prog, name)
    sys.unraisablehook = repeat
    signal.signal(signal.SIGINT, interrupt)
    try:
        return int(main())
    except (KeyboardInterrupt, Exception) as error:
        # Inside the import of a compiled module, Ctrl-C surfaces as another error.
        if not interrupted and not isinstance(error, KeyboardInterrupt):
            raise
        _say_interrupted(prog)
        return _INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _import_main(prog: str, name: str) -> Callable[[], int]:
    """Return `main` of a command, or what says in one line why there is none."""
    from ..topo.errors import TopoplanError
    from .commands import import_command

    try:
        return import_command(name).main
    except TopoplanError as error:
        from .shared.common import say_error

        code, why = error.exit_code, str(error)

        def explain() -> int:
            say_error(prog, why)
            return code

        return explain


def _say_interrupted(prog: str) -> None:
    try:
        os.write(2, f"{prog}: interrupted\n".encode())
    except OSError:
        return  # standard error is closed


def __getattr__(name: str) -> Callable[[], int]:
    """Return the entry point of another command, which an extra adds."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(_run, f"topo-{name}", name)


topoplan = partial(_run, "topoplan", "topoplan")
probe = partial(_run, "topo-probe", "probe")
synth = partial(_run, "topo-synth", "synth")
run = partial(_run, "topo-run", "run")
judge = partial(_run, "topo-judge", "judge")
place = partial(_run, "topo-place", "place")
report = partial(_run, "topo-report", "report")
