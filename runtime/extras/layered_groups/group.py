"""The process group whose options may ask for layers around its calls on CPU tensors.

A layer is code around all calls, such as one that repeats a call after a lost link
(runtime/layers.py).
"""

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ...backend.collectives import CollectiveGroup
from ...backend.plain_calls import find_tensors
from ...layers import find_layer
from ...ranks.addresses import Addresses
from ...ranks.links import Links, NcclLinks
from .exchanged_calls import EXCHANGED
from .layers import GroupLayers


class LayeredGroup(CollectiveGroup):
    """A process group whose calls go through layers if its options ask for any."""

    def _open(self, place: Any, own_store: Store, addresses: Addresses) -> None:
        super()._open(place, own_store, addresses)
        if self.options.layers:
            self.planned.around = GroupLayers(self.planned)

    def _learn_devices(self) -> None:
        super()._learn_devices()
        for layer in self.options.layers[-1:]:
            links = NcclLinks if self.transports["cuda"] == "nccl" else Links
            why = find_layer(layer).why_not(links) or "tensors on cuda: only CPUs' go through it"
            spelled = self.options.policy.spell_layer(layer)
            self._refused.setdefault("cuda", f"{spelled} excludes {why}")

    def _leave(self, name: str, *args: Any, **kwargs: Any) -> dist.Work:
        """Call a collective of the plain group, in the order of this group's calls.

        Ranks exchange tensors where a stock collective could not go on.
        """
        around, tensor = self.planned.around, next(find_tensors(args), None)
        is_on_gpu = tensor is not None and tensor.is_cuda
        if not isinstance(around, GroupLayers) or not around.takes_all:
            return super()._leave(name, *args, **kwargs)
        if name not in EXCHANGED or is_on_gpu:
            return super()._leave(name, *args, **kwargs)
        self._begin(name)
        opts = kwargs.get("opts", args[-1] if args else None)

        def run_call() -> None:
            EXCHANGED[name](around.open().exchange, self.rank(), *args, **kwargs)

        return self.planned.queue(torch.empty(0)).submit(
            run_call,
            list(find_tensors(args[:1])),
            waits=not getattr(opts, "asyncOp", False),
            may_be_stock=True,
        )
