"""Links over the cables between hosts, and the registry of gloo groups that send over cables.

Relays are threads of the ranks that forward gloo's own connections from host to host (relay.py).
"""

from __future__ import annotations

import atexit
from typing import Any

import torch

from ...ranks.faults import Faults
from ...ranks.links import Links
from .cable_gloo import CableGloo

# By the id of a gloo backend: it and its messages, until the group is closed.
_messages: dict[int, tuple[Any, CableGloo]] = {}
atexit.register(_messages.clear)


def note_messages(gloo: Any, messages: CableGloo) -> None:
    """Register `messages` as what sends for the group `gloo`, for `find_messages`."""
    _messages[id(gloo)] = gloo, messages


def find_messages(gloo: Any) -> CableGloo | None:
    """Return what sends over cables for the group `gloo`; None if gloo sends everything itself."""
    known = _messages.get(id(gloo))
    return known[1] if known is not None and known[0] is gloo else None


def connect(group: Any, device: torch.device, faults: Faults) -> CabledLinks | None:
    """Return links over cables for a group's tensors on `device`; None if its gloo has none.

    `faults` reports failed calls.
    """
    messages = find_messages(group._get_backend(device)) if device.type == "cpu" else None
    return None if messages is None else CabledLinks(group, device, faults, messages)


class CabledLinks(Links):
    """A group's connections along cables; collectives of gloo itself go through relays instead.

    `messages` is what sends over the cables for the group.
    """

    def __init__(
        self, group: Any, device: torch.device, faults: Faults, messages: CableGloo
    ) -> None:
        super().__init__(group, device, faults)
        self._messages = messages
        faults.on_hang_up.append(messages.hang_up)

    @property
    def backend(self) -> Any:
        """The object with gloo's `send` and `recv` that sends this group's messages over cables."""
        return self._messages

    def close(self, *, is_private: bool) -> None:
        """Close the connections over cables, if `is_private` says that the group closes too."""
        known = (
            _messages.pop(id(self.group._get_backend(self.device)), None) if is_private else None
        )
        if known is not None:
            known[1].close()
