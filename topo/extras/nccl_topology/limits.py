"""Check files against the limits of NCCL's and RCCL's own parsers before they are written.

The limits, and the attributes that the libraries add, are those of NCCL 2.30 and RCCL (graph/xml.h,
graph/xml.cc, graph/topo.cc, graph/topo.h). Elements with unknown names are skipped with all
elements below them and do not count; attributes with unknown names count like others. The names of
elements and attributes that topoplan adds begin with TOPOPLAN_PREFIX.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import InputError
from ...formats.nccl_xml.partial_topology import TOPOPLAN_PREFIX
from ...formats.safe_xml import Element
from .xml_tree import quote

# Longest attribute value, as written between the quotes: neither parser decodes entities.
MAX_VALUE_bytes = 253
# Attributes of one element, including those that the library adds (MAX_ATTR_COUNT).
MAX_ATTRIBUTES = 16


@dataclass(frozen=True)
class Dialect:
    """The limits of NCCL or RCCL (`name`) on a file that it loads.

    `elements` is the most in the file, `children` the most right below one element, `of_a_kind` the
    most with one tag (gpu, pci, cpu or net).
    """

    name: str
    elements: int
    children: int
    of_a_kind: int


NCCL = Dialect("NCCL", 255, 640, 640)
RCCL = Dialect("RCCL", 8191, 512, 64)

# Attributes that the libraries write themselves, over those that the parser read and without
# checking for room.
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
_INTEGER_RANGES: Mapping[str, range] = {
    "dev": range(10**6 + 1),
    "sm": range(10_001),
    "familyid": range(-1, 10**9 + 1),
    "modelid": range(-1, 10**9 + 1),
    "speed": range(-1, 10**9 + 1),
    "link_width": range(65),
    "gdr": range(10**6 + 1),
    "mlopart": range(-1, 2),
}
_NUMBER = re.compile(r"-?[0-9]{1,11}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
_MASK = re.compile(r"[0-9a-fA-F]{1,8}(?:,[0-9a-fA-F]{1,8})*")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def fits(value: str) -> bool:
    """Return whether a text can be an attribute's value: XML allows it, and it is short enough."""
    return not _NOT_XML.search(value) and len(quote(value).encode()) - 2 <= MAX_VALUE_bytes


def select_attributes(tag: str, values: Mapping[str, Any], *without: str) -> dict[str, str]:
    """Return the `values` that can be attributes of a `tag` element, as text.

    `tag` is cpu, pci, gpu or net; the keys of `values` are names of attributes. Left out are the
    keys in `without`, `keep` and `busid`, names and values that the libraries cannot read, and what
    exceeds an element's room; some of it is reserved for attributes that the libraries and topoplan
    add.
    """
    room = MAX_ATTRIBUTES - len(_FILLED_IN[tag]) - _TOPOPLAN_ATTRIBUTES[tag]
    out: dict[str, str] = {}
    for key, value in values.items():
        text = str(int(value) if isinstance(value, bool) else value)
        is_extra = key not in _FILLED_IN[tag]
        if (
            # `keep` decides which elements NCCL discards; a `busid` moves the NVLinks below it
            key not in (*without, "keep", "busid")
            and isinstance(value, (str, int, float))
            and _NAME.fullmatch(key)
            and not key.startswith(TOPOPLAN_PREFIX)
            and fits(text)
            and _is_readable(key, text)
            and (room or not is_extra)
        ):
            room -= is_extra
            out[key] = text
    if ("familyid" in out) != ("modelid" in out):  # the libraries fill in both or none
        out.pop("familyid", None)
        out.pop("modelid", None)
    return out


def _is_readable(key: str, text: str) -> bool:
    """Return whether the libraries can read an attribute: a mask, or an integer in its range."""
    if key == "affinity":
        return _MASK.fullmatch(text) is not None
    numbers = _INTEGER_RANGES.get(key)
    return numbers is None or (_NUMBER.fullmatch(text) is not None and int(text) in numbers)


def check_limits(
    root: Element, name: str, dialect: Dialect, gpu_addresses: Iterable[tuple[str, str]]
) -> None:
    """Raise InputError if the library of `dialect` would not load the file with the element `root`.

    The check covers its size, its values and the PCI addresses of GPUs. `name` is the topology's
    name in errors; `gpu_addresses` are pairs (GPU id, PCI address).
    """
    elements = [node for node in root.walk() if not node.tag.startswith(TOPOPLAN_PREFIX)]
    keep = f"{dialect.name} would not load the file; keep the topology as JSON"
    if len(elements) > dialect.elements:
        raise InputError(
            f"topology {name!r} takes {len(elements)} XML elements, more than the "
            f"{dialect.elements} that {dialect.name} reads of a file; keep it as JSON"
        )
    widest = max(elements, key=lambda node: len(node.children))
    if sum(not child.tag.startswith(TOPOPLAN_PREFIX) for child in widest) > dialect.children:
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
                    f"<{node.tag}> is longer than {MAX_VALUE_bytes} bytes or has characters that "
                    f"XML cannot hold; {keep}"
                )
    for gpu, address in gpu_addresses:
        if dialect is NCCL and int(address[-1], 16) % 4:
            raise InputError(
                f"{gpu!r:.40} is at {address}: NCCL takes GPUs at PCI functions 0, 4, 8 and c "
                f"only; {keep}"
            )
