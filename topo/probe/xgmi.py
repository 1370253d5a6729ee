"""Join the xGMI links that the AMD driver reports to links between GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from ..facts import Facts, keys
from ..facts.keys import gpu_subject, xgmi_subject
from ..graph import Link
from ..hardware import LATENCY_us, xgmi_counted_GBps
from ..notes import Source


def join_xgmi(facts: Facts, gpus: Mapping[str, str]) -> tuple[Link, ...]:
    """Return a link for each direction that is reported; `gpus` gives the device id of each GPU's
    index.
    """
    links: list[Link] = []
    for index, device in gpus.items():
        for other, peer in gpus.items():
            subject = xgmi_subject(index, other)
            count = facts.get_number(subject, keys.XGMI_COUNT)
            if not count or peer == device:
                continue
            speed_MBps = facts.get_number(subject, keys.XGMI_SPEED_MBps)
            rate = (
                Fraction(speed_MBps, 1000)
                if speed_MBps
                else xgmi_counted_GBps(facts.get_text(gpu_subject(index), keys.GPU_GCN) or "")
            )
            source = (
                facts.get_source(subject, keys.XGMI_COUNT)
                if speed_MBps
                else Source("AMD's driver; rate as RCCL counts it", "counted", "RCCL")
            )
            links.append(
                Link(device, peer, rate * count, LATENCY_us["xgmi"], "xgmi", count, source)
            )
    return tuple(links)
