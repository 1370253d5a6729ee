"""The kernels as a player of one-sided schedules (runtime/players/on_devices.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ....synth.ir.schedule import Schedule
from ....synth.plan import Plan
from ....topo.graph import Topology
from ...option_names import SAME_BITS
from ...players.on_devices import DevicePlayer
from ...program.one_sided.flat import OneSidedSchedule
from . import model
from .calls import KernelCalls
from .opening import open_kernels

if TYPE_CHECKING:
    from ...ranks.transport import Transport
    from ...summaries.tallies import Tallies
    from .player import KernelPlayer


class Kernels:
    """See DevicePlayer."""

    def refuse(self, plan: Plan, *, same_bits: bool) -> str | None:
        """See DevicePlayer."""
        if not plan.collective.has_all_gpus:
            return "kernels play plans for all GPUs alone"
        if same_bits:
            return (
                "kernels add half precision in float32, messages do not, and "
                f"choose={SAME_BITS!r} promises the same bits; leave executor out"
            )
        return None

    def open(self, transport: Transport) -> KernelPlayer | str:
        """See DevicePlayer."""
        return open_kernels(transport)

    def list_shapes(
        self, schedules: Iterable[Schedule], topology: Topology
    ) -> list[OneSidedSchedule]:
        """See DevicePlayer."""
        return model.list_shapes(schedules, topology)

    def rank_shapes(
        self, shapes: Sequence[OneSidedSchedule], topology: Topology, size_bytes: int
    ) -> list[OneSidedSchedule]:
        """See DevicePlayer."""
        return model.rank_shapes(shapes, topology, size_bytes)

    def make_calls(
        self, transport: Transport, topology: Topology | None, tallies: Tallies
    ) -> KernelCalls:
        """See DevicePlayer."""
        return KernelCalls(transport, topology, tallies)


KERNELS: DevicePlayer = Kernels()
