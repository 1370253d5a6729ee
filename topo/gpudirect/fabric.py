"""Judge whether GPUs of different hosts reach each other's memory: over the NVLink fabric of an
NVL72 (NCCL's MNNVL).

NCCL 2.30 takes GPUs for one NVLink domain where their registration with the fabric is completed,
the cluster's UUID is equal and not zero, and the clique is equal; it then needs the IMEX service on
each host, which nothing here asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

from ..derived.fabric import CLIQUE, CLUSTER
from ..facts.keys import split_host
from ..graph import Topology
from .verdict import Verdict

# Two GPUs of different hosts, and the NVSwitch that both are linked to.
FabricPair = tuple[str, str, str]

_RULE = "NVLink joins their hosts in one fabric, which NCCL takes (MNNVL) where the IMEX service runs on both"
_ADVICE = "see systemctl status nvidia-imex on each host, and NCCL_MNNVL_ENABLE"


def list_fabric_pairs(topology: Topology) -> list[FabricPair]:
    """Return each two GPUs of different hosts that have links to and from one NVSwitch."""
    pairs: dict[tuple[str, str], str] = {}
    for switch in (d for d in topology.devices if d.family == "nvswitch"):
        near = [
            g
            for g in topology.ranks
            if {(g, switch.id), (switch.id, g)} <= topology.capacity_GBps.keys()
        ]
        if len({split_host(gpu)[0] for gpu in near}) > 1:
            for a, b in combinations(near, 2):
                if split_host(a)[0] != split_host(b)[0]:
                    pairs.setdefault((a, b), switch.id)
    return [(a, b, switch) for (a, b), switch in pairs.items()]


def judge_fabrics(topology: Topology, pairs: Iterable[FabricPair]) -> Iterator[Verdict]:
    """Yield the verdict on each of these pairs."""
    for a, b, switch in pairs:
        fields = topology.by_id[switch].extra
        named = (
            f"fabric: cluster {fields[CLUSTER]}, clique {fields.get(CLIQUE)}"
            if CLUSTER in fields
            else None
        )
        evidence = named or "the file has both hosts, as NCCL writes it for those of one fabric"
        yield Verdict("p2p", a, b, "yes", _RULE, (evidence,), _ADVICE)
