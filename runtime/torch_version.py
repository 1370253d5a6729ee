"""Which torch is imported: the oldest that topoplan works with, its refusal of older ones, and what
newer ones do.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

from ..topo.errors import InputError

# As in pyproject.toml; `make torch-versions` runs tests of hook and backend on it.
OLDEST = (2, 9)


def is_torch_at_least(major: int, minor: int) -> bool:
    """Return whether the torch that is imported is this version or a newer one; true where its
    version is not a number.
    """
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return found is None or (int(found[1]), int(found[2])) >= (major, minor)


def check_torch() -> None:
    """Raise InputError where the torch that is imported is older than `OLDEST`."""
    if not is_torch_at_least(*OLDEST):
        oldest = ".".join(map(str, OLDEST))
        raise InputError(
            f"torch {torch.__version__} in {Path(torch.__file__).parent}: topoplan needs {oldest} "
            "or newer; "
            f"pip install 'torch>={oldest}'"
        )
