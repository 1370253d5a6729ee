"""What a group with helpers adds to its calls: it announces them to its helpers."""

from ...backend.around import Around
from ...ranks.transport import Transport
from .announcer import Announcer


class Helped(Around):
    """Keeps a group's announcer with its transports for a device type; see Around."""

    def __init__(self, device: str, announcer: Announcer) -> None:
        self._device, self._announcer = device, announcer

    def heed(self, device: str, transport: Transport) -> None:
        """See Around."""
        if device == self._device:
            transport.attach(self._announcer)

    def list_transports(self) -> list[Transport]:
        """See Around."""
        return [self._announcer.transport]

    def let_go(self) -> None:
        """See Around."""
        self._announcer.close()

    def close(self) -> None:
        """See Around."""
        self._announcer.close()
        self._announcer.transport.close()
