"""Where the console commands begin: before anything slow is imported, so that Ctrl-C is one line
from the first moment.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from importlib import import_module

TYPE_CHECKING = False  # as typing has it: importing typing takes longer than all else here
if TYPE_CHECKING:
    from types import FrameType

_INTERRUPTED = 130
_SOON_S = 0.01
# A search makes millions of small objects and hardly a cycle: looking for garbage at Python's 700
# costs it a tenth.
_OBJECTS_BEFORE_GARBAGE = 50_000


def topoplan() -> int:
    """Run topoplan, whose subcommands are all of the others."""
    return _run("topoplan", "topoplan")


def probe() -> int:
    """Run topo-probe."""
    return _run("topo-probe", "probe")


def synth() -> int:
    """Run topo-synth."""
    return _run("topo-synth", "synth")


def run() -> int:
    """Run topo-run."""
    return _run("topo-run", "run")


def emulate() -> int:
    """Run topo-emulate."""
    return _run("topo-emulate", "emulate")


def lab() -> int:
    """Run topo-lab."""
    return _run("topo-lab", "lab")


def judge() -> int:
    """Run topo-judge."""
    return _run("topo-judge", "judge")


def place() -> int:
    """Run topo-place."""
    return _run("topo-place", "place")


def report() -> int:
    """Run topo-report."""
    return _run("topo-report", "report")


def _run(prog: str, module: str) -> int:
    """Import a command's module and return the exit code of its main; Ctrl-C ends it with one line
    and 130.
    """
    gc.set_threshold(_OBJECTS_BEFORE_GARBAGE, 20, 20)
    normal = signal.getsignal(signal.SIGINT)
    if normal is not signal.default_int_handler:  # ignored, as in a shell's background jobs
        return _call_main(module)
    interrupted = False

    def leave(signum: int, frame: FrameType | None) -> None:
        """Nothing has begun yet that needs an orderly end; an exception inside an import may be
        taken for another.
        """
        _say_interrupted(prog)
        os._exit(_INTERRUPTED)

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    def repeat(problem: sys.UnraisableHookArgs) -> None:
        """Ctrl-C inside a callback whose exceptions nobody sees: interrupt again, once the callback
        is over.
        """
        if isinstance(problem.exc_value, KeyboardInterrupt):
            signal.signal(signal.SIGALRM, interrupt)
            signal.setitimer(signal.ITIMER_REAL, _SOON_S)
        else:
            sys.__unraisablehook__(problem)

    signal.signal(signal.SIGINT, leave)
    main = import_module(f".{module}", __package__).main
    sys.unraisablehook = repeat
    signal.signal(signal.SIGINT, interrupt)
    try:
        return int(main())
    except KeyboardInterrupt:
        _say_interrupted(prog)
        return _INTERRUPTED
    except Exception:
        # Inside an import of a compiled module, Ctrl-C comes out as an error of that import.
        if not interrupted:
            raise
        _say_interrupted(prog)
        return _INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _call_main(module: str) -> int:
    return int(import_module(f".{module}", __package__).main())


def _say_interrupted(prog: str) -> None:
    try:
        os.write(2, f"{prog}: interrupted\n".encode())
    except OSError:
        return  # nobody to say it to
