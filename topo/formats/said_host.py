"""Find what the text around a matrix or a table states of its host and of NCCL there.

They are lscpu's hypervisor, and P2P that is switched off for NCCL.
"""

import re
from collections.abc import Iterator

from ..facts import Fact, keys
from ..facts.keys import HOST

_HYPERVISOR = re.compile(
    r"^[ \t>|]{0,40}Hypervisor vendor::?[ \t]{1,80}([A-Za-z][\w .-]{0,40}?)[ \t\r]{0,40}$",
    re.MULTILINE,
)
# As a shell or a list of variables has it, or NCCL's log.
_P2P_OFF = re.compile(
    r"\bNCCL_P2P_DISABLE(?:[ \t]{0,9}[=:][ \t]{0,9}|[ \t]{1,9}set by environment to )[\"']?1\b"
)


def find_settings(text: str) -> list[str]:
    """Return a note of the first line that switches P2P off for NCCL; none without one."""
    if (found := _P2P_OFF.search(text)) is None:
        return []
    line = text.count("\n", 0, found.start()) + 1
    return [
        f"line {line}: NCCL_P2P_DISABLE is 1, with which NCCL uses no P2P, whatever the GPUs can; "
        "rates and P2P are those without it"
    ]


def find_host_facts(text: str) -> Iterator[Fact]:
    """Yield the fact that the host is a guest of a hypervisor, if lscpu's output names one."""
    if found := _HYPERVISOR.search(text):
        yield Fact(HOST, keys.HOST_VIRTUAL, found[1], "lscpu, Hypervisor vendor")
