"""What plays one-sided schedules in the memory of devices, for links that name it.

Extras add these (group "players"); ranks on CPUs share memory without one (shared_memory.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from ...extras import PLAYERS, Names
from ...synth.ir.schedule import Schedule
from ...synth.plan import Plan
from ...topo.errors import TopoplanError
from ...topo.graph import Topology
from ..program.one_sided.flat import OneSidedSchedule
from ..ranks.links import Links

if TYPE_CHECKING:
    from ..compiled import Buffers
    from ..ranks.transport import Transport
    from ..summaries.tallies import Tallies


class DeviceCalls(Protocol):
    """The calls of one executor on devices."""

    def run(
        self, schedule: OneSidedSchedule, buffers: Buffers, number: int | None = None, /
    ) -> int | None:
        """Carry out a call as Executor.run does, and return the bytes that this rank sends.

        Return None, on all ranks, if it has to be carried out by messages.
        """


class DevicePlayer(Protocol):
    """Plays one-sided schedules on the devices of a transport's ranks."""

    def refuse(self, plan: Plan, *, same_bits: bool) -> str | None:
        """Return why a plan's schedules cannot be played, None if they can.

        With `same_bits` results must be those of messages, bit for bit.
        """

    def open(self, transport: Transport, /) -> object:
        """Return why devices cannot play, as a string, or anything else if they can.

        Collective the first time; the same on all ranks.
        """

    def list_shapes(
        self, schedules: Iterable[Schedule], topology: Topology, /
    ) -> list[OneSidedSchedule]:
        """Return the schedules in the ways of playing that are worth trying."""

    def rank_shapes(
        self, shapes: Sequence[OneSidedSchedule], topology: Topology, size_bytes: int, /
    ) -> list[OneSidedSchedule]:
        """Return them in the order of their predicted times for a size."""

    def make_calls(
        self, transport: Transport, topology: Topology | None, tallies: Tallies, /
    ) -> DeviceCalls:
        """Return what carries out calls once devices can play; `topology` names links in errors."""


def find_device_player(links: Links) -> DevicePlayer | None:
    """Return the player that links name, None if they name none.

    Raise InputError if the extra that has it is not here.
    """
    if links.device_player is None:
        return None
    player: DevicePlayer = Names(PLAYERS).find(links.device_player)
    return player


def open_memory(transport: Transport, plan: Plan, *, same_bits: bool) -> object:
    """Return the memory in which a plan can be played one-sided, or why there is none, as a string.

    Collective the first time; of one kind on all ranks. What one rank lacks, none uses. `same_bits`
    is as in DevicePlayer.refuse.
    """
    if transport.links.device_player is None:
        return transport.open_shared_memory()
    player: DevicePlayer | None = None
    why_not: str | None = None
    try:
        player = find_device_player(transport.links)
    except TopoplanError as error:
        why_not = str(error)
    why_not = transport.control.agree(why_not)
    if player is None or why_not is not None:
        return why_not
    return player.refuse(plan, same_bits=same_bits) or player.open(transport)
