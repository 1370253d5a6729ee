"""Send messages between ranks over the cables of their hosts: one gloo connection per cable.

For hosts that are cabled to each other directly instead of through a network that joins all. Relays
are threads of the ranks that forward other connections from host to host; a proxy is a relay's
socket here in place of that of a rank on another host (relay.py).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist

# Messages from this size on are divided over parallel cables; smaller ones take turns.
_DIVIDED_BYTES = 32 << 10
# A tag of messages that are never sent; see Faults.hang_up.
_NEVER_SENT = (1 << 30) - 2


@dataclass(frozen=True)
class CableChannel:
    """A gloo connection over one cable to a rank on a neighbouring host.

    `gloo` is a ProcessGroupGloo of the two ranks, in which the other rank has the number `peer`.
    `share` is the fraction of a large message that goes over this cable; parallel cables' add up to
    1.
    """

    gloo: Any
    peer: int
    share: Fraction


class _CableWorks:
    """The works of a message that was divided."""

    __slots__ = ("works",)

    def __init__(self, works: list[dist.Work]) -> None:
        self.works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all parts; return False as soon as one is not done.

        `timeout` limits the wait for each part. Another call waits for the parts that are left.
        """
        given = () if timeout is None else (timeout,)
        while self.works:
            if not self.works[0].wait(*given):
                return False
            self.works = self.works[1:]  # a second wait for one would not end
        return True


class CableGloo:
    """Sends and receives a group's messages over cables, with gloo's own `send` and `recv`.

    `channels` maps each rank on a neighbouring host, by its number in the group, to the channels
    over the cables to it. Messages of 32 KiB or more are divided over them, smaller ones take one
    of them each, by their tags. Messages to other ranks go through `relayed`, a gloo whose
    connections relays forward from host to host; `close` closes the proxies.
    """

    def __init__(
        self,
        channels: Mapping[int, Sequence[CableChannel]],
        relayed: Any,
        close: Callable[[], object],
    ) -> None:
        self._channels, self._relayed, self.close = channels, relayed, close
        self._used: set[int] = set()

    def send(self, tensors: Any, peer: int, tag: int) -> Any:
        """Start to send tensors to rank `peer` of the group; return a Work like gloo's.

        The receive must have the same `tag`.
        """
        return self._start("send", tensors, peer, tag)

    def recv(self, tensors: Any, peer: int, tag: int) -> Any:
        """Start to receive tensors from rank `peer` of the group; return a Work like gloo's.

        The send must have the same `tag`.
        """
        return self._start("recv", tensors, peer, tag)

    def _start(self, name: str, tensors: Any, peer: int, tag: int) -> Any:
        channels = self._channels.get(peer)
        if channels is None:
            return getattr(self._relayed, name)(tensors, peer, tag)
        self._used.add(peer)
        if len(channels) == 1:
            channel = channels[0]
            return getattr(channel.gloo, name)(tensors, channel.peer, tag)
        (tensor,) = tensors
        if tensor.nbytes < _DIVIDED_BYTES:
            channel = channels[tag % len(channels)]
            return getattr(channel.gloo, name)(tensors, channel.peer, tag)
        works = []
        for channel, part in zip(channels, _divide(tensor.view(-1), channels), strict=True):
            works.append(getattr(channel.gloo, name)([part], channel.peer, tag))
        return _CableWorks(works)

    def hang_up(self) -> None:
        """Close this rank's connections over cables, so that its peers' waits fail at once.

        Channels that were never used have no connection yet.
        """
        for peer in sorted(self._used):
            for channel in self._channels[peer]:
                with suppress(RuntimeError):
                    channel.gloo.recv([torch.empty(1)], channel.peer, _NEVER_SENT).wait(
                        timedelta(milliseconds=1)
                    )


def _divide(tensor: torch.Tensor, channels: Sequence[CableChannel]) -> list[torch.Tensor]:
    """Return a part of a flat tensor for each channel, by its share; the same on both ends."""
    total, parts, start = Fraction(0), [], 0
    for channel in channels:
        total += channel.share
        end = int(total * tensor.numel())
        parts.append(tensor[start:end])
        start = end
    return parts
