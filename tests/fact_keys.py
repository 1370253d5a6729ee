"""Every declared key of facts, and the patterns of docs/facts.md that subjects fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topoplan.topo.facts import keys
from topoplan.topo.facts.keys import CPUINFO, GPU, HOST, NET, NUMA, NVML, PCI, RDMA, Key, split_host


def find_pattern(subject: str) -> str | None:
    """Return the pattern of docs/facts.md that a subject fits (`gpu/N` for `gpu/3`), None where
    none does.

    Subjects of one of several hosts (`host0/gpu/3`) fit what they fit without it.
    """
    subject = split_host(subject)[1]
    if subject in (NVML, HOST, CPUINFO, NUMA, PCI):
        return subject
    top, slash, rest = subject.partition("/")
    if top != GPU:
        return (
            {PCI: "pci/BUS", NUMA: "numa/N", RDMA: "rdma/NAME", NET: "net/NAME"}.get(top)
            if slash
            else None
        )
    middle = rest.split("/")[1:]
    patterns = {"nvlink": "gpu/N/nvlink/L", "xgmi": "gpu/N/xgmi/M", "p2p": "gpu/N/p2p/M"}
    return patterns.get(middle[0]) if len(middle) == 2 else "gpu/N" if rest and not middle else None


# Every key by its pattern of subjects and its text.
DECLARED: Mapping[tuple[str, str], Key[Any]] = {
    (key.subject, str(key)): key for key in list(vars(keys).values()) if isinstance(key, Key)
}


def find_key(subject: str, name: str) -> Key[Any]:
    """Return the declared key of a subject by its text. Raises KeyError where there is none."""
    return DECLARED[find_pattern(subject) or "", name]
