"""A process group whose all_to_all_single uses plans for announced part sizes.

The option expected_splits announces them (splits.py).
"""

from functools import partial
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import AllToAllOptions, Store

from ...backend import NAME
from ...backend.collectives import CollectiveGroup
from ...backend.torch_tools import show_as
from ...ranks.addresses import Addresses
from ...reductions import dtype_name
from .alltoallv import UnevenAlltoall


class UnevenGroup(CollectiveGroup):
    """A process group whose all_to_all_single may run by a plan for parts of different sizes."""

    _uneven: UnevenAlltoall | None

    def _open(self, place: Any, own_store: Store, addresses: Addresses) -> None:
        super()._open(place, own_store, addresses)
        self._uneven = None  # that of other members, if it had such before

    def all_to_all_single(  # type: ignore[override]
        self,
        output: Any,
        input: Any,
        output_split_sizes: Any,
        input_split_sizes: Any,
        opts: Any = None,
        **more: Any,
    ) -> dist.Work:
        """Send part i of `input` to rank i, fill `output` with what arrives; return a Work.

        Arguments are as in torch.distributed.all_to_all_single; `opts` are the backend's. Calls of
        the announced sizes use a plan, if all ranks' sizes are those.
        """
        opts = AllToAllOptions() if opts is None else opts
        splits = output_split_sizes, input_split_sizes
        if (
            not self.options.expected_splits
            or more
            or not isinstance(opts, AllToAllOptions)
            or self.options.even_alltoall
            or self.options.layers
            or self.planned.plans.scope.helpers
        ):
            return super().all_to_all_single(output, input, *splits, opts, **more)
        number = self._begin(f"alltoall of {dtype_name(input.dtype)}")
        if self._uneven is None:
            self._uneven = UnevenAlltoall(
                self.options.expected_splits, self.planned, self.rank(), self.size()
            )
        uneven, stock = self._uneven, partial(self.plain.alltoall_base, output, input, *splits)

        def run_call() -> None:
            call = uneven.find_call(output, input, splits, number, self.check)
            if call is not None:
                call.run(number)
                return
            self.usage.count_stock("alltoall")
            work = stock(opts)
            if work is not None:
                work.wait()

        return show_as(
            "alltoall_base_",
            lambda: self.planned.queue(input).submit(
                run_call,
                [output],
                waits=not opts.asyncOp,
                reads=[input],
                name=f"{NAME}:all_to_all",
                may_be_stock=True,
            ),
        )

    alltoall_base = all_to_all_single
