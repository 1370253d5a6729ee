"""Adapters to torch's tools: modes that count calls see the user's calls, Dynamo traces none.

Calls that go through plans bypass torch's operators (c10d.allreduce_ and so on), so modes that
count these are notified here; inner calls and those of the set-up, which do use operators, are
hidden.

Dynamo inlines the Python methods of a process group, which it knows as an opaque object, and fails
at the first attribute (torch 2.13: "Member '_find' is not registered for this opaque object type").
`torch.compiler.disable` would import the whole compiler, which takes a second, and wrap each call;
what it marks and skips can be marked and skipped directly.
"""

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

T = TypeVar("T")
C = TypeVar("C", bound=type)
# Begins the names of topoplan's modules, those of extras too.
_OWN = __name__.removesuffix("runtime.backend.torch_tools")


class _Called:
    """An operator as a mode sees it; the call itself is run separately."""

    def __init__(self, name: str) -> None:
        self._overloadpacket = getattr(torch.ops.c10d, name)

    def __call__(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def __str__(self) -> str:
        return f"{self._overloadpacket}.default"


def show_as(name: str, start: Callable[[], T]) -> T:
    """Call `start` and return its result, showing torch's CommDebugMode one call for it.

    `name` is the c10d operator that the mode counts, in place of those that `start` calls.
    """
    modes = _find_counting_modes()
    if not modes:
        return start()
    for mode in modes:
        mode.__torch_dispatch__(_Called(name), ())
    with _disable_current_modes():
        return start()


def _find_counting_modes() -> list[Any]:
    """Return the counting modes that are active in this thread, innermost first."""
    # If it was never imported, no mode is active.
    debug = sys.modules.get("torch.distributed.tensor.debug")
    if debug is None or not torch._C._len_torch_dispatch_stack():
        return []
    return [
        mode
        for mode in reversed(_get_current_dispatch_mode_stack())
        if isinstance(mode, debug.CommDebugMode)
    ]


def leave_untraced(cls: C) -> C:
    """Keep torch.compile from tracing the methods of `cls`; return `cls`.

    That includes methods inherited from topoplan's own classes.
    """
    for owner in cls.__mro__:
        if owner.__module__.startswith(_OWN):
            for value in vars(owner).values():
                if isinstance(value, FunctionType):
                    _leave_untraced(value)
    return cls


def _leave_untraced(function: FunctionType) -> None:
    marked: Any = function
    marked._torchdynamo_disable = True  # calls from compiled code break the graph
    marked._torchdynamo_disable_msg = "it talks to other ranks"
    try:
        from torch._C._dynamo import eval_frame
    except ImportError:  # a torch that was built without the compiler
        return
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
