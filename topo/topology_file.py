"""Declare the JSON format of a topology, and convert it to and from devices and links.

Unknown fields are stored in `extra` and written back, except slips of known ones, which are errors.
A null field takes its default.
"""

import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from .boards import FASTEST_NVLINK_GBps, count_nvlinks
from .devices import (
    Ability,
    DEFAULT_BANDWIDTH_GBps,
    DEFAULT_LATENCY_us,
    Device,
    DeviceKind,
    InNetwork,
    Link,
    SwitchFamily,
    both_directions,
)
from .errors import InputError
from .exact import fraction_to_json
from .notes import NoteFields, restore_notes
from .schema import MOST, Count, Identifier, Label, is_label, read_as
from .slips import check_slips

FORMAT = "topoplan-topology"
_PLAN_FORMAT = "topoplan-plan"
# Version of the format; increment it for changes that older versions of topoplan cannot read.
VERSION = 1
# Maximum number of devices and directed links in a file: enough for clusters of 16,384 GPUs, or for
# direct links between all pairs of 500 GPUs.
MAX_DEVICES = 50_000
MAX_LINKS = 300_000

# Lists that are written with one item per line, so that diffs of topologies are readable.
_LISTS = ("devices", "links", "notes", "facts", "measured", "gpudirect", "findings")
# Fields that topo-probe derives from others; reading a file ignores them.
_DERIVED = frozenset({"fingerprint", "gpudirect", "gpudirect_missing", "findings"})


class InNetworkFields(Struct):
    """Whether a switch can reduce data in the network; "possible" if the user must enable it."""

    reduce: Ability
    source: Annotated[Label | None, Meta(description="source of this answer")] = None


class DeviceFields(Struct):
    """A device; undeclared fields are preserved. The i-th GPU in the list is rank i."""

    id: Identifier
    kind: DeviceKind | None = "gpu"
    family: Annotated[SwitchFamily | None, Meta(description="family of a switch")] = None
    can_reduce: Annotated[
        bool | None, Meta(description="whether a switch adds the data that passes through it")
    ] = False
    can_copy: Annotated[
        bool | None, Meta(description="whether a switch multicasts the data that passes through it")
    ] = False
    in_network: Annotated[
        InNetworkFields | None, Meta(description="whether a switch could add data")
    ] = None
    numa_node: Annotated[int, Meta(ge=-MOST, le=MOST)] | None = None
    bus_id: Annotated[Label | None, Meta(description="PCI address, as in 0000:3b:00.0")] = None
    source: Annotated[Label | None, Meta(description="source of the device's data")] = None


class LinkFields(Struct):
    """A link from `src` to `dst`, or in both directions; undeclared fields are preserved.

    The bandwidths of parallel links add up.
    """

    src: Identifier
    dst: Identifier
    bandwidth_GBps: Annotated[
        Fraction | None,
        Meta(description="1e9 bytes per second in each direction, above 0; default 1"),
    ] = None
    latency_us: Annotated[
        Fraction | None, Meta(description="microseconds, 0 or more; default 0.7")
    ] = None
    kind: Annotated[
        Label | None, Meta(description="the medium: nvlink, xgmi, pcie, smp, network, ...")
    ] = "link"
    count: Annotated[
        Count | None,
        Meta(
            description="number of lanes or bonded links; the bandwidth is their sum; default 1, "
            "or as many NVLinks as a bandwidth above that of one takes"
        ),
    ] = None
    source: Annotated[Label | None, Meta(description="source of the link's data")] = None
    bidirectional: Annotated[
        bool, Meta(description="whether the link also runs from dst to src")
    ] = False


class TopologyFile(Struct):
    """Devices and links of a machine or cluster; undeclared fields are preserved."""

    devices: Annotated[list[DeviceFields], Meta(min_length=1, max_length=MAX_DEVICES)]
    links: Annotated[list[LinkFields], Meta(max_length=MAX_LINKS)] = []
    format: Literal["topoplan-topology"] = "topoplan-topology"
    version: Literal[1] = 1
    name: Label | UnsetType = UNSET
    source: Label | None = None
    note_kinds: Annotated[
        dict[str, NoteFields],
        Meta(description="fields of notes that programs act on, by the note's text"),
    ] = {}
    host: Annotated[
        Any,
        Meta(
            description="the hosts' costs of sending",
            extra_json_schema={"$ref": "host-costs.schema.json"},
        ),
    ] = UNSET


_DEVICE_FIELDS = frozenset(DeviceFields.__struct_fields__)
_LINK_FIELDS = frozenset(LinkFields.__struct_fields__)
_FIELDS = frozenset(TopologyFile.__struct_fields__) - {"host"} | _DERIVED


def read_topology_file(data: object, where: str) -> TopologyFile:
    """Return a topology's declared fields from its parsed JSON.

    Raise InputError, with `where` in its message, if `data` is not a topology or is too large.
    """
    if isinstance(data, dict):
        _check_format(data, where)
        _check_size(data, where)
        _check_slips(data, where)
    file = read_as(data, TopologyFile, where)
    assert isinstance(data, dict)
    _check_kept_names(data, where)
    for key in ("devices", "links"):
        for i, row in enumerate(data.get(key) or ()):
            _check_kept_names(row, f"{where}: {key}[{i}]")
    return file


def _check_format(data: dict[str, Any], where: str) -> None:
    """Check format and version first, since errors about another format's fields would mislead."""
    if data.get("format") == _PLAN_FORMAT:
        raise InputError(
            f"{where}: it is a plan, not a topology; use it with topo-run, or get its topology "
            "with topoplan.Plan.load(file).topology"
        )
    if data.get("format", FORMAT) != FORMAT:
        raise InputError(f'{where}: "format" is {data["format"]!r:.40}; expected {FORMAT!r}')
    if data.get("version", VERSION) != VERSION:
        raise InputError(
            f'{where}: "version" is {data["version"]!r:.40}; this topoplan reads version {VERSION}'
        )


def _check_size(data: dict[str, Any], where: str) -> None:
    devices, links = (
        rows if isinstance(rows, list) else [] for rows in (data.get("devices"), data.get("links"))
    )
    directed = sum(
        1 + (isinstance(row, dict) and row.get("bidirectional") is True) for row in links
    )
    if len(devices) > MAX_DEVICES or directed > MAX_LINKS:
        raise InputError(
            f"{where}: {len(devices)} devices and {directed} directed links; "
            f"more than {MAX_DEVICES} and {MAX_LINKS} are refused: describe a part of the machine"
        )


def _check_slips(data: dict[str, Any], where: str) -> None:
    """Refuse slips of known fields before the fields that they would leave at their defaults."""
    check_slips(data, _FIELDS, where)
    for key, known in (("devices", _DEVICE_FIELDS), ("links", _LINK_FIELDS)):
        rows = data.get(key)
        for i, row in enumerate(rows if isinstance(rows, list) else ()):
            if isinstance(row, dict):
                check_slips(row, known, f"{where}: {key}[{i}]")


def _check_kept_names(row: Mapping[str, Any], where: str) -> None:
    """Raise InputError for control characters in undeclared fields, which may be printed."""
    for key, value in row.items():
        for text in (key, value):
            if isinstance(text, str) and not is_label(text):
                raise InputError(
                    f"{where}: {key!r:.40}: expected a string without control characters, got "
                    f"{text!r:.40}"
                )


def read_parts(
    file: TopologyFile, data: Mapping[str, Any]
) -> tuple[tuple[Device, ...], tuple[Link, ...], dict[str, Any]]:
    """Return the devices, the directed links and the undeclared fields of a file.

    `file` is what `read_topology_file` returned for `data`, the parsed JSON. A bidirectional link
    becomes two. Raise InputError, without the file's name, for values that Device or Link refuses.
    """
    devices = tuple(
        Device(
            fields.id,
            fields.kind or "gpu",
            fields.family,
            bool(fields.can_reduce),
            bool(fields.can_copy),
            fields.numa_node,
            fields.bus_id,
            fields.source,
            _undeclared(row, _DEVICE_FIELDS),
            None
            if fields.in_network is None
            else InNetwork(fields.in_network.reduce, fields.in_network.source or ""),
        )
        for fields, row in zip(file.devices, data["devices"], strict=True)
    )
    links: list[Link] = []
    by_id = {device.id: device for device in devices}
    for joins, row in zip(file.links, data.get("links", ()), strict=True):
        GBps = DEFAULT_BANDWIDTH_GBps if joins.bandwidth_GBps is None else joins.bandwidth_GBps
        kind = "link" if joins.kind is None else joins.kind
        count = joins.count
        if count is None:
            ends = [by_id[end] for end in (joins.src, joins.dst) if end in by_id]
            count = _count_nvlinks(ends, GBps) if kind == "nvlink" else 1
        link = Link(
            joins.src,
            joins.dst,
            GBps,
            DEFAULT_LATENCY_us if joins.latency_us is None else joins.latency_us,
            kind,
            count,
            joins.source,
            _undeclared(row, _LINK_FIELDS),
        )
        links += both_directions(link) if joins.bidirectional else (link,)
    extra = _undeclared(data, _FIELDS)
    if "notes" in extra:
        extra["notes"] = restore_notes(extra["notes"], file.note_kinds)
    return devices, tuple(links), extra


def _count_nvlinks(ends: Iterable[Device], GBps: Fraction) -> int:
    gpu = next((end for end in ends if end.kind == "gpu"), None)
    return count_nvlinks(GBps, {} if gpu is None else gpu.extra)


def _undeclared(row: Mapping[str, Any], declared: frozenset[str]) -> dict[str, Any]:
    return {key: to_plain(value) for key, value in row.items() if key not in declared}


def to_plain(value: Any) -> Any:
    """Return JSON data as plain dicts, lists and strings, with Decimals converted to floats."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    return str(value) if isinstance(value, str) else value


def device_to_json(device: Device) -> dict[str, Any]:
    """Return the JSON object of a device, an item of "devices"."""
    out: dict[str, Any] = {"id": device.id, "kind": device.kind}
    if device.kind == "switch":
        out |= {"can_reduce": device.can_reduce, "can_copy": device.can_copy}
    if device.in_network is not None:
        source = {"source": device.in_network.source} if device.in_network.source else {}
        out["in_network"] = {"reduce": device.in_network.reduce, **source}
    others = {key: getattr(device, key) for key in ("family", "numa_node", "bus_id", "source")}
    out |= {key: value for key, value in others.items() if value is not None}
    out |= {key: True for key in ("can_reduce", "can_copy") if getattr(device, key)}
    return {**out, **to_plain(device.extra)}


def links_to_json(links: Iterable[Link]) -> list[dict[str, Any]]:
    """Return the items of "links"; a link followed by its reverse is one bidirectional item."""
    # Links are paired only with the next one, so that their order round-trips.
    paired: list[tuple[Link, bool]] = []
    for link in links:
        if paired and not paired[-1][1] and link == paired[-1][0].reversed():
            paired[-1] = (paired[-1][0], True)
        else:
            paired.append((link, False))
    return [
        {
            "src": link.src,
            "dst": link.dst,
            "bandwidth_GBps": fraction_to_json(link.bandwidth_GBps),
            "latency_us": fraction_to_json(link.latency_us),
            "kind": link.kind,
            **({"count": link.count} if _needs_count(link) else {}),
            **({} if link.source is None else {"source": str(link.source)}),
            "bidirectional": bidirectional,
            **to_plain(link.extra),
        }
        for link, bidirectional in paired
    ]


def _needs_count(link: Link) -> bool:
    """Return whether a reader may take another count than the link's if none is written."""
    return link.count != 1 or (link.kind == "nvlink" and link.bandwidth_GBps > FASTEST_NVLINK_GBps)


def to_text(data: dict[str, Any]) -> str:
    """Format a topology's JSON object with one line per device, link and fact."""
    rest = dict(data)
    lists = {key: rest.pop(key) for key in _LISTS if isinstance(rest.get(key), list)}
    fields = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in rest.items()]
    for key, rows in lists.items():
        body = ",\n".join(f"    {json.dumps(row)}" for row in rows)
        fields.append(f'  "{key}": [\n{body}\n  ]' if rows else f'  "{key}": []')
    return "{\n" + ",\n".join(fields) + "\n}\n"
