"""Announce a group's calls to its helpers: ranks outside the group that forward bytes for it."""

from ...backend.around import Around
from ...ranks.transport import Transport
from .announcer import Announcer


class Helped(Around):
    """The hooks around a group's calls that let `announcer` tell the helpers of them.

    They attach it to the group's transports for tensors on one device type, `device`.
    """

    def __init__(self, device: str, announcer: Announcer) -> None:
        self._device, self._announcer = device, announcer

    def heed(self, device: str, transport: Transport) -> None:
        """Attach the announcer to the group's new `transport`, if it is for this device type."""
        if device == self._device:
            transport.attach(self._announcer)

    def list_transports(self) -> list[Transport]:
        """Return the transport to the helpers, which calls use besides the group's own."""
        return [self._announcer.transport]

    def let_go(self) -> None:
        """Tell the helpers that no more calls will come, as this process is ending."""
        self._announcer.close()

    def close(self) -> None:
        """Tell the helpers that no more calls will come, and close the transport to them."""
        self._announcer.close()
        self._announcer.transport.close()
