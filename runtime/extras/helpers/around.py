"""What a group with helpers adds to its calls: it announces them to its helpers."""

from ...backend.around import Around
from ...ranks.transport import Transport
from .announcer import Announcer


class Helped(Around):
    """Keeps a group's announcer with its transports for a device type; see Around."""

    def __init__(self, device: str, announcer: Announcer) -> None:
        self._device, self._announcer = device, announcer

    def heed(self, device: str, transport: Transport) -> None:
        """Take note of a transport of the group's own for a device type, which was just made."""
        if device == self._device:
            transport.attach(self._announcer)

    def list_transports(self) -> list[Transport]:
        """Return the transports that calls are made over besides the group's own."""
        return [self._announcer.transport]

    def let_go(self) -> None:
        """Let other processes go that wait for calls of the group, which ends with the process."""
        self._announcer.close()

    def close(self) -> None:
        """End what goes around calls, once they have ended."""
        self._announcer.close()
        self._announcer.transport.close()
