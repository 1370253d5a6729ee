"""One line of NCCL_DEBUG=INFO: whose it is, and what it says; the formats of NCCL 2.0 to 2.30 and
of RCCL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..found import Pattern, Pick, Place

# What stands between a signature and its message.
_LEVEL = re.compile(r"(?:NCCL |(?<=\] ))(INFO|WARN|TRACE|CALL|ABORT)\b")
# A signature's device; newer versions may have a time, file and line behind it.
_DEVICE = re.compile(r"\[(-?\d{1,9})\] (?:[^\s\[\]]+ ){0,3}")
_WRITER = re.compile(r"([A-Za-z0-9][\w.\-]{0,80}):(\d{1,10}):(\d{1,10})$")
# A signature at the beginning of a line, as nearly all are.
_ALONE = re.compile(
    r"([A-Za-z0-9][\w.\-]{0,80}):(\d{1,10}):(\d{1,10}) \[(-?\d{1,9})\] NCCL (INFO|WARN)\b"
)
_MOST_SIGNATURE = 400

RING = re.compile(
    r"\b(?:Channel|Ring) (\d+)(?:/(\d+))? *:((?:\s+\d+)+)(\s*\.\.\.)?\s*(?:comm\b.*)?$"
)
RING_HOP = re.compile(r"\bRing (\d+) : (-?\d+) -> (\d+) -> (-?\d+)(?:\s+comm (0x\w+))?")
TREES = re.compile(r"\bTrees((?:\s+\[\d+\]\s+[-\d/|>]+)+)")
TREE = re.compile(r"\[(\d+)\]\s+(\S+)")
TREE_HOP = re.compile(r"\bTree (\d+) : (-?\d+) -> (\d+) -> ((?:-?\d+/)*-?\d+)")
CONNECTION = re.compile(
    r"\b(?:Channel|Ring) (\d+)(?:/(\d+))? ?: +(\d+)(?:\[(\w+)\])? +-> +(\d+)(?:\[(\w+)\])? +(?:\[(?:send|receive)\] +)?"
    r"via (\S.*)"
)
INIT = re.compile(
    r"\bcomm 0x\w+ rank (?P<rank>\d+) nranks (?P<ranks>\d+)(?: cudaDev (?P<cuda>\d+))?(?: nvmlDev (?P<nvml>\d+))?"
    r"(?: busId (?P<bus>\w+))?(?:.*?commId (?P<id>0x\w+))?.*?Init (?P<when>START|COMPLETE)"
)
SIZE = re.compile(
    r"\bcomm 0x\w+ rank (?P<rank>\d+) nRanks (?P<ranks>\d+) nNodes (?P<nodes>\d+) localRanks (\d+)(?: localRank (\d+))?"
)
PATTERN = re.compile(
    r"\bPattern (\d+), crossNic \d+, nChannels (\d+), (?:bw|speed) ([\d.]+)/([\d.]+), type (\w+)/(\w+)"
)
PICK = re.compile(r"(?:\b(\w+): )?\b(\d+) Bytes -> Algo (\w+) proto (\w+)")
VERSION = re.compile(r"\b(NCCL|RCCL) version ?:? ?(\d[\w.+\-:]*)")
SIMPLE_ORDER = re.compile(r"Could not find a path for pattern (\d+), falling back to simple order")
NO_P2P = re.compile(
    r"P2P is disabled between (?:connected )?GPUs (?P<a>\d+) and (?P<b>\d+)|"
    r"(?:Could not enable P2P|peer query failed) between dev (?P<c>\d+)\s?\(=\w+\) and dev (?P<d>\d+)"
)
ENVIRONMENT = re.compile(r"\b((?:NCCL|RCCL)_[A-Z0-9_]+) set (?:by environment )?to (\S+)")
NETWORK = re.compile(r"Using network (\S+)")
GDR_OFF = re.compile(r"GPU Direct RDMA Disabled for (?:GPU|HCA|NIC)")

ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")
# Collectives by their names in letters alone.
COLLECTIVES = {
    "allreduce": "allreduce",
    "allgather": "allgather",
    "allgatherv": "allgather",
    "reducescatter": "reduce-scatter",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "alltoall": "alltoall",
    "gather": "gather",
    "scatter": "scatter",
}


@dataclass(frozen=True)
class Message:
    """One message: the thread that wrote it (None where the text does not say), its host, device,
    level and text.
    """

    thread: tuple[str, str, str] | None
    device: int | None
    level: str
    text: str


def name_collective(text: str) -> str | None:
    """Return the collective that a name such as AllReduce, all_reduce_perf or ncclReduceScatter
    means; None for others.
    """
    letters = re.sub(r"[^a-z]", "", text.lower().removeprefix("nccl"))
    return COLLECTIVES.get(re.sub(r"(?:perf|test|mpi)+$", "", letters))


# Where it begins and ends, the thread, the device, the level.
_Signature = tuple[int, int, tuple[str, str, str] | None, int | None, str]


class Signatures:
    """Finds who signed the messages of a line; knows the hosts that it has seen.

    A message may stand right behind another one's last word ("->0node1:17:42 [1] NCCL INFO"), and
    where that is a number, only a host's name that is known tells where it ends.
    """

    def __init__(self) -> None:
        self.hosts: set[str] = set()
        self._line: str | None = None
        self._found: list[_Signature] = []

    def split(self, line: str) -> Iterator[Message]:
        """Yield the messages of a line: several where writers ran into each other, and the line
        itself where nobody signed.
        """
        found = self._find(line)
        if not found:
            yield Message(None, None, "", line)
            return
        for number, (_, end, thread, device, level) in enumerate(found):
            until = found[number + 1][0] if number + 1 < len(found) else len(line)
            yield Message(thread, device, level, line[end:until])

    def is_message(self, line: str) -> bool:
        """Return whether a line is one message, with nothing before it and no other in it;
        quickly.
        """
        alone = _ALONE.match(line)
        if (
            alone is None
            or line.find("NCCL", alone.end()) >= 0
            or line.find("] INFO", alone.end()) >= 0
        ):
            return False
        host, pid, tid, device, level = alone.groups()
        self.hosts.add(host)
        self._line, self._found = line, [(0, alone.end(), (host, pid, tid), int(device), level)]
        return True

    def cut_off(self, line: str) -> str:
        """Return what stands in a line before the first message of the library."""
        found = self._find(line)
        return line[: found[0][0]] if found else line

    def _find(self, line: str) -> list[_Signature]:
        """Return all signatures of a line; of the last one from memory, as two readers ask."""
        if line is not self._line:
            self._line, self._found = (
                line,
                self._search(line) if "INFO" in line or "WARN" in line else [],
            )
        return self._found

    def _search(self, line: str) -> list[_Signature]:
        """Return where each signature of a line begins and ends, its thread, device and level."""
        out: list[_Signature] = []
        before = 0
        for level in _LEVEL.finditer(line):
            low = max(before, level.start() - _MOST_SIGNATURE)
            bracket = line.rfind("[", low, level.start())
            device = _DEVICE.fullmatch(line, bracket, level.start()) if bracket >= 0 else None
            if device is None:
                if line.startswith("NCCL", level.start()):  # a log whose signatures were taken off
                    out.append((level.start(), level.end(), None, None, level[1]))
                    before = level.end()
                continue
            start, thread = bracket, None
            word = max(line.rfind(" ", low, bracket - 1) + 1, low)
            writer = _WRITER.search(line[word : bracket - 1]) if bracket > word else None
            if writer is not None:
                skipped = self._skip_digits(writer[1], is_clean=writer.start() == 0)
                start, thread = (
                    word + writer.start() + skipped,
                    (writer[1][skipped:], writer[2], writer[3]),
                )
            out.append((start, level.end(), thread, int(device[1]), level[1]))
            before = level.end()
        return out

    def _skip_digits(self, host: str, is_clean: bool) -> int:
        """Return how many digits before a host's name belong to what stands before it."""
        if host in self.hosts:
            return 0
        skipped = next(
            (
                k
                for k in range(1, min(len(host), 4))
                if host[k:] in self.hosts and host[:k].isdigit()
            ),
            0,
        )
        if is_clean and not skipped:
            self.hosts.add(host)
        return skipped


def read_tree(text: str) -> tuple[int, int] | None:
    """Return rank and parent (-1: none) of one entry of a Trees line, of any version; None where it
    is none.

    "1/-1/-1->0->-1" is children, rank, parent; "-1->0->1/-1/-1" (until 2.5) the other way round;
    2.6 had both, with a bar.
    """
    parts = text.split("|")[0].split("->")
    if len(parts) != 3:
        return None
    first, middle, last = parts
    try:
        return int(middle), int(first if "/" in last and "/" not in first else last)
    except ValueError:
        return None


def read_pattern(found: re.Match[str]) -> Pattern:
    """Return the pattern of a line."""
    number, channels, intra, inter, type_intra, type_inter = found.groups()
    return Pattern(int(number), int(channels), float(intra), float(inter), type_intra, type_inter)


def read_pick(found: re.Match[str]) -> Pick:
    """Return the tuner's pick of a line, whose algorithm may be a name or a number."""
    collective, size, algorithm, protocol = found.groups()
    return Pick(
        None if collective is None else name_collective(collective),
        int(size),
        _name(algorithm, ALGORITHMS),
        _name(protocol, PROTOCOLS),
    )


def _name(text: str, names: tuple[str, ...]) -> str:
    return names[int(text)] if text.isdecimal() and int(text) < len(names) else text.upper()


def name_transport(text: str) -> str:
    """Return the transport that a connection names: P2P, P2P/indirect, SHM, NET/Socket, NET/IB
    ...
    """
    parts = text.split()[0].rstrip(",").split("/") if text.split() else [""]
    if "shared memory" in text or parts[0] == "SHM":
        return "SHM"
    if parts[0] == "NET" and len(parts) > 1:
        return f"NET/{parts[1]}" + ("/GDRDMA" if "GDRDMA" in text else "")
    return "P2P/indirect" if "indirect" in text else parts[0]


def place_of(bracket: str | None, host: str | None) -> Place:
    """Return the place that the number in a connection's brackets means: a PCI address (1b000) or
    an NVML index (3).
    """
    if bracket is None:
        return Place(host)
    if len(bracket) >= 4 or (len(bracket) > 1 and not bracket.isdecimal()):
        return Place(host, bus=read_bus_id(bracket))
    return Place(host, dev=int(bracket), physical=True) if bracket.isdecimal() else Place(host)


def read_bus_id(text: str) -> str | None:
    """Return a PCI address from the digits that logs have for it: "1b000" is 0000:1b:00.0."""
    try:
        number = int(text, 16)
    except ValueError:
        return None
    if not 0 < number < 1 << 52:
        return None
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"
