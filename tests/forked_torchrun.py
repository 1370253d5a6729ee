"""torchrun, run as a command by `launch.run_module("forked_torchrun", ...)`: its workers are forked
from it, so that their imports are done.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def main(arguments: Sequence[str]) -> int:
    """Run a script, or with `-m` a module, as torchrun does, given torchrun's arguments."""
    run: Any = importlib.import_module("torch.distributed.run")
    run.elastic_launch = _fork_workers
    run.run(run.parse_args(arguments))
    return 0


def _fork_workers(config: LaunchConfig, entrypoint: str) -> Callable[..., Any]:
    """Return what calls elastic_launch; `entrypoint` is an interpreter, which is not started."""
    config.start_method = "fork"
    return lambda unbuffered, *words: elastic_launch(config, _run)(*words)


def _run(*words: str) -> None:
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        runpy.run_path(words[0], run_name="__main__")
