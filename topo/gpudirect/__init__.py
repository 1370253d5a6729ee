"""GPUDirect: which GPUs and NICs reach a GPU's memory directly, by rule, with the evidence.

Judged from a topology and its facts; nothing is measured. Where these do not decide, the answer is unknown, with the
reason. The rules are those of NCCL 2.30 and RCCL, in `p2p.py` and `rdma.py`.
"""

from __future__ import annotations

from ..errors import InputError
from ..graph import Topology
from .lines import Group, format_verdicts, group_verdicts
from .p2p import judge_p2p
from .rdma import judge_rdma
from .verdict import Verdict
from .view import PairView

__all__ = ["MAX_PAIRS", "Group", "Verdict", "format_verdicts", "group_verdicts", "judge_pairs"]

MAX_PAIRS = 20_000


def judge_pairs(topology: Topology) -> tuple[Verdict, ...]:
    """Return a verdict for each two GPUs of one host, then for each GPU and NIC of one host, host by host.

    Raises InputError where the topology's facts are malformed, and for more than MAX_PAIRS pairs.
    """
    view = PairView(topology)
    if view.count_pairs() > MAX_PAIRS:
        raise InputError(
            f"topology {topology.name!r}: {view.count_pairs()} pairs of GPUs and NICs; GPUDirect is judged for at most "
            f"{MAX_PAIRS}; give one host at a time"
        )
    verdicts: list[Verdict] = []
    for kind, a, b in view.pairs:
        answer = judge_p2p(view, a, b) if kind == "p2p" else judge_rdma(view, a, b)
        verdicts.append(Verdict(kind, a, b, answer.answer, answer.rule, answer.evidence, answer.advice))
    return tuple(verdicts)
