"""Parsing of one line of NCCL_DEBUG=INFO into its writer and its message.

The formats are those of NCCL 2.0 to 2.30 and of RCCL.
"""

import re
from collections.abc import Iterator

from ..file_contents import Location, Pick

# The level, which separates a signature from its message.
_LEVEL = re.compile(r"(?:NCCL |(?<=\] ))(INFO|WARN|TRACE|CALL|ABORT)\b")
# The device of a signature; newer versions may add a time, file and line.
_DEVICE = re.compile(r"\[-?\d{1,9}\] (?:[^\s\[\]]+ ){0,3}")
_WRITER = re.compile(r"([A-Za-z0-9][\w.\-]{0,80}):(\d{1,10}):(\d{1,10})$")
# A signature at the beginning of a line, where nearly all are: such lines need no search, so logs
# of 50 MB are read in seconds.
_ALONE = re.compile(
    r"([A-Za-z0-9][\w.\-]{0,80}):(\d{1,10}):(\d{1,10}) \[-?\d{1,9}\] NCCL (INFO|WARN)\b"
)
# Characters before a level to search for its signature, so that long lines stay quick.
_MAX_SIGNATURE = 400

RING = re.compile(
    r"\b(?:Channel|Ring) (\d+)(?:/(\d+))? *:((?:\s+\d+)+)(\s*\.\.\.)?\s*(?:comm\b.*)?$"
)
RING_HOP = re.compile(r"\bRing (\d+) : (-?\d+) -> (\d+) -> (-?\d+)(?:\s+comm (0x\w+))?")
TREES = re.compile(r"\bTrees((?:\s+\[\d+\]\s+[-\d/|>]+)+)")
TREE = re.compile(r"\[(\d+)\]\s+(\S+)")
TREE_HOP = re.compile(r"\bTree (\d+) : (-?\d+) -> (\d+) -> ((?:-?\d+/)*-?\d+)")
CONNECTION = re.compile(
    r"\b(?:Channel|Ring) (\d+)(?:/(\d+))? ?: +(\d+)(?:\[(\w+)\])? +-> +(\d+)(?:\[(\w+)\])? +"
    r"(?:\[(?:send|receive)\] +)?via (\S.*)"
)
INIT = re.compile(
    r"\bcomm 0x\w+ rank (?P<rank>\d+) nranks (?P<ranks>\d+)(?: cudaDev (?P<cuda>\d+))?"
    r"(?: nvmlDev (?P<nvml>\d+))?(?: busId (?P<bus>\w+))?(?:.*?commId (?P<id>0x\w+))?"
    r".*?Init (?P<when>START|COMPLETE)"
)
SIZE = re.compile(
    r"\bcomm 0x\w+ rank (?P<rank>\d+) nRanks (?P<ranks>\d+) nNodes (?P<nodes>\d+) "
    r"localRanks (\d+)(?: localRank (\d+))?"
)
# The end of a line of RCCL, which states the size of the communicator.
END = re.compile(r"\bcomm 0x\w{1,16} nRanks (\d{1,6})\b")
# What Ray adds to a line after which it leaves out those of other processes that are like it.
REPEATED = re.compile(r"\[repeated \d{1,9}x across cluster\]")
PATTERN = re.compile(
    r"\bPattern (\d+), crossNic \d+, nChannels (\d+), (?:bw|speed) ([\d.]+)/([\d.]+), "
    r"type (\w+)/(\w+)"
)
# A channel below a Pattern line: GPUs by PCI address since 2.20, by rank before.
PATTERN_CHANNEL = re.compile(
    r"^\s*(?P<channel>\d{1,3}) :(?P<gpus>(?: GPU/(?:[0-9a-fA-F]{1,16}-)?[0-9a-fA-F]{1,16})+)\s*$"
)
PICK = re.compile(r"(?:\b(\w+): )?\b(\d+) Bytes -> Algo (\w+) proto (\w+)")
VERSION = re.compile(r"\b(NCCL|RCCL) version ?:? ?(\d[\w.+\-:]*)")
# As the library prints it, with CUDA's or a commit, and not as people do in a list of what they use
# ("NCCL version: 2.19.3", "NCCL version 2.10.X").
_OWN_VERSION = re.compile(r"(?:NCCL|RCCL) version (?:: )?\d\S{0,80}[+:]")
SIMPLE_ORDER = re.compile(r"Could not find a path for pattern (\d+), falling back to simple order")
NO_P2P = re.compile(
    r"P2P is disabled between (?:connected )?GPUs (?P<a>\d+) and (?P<b>\d+)|"
    r"(?:Could not enable P2P|peer query failed) between dev (?P<c>\d+)\s?\(=\w+\) "
    r"and dev (?P<d>\d+)"
)
ENVIRONMENT = re.compile(r"\b((?:NCCL|RCCL)_[A-Z0-9_]+) set (?:by environment )?to (?!%)(\S+)")
NETWORK = re.compile(r"Using network (\S+)")
# What the library says of a GPU's NVLink fabric, with NVML's numbers.
FABRIC = re.compile(
    r"\bMNNVL (?:\S+ )?busId (0x[0-9a-fA-F]{1,16}) .*?\bstate (\d{1,3}) "
    r"healthMask (0x[0-9a-fA-F]{1,8})"
)
# A failing call, as each of its callers reports it.
FAILED_CALL = re.compile(r"[\w/]+\.(?:cc|cu|h|cpp):\d+ -> [1-9]\d*\b")
# One of an application's own calls after the start; 7 is no failure (ncclInProgress).
FAILED_USE = re.compile(r"\b(?:enqueue|group|collectives)\.(?:cc|cu):\d+ -> (?!7\b)[1-9]\d*\b")
# What nccl-tests and rccl-tests say as they give up.
FAILED_TEST = re.compile(r"\bTest (?:NCCL|RCCL|CUDA|HIP) failure [\w./\-]+:\d+ '[^']*'?")
# What PyTorch's watchdog says of a collective that does not end, of which it tells the kind.
TIMED_OUT = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(.{0,200}?\bOpType=(\w{1,40})"
    r".{0,200}?\bran for (\d{1,12}) milliseconds"
)
# What CUDA says to any program whose GPUs do not reach each other.
NO_PEERS = re.compile(r"\bpeer access is not supported between these two devices\b")
# What p2pBandwidthLatencyTest says of them.
CANNOT_REACH = re.compile(r"\bDevice=\d{1,4} CANNOT Access Peer Device=\d")
# The process that writes a message.
PROCESS = re.compile(r":(\d{1,10}):\d{1,10} \[-?\d{1,9}\]")
# A warning with the place in the library's source, which newer versions print.
WARNING = re.compile(r"(?:[\w/]+\.(?:cc|cu|h|cpp):\d+ )?NCCL WARN\b.*")
GDR_OFF = re.compile(r"GPU Direct RDMA Disabled for (?:GPU|HCA|NIC)")

# What is called, as NCCL_DEBUG_SUBSYS=COLL logs it.
CALL = re.compile(r"\b(\w{1,40}): opCount\b(?:.{0,300}?\[nranks=(\d{1,6})\])?")
# A communicator's number of ranks, where it begins and where it ends.
MEMBER = re.compile(r"\bcomm 0x\w{1,16} rank \d{1,6} nranks (\d{1,6})\b")
# Last words that a row of a test can have where a message breaks it: operations and types.
_ROW_WORDS = re.compile(r"(?:sum|prod|max|min|avg|mulsum|none|float|half|double|u?int(?:8|32|64)?)")

# In the order of NCCL's numbers, which some versions print in place of names.
ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS = ("LL", "LL128", "SIMPLE")
# Collectives by the letters of their names.
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


# The writer of a message: host, process and thread; None if unknown.
Thread = tuple[str, str, str] | None


def name_collective(text: str) -> str | None:
    """Return the collective that a name stands for; None if it is no collective's.

    Names are such as AllReduce, all_reduce_perf or ncclReduceScatter.
    """
    letters = re.sub(r"[^a-z]", "", text.lower().removeprefix("nccl"))
    return COLLECTIVES.get(re.sub(r"(?:perf|test|mpi)+$", "", letters))


class Signatures:
    """Finder of the signatures with which messages begin: "node1:17:42 [1] NCCL INFO".

    They name host, process, thread and GPU. One line may have several messages: one may directly
    follow another one's last word ("->0node1:17:42 [1] NCCL INFO"), its first letters ("NCnode1:17:
    42 [1] NCCL INFO"), or the last word of a test's row. Only a host seen before tells where such a
    word ends; so hosts are remembered, with their processes.
    """

    def __init__(self) -> None:
        self._processes: dict[str, set[str]] = {}
        self._line: str | None = None
        # Signatures of the last line: start and end in the line, thread and level.
        self._cached: list[tuple[int, int, Thread, str]] = []

    def split(self, line: str) -> Iterator[tuple[Thread, str, str]]:
        """Yield the messages of a line, each with its thread, its level (INFO, WARN) and its text.

        There are several if ranks wrote at once. A line without a signature is one message, with
        None for its thread and an empty level.
        """
        signatures = self._find(line) or [(0, 0, None, "")]
        ends = [start for start, *_ in signatures[1:]] + [len(line)]
        for (_, begin, thread, level), end in zip(signatures, ends, strict=True):
            yield thread, level, line[begin:end]

    def is_message(self, line: str) -> bool:
        """Return whether a line is surely a single message, by a quick check that most lines pass.

        Its host is remembered, and its signature for the next call of `split` or `cut_off`.
        """
        alone = _ALONE.match(line)
        if (
            alone is None
            or line.find("NCCL", alone.end()) >= 0
            or line.find("] INFO", alone.end()) >= 0
        ):
            return False
        host, pid, tid, level = alone.groups()
        known = self._processes.get(host, ())
        if pid not in known and self._skip_text_before(host, pid, is_clean=True):
            return False
        self._line, self._cached = line, [(0, alone.end(), (host, pid, tid), level)]
        return True

    def cut_off(self, line: str) -> str:
        """Return the part of a line before the first message of the library."""
        signatures = self._find(line)
        return line[: signatures[0][0]] if signatures else line

    def _find(self, line: str) -> list[tuple[int, int, Thread, str]]:
        """Return the signatures of a line; those of the last line are cached.

        Two readers ask for each line.
        """
        if line is not self._line:
            self._line = line
            self._cached = self._search(line) if "INFO" in line or "WARN" in line else []
        return self._cached

    def _search(self, line: str) -> list[tuple[int, int, Thread, str]]:
        out: list[tuple[int, int, Thread, str]] = []
        for level in _LEVEL.finditer(line):
            low = max(out[-1][1] if out else 0, level.start() - _MAX_SIGNATURE)
            bracket = line.rfind("[", low, level.start())
            if bracket < 0 or not _DEVICE.fullmatch(line, bracket, level.start()):
                if line.startswith("NCCL", level.start()):  # a log stripped of signatures
                    out.append((level.start(), level.end(), None, level[1]))
                continue
            start, thread = bracket, None
            word = max(line.rfind(" ", low, bracket - 1) + 1, low)
            writer = _WRITER.search(line[word : bracket - 1]) if bracket > word else None
            if writer is not None:
                skipped = self._skip_text_before(writer[1], writer[2], is_clean=writer.start() == 0)
                start = word + writer.start() + skipped
                thread = writer[1][skipped:], writer[2], writer[3]
            out.append((start, level.end(), thread, level[1]))
        return out

    def _skip_text_before(self, host: str, pid: str, is_clean: bool) -> int:
        """Return how many leading characters of a host's name belong to the text before it.

        A name that ends in a known host's is that host's if the process is, or if only a rank or a
        row's word is before it. If the name is clean, it and its process are remembered.
        """
        skipped = 0
        word = _ROW_WORDS.match(host)
        if word is not None and host[word.end() :] in self._processes:
            skipped = word.end()
        elif host not in self._processes:
            shorter = (count for count in range(1, len(host)) if host[count:] in self._processes)
            for count in shorter:
                # A rank nearly always has at most three digits.
                is_rank = count <= 3 and host[:count].isdigit()
                if is_rank or pid in self._processes[host[count:]]:
                    skipped = count
                    break
        if is_clean:
            self._processes.setdefault(host[skipped:], set()).add(pid)
        return skipped

    def note_host(self, host: str) -> None:
        """Remember the name of a host that a test lists; its processes are not known yet."""
        self._processes.setdefault(host, set())

    def count_hosts(self) -> int:
        """Return the number of hosts that write.

        A damaged name may come before its host's: one that ends in another is no host if the other
        has all its processes.
        """
        known = self._processes
        return sum(
            not any(pids <= known.get(host[count:], frozenset()) for count in range(1, len(host)))
            for host, pids in known.items()
        )


def is_of_log(line: str) -> bool:
    """Return whether a line is the library's, and not a sentence that mentions it."""
    return _LEVEL.search(line) is not None or _OWN_VERSION.match(line.lstrip()) is not None


def read_tree(text: str) -> tuple[int, int] | None:
    """Return the rank and its parent (-1: none) from an entry of a Trees line; None if malformed.

    "1/-1/-1->0->-1" is children, rank, parent; "-1->0->1/-1/-1" (until 2.5) the reverse; 2.6 had
    both, separated by a bar.
    """
    try:
        first, middle, last = text.split("|")[0].split("->")
        return int(middle), int(first if "/" in last and "/" not in first else last)
    except ValueError:
        return None


def read_pick(match: re.Match[str]) -> Pick:
    """Return the tuner's pick from a match of PICK, whose algorithm may be a name or a number."""
    collective, size, algorithm, protocol = match.groups()
    return Pick(
        name_collective(collective or ""),
        int(size),
        _name(algorithm, ALGORITHMS),
        _name(protocol, PROTOCOLS),
    )


def _name(text: str, names: tuple[str, ...]) -> str:
    return names[int(text)] if text.isdecimal() and int(text) < len(names) else text.upper()


def name_transport(text: str) -> str:
    """Return the transport of a connection: P2P, P2P/indirect, SHM, NET/Socket, NET/IB ..."""
    parts = text.split()[0].rstrip(",").split("/") if text.split() else [""]
    if "shared memory" in text or parts[0] == "SHM":
        return "SHM"
    if parts[0] == "NET" and len(parts) > 1:
        # Another process may write before GDRDMA is whole.
        return f"NET/{parts[1]}" + ("/GDRDMA" if "/GD" in text else "")
    return "P2P/indirect" if "indirect" in text else parts[0]


def read_location(bracket: str | None, host: str | None) -> Location:
    """Return the location on `host` for the number in a connection's brackets.

    The number is a PCI address (1b000) or an NVML index (3).
    """
    bracket = bracket or ""
    if len(bracket) >= 4 or (len(bracket) > 1 and not bracket.isdecimal()):
        return Location(host, bus=read_bus_id(bracket))
    return Location(host, int(bracket), physical=True) if bracket.isdecimal() else Location(host)


def read_bus_id(text: str) -> str | None:
    """Return the PCI address that a log writes as hexadecimal digits: "1b000" is 0000:1b:00.0.

    Return None if the text is no such number.
    """
    try:
        number = int(text, 16)
    except ValueError:
        return None
    address = f"{number >> 20:04x}:{number >> 12 & 255:02x}:{number >> 4 & 255:02x}.{number & 15:x}"
    return address if 0 < number < 1 << 52 else None
