"""Find what CUDA's samples say of P2P in the text around a matrix.

The samples are simpleP2P and p2pBandwidthLatencyTest; the matrix is the one of `nvidia-smi topo
-m`, which people paste with more text.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import permutations

from ...facts import Fact, keys
from ...facts.keys import p2p_subject

# Lines that are searched; people paste some hundred.
_MAX_LINES = 5_000
_LINES = (
    (
        "simpleP2P",
        re.compile(
            r"\W{0,40}Peer access from .{0,100}\(GPU(?P<a>\d{1,4})\) -> .{0,100}"
            r"\(GPU(?P<b>\d{1,4})\) : (?P<answer>Yes|No)"
        ),
    ),
    (
        "p2pBandwidthLatencyTest",
        re.compile(
            r"\W{0,40}Device=(?P<a>\d{1,4}) (?P<answer>CAN|CANNOT) Access Peer "
            r"Device=(?P<b>\d{1,4})"
        ),
    ),
)
_STATUSES = {"Yes": "ok", "CAN": "ok", "No": "not supported", "CANNOT": "not supported"}


def read_samples(text: str) -> dict[tuple[str, str], tuple[str, str]]:
    """Return (P2P's status, the sample that says so) by CUDA's numbers of two GPUs, as text.

    The status is of access from the first to the second: "ok" or "not supported".
    """
    answers: dict[tuple[str, str], tuple[str, str]] = {}
    for line in text.split("\n", _MAX_LINES)[:_MAX_LINES]:
        for source, pattern in _LINES:
            if match := pattern.match(line):
                answers[match["a"], match["b"]] = _STATUSES[match["answer"]], source
    return answers


def build_sample_facts(
    answers: Mapping[tuple[str, str], tuple[str, str]], gpus: tuple[str, ...]
) -> Iterator[Fact]:
    """Yield facts of P2P between `gpus`, the numbers of all, if all pairs have the same status.

    `answers` are those of `read_samples`.
    CUDA may number GPUs otherwise than nvidia-smi, so no pair is distinguished from others.
    """
    pairs = list(permutations(gpus, 2)) if answers else []
    distinct = {answers.get(pair) for pair in pairs}
    if len(distinct) != 1 or (answer := distinct.pop()) is None:
        return
    for pair in pairs:
        for key in (keys.P2P_READ, keys.P2P_WRITE):
            yield Fact(p2p_subject(*pair), key, *answer)
