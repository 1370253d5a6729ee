"""Keeps torch.compile out of methods that talk to other ranks, without importing the compiler.

Dynamo inlines the Python methods of a process group, which it knows as an opaque object, and fails
at the first attribute (torch 2.13: "Member '_find' is not registered for this opaque object type").
`torch.compiler.disable` would import the whole compiler, which takes a second, and wrap each call;
what it marks and skips can be marked and skipped directly.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, TypeVar

C = TypeVar("C", bound=type)


def leave_untraced(cls: C) -> C:
    """Have torch.compile run the methods of `cls`, inherited ones of ours included, as they are;
    return `cls`.
    """
    for owner in cls.__mro__:
        if owner.__module__.startswith(__package__ or ""):
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
