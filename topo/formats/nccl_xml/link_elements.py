"""Read the links outside the PCI tree in NCCL's and RCCL's XML.

These are NVLink, xGMI, C2C and pcilink elements, at the rates that the libraries count, and the
elements that topoplan adds for properties that the format itself cannot express. What has been read
of a file so far is in a PartialTopology, with notes on doubts about the file.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from ...boards import has_nvlink, nvlink_generation
from ...exact import parse_fraction
from ...graph import Device, Link, both_directions
from ...hardware import (
    LATENCY_us,
    LOCAL_GBps,
    c2c_GBps,
    nvlink_counted_GBps,
    nvswitch_adding,
    xgmi_counted_GBps,
)
from ...notes import counted
from ..safe_xml import Element
from .partial_topology import (
    CPU_CLASS,
    GPU_CLASSES,
    TOPOPLAN_PREFIX,
    GpuElement,
    PartialTopology,
    has_class,
)

# Addresses that NCCL writes if it could not query one: fffffff:ff:ff.0.
_UNREADABLE = re.compile(r"f+:f+:f+\.[0f]", re.IGNORECASE)
# Bounds on numbers in files, far above those of any machine, that keep products printable.
_MAX_LINKS = 10_000
_MAX_C2C_MBps = 10**9
_MAX_SM = 10_000
_MAX_NUMBER = 10**18
# The smallest boards with NVLink, such as HGX A100 4-GPU; fewer GPUs may be cards without a bridge.
_MIN_BOARD_GPUS = 4


def read_gpu_links(partial: PartialTopology, gpus: list[GpuElement], nvswitch: str) -> list[Link]:
    """Return the NVLink, xGMI and C2C links of `gpus`, in their order.

    If any GPU is linked to NVSwitches, add one device with the id `nvswitch` for all of them to
    `partial`. Doubts, such as links without a known end, become its notes.
    """
    links: list[Link] = []
    peers = {gpu.id for gpu in gpus}
    targets: set[str] = set()
    for gpu in gpus:
        links += _read_c2c_links(gpu)
        for (end, kind), counts in _count_links(partial, gpu, nvswitch).items():
            count = sum(counts.values())
            link = Link(
                gpu.id,
                end,
                count * _get_rate_GBps(partial, gpu, kind, end),
                LATENCY_us[kind],
                kind,
                count,
                counted(f"{count} x {kind}", "RCCL" if kind == "xgmi" else "NCCL"),
            )
            if end == nvswitch:
                targets |= counts.keys()
                link = replace(
                    link, latency_us=LATENCY_us["nvswitch"], extra={"targets": dict(counts)}
                )
            # a GPU at the other end lists the link back itself; a switch or CPU has no element
            links += (link,) if end in peers else both_directions(link)
    if targets:
        _add_nvswitch(partial, gpus, nvswitch, links, targets)
    _note_odd_counts(partial, links, gpus)
    return links


def _add_nvswitch(
    partial: PartialTopology,
    gpus: list[GpuElement],
    nvswitch: str,
    links: list[Link],
    targets: set[str],
) -> None:
    """Add the one device that represents all NVSwitches.

    The generation of the oldest GPU decides whether the switches can add data.
    """
    counts = {link.src: link.count for link in links if link.dst == nvswitch}
    generations = (
        nvlink_generation(sm) for gpu in gpus if gpu.id in counts and (sm := gpu.read_sm(_MAX_SM))
    )
    members = sorted(name for name in targets if not _UNREADABLE.fullmatch(name))
    partial.add(
        nvswitch,
        kind="switch",
        family="nvswitch",
        extra={"members": members} if members else {},
        in_network=nvswitch_adding(min(generations, default=None), max(counts.values())),
    )


def _count_links(
    partial: PartialTopology, gpu: GpuElement, nvswitch: str
) -> dict[tuple[str, str], Counter[str]]:
    """Count a GPU's links by (device, kind), then by the address that the file names."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for element in gpu.element.select("nvlink", "xgmi"):
        count = element.get_integer("count", 1, maximum=_MAX_LINKS) or 0
        address = (element.get("target") or "").lower()
        end = _find_end(partial, gpu, element, address, nvswitch)
        if end is not None and count:
            counts.setdefault((end, element.tag), Counter())[address] += count
    return counts


def _find_end(
    partial: PartialTopology, gpu: GpuElement, element: Element, address: str, nvswitch: str
) -> str | None:
    """Return the device at a link's other end, None if it is unknown.

    The target's class decides, as in NCCL.
    """
    if address == gpu.bus_id:
        doubt = f"its {element.tag} has the GPU itself as target, so its peer is unknown; left out"
        partial.notes.add(gpu.id, doubt, "link-without-peer", element.tag)
        return None
    peer = partial.gpu_by_bus.get((gpu.position.host, address))
    is_readable = address and not _UNREADABLE.fullmatch(address)
    is_gpu = has_class(element, GPU_CLASSES, "tclass") or (peer and not element.get("tclass"))
    if is_readable and is_gpu:
        if peer is None:
            doubt = f"its {element.tag} leads to {address}, a GPU that is not in the file; left out"
            partial.notes.add(gpu.id, doubt, "link-without-peer", element.tag)
        return peer
    if has_class(element, (CPU_CLASS,), "tclass"):
        return gpu.position.cpu
    if not is_readable and (gpu.id, nvswitch) not in partial.exact_pairs:
        partial.notes.add(
            gpu.id, "the target of its NVLinks is not readable; taken for an NVSwitch, as NCCL does"
        )
    return nvswitch


def _get_rate_GBps(partial: PartialTopology, gpu: GpuElement, kind: str, end: str) -> Fraction:
    """Return the rate of one NVLink or xGMI link of a GPU in GB/s; note an unknown architecture."""
    if kind == "xgmi":
        gcn = gpu.element.get("gcn")
        rate, is_known = xgmi_counted_GBps(gcn or ""), gcn is not None
        doubt = "no gcn attribute; its xGMI links are counted as the slowest ones"
    else:
        sm = gpu.read_sm(_MAX_SM)
        rate, is_known = nvlink_counted_GBps(sm), sm is not None
        doubt = "no sm attribute; its NVLinks are counted as those of sm 80"
    if not is_known and (gpu.id, end) not in partial.exact_pairs:
        partial.notes.add(gpu.id, doubt)
    return rate


def _read_c2c_links(gpu: GpuElement) -> Iterator[Link]:
    cpu, source = gpu.position.cpu, "bw x count of the c2c element"
    for element in gpu.element.select("c2c") if cpu is not None else ():
        count = element.get_integer("count", 1, maximum=_MAX_LINKS) or 0
        rate = c2c_GBps(element.get_integer("bw", 0, maximum=_MAX_C2C_MBps) or 0, count)
        if rate and cpu is not None:
            yield from both_directions(
                Link(gpu.id, cpu, rate, LATENCY_us["c2c"], "c2c", count, source)
            )


def _note_odd_counts(partial: PartialTopology, links: list[Link], gpus: list[GpuElement]) -> None:
    """Note unexpected numbers of links.

    These are links that only one end lists or that differ by direction, and GPUs with fewer links
    than others.
    """
    counts = {
        (x.src, x.dst): x.count
        for x in links
        if x.kind != "c2c" and (x.src, x.dst) not in partial.exact_pairs
    }
    ids = [gpu.id for gpu in gpus]
    for (a, b), count in counts.items():
        back = counts.get((b, a))
        if back is None and (b, a) not in partial.exact_pairs:
            partial.notes.add(
                f"{a} -> {b}", "only one end lists it; taken as one direction, as the file says"
            )
        elif back is not None and back < count and {a, b} <= set(ids):
            partial.notes.add(f"{a} -> {b}", f"{count} links in one direction, {back} in the other")
    totals = {name: sum(n for (a, _), n in counts.items() if a == name) for name in ids}
    most = max(totals.values(), default=0)
    for name, total in totals.items():
        if total < most and not partial.exact_pairs:
            partial.notes.add(
                name, f"has {total} NVLink or xGMI links; the best connected GPU has {most}"
            )


def read_pci_links(partial: PartialTopology) -> Iterator[Link]:
    """Yield a link, in one direction, for each pcilink element: from one PCI bridge to another.

    Elements that lead to no other bridge of the file are noted and left out.
    """
    for host, bridge, element in partial.pcilinks:
        address = (element.get("target") or "").lower()
        end = partial.bridge_by_bus.get((host, address))
        if end is not None and end != bridge:
            yield Link(
                bridge,
                end,
                LOCAL_GBps,
                LATENCY_us["pcie"],
                "pcie",
                source="pcilink, which NCCL counts as limiting nothing",
                extra={"element": "pcilink"},
            )
        else:
            partial.notes.add(
                bridge,
                f"its pcilink leads to {address or 'nowhere'}, no other bridge in the file; left "
                "out",
            )


def note_missing_links(partial: PartialTopology, gpus: list[GpuElement]) -> None:
    """Note which of `gpus` should have NVLink or xGMI links, if a file gives none to any GPU.

    They are those with nvlink or xgmi elements, whose peers are all unknown. If no GPU has such
    elements, they are those whose model has such links.
    """
    lost = [gpu.id for gpu in gpus if gpu.element.select("nvlink", "xgmi")]
    for name in lost:
        partial.notes.add(
            name,
            "all peers of its NVLink or xGMI links are unknown, so all is judged and planned "
            "without them",
            kind="nvlinks-left-out",
        )
    if lost:
        return
    if any(gpu.board is not None for gpu in gpus):
        boards = {gpu.id: gpu.board for gpu in gpus}
        partial.notes.add_missing_links(boards, "NCCL and RCCL find them by themselves")
        return
    first = gpus[0].element
    sm = first.get("sm") or ""
    if (
        len(gpus) >= _MIN_BOARD_GPUS
        and first.get("gcn") is None
        and has_nvlink(int(sm) if sm.isdecimal() and len(sm) < 5 else None)
    ):
        partial.notes.add(
            f"{len(gpus)} GPUs of sm {first.get('sm')}",
            "the file has no nvlink elements; if the machine has NVLink (NCCL finds it by "
            "itself), it is missing here",
            kind="no-nvlink-elements",
        )


# -- topoplan's own elements ---------------------------------------------------


def apply_topoplan_elements(
    root: Element, devices: list[Device], links: list[Link]
) -> tuple[list[Device], list[Link]]:
    """Return devices and links as topoplan's own elements below `root` correct them.

    An element changes or adds a device, or replaces all links from one device to another; a rate of
    0 only removes them. The given lists stay as they are.
    """
    by_id = {d.id: d for d in devices}
    for element in root.select(TOPOPLAN_PREFIX + "device"):
        name, kind = element.get("id") or "", element.get("kind")
        device = by_id.get(name) or Device(name or "?", kind or "switch")
        by_id[name] = replace(
            device,
            kind=kind or device.kind,
            family=element.get("family"),
            numa_node=element.get_integer("numa_node", None, -_MAX_NUMBER, _MAX_NUMBER),
            bus_id=element.get("bus_id"),
            can_reduce=element.get("can_reduce") == "1",
            can_copy=element.get("can_copy") == "1",
        )
    listed: list[Link] = []
    replaced: set[tuple[str, str]] = set()
    for element in root.select(TOPOPLAN_PREFIX + "link"):
        src, dst = element.get("src") or "", element.get("dst") or ""
        replaced.add((src, dst))
        if rate := _read_fraction(element, "GBps"):
            kind = element.get("kind") or "link"
            count = element.get_integer("count", 1, 1, _MAX_NUMBER) or 1
            listed.append(Link(src, dst, rate, _read_fraction(element, "us"), kind, count))
    return list(by_id.values()), [x for x in links if (x.src, x.dst) not in replaced] + listed


def _read_fraction(element: Element, key: str) -> Fraction:
    text = element.get(key)
    try:
        return parse_fraction(text)
    except ValueError:
        raise element.make_error(f"{key}={(text or '')[:40]!r}: expected a number") from None
