"""Ask NVML what one GPU may do to another over PCI Express and NVLink, and for their common
ancestor.

The status is asked for in both directions, since they may differ; the common ancestor is the same
in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from ...facts import Fact, keys
from ...facts.keys import p2p_subject
from .library import Gpu, Nvml

# nvmlGpuP2PCapsIndex_t; pynvml's own constant for READ is a tuple by mistake.
_CAPABILITIES = {
    keys.P2P_READ: 0,
    keys.P2P_WRITE: 1,
    keys.P2P_NVLINK: 2,
    keys.P2P_ATOMICS: 3,
    keys.P2P_PCIE: 4,
}

_STATUS = (
    "ok",
    "chipset not supported",
    "gpu not supported",
    "topology not supported",
    "disabled by registry key",
    "not supported",
)
_UNKNOWN = 6
_ANCESTORS = {
    0: "internal",
    10: "single",
    20: "multiple",
    30: "hostbridge",
    40: "node",
    50: "system",
}


def read_p2p(nvml: Nvml, gpus: Sequence[Gpu]) -> Iterator[Fact]:
    """Yield facts `gpu/N/p2p/M` of every ordered pair of `gpus`."""
    for a, b in combinations(gpus, 2):
        forth, back = p2p_subject(a.index, b.index), p2p_subject(b.index, a.index)
        ancestor = nvml.ask(
            forth,
            keys.P2P_ANCESTOR,
            "nvmlDeviceGetTopologyCommonAncestor",
            a.handle,
            b.handle,
            read=_read_ancestor,
        )
        for subject, source, target in ((forth, a, b), (back, b, a)):
            for key, capability in _CAPABILITIES.items():
                yield nvml.ask(
                    subject,
                    key,
                    "nvmlDeviceGetP2PStatus",
                    source.handle,
                    target.handle,
                    capability,
                    read=_read_status,
                )
            yield replace(ancestor, subject=subject)


def _read_status(code: Any) -> str:
    if code == _UNKNOWN:
        raise ValueError("the driver says unknown")
    if code >= len(_STATUS):
        raise ValueError(f"the driver says {code}, which is not known here")
    return _STATUS[code]


def _read_ancestor(level: Any) -> str:
    if level not in _ANCESTORS:
        raise ValueError(f"common ancestor is {level}, which is not known here")
    return _ANCESTORS[level]
