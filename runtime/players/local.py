"""A program's local operations (add, copy, pack, divide), by numpy if it has the dtype.

They are bound to their views. torch's dispatcher costs several times as much as numpy's for a few
kilobytes, most of all if ranks share cores (measured: three sums of 1 KB on each of 4 ranks on 2
cores, 139 us by torch._foreach_add_, 27 us by numpy). The bits are the same.
"""

from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from ..reductions import IN_PLACE_REDUCTIONS, REDUCTIONS_BY_NUMPY, ReduceOp

# An operation with its views bound.
Local = Callable[[], object]
Views = Sequence[torch.Tensor]


def is_numpys(dtype: torch.dtype) -> bool:
    """Return whether numpy, not torch, carries out the operations on CPU tensors of a dtype."""
    # Those that numpy adds as fast as torch: half precision is not among them.
    return dtype in (
        torch.float32,
        torch.float64,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
    )


def make_quiet() -> Callable[..., Any]:
    """Return a function `quiet(f, ...)` that calls `f(...)` with numpy's float warnings off.

    torch does not warn either: overflow is the user's concern. The function is for one thread at a
    time.
    """
    if int(np.__version__.partition(".")[0]) < 2:  # the setting is the thread's there
        return np.errstate(all="ignore")(_call)
    # Entering a context with the setting takes a twentieth of the time of changing it twice.
    context = Context()
    context.run(np.seterr, all="ignore")
    return context.run


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


@dataclass(frozen=True)
class LocalOperations:
    """Makes a program's local operations as functions, with all views made beforehand.

    If they run on a CUDA stream (`on_stream`), all operations are torch's, else numpy's where it
    can.
    """

    on_stream: bool

    def combine(self, op: ReduceOp, into: Views, others: Views) -> Local:
        """Return a function that reduces `others[i]` into `into[i]` by `op`, for every i."""
        if not self._suits_numpy(into):
            return partial(IN_PLACE_REDUCTIONS[op], list(into), list(others))
        pairs = ((a.numpy(), b.numpy()) for a, b in zip(into, others, strict=True))
        return _together([partial(REDUCTIONS_BY_NUMPY[op], a, b, a) for a, b in pairs])

    def copy(self, into: Views, others: Views) -> Local:
        """Return a function that copies `others[i]` to `into[i]`, for every i."""
        return (
            _together(
                [
                    partial(np.copyto, a.numpy(), b.numpy())
                    for a, b in zip(into, others, strict=True)
                ]
            )
            if self._suits_numpy(into)
            else partial(torch._foreach_copy_, list(into), list(others))
        )

    def pack(self, parts: Views, into: torch.Tensor) -> Local:
        """Return a function that copies `parts` one after the other to `into`."""
        return (
            partial(np.concatenate, [part.numpy() for part in parts], out=into.numpy())
            if self._suits_numpy([into])
            else partial(torch.cat, list(parts), out=into)
        )

    def divide(self, views: Views, by: int) -> Local:
        """Return a function that divides floating-point views by the number `by`, in place."""
        return (
            _together([partial(np.divide, view.numpy(), by, view.numpy()) for view in views])
            if self._suits_numpy(views)
            else partial(torch._foreach_div_, list(views), by)
        )

    def _suits_numpy(self, views: Views) -> bool:
        return not self.on_stream and all(
            view.device.type == "cpu" and is_numpys(view.dtype) for view in views
        )


def _together(actions: list[Callable[[], Any]]) -> Local:
    if len(actions) == 1:
        return actions[0]

    def run_actions() -> None:
        for action in actions:
            action()

    return run_actions
