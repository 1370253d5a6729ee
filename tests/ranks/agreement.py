"""Ranks that bring different plans, or none, or are too few."""

from __future__ import annotations

import torch.distributed as dist

import topoplan
from topoplan import Communicator


def error_of(path: str) -> str:
    """Return what making a communicator raises."""
    try:
        Communicator(path)
    except topoplan.TopoplanError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"accepted {path}")


def wrong_plans(plan: str, other: str, larger: str) -> list[str]:
    """Return the errors where rank 2 brings another plan, rank 2 cannot read its plan, all bring
    one for more ranks.
    """
    last = dist.get_rank() == 2
    return [
        error_of(other if last else plan),
        error_of("nowhere.json" if last else plan),
        error_of(larger),
    ]
