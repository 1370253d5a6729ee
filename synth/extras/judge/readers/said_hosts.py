"""Find the hosts that prose states beside a table: "2 nodes with 8 H100 each"."""

import re
from dataclasses import dataclass

from .....topo.boards import find_mentioned, get_board

_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
_COUNT = rf"(\d{{1,4}}|{'|'.join(_WORDS)})"
_KINDS = r"\b(?:nodes|hosts|servers|machines|instances|VMs)\b"
_HOSTS = rf"{_COUNT} (?:[\w-]{{2,20}} ){{0,3}}?{_KINDS}"
# GPUs, or the name of some: "8x H100 80GB", "8 GPUs".
_GPUS = rf"{_COUNT}(?![\w.]*b/s)[ -]?[x\u00d7]?(?P<what>(?: ?[\w-]{{2,20}}){{1,4}})"
_EACH = r"(?:each|(?:per|a|on each|in each|every) (?:node|host|server|machine|instance|VM))\b"
_EACH_HAS = r"each (?:has|having|with|of)"
_JOINED = r"(?: with| of|,|:| \(| ?[x\u00d7]) ?"
# Hosts, then GPUs: "2 nodes with 8 H100 each", "2 nodes, each with 8 GPUs", "2 nodes x 8 GPUs".
_FORMS = tuple(
    re.compile(rf"\b{_HOSTS}{form}", re.IGNORECASE)
    for form in (
        rf"[^\n.;]{{0,30}}?[ (]{_GPUS} {_EACH}",
        rf"[^\n.;]{{0,30}}?{_EACH_HAS} {_GPUS}\b",
        rf"{_JOINED}{_GPUS}\b",
    )
)
_TOTAL = re.compile(
    rf"\b{_COUNT} (?P<what>(?:[\w-]{{2,20}} ){{0,3}}?GPUs) (?:on|across|over|in) {_HOSTS}",
    re.IGNORECASE,
)
# A quick test before the other patterns.
_QUICK = re.compile(_KINDS, re.IGNORECASE)
# Longest line of prose to search, in characters.
_MAX_LINE = 400


@dataclass(frozen=True)
class SaidHosts:
    """The numbers of hosts and of GPUs of each, as the prose of the line with this number says."""

    hosts: int
    gpus: int
    line: int

    def __str__(self) -> str:
        return f"{self.hosts} hosts of {self.gpus} GPUs each"


def find_said_hosts(line: str, number: int) -> SaidHosts | None:
    """Return the hosts that a line of prose states; None if it states none or only one.

    `number` is that of the line, from 1.
    """
    if len(line) > _MAX_LINE or _QUICK.search(line) is None:
        return None
    for form in _FORMS:
        for match in form.finditer(line):
            hosts, gpus = _read_count(match[1]), _read_count(match[2])
            if hosts > 1 and (dies := _count_dies(match["what"])):
                return SaidHosts(hosts, gpus * dies, number)
    for match in _TOTAL.finditer(line):
        total, hosts = _read_count(match[1]), _read_count(match[3])
        if hosts > 1 and total % hosts == 0:
            return SaidHosts(hosts, total // hosts, number)
    return None


def _count_dies(what: str) -> int:
    """Return how many GPUs each of these is: two of an MI250X; 0 if they are no GPUs."""
    boards = map(get_board, find_mentioned(what))
    is_gpu = re.search(r"\bGPUs?\b", what, re.IGNORECASE) is not None
    return max((board.dies for board in boards), default=int(is_gpu))


def _read_count(text: str) -> int:
    return int(text) if text.isdigit() else _WORDS.index(text.lower()) + 1
