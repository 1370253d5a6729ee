"""Read the elements that topoplan adds to NCCL's and RCCL's XML for what the format itself cannot
say.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from ...exact import parse_fraction
from ...graph import Device, Link
from ..safe_xml import Element
from .partial_topology import TOPOPLAN_PREFIX

_MOST_COUNT = 10**18


def apply_topoplan_elements(
    root: Element, devices: list[Device], links: list[Link]
) -> tuple[list[Device], list[Link]]:
    """Return the devices and links that were read, corrected by topoplan's own elements; a rate of
    0 drops a link.
    """
    by_id = {d.id: d for d in devices}
    listed: list[Link] = []
    replaced: set[tuple[str, str]] = set()
    for element in root:
        if element.tag == TOPOPLAN_PREFIX + "device":
            name = element.get("id") or ""
            by_id[name] = _read_device(
                element, by_id.get(name) or Device(name or "?", element.get("kind") or "switch")
            )
        elif element.tag == TOPOPLAN_PREFIX + "link":
            src, dst = element.get("src") or "", element.get("dst") or ""
            replaced.add((src, dst))
            rate = _read_fraction(element, "GBps")
            if rate:
                kind, count = (
                    element.get("kind") or "link",
                    element.get_integer("count", 1, 1, _MOST_COUNT) or 1,
                )
                listed.append(Link(src, dst, rate, _read_fraction(element, "us"), kind, count))
    return list(by_id.values()), [x for x in links if (x.src, x.dst) not in replaced] + listed


def _read_device(element: Element, device: Device) -> Device:
    """Return `device` with the fields that a topoplan_device element gives."""
    return replace(
        device,
        kind=element.get("kind") or device.kind,
        family=element.get("family"),
        numa_node=element.get_integer("numa_node", None, -_MOST_COUNT, _MOST_COUNT),
        bus_id=element.get("bus_id"),
        can_reduce=element.get("can_reduce") == "1",
        can_copy=element.get("can_copy") == "1",
    )


def _read_fraction(element: Element, key: str) -> Fraction:
    """Return an attribute as an exact number. Raises InputError where it is none."""
    try:
        return parse_fraction(element.get(key))
    except ValueError:
        raise element.make_error(
            f"{key}={(element.get(key) or '')[:40]!r}: expected a number"
        ) from None
