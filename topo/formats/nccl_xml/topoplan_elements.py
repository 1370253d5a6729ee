"""Reading NCCL's and RCCL's XML: the elements that topoplan adds for what the format itself cannot say."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from ...exact import parse_fraction
from ...graph import Device, Link
from ..safe_xml import Element
from .partial_topology import OWN

_MOST_OWN = 10**18


def apply_own(root: Element, devices: list[Device], links: list[Link]) -> tuple[list[Device], list[Link]]:
    """Lay topoplan's own elements over what was read: devices to add or correct, links to add, replace or drop (0)."""
    by_id = {d.id: d for d in devices}
    told: list[Link] = []
    replaced: set[tuple[str, str]] = set()
    for element in root:
        if element.tag == OWN + "device":
            name = element.get("id") or ""
            by_id[name] = _own_device(element, by_id.get(name) or Device(name or "?", element.get("kind") or "switch"))
        elif element.tag == OWN + "link":
            src, dst = element.get("src") or "", element.get("dst") or ""
            replaced.add((src, dst))
            rate = _own_fraction(element, "GBps")
            if rate:
                kind, count = element.get("kind") or "link", element.integer("count", 1, 1, _MOST_OWN) or 1
                told.append(Link(src, dst, rate, _own_fraction(element, "us"), kind, count))
    return list(by_id.values()), [x for x in links if (x.src, x.dst) not in replaced] + told


def _own_device(element: Element, device: Device) -> Device:
    return replace(
        device,
        kind=element.get("kind") or device.kind,
        family=element.get("family"),
        numa_node=element.integer("numa_node", None, -_MOST_OWN, _MOST_OWN),
        bus_id=element.get("bus_id"),
        can_reduce=element.get("can_reduce") == "1",
        can_copy=element.get("can_copy") == "1",
    )


def _own_fraction(element: Element, key: str) -> Fraction:
    try:
        return parse_fraction(element.get(key))
    except ValueError:
        raise element.error(f"{key}={(element.get(key) or '')[:40]!r}: expected a number") from None
