"""What NVML says that one GPU may do to another over PCI Express and NVLink, and where their ways meet.

Status is asked for in both directions, since they may differ; the common ancestor is the same both ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from ...facts import Fact
from .library import Gpu, Nvml

_CAPABILITIES = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3, "pcie": 4}
"""nvmlGpuP2PCapsIndex_t; pynvml's own constant for READ is a tuple by mistake."""

_STATUS = (
    "ok",
    "chipset not supported",
    "gpu not supported",
    "topology not supported",
    "disabled by registry key",
    "not supported",
)
_UNKNOWN = 6
_ANCESTORS = {0: "internal", 10: "single", 20: "multiple", 30: "hostbridge", 40: "node", 50: "system"}


def read_p2p(nvml: Nvml, gpus: Sequence[Gpu]) -> Iterator[Fact]:
    """Facts `gpu/N/p2p/M` of every ordered pair of `gpus`."""
    for a, b in combinations(gpus, 2):
        there, back = f"{a.subject}/p2p/{b.index}", f"{b.subject}/p2p/{a.index}"
        ancestor = nvml.ask(
            there, "ancestor", "nvmlDeviceGetTopologyCommonAncestor", a.handle, b.handle, read=_ancestor
        )
        for subject, source, target in ((there, a, b), (back, b, a)):
            for key, capability in _CAPABILITIES.items():
                yield nvml.ask(
                    subject, key, "nvmlDeviceGetP2PStatus", source.handle, target.handle, capability, read=_status
                )
            yield replace(ancestor, subject=subject)


def _status(code: Any) -> str:
    if code == _UNKNOWN:
        raise ValueError("the driver says unknown")
    if code >= len(_STATUS):
        raise ValueError(f"the driver says {code}, which is not known here")
    return _STATUS[code]


def _ancestor(level: Any) -> str:
    if level not in _ANCESTORS:
        raise ValueError(f"common ancestor is {level}, which is not known here")
    return _ANCESTORS[level]
