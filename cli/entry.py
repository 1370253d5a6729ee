"""Entry points of the console commands.

They import nothing slow at first, so that Ctrl-C ends a command with one line from the start.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from functools import partial
from importlib import import_module

TYPE_CHECKING = False  # not from typing, whose import takes longer than all else in this module
if TYPE_CHECKING:
    from types import FrameType

# Exit code after Ctrl-C, as shells report it: 128 + SIGINT.
_INTERRUPTED = 130
# Delay in seconds of a repeated Ctrl-C: the callback that swallowed the first one has returned.
_RETRY_S = 0.01
# A search makes millions of small objects and hardly any cycles; collecting garbage as often as
# Python's default (700) takes a tenth of the search's time.
_OBJECTS_BEFORE_GARBAGE = 50_000


def _run(prog: str, module: str) -> int:
    """Import a command's module and return the exit code of its main; 130 after Ctrl-C."""
    gc.set_threshold(_OBJECTS_BEFORE_GARBAGE, 20, 20)
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        # Ignored, as in a shell's background jobs.
        return int(import_module(f".{module}", __package__).main())
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
    main = import_module(f".{module}", __package__).main
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


def _say_interrupted(prog: str) -> None:
    try:
        os.write(2, f"{prog}: interrupted\n".encode())
    except OSError:
        return  # standard error is closed


topoplan = partial(_run, "topoplan", "topoplan")
probe = partial(_run, "topo-probe", "probe")
synth = partial(_run, "topo-synth", "synth")
run = partial(_run, "topo-run", "run")
emulate = partial(_run, "topo-emulate", "emulate")
judge = partial(_run, "topo-judge", "judge")
place = partial(_run, "topo-place", "place")
report = partial(_run, "topo-report", "report")
