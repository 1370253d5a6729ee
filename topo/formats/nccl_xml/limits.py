"""Limits of NCCL's and RCCL's own parsers, and the attributes that they add: what they would refuse
is not written.

From NCCL 2.30 and RCCL (graph/xml.h, graph/xml.cc, graph/topo.cc, graph/topo.h). Elements whose
names they do not know are skipped with all below them and count for nothing; attributes that they
do not know count like others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import InputError
from .partial_topology import TOPOPLAN_PREFIX
from .xml_tree import XmlNode, quote

# An attribute's value, as it stands between the quotes, since neither parser decodes entities.
LONGEST_VALUE_bytes = 253

MOST_ATTRIBUTES = 16


@dataclass(frozen=True)
class Dialect:
    """Limits of one library: elements in a file, elements below one, GPUs or other elements of one
    tag.
    """

    name: str
    elements: int
    children: int
    of_a_kind: int


NCCL = Dialect("NCCL", 255, 640, 640)
RCCL = Dialect("RCCL", 8191, 512, 64)

# Attributes that the libraries write themselves, over what the parser read and without asking for
# room.
_FILLED_IN: Mapping[str, tuple[str, ...]] = {
    "cpu": ("host_hash", "numaid", "affinity", "arch", "vendor", "familyid", "modelid"),
    "pci": (
        *("busid", "class", "vendor", "device", "subsystem_vendor", "subsystem_device"),
        *("link_speed", "link_width"),
    ),
    "gpu": ("dev", "sm", "rank", "gdr", "mlopart", "gcn", "arch", "keep"),
    "net": (
        *("name", "dev", "latency", "speed", "port", "rail", "plane", "guid"),
        *("maxconn", "gdr", "net", "coll", "gin", "rma", "keep"),
    ),
}

_TOPOPLAN_ATTRIBUTES: Mapping[str, int] = {"cpu": 2, "pci": 3, "gpu": 2, "net": 1}
_NOT_WRITTEN = (
    "keep",
    "busid",
)  # keep decides what is thrown away; a busid anywhere moves the NVLinks of what is below
_INTEGER_RANGES: Mapping[str, tuple[int, int]] = {
    "dev": (0, 10**6),
    "sm": (0, 10_000),
    "familyid": (-1, 10**9),
    "modelid": (-1, 10**9),
    "speed": (-1, 10**9),
    "link_width": (0, 64),
    "gdr": (0, 10**6),
    "mlopart": (-1, 1),
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
_MASK = re.compile(r"[0-9a-fA-F]{1,8}(?:,[0-9a-fA-F]{1,8})*")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def fits(value: str) -> bool:
    """Return whether a text can be an attribute's value."""
    return not _NOT_XML.search(value) and len(quote(value).encode()) - 2 <= LONGEST_VALUE_bytes


def select_attributes(tag: str, values: Mapping[str, Any], *without: str) -> dict[str, str]:
    """Return what of a device's `extra` can be attributes of a `tag` element, with room left for
    what the libraries add.
    """
    room = MOST_ATTRIBUTES - len(_FILLED_IN[tag]) - _TOPOPLAN_ATTRIBUTES[tag]
    out: dict[str, str] = {}
    for key, value in values.items():
        if (
            key in without
            or key in _NOT_WRITTEN
            or not isinstance(value, (str, int, float))
            or not _NAME.fullmatch(key)
        ):
            continue
        text = str(int(value) if isinstance(value, bool) else value)
        if key.startswith(TOPOPLAN_PREFIX) or not fits(text) or not _is_readable(key, text):
            continue
        if key not in _FILLED_IN[tag]:
            if not room:
                continue
            room -= 1
        out[key] = text
    if ("familyid" in out) != ("modelid" in out):  # the libraries fill in both or none
        out.pop("familyid", None)
        out.pop("modelid", None)
    return out


def _is_readable(key: str, text: str) -> bool:
    """Return whether the libraries read an attribute's text as they mean to: a mask, a whole number
    in its range.
    """
    if key == "affinity":
        return _MASK.fullmatch(text) is not None
    least, most = _INTEGER_RANGES.get(key, (None, None))
    if least is None or most is None:
        return True
    return (
        text.isascii()
        and text.lstrip("-").isdigit()
        and len(text) < 12
        and least <= int(text) <= most
    )


def check_limits(
    root: XmlNode, name: str, dialect: Dialect, gpu_addresses: Iterable[tuple[str, str]]
) -> None:
    """Raise InputError where the library would not load the file: its size, its values, where GPUs
    are.

    `gpu_addresses` are (GPU, address).
    """
    elements = [node for node in root.walk() if not node.tag.startswith(TOPOPLAN_PREFIX)]
    keep = f"{dialect.name} would not load the file; keep the topology as JSON"
    if len(elements) > dialect.elements:
        raise InputError(
            f"topology {name!r} takes {len(elements)} XML elements, more than the "
            f"{dialect.elements} that "
            f"{dialect.name} reads of a file; keep it as JSON"
        )
    widest = max(elements, key=lambda node: len(node.children))
    if (
        sum(not child.tag.startswith(TOPOPLAN_PREFIX) for child in widest.children)
        > dialect.children
    ):
        raise InputError(
            f"topology {name!r}: more than {dialect.children} elements below one <{widest.tag}>; "
            f"{keep}"
        )
    tag, count = Counter(node.tag for node in elements).most_common(1)[0]
    if tag in ("gpu", "pci", "cpu", "net") and count > dialect.of_a_kind:
        raise InputError(
            f"topology {name!r}: {count} <{tag}> elements, more than {dialect.of_a_kind}; {keep}"
        )
    for node in root.walk():
        for key, value in node.attributes.items():
            if not fits(value):
                raise InputError(
                    f"topology {name!r}: {key.removeprefix(TOPOPLAN_PREFIX)} {value[:40]!r} of "
                    f"<{node.tag}> is longer than "
                    f"{LONGEST_VALUE_bytes} bytes or has characters that XML cannot hold; {keep}"
                )
    for gpu, address in gpu_addresses:
        if dialect is NCCL and int(address[-1], 16) % 4:
            raise InputError(
                f"{gpu!r:.40} is at {address}: NCCL takes GPUs at PCI functions 0, 4, 8 and c "
                f"only; {keep}"
            )
