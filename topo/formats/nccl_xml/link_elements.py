"""Read the NVLink, xGMI, C2C and pcilink elements of NCCL's and RCCL's XML, with the rates that the
libraries count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from ...graph import Link, both_ways
from ...hardware import (
    LATENCY_us,
    LOCAL_GBps,
    c2c_GBps,
    nvlink_counted_GBps,
    nvlink_generation,
    nvswitch_adding,
    xgmi_counted_GBps,
)
from ...notes import counted
from ..safe_xml import Element
from .partial_topology import CPU_CLASS, GPU_CLASSES, GpuElement, PartialTopology, has_class

_UNREADABLE = re.compile(r"f+:f+:f+\.[0f]", re.IGNORECASE)
_MAX_LINKS = 10_000
_MAX_C2C = 10**9


def read_gpu_links(partial: PartialTopology, gpus: list[GpuElement], nvswitch: str) -> list[Link]:
    """Return the links that leave the GPUs otherwise than by PCI, in rank order; add the NVSwitch
    where any GPU has one.
    """
    links: list[Link] = []
    peers = {gpu.id for gpu in gpus}
    members: dict[str, None] = {}
    for gpu in gpus:
        links += _read_c2c_links(gpu)
        for (target, kind), counts in _count_links(partial, gpu, nvswitch).items():
            count = sum(counts.values())
            link = Link(
                gpu.id,
                target,
                count * _rate_GBps(partial, gpu, kind, target),
                LATENCY_us[kind],
                kind,
                count,
            )
            link = replace(
                link,
                source=counted(f"{count} x {kind}", "RCCL" if kind == "xgmi" else "NCCL"),
            )
            if target == nvswitch:
                members |= dict.fromkeys(counts)
                link = replace(link, latency_us=LATENCY_us["nvswitch"], extra={"targets": counts})
            # a GPU at the other end lists the way back itself; a switch or CPU has no element to
            # list it in
            links += (link,) if target in peers else both_ways(link)
    if members:
        known = sorted(name for name in members if not _UNREADABLE.fullmatch(name))
        switched = {link.src for link in links if link.dst == nvswitch}
        capabilities = [
            gpu.element.get_integer("sm", None, most=10_000) for gpu in gpus if gpu.id in switched
        ]
        generations = [nvlink_generation(sm) for sm in capabilities if sm]
        most = max(link.count for link in links if link.dst == nvswitch)
        adding = nvswitch_adding(min(generations, default=None), most)
        partial.add(
            nvswitch,
            kind="switch",
            family="nvswitch",
            extra={"members": known} if known else {},
            in_network=adding,
        )
    _note_odd_counts(partial, links, gpus)
    return links


def _count_links(
    partial: PartialTopology, gpu: GpuElement, nvswitch: str
) -> dict[tuple[str, str], dict[str, int]]:
    """Return how many links a GPU has, keyed by (device, kind) and then by the address that the
    file names.
    """
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for element in gpu.element:
        if element.tag not in ("nvlink", "xgmi"):
            continue
        count = element.get_integer("count", 1, most=_MAX_LINKS) or 0
        address = (element.get("target") or "").lower()
        target = _find_target(partial, gpu, element, address, nvswitch)
        if target is not None and count:
            addresses = counts.setdefault((target, element.tag), {})
            addresses[address] = addresses.get(address, 0) + count
    return counts


def _find_target(
    partial: PartialTopology, gpu: GpuElement, element: Element, address: str, nvswitch: str
) -> str | None:
    """Return the device at the other end, None where the file does not tell. The target's class
    decides, as in NCCL.
    """
    if address == gpu.bus_id:
        doubt = f"its {element.tag} has the GPU itself as target, which tells no peer; left out"
        partial.notes.add(gpu.id, doubt, "link-without-peer", element.tag)
        return None
    peer = partial.gpu_by_bus.get((gpu.position.host, address))
    readable = address and not _UNREADABLE.fullmatch(address)
    if readable and (
        has_class(element, GPU_CLASSES, "tclass") or (peer and not element.get("tclass"))
    ):
        if peer is None:
            doubt = f"its {element.tag} leads to {address}, a GPU that is not in the file; left out"
            partial.notes.add(gpu.id, doubt, "link-without-peer", element.tag)
        return peer
    if has_class(element, (CPU_CLASS,), "tclass"):
        return gpu.position.cpu
    if not readable and (gpu.id, nvswitch) not in partial.exact_pairs:
        partial.notes.add(
            gpu.id, "the target of its NVLinks is not readable; taken for an NVSwitch, as NCCL does"
        )
    return nvswitch


def _rate_GBps(partial: PartialTopology, gpu: GpuElement, kind: str, target: str) -> Fraction:
    """Return the rate of one NVLink or xGMI link of a GPU, and note it where the file does not give
    the architecture.
    """
    doubtful = (gpu.id, target) not in partial.exact_pairs
    if kind == "xgmi":
        if gpu.element.get("gcn") is None and doubtful:
            partial.notes.add(
                gpu.id, "no gcn attribute; its xGMI links are counted as the slowest ones"
            )
        return xgmi_counted_GBps(gpu.element.get("gcn") or "")
    sm = gpu.element.get_integer("sm", None, most=10_000)
    if sm is None and doubtful:
        partial.notes.add(gpu.id, "no sm attribute; its NVLinks are counted as those of sm 80")
    return nvlink_counted_GBps(sm)


def _read_c2c_links(gpu: GpuElement) -> Iterator[Link]:
    """Yield the links between a GPU and its CPU, both directions."""
    for element in gpu.element:
        if element.tag != "c2c" or gpu.position.cpu is None:
            continue
        count = element.get_integer("count", 1, most=_MAX_LINKS) or 0
        rate = c2c_GBps(element.get_integer("bw", 0, most=_MAX_C2C) or 0, count)
        if rate:
            link = Link(
                gpu.id,
                gpu.position.cpu,
                rate,
                LATENCY_us["c2c"],
                "c2c",
                count,
                "bw x count of the c2c element",
            )
            yield from both_ways(link)


def _note_odd_counts(partial: PartialTopology, links: list[Link], gpus: list[GpuElement]) -> None:
    """Note links that one side tells or that differ by direction, and GPUs with fewer links than
    the best connected one.
    """
    ids = {gpu.id for gpu in gpus}
    counts = {
        (x.src, x.dst): x.count
        for x in links
        if x.kind != "c2c" and (x.src, x.dst) not in partial.exact_pairs
    }
    for (a, b), count in counts.items():
        back = counts.get((b, a))
        if back is None and (b, a) not in partial.exact_pairs:
            partial.notes.add(
                f"{a} -> {b}", "told by one side only; taken as one direction, as the file says"
            )
        elif back is not None and back < count and {a, b} <= ids:
            partial.notes.add(f"{a} -> {b}", f"{count} links one way but {back} the other")
    if partial.exact_pairs:
        return
    totals = {gpu.id: sum(n for (a, _), n in counts.items() if a == gpu.id) for gpu in gpus}
    most = max(totals.values(), default=0)
    for name, total in totals.items():
        if total < most:
            partial.notes.add(
                name, f"has {total} NVLink or xGMI links where the best connected GPU has {most}"
            )


def read_pci_links(partial: PartialTopology) -> Iterator[Link]:
    """Yield the links between two PCI bridges beside the tree, one direction for each pcilink
    element.
    """
    for host, bridge, element in partial.pcilinks:
        address = (element.get("target") or "").lower()
        target = partial.bridge_by_bus.get((host, address))
        if target is None or target == bridge:
            partial.notes.add(
                bridge,
                f"its pcilink leads to {address or 'nowhere'}, no other bridge in the file; left "
                "out",
            )
            continue
        source = "pcilink, which NCCL counts as limiting nothing"
        yield Link(
            bridge,
            target,
            LOCAL_GBps,
            LATENCY_us["pcie"],
            "pcie",
            1,
            source,
            {"element": "pcilink"},
        )
