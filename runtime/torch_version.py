"""The oldest torch that topoplan works with, and its refusal of older ones."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from ..topo.errors import InputError

OLDEST = (2, 9)
"""As in pyproject.toml; `make torch-versions` runs tests of hook and backend on it."""


def check_torch() -> None:
    """Raise InputError where the torch that is imported is older than `OLDEST`."""
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if found is not None and (int(found[1]), int(found[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise InputError(
            f"torch {torch.__version__} in {Path(torch.__file__).parent}: topoplan needs {oldest} or newer; "
            f"pip install 'torch>={oldest}'"
        )
