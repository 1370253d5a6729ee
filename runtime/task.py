"""One call of a collective, checked and laid flat: it can be carried out later, or begun by the
stock collective.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from .engine import Engine
from .ranks.stock import StartedStock
from .reductions import ReduceOp

# Calls on tensors at this many addresses are kept; this many addresses are remembered.
_MOST_KEPT, _MOST_SEEN = 16, 64
# So often the shortest way is sought for a kept call: at first the choice may not be settled, and
# some calls have none.
_MOST_ATTEMPTS = 4
_profiler = torch.autograd.profiler
# A tensor's address, number of elements and dtype, and the reduction.
Key = tuple[int, int, torch.dtype, object]


@dataclass
class Task:
    """A collective on a buffer of `numel` elements, from flat `source` to flat `target` (the same
    one where it is in place).

    `residual` is error feedback. `then` are called in turn once the result is in `target`:
    division, and the way back into tensors that are not contiguous.
    """

    engine: Engine
    numel: int
    source: torch.Tensor
    target: torch.Tensor
    op: ReduceOp = dist.ReduceOp.SUM
    residual: torch.Tensor | None = None
    then: list[Callable[[], None]] = field(default_factory=list)
    again: Callable[..., None] | None = None
    """How it is carried out where that is settled, and the tensors' addresses stay."""
    _attempts: int = 0

    @property
    def is_settled(self) -> bool:
        """Whether it is settled what is used; if not, this call settles it, by a race."""
        return self.engine.is_settled(self.numel, self.target.dtype)

    @property
    def uses_stock(self) -> bool:
        """Whether the stock collective is used. Collective the first time for a dtype and
        reduction.
        """
        return bool(self.numel) and self.engine.uses_stock(self.numel, self.target.dtype, self.op)

    def run(self, number: int | None = None) -> None:
        """Carry it out; `number` is the call's, where it was drawn before."""
        if self.again is not None and not _profiler._is_profiler_enabled:
            self.again(number)
        elif self.numel:
            self.engine.run(self.numel, self.source, self.target, self.op, self.residual, number)
        self._finish()

    def settle(self) -> None:
        """Let later runs take the shortest way there is, for a task in place in memory that stays
        where it is.
        """
        if self.numel and self.again is None and self._attempts < _MOST_ATTEMPTS:
            self._attempts += 1
            self.again = self.engine.make_again(self.numel, self.target, self.op)

    def start_stock(self, number: int) -> StartedStock:
        """Start the stock collective as the `number`-th call; see Engine.start_stock."""
        return self.engine.start_stock(
            self.numel, self.source, self.target, self.op, self._finish, number
        )

    def _finish(self) -> None:
        for step in self.then:
            step()


class KeptTasks:
    """The tasks of calls that come again and again, in place on tensors at the same addresses:
    checking and laying flat takes longer than a small message. What is kept holds no memory of the
    caller's.
    """

    def __init__(self) -> None:
        self._tasks: OrderedDict[Key, Task] = OrderedDict()
        self._seen: deque[Key] = deque(maxlen=_MOST_SEEN)
        self._shortest: dict[tuple[int, int, torch.dtype], Task] = {}

    def find(self, key: Key | None) -> Task | None:
        """Return the task of a call, made ready to run by the shortest way; None where none is
        kept.
        """
        task = self._tasks.get(key) if key is not None else None
        if task is not None and key is not None:
            task.settle()
            if task.again is not None:
                self._shortest[key[:3]] = task
        return task

    def find_again(self, tensor: torch.Tensor, op: object) -> Callable[..., None] | None:
        """Return how a kept call on a tensor is carried out, numbered as the next one; None where
        no short way is known.

        The tensor is asked for as little as possible: each answer takes some hundredths of a small
        call. The reduction is compared, which is several times as fast as finding it by its hash.
        """
        if not self._shortest or _profiler._is_profiler_enabled:
            return None
        try:
            task = self._shortest.get((tensor.data_ptr(), tensor.numel(), tensor.dtype))
        except (
            RuntimeError,
            AttributeError,
        ):  # a sparse tensor, which has no address, or no tensor at all
            return None
        if task is None or not (op is task.op or op == task.op) or not tensor.is_contiguous():
            return None
        return task.again

    def is_again(self, key: Key) -> bool:
        """Return whether a call was seen before; from now on it was."""
        if key in self._seen:
            return True
        self._seen.append(key)
        return False

    def keep(self, key: Key, task: Task) -> Task:
        """Keep a task, whose tensors own nothing, and return it."""
        self._tasks[key] = task
        if len(self._tasks) > _MOST_KEPT:
            dropped, _ = self._tasks.popitem(last=False)
            self._shortest.pop(dropped[:3], None)
        return task
