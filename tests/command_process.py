"""What a process does that runs one of our commands, once its imports are done: take its place, and call the command."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def main(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], folder: str, output: Path, errors: Path
) -> None:
    """Call `main` of a module in this environment and folder, and end with its exit code."""
    for path, descriptor in ((output, 1), (errors, 2)):
        with path.open("wb") as file:
            os.dup2(file.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.exit(importlib.import_module(module).main(list(arguments)))
