"""Read the machine that NCCL or RCCL prints in its log: the lines from "=== System" to "=====".

With NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=GRAPH each rank prints the graph of its host: the PCI
tree below each CPU, indented, and the links that leave it (NVL, XGMI, C2C, SYS, NET), each with the
rate in GB/s that the library counts. GPUs have their rank in parentheses. Since 2.30 they have none
and hang below a device (DEV), which has the links; ranks are then those of the lines "Init START".
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

from ...derived.hosts import join_hosts
from ...devices import UNCOUNTED
from ...errors import InputError
from ...formats.notes import Notes
from ...graph import Device, Link, Topology
from ...hardware import LATENCY_us, count_links, nvswitch_adding
from ...notes import counted

_START = re.compile(r"=== System : max(?:Bw|Width|Speed)\b")
_END = "=" * 20
_INIT = re.compile(r" rank (\d{1,7}) nranks (\d{1,7})\b.{0,200}? busId ([0-9a-fA-F]{1,16})\b")
_WRITER = re.compile(r"([\w.\-]+):\d+:\d+ \[-?\d+\]")
_LEVEL = "NCCL INFO "
# The beginning of a message; newer versions may have a time, file and line before the level.
_MESSAGE = re.compile(rf"([\w.\-]+)(:\d+:\d+ \[-?\d+\]) (?:[^\s\[\]]+ ){{0,3}}{_LEVEL}")
# A message that another rank's interrupts, after which its own lines follow.
_CUT_START = re.compile(r"=== System\b[ :]*$")
_LINE = re.compile(
    r"(?P<indent> *)(?:\+ (?P<link>[A-Z0-9]+)\[ *(?P<rate>\d{1,9}(?:\.\d{1,9})?)\] - )?"
    r"(?P<kind>CPU|GPU|PCI|DEV|NIC|NET|NVS)/(?:(?P<system>[0-9a-fA-F]{1,16})-)?"
    r"(?P<number>[0-9a-fA-F]{1,16})(?!-)(?: \((?P<rank>\d{1,7})\))?"
)
_LINK_KINDS = {"PCI": "pcie", "NVL": "nvlink", "XGMI": "xgmi", "C2C": "c2c", "SYS": "smp"}
_DEVICE_KINDS = {"CPU": "cpu", "NIC": "nic"}
# GB/s into NVSwitches above those of GPUs before Hopper (an A100: 12 links, counted as 20 each).
_BEFORE_HOPPER_GBps = 240
# Links of GPUs' and NICs' own devices, whose lines are below those.
_NEVER_BELOW_CPU = ("LOC", "NET")
# What NCCL counts between a DEV and its GPUs, which are one chip.
_INSIDE_GBps = Fraction(5000)
# Numbers of CPUs and NVSwitches are no PCI addresses.
_WITHOUT_ADDRESS = ("CPU", "NVS")


@dataclass
class _HostGraph:
    """What one rank prints of its host; devices and the ends of links by NCCL's names of them.

    `stack` has the devices above the next line, with their columns. `gpus_in` has the GPUs of each
    DEV, `rank_of` the ranks that the log tells by PCI address. `before` matches what stands in
    front of bare lines. `is_flat` is True if the lines have lost their indentation.
    """

    host: str
    before: re.Pattern[str] | None = None
    is_flat: bool = False
    rank_of: dict[int, int] = field(default_factory=dict)
    gpus_in: dict[str, list[str]] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    links: dict[tuple[str, str], tuple[str, Fraction]] = field(default_factory=dict)
    stack: list[tuple[int, str]] = field(default_factory=list)

    def count_gpus(self) -> int:
        """Return the number of GPUs that the graph has so far."""
        return sum(device.kind == "gpu" for device in self.devices.values())

    def count_parts(self) -> tuple[int, int]:
        """Return the numbers of GPUs and of links that the graph has so far."""
        return self.count_gpus(), len(self.links)


def looks_like(text: str) -> bool:
    """Return whether a text contains a machine as NCCL prints it."""
    return _START.search(text) is not None


def read(text: str, where: str) -> Topology:
    """Return the machine that a log describes: its hosts joined, GPUs in the order of ranks.

    If a host's graph is printed several times, the most complete one counts (most GPUs, then
    links), since ranks may interrupt each other's lines. Raise InputError, which names `where`, if
    none has a GPU.
    """
    best: dict[str, _HostGraph] = {}
    for graph in _read_graphs(text):
        if graph.host not in best or graph.count_parts() > best[graph.host].count_parts():
            best[graph.host] = graph
    graphs = [graph for graph in best.values() if graph.count_gpus()]
    if not graphs:
        raise InputError(
            f"{where}: NCCL's graph (=== System) lists no GPU; give the whole log of the start "
            "(NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH)"
        )
    notes = Notes()
    for graph in graphs:
        if graph.is_flat:
            raise InputError(
                f"{where}: the lines of NCCL's graph (=== System) have lost their indentation, "
                "which says what is below what; give them as they were printed"
            )
        _join_devs(graph)
        _number(graph, notes, where)
        _note_ends_outside(graph, notes)
    if shared := [graph.host for graph in graphs if _shares_ranks(graph, graphs)]:
        notes.add(
            ", ".join(shared),
            "their graphs have the same ranks, so they are of different communicators or jobs; "
            "joined as hosts of one network",
        )
    graphs.sort(key=lambda graph: min(graph.ranks.values()))
    hosts = [_build(graph, where) for graph in graphs]
    joined = hosts[0] if len(hosts) == 1 else join_hosts(hosts)
    lines = notes.format_lines()
    if not lines:
        return joined
    return replace(joined, extra={**joined.extra, "notes": [*joined.notes, *lines]})


def _read_graphs(text: str) -> list[_HostGraph]:
    """Return the graphs of all ranks, whose lines may be mixed; people also paste bare lines."""
    graphs: list[_HostGraph] = []
    current: dict[str, _HostGraph] = {}
    told: dict[str, dict[int, dict[int, int]]] = {}
    for line in text.splitlines():
        if not current and "busId" not in line and "=== System" not in line:
            continue
        for message in _split(line, current):
            if "busId" in line and (init := _INIT.search(message.said)) is not None:
                jobs = told.setdefault(message.host, {})
                jobs.setdefault(int(init[2]), {}).setdefault(int(init[3], 16), int(init[1]))
            elif (graph := _take_message(message, current)) is not None:
                graphs.append(graph)
    for graph in graphs:
        # The largest communicator of a host is that of all; others number a part anew.
        jobs = told.get(graph.host) or (told if len(told) == 1 else {}).get("") or {}
        graph.rank_of = jobs[max(jobs)] if jobs else {}
    return graphs


@dataclass(frozen=True)
class _Message:
    """A message of a line, its host and its thread; `is_cut` if another one interrupts it."""

    host: str
    key: str
    said: str
    is_cut: bool = False
    is_signed: bool = True


def _split(line: str, current: Collection[str]) -> Iterator[_Message]:
    """Yield the messages of a line, of which ranks that write at once make several.

    The end of an interrupted word may stand before the host's name: what ends in a thread of
    `current` is that thread's.
    """
    starts = list(_MESSAGE.finditer(line))
    if not starts:
        before, level, said = line.partition(_LEVEL)
        writer = _WRITER.search(before) if level else None
        host, key = (writer[1], writer[0]) if writer else ("", "")
        yield _Message(host, key, said if level else line, is_signed=bool(level))
    for at, start in enumerate(starts):
        is_cut = at + 1 < len(starts)
        said = line[start.end() : starts[at + 1].start() if is_cut else len(line)]
        key = start[1] + start[2]
        key = next((k for k in current if k and key.endswith(k)), key)
        yield _Message(key.removesuffix(start[2]), key, said, is_cut)


def _take_message(message: _Message, current: dict[str, _HostGraph]) -> _HostGraph | None:
    """Add what a message says to the graph of its thread; return the graph if it begins one."""
    said, key = message.said, message.key
    start = _START.search(said) or (_CUT_START.search(said) if message.is_cut else None)
    if start is not None:
        shape = None if message.is_signed else _match_like(said[: start.start()])
        current[key] = _HostGraph(message.host, before=shape)
        return current[key]
    if key not in current:
        # The end of an interrupted word may stand before the host's name in the header.
        damaged = next((k for k in current if k.endswith(key) and not current[k].devices), None)
        if damaged is None or not key:
            return None
        current[key] = current.pop(damaged)
        current[key].host = message.host
    before = current[key].before
    if before is not None and (matched := before.match(said)) is not None:
        said = said[matched.end() :]
    if _END in said:
        del current[key]
    # The number at the end of an interrupted message may be cut itself.
    elif (match := _LINE.match(said)) and not (message.is_cut and match.end() == len(said)):
        _take(current[key], match)
    return None


def _match_like(prefix: str) -> re.Pattern[str] | None:
    """Return a pattern for what stands before a line and, with other numbers, before others."""
    if not prefix.strip():
        return None
    spaces = len(prefix) - len(prefix.rstrip())
    shape = re.sub(r"\d+", r"\\d+", re.escape(prefix.strip()))
    return re.compile(rf"\s*{shape} {{0,{spaces}}}")


def _take(graph: _HostGraph, match: re.Match[str]) -> None:
    """Add the device or the link of one line."""
    kind, link, column = match["kind"], match["link"], len(match["indent"])
    system = match["system"] or "0"
    # All NVSwitches are one device, as for NCCL itself.
    name = f"{kind}/{system}-{'0' if kind == 'NVS' else match['number'].lower()}"
    if link is None:
        if kind == "CPU":
            graph.stack = [(column - 1, name)]
            graph.devices[name] = _make_device(match, name)
        return
    while graph.stack and graph.stack[-1][0] >= column:
        graph.stack.pop()
    if not graph.stack:
        return
    above, rate = graph.stack[-1][1], Fraction(match["rate"])
    if kind == "NET":
        nic = graph.devices[above]
        total = float(rate) + float(nic.extra.get("net_speed_GBps", 0))
        graph.devices[above] = replace(nic, extra={**nic.extra, "net_speed_GBps": total})
    graph.is_flat |= link in _NEVER_BELOW_CPU and above.startswith("CPU")
    if link == "LOC" and kind == "GPU":
        graph.gpus_in.setdefault(above, []).append(name)
        graph.devices.setdefault(name, _make_device(match, name))
    if link not in _LINK_KINDS or not rate:
        return
    graph.links.setdefault((above, name), (_LINK_KINDS[link], rate))
    if link == "PCI":
        graph.devices.setdefault(name, _make_device(match, name))
        graph.stack.append((column, name))
    if kind == "GPU" and match["rank"] is not None:
        graph.ranks[name] = int(match["rank"])
    elif kind == "NVS":
        adding = nvswitch_adding(4) if rate > _BEFORE_HOPPER_GBps else None
        graph.devices[name] = Device(f"nvswitch-{system}", "switch", "nvswitch", in_network=adding)


def _make_device(match: re.Match[str], name: str) -> Device:
    kind, number = match["kind"], int(match["number"], 16)
    bus = None
    if kind not in _WITHOUT_ADDRESS:
        parts = (number >> 20, number >> 12 & 255, number >> 4 & 255, number & 15)
        bus = "{:04x}:{:02x}:{:02x}.{:x}".format(*parts)
    if kind == "GPU":
        # Hosts in one NVLink domain are systems of one graph.
        host = {"host": f"system{match['system']}"} if match["system"] not in (None, "0") else {}
        return Device(name, bus_id=bus, extra=host)
    if kind in _DEVICE_KINDS:
        return Device(name.lower().replace("/", "-"), _DEVICE_KINDS[kind], bus_id=bus)
    return Device(name.lower().replace("/", "-"), "switch", "pcie", bus_id=bus)


def _join_devs(graph: _HostGraph) -> None:
    """Give the links of each DEV to its GPU; one of several GPUs stays, as a switch."""
    only = {dev: gpus[0] for dev, gpus in graph.gpus_in.items() if len(gpus) == 1}
    graph.links = {
        (only.get(src, src), only.get(dst, dst)): link for (src, dst), link in graph.links.items()
    }
    for dev in only:
        del graph.devices[dev]
    for dev, gpus in graph.gpus_in.items():
        if dev not in only:
            graph.links |= {(dev, gpu): ("pcie", _INSIDE_GBps) for gpu in gpus}


def _number(graph: _HostGraph, notes: Notes, where: str) -> None:
    """Complete the ranks of a graph's GPUs, which are called after them.

    They are those of the graph, else those of the log's lines, else in the order of PCI addresses,
    which is noted.
    """
    gpus = [name for name, device in graph.devices.items() if device.kind == "gpu"]
    address = {name: tuple(int(part, 16) for part in name[4:].split("-")) for name in gpus}
    gpus.sort(key=address.__getitem__)
    buses = {name: address[name][1] for name in gpus}
    told = {name: graph.rank_of[bus] for name, bus in buses.items() if bus in graph.rank_of}
    for ranks in (graph.ranks, told):
        if len(ranks) == len(gpus) == len(set(ranks.values())):
            graph.ranks = ranks
            break
    else:
        graph.ranks = {name: rank for rank, name in enumerate(gpus)}
        notes.add(
            graph.host or where,
            "the log does not say the ranks of these GPUs, which are numbered in the order of "
            "their PCI addresses",
        )
    if len(graph.rank_of) > len(gpus):
        notes.add(
            graph.host or where,
            f"NCCL's graph lists {len(gpus)} of the {len(graph.rank_of)} GPUs of this host whose "
            "start the log tells: it may be cut",
        )
    for name, rank in graph.ranks.items():
        graph.devices[name] = replace(graph.devices[name], id=f"gpu{rank}")


def _shares_ranks(graph: _HostGraph, graphs: list[_HostGraph]) -> bool:
    """Return whether another host's graph has ranks of this one's."""
    return any(
        other is not graph and not set(other.ranks.values()).isdisjoint(graph.ranks.values())
        for other in graphs
    )


def _note_ends_outside(graph: _HostGraph, notes: Notes) -> None:
    """Note the links that lead to devices without a line of their own: the graph is cut."""
    outside: dict[str, dict[str, None]] = {}
    for src, dst in graph.links:
        if src in graph.devices and dst not in graph.devices:
            outside.setdefault(dst, {})[graph.devices[src].id] = None
    for name, near in outside.items():
        notes.add(
            ", ".join(near),
            f"a link leads to {name}, which NCCL's graph does not list: it is cut, and the link is "
            "left out; give the whole of it, from === System to =====",
        )


def _build(graph: _HostGraph, where: str) -> Topology:
    """Return the topology of a host; `where` names it if the log does not."""
    gpus = sorted(graph.ranks, key=graph.ranks.__getitem__)
    others = [name for name, device in graph.devices.items() if device.kind != "gpu"]
    ids = {name: graph.devices[name].id for name in (*gpus, *others)}
    links = list(_list_links(graph, ids))
    devices = tuple(graph.devices[name] for name in ids)
    return Topology(graph.host or where, devices, tuple(links), "NCCL's log")


def _list_links(graph: _HostGraph, ids: dict[str, str]) -> Iterator[Link]:
    """Yield the links in both directions; only some kinds are printed at both ends.

    The log has the sum of a pair's lanes or links; their number counts only if the sum gives it.
    """
    for (src, dst), (medium, rate) in graph.links.items():
        if src not in ids or dst not in ids:
            continue
        is_switched = graph.devices[dst].family == "nvswitch"
        latency = LATENCY_us["nvswitch" if is_switched else medium]
        count = count_links(medium, rate)
        source, extra = "the log", {} if count else {UNCOUNTED: True}
        if count and count > 1:
            source = f"the log's sum, {count} links of {float(rate / count):g} GB/s"
        link = Link(
            *(ids[src], ids[dst], rate, latency, medium, count or 1),
            counted(source, "NCCL"),
            extra,
        )
        yield link
        if (dst, src) not in graph.links:
            yield link.reversed()
