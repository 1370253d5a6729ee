"""GPUDirect: which GPUs and NICs reach a GPU's memory directly, by rule, with the evidence.

Verdicts follow from a topology and its facts; nothing is measured. If these are not enough, the
answer is unknown, with the reason. The rules are those of NCCL 2.30 and RCCL, in `p2p.py` and
`rdma.py`.
"""

from __future__ import annotations

from ..derived.parts import split_hosts
from ..errors import InputError
from ..facts.keys import qualify
from ..graph import Topology
from .lines import LineGroup, format_verdicts, group_verdicts
from .p2p import judge_fabrics, judge_p2p, list_fabric_pairs
from .rdma import judge_rdma
from .verdict import Verdict
from .view import PairView

__all__ = ["MAX_PAIRS", "LineGroup", "Verdict", "format_verdicts", "group_verdicts", "judge_pairs"]

# Maximum number of pairs judged at once; only topologies of many hosts have more.
MAX_PAIRS = 20_000


def judge_pairs(topology: Topology) -> tuple[Verdict, ...]:
    """Return a verdict for each pair of devices that GPUDirect could connect.

    The order is: each two GPUs of one host, host by host; each GPU and NIC of one host, host by
    host; each two GPUs of different hosts in one NVLink fabric. Raise InputError if the topology's
    facts are malformed, or for more than MAX_PAIRS pairs.
    """
    views = [(part.id, PairView(part.topology)) for part in split_hosts(topology)]
    across = list_fabric_pairs(topology) if len(views) > 1 else []
    pairs = sum(view.count_pairs() for _, view in views) + len(across)
    if pairs > MAX_PAIRS:
        raise InputError(
            f"topology {topology.name!r}: {pairs} pairs of GPUs and NICs; GPUDirect is judged for "
            f"at most {MAX_PAIRS}; give one host at a time"
        )
    verdicts: list[Verdict] = []
    for host, view in views:
        for kind, a, b in view.pairs:
            answer = judge_p2p(view, a, b) if kind == "p2p" else judge_rdma(view, a, b)
            first, second = (qualify(host, end) if host else end for end in (a, b))
            verdicts.append(Verdict(kind, first, second, **vars(answer)))
    return (*verdicts, *judge_fabrics(topology, across))
