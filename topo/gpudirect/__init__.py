"""GPUDirect: which GPUs reach each other's memory, and which NICs reach it, by rule, with the evidence.

Worked out from a topology and the facts it keeps; nothing is measured. Where neither can say, the answer is unknown,
with the reason. The rules are those of NCCL 2.30 and RCCL, in `p2p` and `rdma`.
"""

from __future__ import annotations

from ..errors import InputError
from ..graph import Topology
from .case import Case
from .lines import Group, grouped, lines
from .p2p import p2p
from .rdma import rdma
from .verdict import Verdict

__all__ = ["MAX_PAIRS", "Group", "Verdict", "grouped", "lines", "verdicts"]

MAX_PAIRS = 20_000


def verdicts(topology: Topology) -> tuple[Verdict, ...]:
    """One for each two GPUs of one host, then one for each GPU and NIC of one host, host by host.

    Raises InputError where the topology's facts are malformed, and for more than MAX_PAIRS pairs.
    """
    case = Case(topology)
    if case.most_pairs() > MAX_PAIRS:
        raise InputError(
            f"topology {topology.name!r}: {case.most_pairs()} pairs of GPUs and NICs; GPUDirect is judged for at most "
            f"{MAX_PAIRS}; give one host at a time"
        )
    found: list[Verdict] = []
    for kind, a, b in case.pairs:
        answer = p2p(case, a, b) if kind == "p2p" else rdma(case, a, b)
        found.append(Verdict(kind, a, b, answer.answer, answer.rule, answer.evidence, answer.advice))
    return tuple(found)
