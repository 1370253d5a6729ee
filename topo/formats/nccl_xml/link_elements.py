"""Reading NCCL's and RCCL's XML: NVLink, xGMI, C2C and pcilink elements, with the rates that the libraries count."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from ...graph import Link, both_ways
from ...hardware import LATENCY_us, LOCAL_GBps, c2c_GBps, nvlink_counted_GBps, xgmi_counted_GBps
from ..safe_xml import Element
from .partial_topology import CPU_CLASS, GPU_CLASSES, Draft, Gpu, has_class

_UNREADABLE = re.compile(r"f+:f+:f+\.[0f]", re.IGNORECASE)
_MAX_LINKS = 10_000
_MAX_C2C = 10**9


def gpu_links(draft: Draft, gpus: list[Gpu], nvswitch: str) -> list[Link]:
    """Links that leave the GPUs otherwise than by PCI, in rank order; adds the one NVSwitch where any GPU has one."""
    links: list[Link] = []
    peers = {gpu.id for gpu in gpus}
    members: dict[str, None] = {}
    for gpu in gpus:
        links += _c2c(gpu)
        for (target, kind), counts in _counts(draft, gpu, nvswitch).items():
            count = sum(counts.values())
            link = Link(gpu.id, target, count * _rate_GBps(draft, gpu, kind, target), LATENCY_us[kind], kind, count)
            link = replace(link, source=f"{count} x {kind}, as {'RCCL' if kind == 'xgmi' else 'NCCL'} counts it")
            if target == nvswitch:
                members |= dict.fromkeys(counts)
                link = replace(link, latency_us=LATENCY_us["nvswitch"], extra={"targets": counts})
            links += (link,) if target in peers else both_ways(link)
    if members:
        known = sorted(name for name in members if not _UNREADABLE.fullmatch(name))
        draft.add(nvswitch, kind="switch", family="nvswitch", extra={"members": known} if known else {})
    _note_odd_counts(draft, links, gpus)
    return links


def _counts(draft: Draft, gpu: Gpu, nvswitch: str) -> dict[tuple[str, str], dict[str, int]]:
    """How many links a GPU has, by (device, kind), each by the address that the file names."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for element in gpu.element:
        if element.tag not in ("nvlink", "xgmi"):
            continue
        count = element.integer("count", 1, most=_MAX_LINKS) or 0
        address = (element.get("target") or "").lower()
        target = _target(draft, gpu, element, address, nvswitch)
        if target is not None and count:
            addresses = found.setdefault((target, element.tag), {})
            addresses[address] = addresses.get(address, 0) + count
    return found


def _target(draft: Draft, gpu: Gpu, element: Element, address: str, nvswitch: str) -> str | None:
    """The device at the other end, None where the file does not tell. Decided by the target's class, as in NCCL."""
    if address == gpu.bus_id:
        draft.notes.add(gpu.id, f"its {element.tag} has the GPU itself as target, which tells no peer; left out")
        return None
    peer = draft.gpu_by_bus.get((gpu.place.host, address))
    readable = address and not _UNREADABLE.fullmatch(address)
    if readable and (has_class(element, GPU_CLASSES, "tclass") or (peer and not element.get("tclass"))):
        if peer is None:
            draft.notes.add(gpu.id, f"its {element.tag} leads to {address}, a GPU that is not in the file; left out")
        return peer
    if has_class(element, (CPU_CLASS,), "tclass"):
        return gpu.place.cpu
    if not readable and (gpu.id, nvswitch) not in draft.told:
        draft.notes.add(gpu.id, "the target of its NVLinks is not readable; taken for an NVSwitch, as NCCL does")
    return nvswitch


def _rate_GBps(draft: Draft, gpu: Gpu, kind: str, target: str) -> Fraction:
    doubtful = (gpu.id, target) not in draft.told
    if kind == "xgmi":
        if gpu.element.get("gcn") is None and doubtful:
            draft.notes.add(gpu.id, "no gcn attribute; its xGMI links are counted as the slowest ones")
        return xgmi_counted_GBps(gpu.element.get("gcn") or "")
    sm = gpu.element.integer("sm", None, most=10_000)
    if sm is None and doubtful:
        draft.notes.add(gpu.id, "no sm attribute; its NVLinks are counted as those of sm 80")
    return nvlink_counted_GBps(sm)


def _c2c(gpu: Gpu) -> Iterator[Link]:
    for element in gpu.element:
        if element.tag != "c2c" or gpu.place.cpu is None:
            continue
        count = element.integer("count", 1, most=_MAX_LINKS) or 0
        rate = c2c_GBps(element.integer("bw", 0, most=_MAX_C2C) or 0, count)
        if rate:
            link = Link(gpu.id, gpu.place.cpu, rate, LATENCY_us["c2c"], "c2c", count, "bw x count of the c2c element")
            yield from both_ways(link)


def _note_odd_counts(draft: Draft, links: list[Link], gpus: list[Gpu]) -> None:
    """Links that are told from one side only or differently from both, and GPUs with fewer links than their peers."""
    ids = {gpu.id for gpu in gpus}
    counts = {(x.src, x.dst): x.count for x in links if x.kind != "c2c" and (x.src, x.dst) not in draft.told}
    for (a, b), count in counts.items():
        back = counts.get((b, a))
        if back is None and (b, a) not in draft.told:
            draft.notes.add(f"{a} -> {b}", "told by one side only; taken as one direction, as the file says")
        elif back is not None and back < count and {a, b} <= ids:
            draft.notes.add(f"{a} -> {b}", f"{count} links one way but {back} the other")
    if draft.told:
        return
    totals = {gpu.id: sum(n for (a, _), n in counts.items() if a == gpu.id) for gpu in gpus}
    most = max(totals.values(), default=0)
    for name, total in totals.items():
        if total < most:
            draft.notes.add(name, f"has {total} NVLink or xGMI links where the best connected GPU has {most}")


def pci_links(draft: Draft) -> Iterator[Link]:
    """Links between two PCI bridges beside the tree, one direction for each pcilink element."""
    for host, bridge, element in draft.pcilinks:
        address = (element.get("target") or "").lower()
        target = draft.bridge_by_bus.get((host, address))
        if target is None or target == bridge:
            draft.notes.add(
                bridge, f"its pcilink leads to {address or 'nowhere'}, no other bridge in the file; left out"
            )
            continue
        source = "pcilink, which NCCL counts as limiting nothing"
        yield Link(bridge, target, LOCAL_GBps, LATENCY_us["pcie"], "pcie", 1, source, {"element": "pcilink"})
