"""Find what the text around a matrix or a table states of its host and of NCCL there.

It is lscpu's hypervisor, NICs without a link, and P2P that is switched off for NCCL. The matrix is
the one of `nvidia-smi topo -m`, or of AMD's tools, which people paste with more text. A note is a
line for people; a fact has a subject, here `host`, a key, a value and a source.
"""

import re
from collections.abc import Collection, Iterator

from ...facts import Fact, keys
from ...facts.keys import HOST
from ...names import join_first

_HYPERVISOR = re.compile(
    r"^[ \t>|]{0,40}Hypervisor vendor::?[ \t]{1,80}([A-Za-z][\w .-]{0,40}?)[ \t\r]{0,40}$",
    re.MULTILINE,
)
# A NIC and its interface's state, as ibdev2netdev prints them.
_INTERFACE = re.compile(
    r"^[ \t>|]{0,40}(\w{1,40}) port \d{1,3} ==> \S{1,40} \((Up|Down)\)", re.MULTILINE
)
# As a shell or a list of variables has it, or NCCL's log.
_P2P_OFF = re.compile(
    r"\bNCCL_P2P_DISABLE(?:[ \t]{0,9}[=:][ \t]{0,9}|[ \t]{1,9}set by environment to )[\"']?1\b"
)
# What people write where GPUs refuse it.
_NO_P2P = re.compile(
    r"\b(?:no|without) (?:PCIe )?(?:peer-to-peer|P2P)\b"
    r"|\bP2P (?:access )?(?:is )?(?:not supported|unsupported|unavailable|refused)\b",
    re.IGNORECASE,
)


def find_settings(text: str) -> list[str]:
    """Return a note of the first line that switches P2P off for NCCL; none without one.

    It may be advice, so the note does not say that it is set.
    """
    if (found := _P2P_OFF.search(text)) is None:
        return []
    return [
        f"line {_find_line(found)} has NCCL_P2P_DISABLE=1: where that is set, NCCL uses no P2P, "
        "whatever the GPUs can; rates and P2P are those without it"
    ]


def find_said_no_p2p(text: str) -> list[str]:
    """Return a note of the first line that says there is no P2P; none without one.

    It may be about other GPUs, so it is no fact.
    """
    if (found := _NO_P2P.search(text)) is None:
        return []
    return [
        f'line {_find_line(found)} has "{found[0]}", which is not counted; the output of '
        "nvidia-smi topo -p2p r beside the matrix would be"
    ]


def _find_line(found: re.Match[str]) -> int:
    return found.string.count("\n", 0, found.start()) + 1


def find_down_nics(text: str, nics: Collection[str]) -> list[str]:
    """Return a note of those of `nics` whose interfaces ibdev2netdev shows as down, if any."""
    states: dict[str, set[str]] = {}
    for name, state in _INTERFACE.findall(text):
        states.setdefault(name, set()).add(state.lower())
    down = [name for name in nics if states.get(name) == {"down"}]
    if not down:
        return []
    return [
        f"{join_first(down, 6)}: down, as ibdev2netdev says: over Ethernet they carry nothing "
        "(of InfiniBand it says only that IP does not use them)"
    ]


def find_host_facts(text: str) -> Iterator[Fact]:
    """Yield the fact that the host is a guest of a hypervisor, if lscpu's output names one."""
    if found := _HYPERVISOR.search(text):
        yield Fact(HOST, keys.HOST_VIRTUAL, found[1], "lscpu, Hypervisor vendor")
