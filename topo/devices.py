"""The parts of a machine: devices, and links from one to another, with what a file may say of them in JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

from .errors import InputError
from .exact import fraction_to_json, parse_fraction

DEVICE_KINDS = ("gpu", "cpu", "switch", "nic")
SWITCH_FAMILIES = ("pcie", "nvswitch", "network")
DEFAULT_BANDWIDTH_GBps = Fraction(1)
DEFAULT_LATENCY_us = Fraction(7, 10)
_MOST = 10**9


@dataclass(frozen=True)
class Device:
    """A node of the graph.

    `kind` is one of DEVICE_KINDS; `family` says of which sort a switch is. `can_reduce` and `can_copy` say whether
    a switch adds or multiplies what passes through it (in-network computing, such as NVLink SHARP); one that can add can
    multiply, too, and GPUs can always do both.
    `source` says where the device is known from; `extra` keeps what else a file said of it.
    """

    id: str
    kind: str = "gpu"
    family: str | None = None
    can_reduce: bool = False
    can_copy: bool = False
    numa_node: int | None = None
    bus_id: str | None = None
    source: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not self.id:
            raise InputError("a device has an empty id; give every device a name of its own")
        if self.kind not in DEVICE_KINDS:
            raise InputError(
                f"device {self.id!r}: unknown kind {self.kind!r}; expected one of {', '.join(DEVICE_KINDS)}"
            )
        if self.can_reduce and not self.can_copy:
            object.__setattr__(self, "can_copy", True)
        if self.family is not None and self.family not in SWITCH_FAMILIES:
            raise InputError(
                f"device {self.id!r}: unknown family {self.family!r}; expected one of {', '.join(SWITCH_FAMILIES)}"
            )


@dataclass(frozen=True)
class Link:
    """One direction of a cable or bus, from `src` to `dst`: `bandwidth_GBps` (1e9 bytes a second) after `latency_us`.

    `kind` names the medium (nvlink, xgmi, pcie, smp, network, link ...), `count` how many lanes or bonded links it
    stands for (the bandwidth is of all of them together).
    """

    src: str
    dst: str
    bandwidth_GBps: Fraction = DEFAULT_BANDWIDTH_GBps
    latency_us: Fraction = DEFAULT_LATENCY_us
    kind: str = "link"
    count: int = 1
    source: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        where = f"link {self.src!r} -> {self.dst!r}"
        if self.src == self.dst:
            raise InputError(f"{where}: it ends where it starts; a link joins two different devices")
        if self.bandwidth_GBps.numerator <= 0:
            raise InputError(
                f"{where}: bandwidth_GBps is {float(self.bandwidth_GBps):g}; expected a number above 0 "
                "(leave a broken link out)"
            )
        if self.latency_us.numerator < 0:
            raise InputError(f"{where}: latency_us is {float(self.latency_us):g}; expected 0 or more")
        if self.count < 1:
            raise InputError(f"{where}: count is {self.count}; expected 1 or more")

    def reversed(self) -> Link:
        """The same link in the other direction."""
        rest = self.bandwidth_GBps, self.latency_us, self.kind, self.count, self.source, self.extra
        return Link(self.dst, self.src, *rest)


def both_ways(link: Link) -> tuple[Link, Link]:
    """A full-duplex cable: `link` and its reverse."""
    return link, link.reversed()


# -- JSON of the parts ---------------------------------------------------------------------------------------------


def jsonable(value: Any) -> Any:
    """Plain JSON values, Decimals (which `load_json` gives) as floats."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(v) for v in value]
    return value


def expect_object(value: object, where: str) -> dict[str, Any]:
    """A JSON object, or InputError naming `where`."""
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected a JSON object, got {type(value).__name__}")
    return value


def expect_string(value: object, where: str) -> str:
    """A string, or InputError naming `where`."""
    if not isinstance(value, str):
        raise InputError(f"{where}: expected a string, got {value!r:.40}")
    return value


def _expect_int(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{where}: expected a whole number, got {value!r:.40}")
    if abs(value) > _MOST:
        raise InputError(f"{where}: expected a whole number of at most {_MOST}")
    return value


def _expect_bool(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{where}: expected true or false, got {value!r:.40}")
    return value


def _expect_fraction(value: object, where: str) -> Fraction:
    try:
        return parse_fraction(value)
    except ValueError:
        raise InputError(f'{where}: expected a number (or a fraction such as "64/3"), got {value!r:.40}') from None


_DEVICE_FIELDS = {
    "kind": expect_string,
    "family": expect_string,
    "can_reduce": _expect_bool,
    "can_copy": _expect_bool,
    "numa_node": _expect_int,
    "bus_id": expect_string,
    "source": expect_string,
}
_LINK_FIELDS = {
    "bandwidth_GBps": _expect_fraction,
    "latency_us": _expect_fraction,
    "kind": expect_string,
    "count": _expect_int,
    "source": expect_string,
}


def _fields(obj: dict[str, Any], table: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {k: read(obj[k], f"{where}.{k}") for k, read in table.items() if obj.get(k) is not None}


def device_from_json(data: object, where: str) -> Device:
    """One of the contract's "devices"; fields it does not know are kept in `extra`."""
    obj = expect_object(data, where)
    extra = {k: v for k, v in obj.items() if k not in _DEVICE_FIELDS and k != "id"}
    ident = expect_string(obj.get("id"), f"{where}.id")
    return Device(id=ident, extra=jsonable(extra), **_fields(obj, _DEVICE_FIELDS, where))


def links_from_json(data: object, where: str) -> tuple[Link, ...]:
    """One of the contract's "links": two Links where it is bidirectional."""
    obj = expect_object(data, where)
    known = {*_LINK_FIELDS, "src", "dst", "bidirectional"}
    link = Link(
        src=expect_string(obj.get("src"), f"{where}.src"),
        dst=expect_string(obj.get("dst"), f"{where}.dst"),
        extra=jsonable({k: v for k, v in obj.items() if k not in known}),
        **_fields(obj, _LINK_FIELDS, where),
    )
    two_way = _expect_bool(obj.get("bidirectional", False), f"{where}.bidirectional")
    return both_ways(link) if two_way else (link,)


def device_to_json(device: Device) -> dict[str, Any]:
    """What `device_from_json` reads back equal."""
    out: dict[str, Any] = {"id": device.id, "kind": device.kind}
    if device.kind == "switch":
        out |= {"can_reduce": device.can_reduce, "can_copy": device.can_copy}
    for key in ("family", "numa_node", "bus_id", "source"):
        if getattr(device, key) is not None:
            out[key] = getattr(device, key)
    for key in ("can_reduce", "can_copy"):
        if getattr(device, key):
            out[key] = True
    return {**out, **jsonable(device.extra)}


def link_to_json(link: Link, two_way: bool) -> dict[str, Any]:
    """What `links_from_json` reads back equal; `two_way` stands for the link and its reverse."""
    out: dict[str, Any] = {
        "src": link.src,
        "dst": link.dst,
        "bandwidth_GBps": fraction_to_json(link.bandwidth_GBps),
        "latency_us": fraction_to_json(link.latency_us),
        "kind": link.kind,
    }
    if link.count != 1:
        out["count"] = link.count
    if link.source is not None:
        out["source"] = link.source
    out["bidirectional"] = two_way
    return {**out, **jsonable(link.extra)}


def pair_up(links: Iterable[Link]) -> list[tuple[Link, bool]]:
    """Adjacent (link, its reverse) become one two-way entry, so that the order of links survives a round trip."""
    out: list[tuple[Link, bool]] = []
    pending: Link | None = None
    for link in links:
        if pending is not None and link == pending.reversed():
            out.append((pending, True))
            pending = None
            continue
        if pending is not None:
            out.append((pending, False))
        pending = link
    if pending is not None:
        out.append((pending, False))
    return out
