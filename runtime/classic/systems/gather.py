"""Gather gradients at one worker, which updates, like torch's DataParallel."""

from __future__ import annotations

from ..base import Setting, System


class Gather(System):
    """The first worker adds all gradients in rank order, updates, and sends the parameters.

    It sends and receives n - 1 times the model, the others once: its links are the bottleneck.
    """

    name = "gather"
    promise = (
        "replicas bitwise equal after every step; one rank adds and updates, and its links "
        "carry everything"
    )
    source = "torch.nn.DataParallel; Li et al., PyTorch Distributed, VLDB 2020, section 2.2"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._flats = self.buckets.allocate()
        if self.rank == setting.first:
            self.optimizer = setting.make_optimizer(self.buckets.parameters)

    def _advance(self) -> None:
        self.buckets.copy_gradients(self._flats)
        self._average_at_first(self._flats)
        if self.optimizer is not None:
            self.buckets.set_gradients(self._flats)
            self.optimizer.step()
            self.buckets.copy_values(self._flats)
        self._broadcast_first(self._flats)
        if self.optimizer is None:
            self.buckets.set_values(self._flats)
