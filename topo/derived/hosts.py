"""Join several hosts into one machine by a network switch and shared NVLink fabrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from ..devices import Device, Link, both_directions
from ..errors import InputError
from ..exact import parse_positive
from ..facts import Facts, facts_to_json, load_facts
from ..facts.keys import qualify
from ..graph import Topology
from ..hardware import ASSUMED_BY, ASSUMED_SPEED, LATENCY_us
from ..names import join_first, pick_unused_name
from ..notes import Note, assumed
from .parts import (
    Fabric,
    find_fabrics,
    make_shared_switch,
    move_links,
    name_shared_switches,
    split_hosts,
)

NETWORK = "network0"
# Assumed rate of a host into the network if nothing gives it: 10 Gbit/s Ethernet.
ASSUMED_GBps = Fraction(5, 4)
# Assumed rate between processes of one host: one core's copy through a socket, in round numbers.
ASSUMED_MEMORY_GBps = Fraction(2)
# Facts of a joined machine, chosen: 6 to 8 MB of JSON at the 95 to 140 bytes of recorded facts.
MAX_FACTS = 60_000
# A NIC slower by this factor than its host's fastest is a management port.
_SLOW_PORT = 10
_NAMED = 4  # hosts in the name of a joined machine
SOURCE = "hosts joined by a network"

# Location of a rank: the number of its host, and the id of its GPU on that host.
RankLocation = tuple[int, str]


def join_hosts(
    topologies: Sequence[Topology],
    locations: Sequence[RankLocation] | None = None,
    name: str | None = None,
) -> Topology:
    """Join hosts into one topology; the hosts' names are those of their topologies.

    `name` is that of the result (default: the first hosts' names). `locations[r]` is where rank r
    of the result is: the index of its host in `topologies`, and the id of its GPU there. The
    default is all GPUs, host by host; a topology of several hosts then counts as that many hosts.
    GPUs and hosts without a rank are left out. Device `gpu3` of the first host becomes `host0/gpu3`
    and gets a field `host`, and a fact about `gpu/3` becomes one about `host0/gpu/3`. If all ranks
    are on one host, ids are unchanged.

    NICs are linked to one network switch at their `net_speed_GBps`, except those that are down or
    slower than a tenth of their host's fastest, which carry no training data. A host without a
    usable NIC is linked at its first CPU (or, if it has none, at its GPUs) at an assumed rate. GPUs
    of several hosts in one NVLink fabric (`parts.py`) share one NVSwitch. A note records each
    assumption and each omission. Notes begin with their host's name; other fields of a host's
    topology are dropped.

    Raise InputError if there is no rank, or a location does not exist or is given twice.
    """
    if locations is None and len(topologies) > 1:
        topologies = [
            part
            for i, topology in enumerate(topologies)
            for part in split_hosts(topology, f"{topology.name} ({i})").values()
        ]
    located = (
        [(h, gpu) for h, t in enumerate(topologies) for gpu in t.ranks]
        if locations is None
        else list(locations)
    )
    _check_locations(topologies, located)
    used = sorted({host for host, _ in located})
    if len(used) == 1 and (len(topologies) == 1 or locations is not None):
        return _select_gpus(topologies[used[0]], [gpu for _, gpu in located])
    number = {host: i for i, host in enumerate(used)}
    names: list[str] = []
    for host in used:
        names.append(pick_unused_name(topologies[host].name, names))
    hosts = [
        _Host(i, names[i], topologies[host], {gpu for h, gpu in located if h == host})
        for host, i in number.items()
    ]
    switch_of = name_shared_switches(
        [fabric for gpu, fabric in host.fabrics.items() if gpu not in host.left_out]
        for host in hosts
    )
    replaced: dict[Fabric, list[Device]] = {fabric: [] for fabric in switch_of}
    links = [
        link
        for host in hosts
        for link in (*host.list_links(switch_of, replaced), *host.list_uplinks())
    ]
    notes = [
        *(note for host in hosts for note in host.notes),
        *(f"{t.name}: no GPU, left out" for t in topologies if not t.ranks),
    ]
    return Topology(
        name or join_first(names, _NAMED),
        (
            *(hosts[number[host]].rename_device(gpu) for host, gpu in located),
            *(device for host in hosts for device in host.list_others()),
            *(make_shared_switch(fabric, switch_of[fabric], of) for fabric, of in replaced.items()),
            Device(NETWORK, "switch", "network", source=assumed("one network joins all hosts")),
        ),
        tuple(links),
        SOURCE,
        {"hosts": names, "notes": notes, **_join_facts(hosts, notes)},
    )


def _join_facts(hosts: Sequence[_Host], notes: list[str]) -> dict[str, Any]:
    """Return the facts of all hosts as a topology field.

    If there are too many facts, return an empty dict and append a note to `notes`.
    """
    facts = [
        replace(fact, subject=qualify(host.id, fact.subject))
        for host in hosts
        for fact in host.facts.items
    ]
    if len(facts) > MAX_FACTS:
        notes.append(
            f"{len(facts)} facts of {len(hosts)} hosts, more than {MAX_FACTS}: not kept; ask one "
            "host at a time"
        )
        return {}
    return {"facts": facts_to_json(Facts(tuple(facts)))} if facts else {}


def join_cpu_hosts(names: Sequence[str], host_of: Sequence[int]) -> Topology:
    """Return hosts without GPUs: rank r is a process on the host named `names[host_of[r]]`.

    A rank's device has kind gpu, and `extra["stands_for"]` is "cpu". It is linked to its host, a
    device of kind cpu; several hosts are linked to a network switch. All rates are assumed until
    they are measured. Raise InputError if there is no rank.
    """
    if not host_of:
        raise InputError("no ranks are given; start at least one")
    devices = [
        Device(f"rank{r}", extra={"stands_for": "cpu", "host": names[h]})
        for r, h in enumerate(host_of)
    ]
    links = [
        x
        for r, h in enumerate(host_of)
        for x in both_directions(
            Link(
                f"rank{r}",
                f"host{h}",
                ASSUMED_MEMORY_GBps,
                Fraction(0),
                "memory",
                source=assumed("a process's share of its host's memory"),
            )
        )
    ]
    used = sorted(set(host_of))
    devices += [Device(f"host{h}", "cpu", extra={"host": names[h]}) for h in used]
    if len(used) > 1:
        devices.append(Device(NETWORK, "switch", "network"))
        for h in used:
            links += both_directions(
                Link(
                    f"host{h}",
                    NETWORK,
                    ASSUMED_GBps,
                    LATENCY_us["network"],
                    "network",
                    source=assumed("10 Gbit/s Ethernet"),
                )
            )
    return Topology(
        name=", ".join(names[h] for h in used),
        devices=tuple(devices),
        links=tuple(links),
        source="processes without GPUs",
        extra={
            "hosts": [names[h] for h in used],
            "notes": ["no GPUs: each rank is a process on its host's CPUs"],
        },
    )


def group_by_host(gpus: Sequence[Device]) -> list[list[int]]:
    """Return, for each host, the indices in `gpus` of its GPUs.

    A GPU's host is its `extra["host"]`, else `extra["box"]`, else the part of its id before the
    slash. GPUs with none of these form one list.
    """
    blocks: dict[object, list[int]] = {}
    for number, gpu in enumerate(gpus):
        host = gpu.extra.get(
            "host", gpu.extra.get("box", gpu.id.partition("/")[0] if "/" in gpu.id else None)
        )
        blocks.setdefault(str(host), []).append(number)
    return list(blocks.values())


def _check_locations(topologies: Sequence[Topology], locations: Sequence[RankLocation]) -> None:
    """Raise InputError if there is no rank, or a location does not exist or has two ranks."""
    if not locations:
        raise InputError("no host has a GPU; there is nothing to join")
    seen: set[RankLocation] = set()
    for rank, (host, gpu) in enumerate(locations):
        if not 0 <= host < len(topologies):
            raise InputError(
                f"rank {rank} is on host {host}; expected one from 0 to {len(topologies) - 1}"
            )
        if gpu not in topologies[host].ranks:
            raise InputError(
                f"rank {rank}: {topologies[host].name} has no GPU {gpu!r}; it has "
                f"{', '.join(topologies[host].ranks[:8]) or 'none'}"
            )
        if (host, gpu) in seen:
            raise InputError(
                f"rank {rank}: {gpu} of {topologies[host].name} is another rank's already; a GPU "
                "is one rank"
            )
        seen.add((host, gpu))


def _select_gpus(topology: Topology, gpus: Sequence[str]) -> Topology:
    """Return one host's topology with only the ranks' GPUs, in rank order."""
    if list(topology.ranks) == list(gpus):
        return topology
    left_out = [gpu for gpu in topology.ranks if gpu not in gpus]
    omission = [f"{', '.join(left_out)}: no rank, left out"] if left_out else []
    return replace(
        topology,
        devices=(
            *(topology.by_id[gpu] for gpu in gpus),
            *(d for d in topology.devices if d.kind != "gpu"),
        ),
        links=tuple(x for x in topology.links if not {x.src, x.dst} & {*left_out}),
        extra={**topology.extra, "notes": [*topology.notes, *omission]},
    )


class _Host:
    """One host's part of the joined topology."""

    def __init__(self, number: int, name: str, topology: Topology, gpus: set[str]) -> None:
        self.id, self.name, self.topology = f"host{number}", name, topology
        self.left_out = {gpu for gpu in topology.ranks if gpu not in gpus}
        self.freed: set[str] = set()
        self.notes: list[str] = [note.with_text(f"{self.name}: {note}") for note in topology.notes]
        if self.left_out:
            listed = (gpu for gpu in topology.ranks if gpu in self.left_out)
            self.notes.append(f"{self.name}: {', '.join(listed)}: no rank, left out")
        try:
            self.facts = load_facts(topology.extra, self.name)
        except InputError as error:
            self.facts = Facts()
            self.notes.append(f"{error}; the host's facts are left out")
        self.fabrics = find_fabrics(topology, self.facts)

    def rename_device(self, ident: str) -> Device:
        """Return a device as it is in the joined topology: `host0/gpu3`, with `extra["host"]`."""
        device = self.topology.by_id[ident]
        return replace(
            device, id=qualify(self.id, ident), extra={**device.extra, "host": self.name}
        )

    def list_others(self) -> list[Device]:
        """Return all devices but GPUs, without NVSwitches that a shared one replaces.

        Call it after `list_links`, which finds the replaced ones.
        """
        return [
            self.rename_device(d.id)
            for d in self.topology.devices
            if d.kind != "gpu" and d.id not in self.freed
        ]

    def list_links(
        self, switch_of: Mapping[Fabric, str], replaced: Mapping[Fabric, list[Device]]
    ) -> list[Link]:
        """Return the links inside the host and to shared NVSwitches, whose ids `switch_of` has.

        Append the host's own NVSwitches that they replace to the lists in `replaced`.
        """
        links, freed = move_links(self.topology, self.fabrics, switch_of)
        self.freed = {switch.id for switch in freed}
        for fabric in dict.fromkeys(self.fabrics.values()):
            if fabric in replaced:
                replaced[fabric].extend(freed)
        return [
            replace(x, src=self._rename_end(x.src), dst=self._rename_end(x.dst))
            for x in links
            if not {x.src, x.dst} & self.left_out
        ]

    def _rename_end(self, ident: str) -> str:
        return ident[1:] if ident not in self.topology.by_id else qualify(self.id, ident)

    def list_uplinks(self) -> list[Link]:
        """Return the links to and from the network, and note the source of their rates."""
        return [
            link
            for ident, rate, source in self._find_ports()
            for link in both_directions(
                Link(
                    qualify(self.id, ident),
                    NETWORK,
                    rate,
                    LATENCY_us["network"],
                    "network",
                    source=source,
                )
            )
        ]

    def _find_ports(self) -> list[tuple[str, Fraction, str]]:
        """Return the devices linked to the network: id, rate and the rate's source."""
        nics = [
            d
            for d in self.topology.devices
            if d.kind == "nic" and self.topology.out_neighbours[d.id]
        ]
        up = [d for d in nics if "down" not in str(d.extra.get("state", "")).lower()]
        speeds = {
            d.id: speed for d in up if (speed := parse_positive(d.extra.get("net_speed_GBps")))
        }
        # A management port of 1 Gbit/s carries no training data if there is a port of 200 Gbit/s.
        usable = {
            ident: speed
            for ident, speed in speeds.items()
            if speed * _SLOW_PORT >= max(speeds.values())
        }
        if usable:
            idle = ", ".join(d.id for d in nics if d.id not in usable)
            if idle:
                self.notes.append(
                    f"{self.name}: {idle}: down, slow or of unknown speed; taken to carry no data"
                )
            return [(ident, speed, "speed of the NIC") for ident, speed in usable.items()]
        ends = (
            [d.id for d in up]
            or [d.id for d in self.topology.devices if d.kind == "cpu"][:1]
            or [gpu for gpu in self.topology.ranks if gpu not in self.left_out]
        )
        what = "no NIC of known speed" if up else "no NIC that is up" if nics else "no NIC"
        inferred = {d.id: rate for d in up if (rate := parse_positive(d.extra.get(ASSUMED_SPEED)))}
        rates = [inferred.get(ident, ASSUMED_GBps) for ident in ends]
        listed = " and ".join(f"{float(rate):g}" for rate in dict.fromkeys(rates))
        text = f"{what}; {', '.join(ends)} taken to send {listed} GB/s into the network"
        self.notes.append(Note(f"{self.name}: {text}", "network-rate-assumed", ends, text))
        return [
            (
                ident,
                rate,
                assumed(
                    self.topology.by_id[ident].extra.get(ASSUMED_BY, "by the GPUs")
                    if ident in inferred
                    else "10 Gbit/s Ethernet"
                ),
            )
            for ident, rate in zip(ends, rates, strict=True)
        ]
