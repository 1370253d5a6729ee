"""The plans of one process group at work: which collectives they serve, their communicators, and the line that calls form."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

from ...synth.plan import Plan
from ..communicator import Communicator
from ..executor import REDUCIBLE, REDUCTIONS
from ..ranks.groups import let_go, named_group
from .plan_finder import PlanFinder
from .works import StreamLine, ThreadLine

Key = tuple[str, int | None, str]
"""Of a communicator: collective, root, type of device."""
_COMPRESSED = ("allreduce", "reduce-scatter")
_LEAST_WHOLE_BYTES = 1 << 20
"""Whole numbers are mostly control messages (sizes, flags, pickled objects); from so many bytes on they are data."""


class Planned:
    """Communicators of the group called `name`, made when a collective is first used; `transports` says what moves the data
    of each type of device.
    """

    def __init__(self, name: str, plans: PlanFinder, transports: Mapping[str, str]) -> None:
        self.name, self.plans, self.transports = name, plans, transports
        self.options = plans.options
        self.communicators: dict[Key, Communicator | None] = {}
        self._lines: dict[str, ThreadLine | StreamLine] = {}

    def communicator(
        self, name: str, root: int | None, tensor: torch.Tensor, size_bytes: int, op: object = None
    ) -> Communicator | None:
        """Who carries a collective out on a buffer of `size_bytes`, of which `tensor` is (a part of) this rank's; None: there
        is no plan, or it is not for such buffers. Collective the first time; raises as PlanFinder.find and Communicator.
        """
        if not self._serves(name, tensor, size_bytes, op):
            return None
        key = name, root, tensor.device.type
        if key not in self.communicators:
            plan = self.plans.find(name, root, tensor.device)
            self.communicators[key] = None if plan is None else self._made(key, plan)
        return self.communicators[key]

    def _serves(self, name: str, tensor: torch.Tensor, size_bytes: int, op: object) -> bool:
        """Whether plans are for such buffers: decided alike on all ranks."""
        whole = not tensor.dtype.is_floating_point
        if size_bytes < (_LEAST_WHOLE_BYTES if whole else self.options.least_bytes) or self.plans.off:
            return False
        reached = self.transports.get(tensor.device.type) == ("nccl" if tensor.is_cuda else "gloo")
        if not reached or tensor.layout != torch.strided or tensor.dtype not in REDUCIBLE:
            return False
        kind = getattr(op, "op", op)
        if self._codec(name) is not None:
            return not whole and kind in (dist.ReduceOp.SUM, dist.ReduceOp.AVG)
        return op is None or (kind in REDUCTIONS and not (whole and kind == dist.ReduceOp.AVG))

    def _codec(self, name: str) -> str | None:
        """What a collective's values travel in; what is not added up travels as it is."""
        return self.options.compress if name in _COMPRESSED else None

    def _made(self, key: Key, plan: Plan) -> Communicator:
        collective, root, device = key
        name = f"topoplan/{self.name}/{device}/{collective}/{root}"

        def group(timeout: timedelta) -> dist.ProcessGroup:
            return named_group(name, self.plans.ranks, self.transports[device], timeout)

        return Communicator(plan, group, self.plans.timeout, self.options.choose, self._codec(collective))

    def line(self, tensor: torch.Tensor) -> ThreadLine | StreamLine:
        """Where calls on such tensors wait for each other."""
        kind = tensor.device.type
        if kind not in self._lines:
            self._lines[kind] = StreamLine(tensor.device) if kind == "cuda" else ThreadLine()
        return self._lines[kind]

    def end_lines(self) -> None:
        """What was called comes to its end, and nothing goes on in the background."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()

    def close(self) -> None:
        """Let go of threads and groups."""
        self.end_lines()
        groups = [made.group for made in self.communicators.values() if made is not None]
        self.communicators.clear()
        for group in groups:
            let_go(group)
