"""The version of the imported torch: checks against the oldest that topoplan supports."""

import re
from pathlib import Path

import torch

from ..topo.errors import InputError

# As in pyproject.toml; `make torch-versions` runs tests of hook and backend on it.
OLDEST = (2, 9)


def is_torch_at_least(major: int, minor: int) -> bool:
    """Return whether the imported torch is this version or a newer one.

    True if its version is not a number.
    """
    numbers = re.match(r"(\d+)\.(\d+)", torch.__version__)
    return numbers is None or (int(numbers[1]), int(numbers[2])) >= (major, minor)


def check_torch() -> None:
    """Raise InputError if the imported torch is older than `OLDEST`."""
    if not is_torch_at_least(*OLDEST):
        oldest = ".".join(map(str, OLDEST))
        raise InputError(
            f"torch {torch.__version__} in {Path(torch.__file__).parent}: topoplan needs "
            f"{oldest} or newer; pip install 'torch>={oldest}'"
        )
