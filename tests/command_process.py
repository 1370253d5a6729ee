"""What a process does that runs one of our commands, once its imports are done: take its place, and
call the command.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkProcess, ForkServerProcess
from pathlib import Path

import forked_planners

# CLONE_NEWNET, of Linux's sched.h.
_NETWORK = 0x40000000


def main(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    output: Path,
    errors: Path,
    namespace: str | None = None,
) -> None:
    """Call `main` of a module in this environment and folder, and end with its exit code.

    With `namespace`, the file of a network namespace, the process joins that first, as by nsenter.
    """
    if namespace is not None:
        _join(namespace)
    for path, descriptor in ((output, 1), (errors, 2)):
        with path.open("ab") as file:  # both may go to one file
            os.dup2(file.fileno(), descriptor)
    faulthandler.enable()
    os.environ.clear()
    os.environ.update(environment)
    forked_planners.use_forked()
    os.chdir(folder)
    _add_paths(environment.get("PYTHONPATH", ""))
    _load_libraries(environment.get("LD_LIBRARY_PATH", ""))
    # A command's ranks are forked from it: a server of its own would import torch once more, which
    # takes longer than what most commands do. Those of `launch.run_command` have one.
    ForkServerProcess._Popen = staticmethod(ForkProcess._Popen)  # type: ignore[method-assign,assignment]
    sys.exit(importlib.import_module(module).main(list(arguments)))


def _add_paths(paths: str) -> None:
    """Look for modules in the folders of PYTHONPATH too: Python reads that when it starts."""
    sys.path[:0] = [path for path in paths.split(os.pathsep) if path and path not in sys.path]


def _load_libraries(folders: str) -> None:
    """Load the stand-in of NVML that LD_LIBRARY_PATH leads to: the loader reads that when a program
    starts, but what is loaded is found by its name.
    """
    for folder in filter(None, folders.split(":")):
        library = Path(folder) / "libnvidia-ml.so.1"
        if library.exists():
            with suppress(OSError):  # a broken one is not found, as the loader would have it
                ctypes.CDLL(str(library))


def _join(namespace: str) -> None:
    """Join a network namespace; what this process starts, threads included, is in it too."""
    with Path(namespace).open("rb") as file:
        library = ctypes.CDLL(None, use_errno=True)
        if library.setns(file.fileno(), _NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot join {namespace}")
