"""What torch's own tools see of a call: what the user called, as if gloo did it, and nothing of
what is done for it.

Calls that go through plans pass by torch's operators (c10d.allreduce_ and so on), so modes that
count these are told of them here; setting up and inner calls, which do pass by them, are hidden.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

T = TypeVar("T")


class _Called:
    """An operator as a mode gets to see it, which has been carried out, or will be, by other
    means.
    """

    def __init__(self, name: str) -> None:
        self._overloadpacket = getattr(torch.ops.c10d, name)

    def __call__(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def __str__(self) -> str:
        return f"{self._overloadpacket}.default"


def hide() -> AbstractContextManager[object]:
    """Return a context whose calls are hidden from modes that count the user's."""
    return _disable_current_modes() if _counting_modes() else nullcontext()


def show_as(name: str, start: Callable[[], T]) -> T:
    """Return what `start` returns; modes that count see one call of c10d's operator `name`,
    whatever `start` calls.
    """
    modes = _counting_modes()
    if not modes:
        return start()
    for mode in modes:
        mode.__torch_dispatch__(_Called(name), ())
    with _disable_current_modes():
        return start()


def _counting_modes() -> list[Any]:
    """Return those that are on in this thread, innermost first."""
    if not torch._C._len_torch_dispatch_stack():
        return []
    debug = sys.modules.get("torch.distributed.tensor.debug")  # where it is not imported none is on
    if debug is None:
        return []
    modes = reversed(_get_current_dispatch_mode_stack())
    return [mode for mode in modes if isinstance(mode, debug.CommDebugMode)]
