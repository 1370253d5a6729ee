"""A whole program, run as a command by `launch.run_module("program_process", path, ...)`: its
imports are done already.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run the Python file that comes first, with the other arguments."""
    sys.argv = list(arguments)
    runpy.run_path(sys.argv[0], run_name="__main__")
    return 0
