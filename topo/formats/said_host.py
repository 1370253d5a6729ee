"""Find what the text around a matrix or a table states of its host: lscpu's hypervisor."""

import re
from collections.abc import Iterator

from ..facts import Fact, keys
from ..facts.keys import HOST

_HYPERVISOR = re.compile(
    r"^[ \t>|]{0,40}Hypervisor vendor::?[ \t]{1,80}([A-Za-z][\w .-]{0,40}?)[ \t\r]{0,40}$",
    re.MULTILINE,
)


def find_host_facts(text: str) -> Iterator[Fact]:
    """Yield the fact that the host is a guest of a hypervisor, if lscpu's output names one."""
    if found := _HYPERVISOR.search(text):
        yield Fact(HOST, keys.HOST_VIRTUAL, found[1], "lscpu, Hypervisor vendor")
