"""Links over the cables between hosts, and which messages over cables a gloo backend has."""

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
    """Let `find_messages` find the messages over cables of a gloo backend."""
    _messages[id(gloo)] = gloo, messages


def find_messages(gloo: Any) -> CableGloo | None:
    """Return the messages over cables of a gloo backend, None if it sends everything itself."""
    known = _messages.get(id(gloo))
    return known[1] if known is not None and known[0] is gloo else None


def connect(group: Any, device: torch.device, faults: Faults) -> CabledLinks | None:
    """See LaunchCabling."""
    messages = find_messages(group._get_backend(device)) if device.type == "cpu" else None
    return None if messages is None else CabledLinks(group, device, faults, messages)


class CabledLinks(Links):
    """Connections along the cables that join hosts; stock collectives go by gloo's relays."""

    def __init__(
        self, group: Any, device: torch.device, faults: Faults, messages: CableGloo
    ) -> None:
        super().__init__(group, device, faults)
        self._messages = messages
        faults.on_hang_up.append(messages.hang_up)

    @property
    def backend(self) -> Any:
        """What sends and receives this group's messages, in place of gloo."""
        return self._messages

    def close(self, *, is_private: bool) -> None:
        """Free what is the links' own, if `is_private` with the group, which is then closed too."""
        known = (
            _messages.pop(id(self.group._get_backend(self.device)), None) if is_private else None
        )
        if known is not None:
            known[1].close()
