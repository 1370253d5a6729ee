"""xGMI links as the AMD driver reports them, joined to links between GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from ..facts import Facts
from ..graph import Link
from ..hardware import LATENCY_us, xgmi_counted_GBps


def join_xgmi(facts: Facts, gpus: Mapping[str, str]) -> tuple[Link, ...]:
    """A directed link for each direction that is reported; `gpus` gives the device id of each GPU's index."""
    links: list[Link] = []
    for index, device in gpus.items():
        for other, peer in gpus.items():
            subject = f"gpu/{index}/xgmi/{other}"
            count = facts.number(subject, "count")
            if not count or peer == device:
                continue
            told = facts.number(subject, "speed_MBps")
            rate = Fraction(told, 1000) if told else xgmi_counted_GBps(facts.text(f"gpu/{index}", "gcn") or "")
            source = facts.source(subject, "count") if told else "AMD's driver; rate as RCCL counts it"
            links.append(Link(device, peer, rate * count, LATENCY_us["xgmi"], "xgmi", count, source))
    return tuple(links)
