"""What a machine is, as far as communication goes: devices and directed links.

A `Topology` is frozen, exact (bandwidths and latencies are fractions) and carries where its facts came from.
Ranks are the GPUs in their order. Parallel links between the same two devices add up.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

from .errors import InputError
from .exact import fraction_to_json, load_json, parse_fraction

FORMAT = "topoplan-topology"
VERSION = 1
DEVICE_KINDS = ("gpu", "cpu", "switch", "nic")
SWITCH_FAMILIES = ("pcie", "nvswitch", "network")
DEFAULT_BANDWIDTH_GBps = Fraction(1)
DEFAULT_LATENCY_us = Fraction(7, 10)
MAX_DEVICES = 100_000
_INDIVIDUALISE_UP_TO = 64


@dataclass(frozen=True)
class Device:
    """A node of the graph.

    `kind` is one of DEVICE_KINDS; `family` says of which sort a switch is. `can_reduce` and `can_copy` say whether
    a switch adds or multiplies what passes through it (in-network computing); GPUs can always do both.
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
        if self.bandwidth_GBps <= 0:
            raise InputError(
                f"{where}: bandwidth_GBps is {float(self.bandwidth_GBps):g}; expected a number above 0 "
                "(leave a broken link out)"
            )
        if self.latency_us < 0:
            raise InputError(f"{where}: latency_us is {float(self.latency_us):g}; expected 0 or more")
        if self.count < 1:
            raise InputError(f"{where}: count is {self.count}; expected 1 or more")

    def reversed(self) -> Link:
        """The same link in the other direction."""
        return replace(self, src=self.dst, dst=self.src)


def both_ways(link: Link) -> tuple[Link, Link]:
    """A full-duplex cable: `link` and its reverse."""
    return link, link.reversed()


@dataclass(frozen=True)
class Topology:
    """Devices and directed links. Raises InputError where ids repeat, or a link names a device that is not there."""

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    source: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for device in self.devices:
            if device.id in seen:
                raise InputError(f"topology {self.name!r}: two devices are called {device.id!r}; ids must differ")
            seen.add(device.id)
        for link in self.links:
            for end in (link.src, link.dst):
                if end not in seen:
                    raise InputError(
                        f"topology {self.name!r}: link {link.src!r} -> {link.dst!r} names {end!r}, "
                        "which is not among the devices; add the device or correct the link"
                    )

    # -- views ---------------------------------------------------------------------------------------------------

    @cached_property
    def ranks(self) -> tuple[str, ...]:
        """Ids of the GPUs in their order; rank i is the i-th."""
        return tuple(d.id for d in self.devices if d.kind == "gpu")

    @cached_property
    def by_id(self) -> Mapping[str, Device]:
        """Device of each id."""
        return {d.id: d for d in self.devices}

    @cached_property
    def capacity_GBps(self) -> Mapping[tuple[str, str], Fraction]:
        """Bandwidth from one device to another over all parallel links, keyed (src, dst)."""
        total: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
        for link in self.links:
            total[link.src, link.dst] += link.bandwidth_GBps
        return dict(total)

    @cached_property
    def latency_us(self) -> Mapping[tuple[str, str], Fraction]:
        """Latency from one device to the next (the slowest of parallel links), keyed (src, dst)."""
        worst: dict[tuple[str, str], Fraction] = {}
        for link in self.links:
            key = link.src, link.dst
            worst[key] = max(worst.get(key, Fraction(0)), link.latency_us)
        return worst

    @cached_property
    def out_neighbours(self) -> Mapping[str, tuple[str, ...]]:
        """For each device, those it has a link to, in device order."""
        order = {d.id: i for i, d in enumerate(self.devices)}
        out: dict[str, list[str]] = {d.id: [] for d in self.devices}
        for src, dst in self.capacity_GBps:
            out[src].append(dst)
        return {src: tuple(sorted(dsts, key=order.__getitem__)) for src, dsts in out.items()}

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether every link has a reverse of the same bandwidth."""
        return all(self.capacity_GBps.get((b, a)) == c for (a, b), c in self.capacity_GBps.items())

    def reversed(self) -> Topology:
        """The same devices with every link turned round."""
        return replace(self, links=tuple(link.reversed() for link in self.links))

    # -- identity ------------------------------------------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits that do not depend on names, nor on the order in which devices and links are listed.

        Colour refinement (Weisfeiler-Leman) over device kinds, bandwidths and latencies; where it leaves devices
        alike, and there are not too many, each is singled out in turn and refined again. Equal machines have equal
        fingerprints; machines that differ in any bandwidth, latency or count differ in practice (graphs that this
        refinement cannot tell apart are strongly regular curiosities). A fingerprint does not see the rank order:
        a plan is replayed on the topology at hand as well.
        """
        return _fingerprint(self)

    # -- JSON ----------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The topology as the JSON object of the contract; `from_json` reads it back equal."""
        out: dict[str, Any] = {"format": FORMAT, "version": VERSION, "name": self.name}
        if self.source is not None:
            out["source"] = self.source
        out["devices"] = [_device_to_json(d) for d in self.devices]
        out["links"] = [_link_to_json(link, two_way) for link, two_way in _pair_up(self.links)]
        return {**_jsonable(self.extra), **out}

    def dumps(self) -> str:
        """`to_json` as text, a line a device and link."""
        data = self.to_json()
        lists = {key: data.pop(key) for key in ("devices", "links")}
        head = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in data.items()]
        for key, rows in lists.items():
            body = ",\n".join(f"    {json.dumps(row)}" for row in rows)
            head.append(f'  "{key}": [\n{body}\n  ]' if rows else f'  "{key}": []')
        return "{\n" + ",\n".join(head) + "\n}\n"

    @classmethod
    def from_json(cls, data: object, where: str = "topology") -> Topology:
        """Read the contract's JSON object (or text via `loads`). `where` names the file in errors (InputError)."""
        obj = _expect_object(data, where)
        if obj.get("format", FORMAT) != FORMAT:
            raise InputError(f'{where}: "format" is {obj["format"]!r}; expected {FORMAT!r}')
        if obj.get("version", VERSION) != VERSION:
            raise InputError(f'{where}: "version" is {obj["version"]!r}; this topoplan reads version {VERSION}')
        devices, links = obj.get("devices"), obj.get("links", [])
        if not isinstance(devices, list) or not devices:
            raise InputError(f'{where}: "devices" must be a list of at least one device')
        if not isinstance(links, list):
            raise InputError(f'{where}: "links" must be a list')
        if len(devices) > MAX_DEVICES or len(links) > 20 * MAX_DEVICES:
            raise InputError(
                f"{where}: {len(devices)} devices and {len(links)} links; more than {MAX_DEVICES} are refused"
            )
        known = {"format", "version", "name", "source", "devices", "links"}
        name, source = obj.get("name", where), obj.get("source")
        try:
            return cls(
                name=_expect_string(name, f"{where}: name"),
                devices=tuple(_device_from_json(d, f"{where}: devices[{i}]") for i, d in enumerate(devices)),
                links=tuple(x for i, d in enumerate(links) for x in _link_from_json(d, f"{where}: links[{i}]")),
                source=None if source is None else _expect_string(source, f"{where}: source"),
                extra=_jsonable({k: v for k, v in obj.items() if k not in known}),
            )
        except InputError as error:
            message = str(error)
            raise InputError(message if message.startswith(where) else f"{where}: {message}") from None

    @classmethod
    def loads(cls, text: str, where: str = "topology") -> Topology:
        """Read JSON text. Raises InputError with the line where the text breaks off."""
        try:
            return cls.from_json(load_json(text), where)
        except json.JSONDecodeError as error:
            raise InputError(f"{where}: not JSON at line {error.lineno}: {error.msg}; is the file whole?") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not usable JSON: {error}") from None

    @classmethod
    def load(cls, path: str | Path) -> Topology:
        """Read a JSON file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read: {error}") from None
        return cls.loads(text, str(path))


# -- fingerprint ---------------------------------------------------------------------------------------------------


def _digest(*parts: object) -> str:
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:32]


def _refine(colours: list[str], edges: list[list[tuple[int, str]]]) -> list[str]:
    """Colour refinement to the coarsest stable partition; `edges[v]` lists (other end, label)."""
    classes = len(set(colours))
    while True:
        colours = [
            _digest(colours[v], *sorted(f"{label}>{colours[u]}" for u, label in edges[v])) for v in range(len(colours))
        ]
        now = len(set(colours))
        if now == classes:
            return colours
        classes = now


def _fingerprint(topology: Topology) -> str:
    index = {d.id: i for i, d in enumerate(topology.devices)}
    edges: list[list[tuple[int, str]]] = [[] for _ in topology.devices]
    for (src, dst), capacity in topology.capacity_GBps.items():
        label = f"{capacity},{topology.latency_us[src, dst]}"
        edges[index[src]].append((index[dst], "out," + label))
        edges[index[dst]].append((index[src], "in," + label))
    start = [_digest(d.kind, d.family, d.can_reduce, d.can_copy) for d in topology.devices]
    colours = _refine(start, edges)
    views = sorted(colours)
    if len(set(colours)) < len(colours) <= _INDIVIDUALISE_UP_TO:
        for v in range(len(colours)):
            alone = list(colours)
            alone[v] = _digest(alone[v], "singled out")
            views.append(_digest(*sorted(_refine(alone, edges))))
    return _digest("topology", len(colours), *sorted(views))


# -- JSON of the parts ---------------------------------------------------------------------------------------------


def _jsonable(value: Any) -> Any:
    """Plain JSON values, Decimals (which `load_json` gives) as floats."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, Mapping):
        return {str(k): _jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(v) for v in value]
    return value


def _expect_object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: expected a JSON object, got {type(value).__name__}")
    return value


def _expect_string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}: expected a string, got {value!r:.40}")
    return value


def _expect_int(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{where}: expected a whole number, got {value!r:.40}")
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
    "kind": _expect_string,
    "family": _expect_string,
    "can_reduce": _expect_bool,
    "can_copy": _expect_bool,
    "numa_node": _expect_int,
    "bus_id": _expect_string,
    "source": _expect_string,
}
_LINK_FIELDS = {
    "bandwidth_GBps": _expect_fraction,
    "latency_us": _expect_fraction,
    "kind": _expect_string,
    "count": _expect_int,
    "source": _expect_string,
}


def _fields(obj: dict[str, Any], table: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {k: read(obj[k], f"{where}.{k}") for k, read in table.items() if obj.get(k) is not None}


def _device_from_json(data: object, where: str) -> Device:
    obj = _expect_object(data, where)
    extra = {k: v for k, v in obj.items() if k not in _DEVICE_FIELDS and k != "id"}
    ident = _expect_string(obj.get("id"), f"{where}.id")
    return Device(id=ident, extra=_jsonable(extra), **_fields(obj, _DEVICE_FIELDS, where))


def _link_from_json(data: object, where: str) -> tuple[Link, ...]:
    obj = _expect_object(data, where)
    known = {*_LINK_FIELDS, "src", "dst", "bidirectional"}
    link = Link(
        src=_expect_string(obj.get("src"), f"{where}.src"),
        dst=_expect_string(obj.get("dst"), f"{where}.dst"),
        extra=_jsonable({k: v for k, v in obj.items() if k not in known}),
        **_fields(obj, _LINK_FIELDS, where),
    )
    two_way = _expect_bool(obj.get("bidirectional", False), f"{where}.bidirectional")
    return both_ways(link) if two_way else (link,)


def _device_to_json(device: Device) -> dict[str, Any]:
    out: dict[str, Any] = {"id": device.id, "kind": device.kind}
    if device.kind == "switch":
        out |= {"can_reduce": device.can_reduce, "can_copy": device.can_copy}
    for key in ("family", "numa_node", "bus_id", "source"):
        if getattr(device, key) is not None:
            out[key] = getattr(device, key)
    for key in ("can_reduce", "can_copy"):
        if getattr(device, key):
            out[key] = True
    return {**out, **_jsonable(device.extra)}


def _link_to_json(link: Link, two_way: bool) -> dict[str, Any]:
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
    return {**out, **_jsonable(link.extra)}


def _pair_up(links: Iterable[Link]) -> list[tuple[Link, bool]]:
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
