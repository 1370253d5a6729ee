"""Join several hosts into one machine: each host's own topology, joined by a network switch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from ..devices import Device, Link, both_ways
from ..errors import InputError
from ..graph import Topology
from ..hardware import LATENCY_us

NETWORK = "network0"
ASSUMED_GBps = Fraction(5, 4)
"""Assumed rate of a host into the network where nothing gives it: 10 Gbit/s Ethernet."""
ASSUMED_MEMORY_GBps = Fraction(2)
"""Assumed rate between processes of one host: one core's copy through a socket, in round numbers."""
_SLOW_PORT = 10
SOURCE = "hosts joined by a network"

RankLocation = tuple[int, str]
"""Location of a rank: the number of its host, and the id of its GPU on that host."""


def join_hosts(
    topologies: Sequence[Topology], locations: Sequence[RankLocation] | None = None, name: str | None = None
) -> Topology:
    """Return one topology of several hosts'; their names are the hosts' names.

    `locations[r]` says where rank r is (default: all GPUs, host by host); GPUs without a rank are left out, and hosts, too. A
    device `gpu3` of the first host becomes `host0/gpu3`, with the `host` it is of; where all ranks are on one host,
    ids stay as they are. NICs hang on one network switch at their `net_speed_GBps`, without those that are down and those
    slower than a tenth of their host's fastest (they are no way for data). A host without a usable NIC is joined at its
    first CPU (or, without any, at its GPUs) at an assumed rate. All that is assumed or left out is noted. Notes are
    carried over with their host's name; facts and other fields of a host's topology are not, as their subjects (`gpu/0`)
    mean another device on each host.

    Raises InputError where there is no rank, or a location names a host or GPU that does not exist, or one twice.
    """
    everywhere = ((h, gpu) for h, t in enumerate(topologies) for gpu in t.ranks)
    located = list(everywhere if locations is None else locations)
    _check_locations(topologies, located)
    used = sorted({host for host, _ in located})
    if len(used) == 1:
        return _select_gpus(topologies[used[0]], [gpu for _, gpu in located])
    number = {host: i for i, host in enumerate(used)}
    hosts = [_Host(i, topologies[host], {gpu for h, gpu in located if h == host}) for host, i in number.items()]
    gpus = [hosts[number[host]].rename_device(gpu) for host, gpu in located]
    rest = [d for host in hosts for d in host.list_others()]
    links = [link for host in hosts for link in (*host.list_links(), *host.list_uplinks())]
    return Topology(
        name=name or ", ".join(host.name for host in hosts),
        devices=(*gpus, *rest, Device(NETWORK, "switch", "network", source="assumed: one network joins all hosts")),
        links=tuple(links),
        source=SOURCE,
        extra={"hosts": [host.name for host in hosts], "notes": [note for host in hosts for note in host.notes]},
    )


def join_cpu_hosts(names: Sequence[str], host_of: Sequence[int]) -> Topology:
    """Return hosts without GPUs: rank r is a process on host `host_of[r]`, whose name is `names[host_of[r]]`.

    A rank's device is of kind gpu and says that it stands for a cpu. It hangs on its host, a device of kind cpu; hosts
    hang on a network switch. No rate is known: the topology holds assumed ones until they are measured.
    """
    if not host_of:
        raise InputError("no ranks are given; start at least one")
    memory, network = "assumed: a process's share of its host's memory", "assumed: 10 Gbit/s Ethernet"
    devices = [Device(f"rank{r}", extra={"stands_for": "cpu", "host": names[h]}) for r, h in enumerate(host_of)]
    links = [
        x
        for r, h in enumerate(host_of)
        for x in both_ways(Link(f"rank{r}", f"host{h}", ASSUMED_MEMORY_GBps, Fraction(0), "memory", source=memory))
    ]
    used = sorted(set(host_of))
    devices += [Device(f"host{h}", "cpu", extra={"host": names[h]}) for h in used]
    if len(used) > 1:
        devices.append(Device(NETWORK, "switch", "network"))
        for h in used:
            links += both_ways(
                Link(f"host{h}", NETWORK, ASSUMED_GBps, LATENCY_us["network"], "network", source=network)
            )
    return Topology(
        name=", ".join(names[h] for h in used),
        devices=tuple(devices),
        links=tuple(links),
        source="processes without GPUs",
        extra={"hosts": [names[h] for h in used], "notes": ["no GPUs: each rank is a process on its host's CPUs"]},
    )


def group_by_host(gpus: Sequence[Device]) -> list[list[int]]:
    """Return the numbers of the GPUs of each host, by what the topology says of hosts; one list where it says nothing."""
    blocks: dict[object, list[int]] = {}
    for number, gpu in enumerate(gpus):
        host = gpu.extra.get("host", gpu.extra.get("box", gpu.id.partition("/")[0] if "/" in gpu.id else None))
        blocks.setdefault(str(host), []).append(number)
    return list(blocks.values())


def _check_locations(topologies: Sequence[Topology], locations: Sequence[RankLocation]) -> None:
    """Raise InputError where there is no rank, or a location does not exist or has two ranks."""
    if not locations:
        raise InputError("no host has a GPU; there is nothing to join")
    seen: set[RankLocation] = set()
    for rank, (host, gpu) in enumerate(locations):
        if not 0 <= host < len(topologies):
            raise InputError(f"rank {rank} is on host {host}; expected one from 0 to {len(topologies) - 1}")
        if gpu not in topologies[host].ranks:
            known = ", ".join(topologies[host].ranks[:8]) or "none"
            raise InputError(f"rank {rank}: {topologies[host].name} has no GPU {gpu!r}; it has {known}")
        if (host, gpu) in seen:
            raise InputError(
                f"rank {rank}: {gpu} of {topologies[host].name} is another rank's already; a GPU is one rank"
            )
        seen.add((host, gpu))


def _select_gpus(topology: Topology, gpus: Sequence[str]) -> Topology:
    """Return one host's topology with the ranks' GPUs in the ranks' order, and all else as it is."""
    left_out = [gpu for gpu in topology.ranks if gpu not in gpus]
    if not left_out and list(topology.ranks) == list(gpus):
        return topology
    others = tuple(d for d in topology.devices if d.kind != "gpu")
    links = tuple(x for x in topology.links if x.src not in left_out and x.dst not in left_out)
    notes = [*topology.extra.get("notes", ()), *([f"{', '.join(left_out)}: no rank, left out"] if left_out else [])]
    return replace(
        topology,
        devices=(*(topology.by_id[gpu] for gpu in gpus), *others),
        links=links,
        extra={**topology.extra, "notes": notes},
    )


class _Host:
    """Builds one host's part of the joined topology."""

    def __init__(self, number: int, topology: Topology, gpus: set[str]) -> None:
        self.prefix, self.topology, self.name = f"host{number}/", topology, topology.name
        self.left_out = [gpu for gpu in topology.ranks if gpu not in gpus]
        self.notes = [f"{self.name}: {note}" for note in topology.extra.get("notes", ())]
        if self.left_out:
            self.notes.append(f"{self.name}: {', '.join(self.left_out)}: no rank, left out")

    def rename_device(self, ident: str) -> Device:
        """Return a device under its new id."""
        device = self.topology.by_id[ident]
        return replace(device, id=self.prefix + ident, extra={**device.extra, "host": self.name})

    def list_others(self) -> list[Device]:
        """Return all devices that are not GPUs."""
        return [self.rename_device(d.id) for d in self.topology.devices if d.kind != "gpu"]

    def list_links(self) -> list[Link]:
        """Return the links inside the host."""
        links = (x for x in self.topology.links if x.src not in self.left_out and x.dst not in self.left_out)
        return [replace(x, src=self.prefix + x.src, dst=self.prefix + x.dst) for x in links]

    def list_uplinks(self) -> list[Link]:
        """Return the links to and from the network, and note what their rates rest on."""
        return [
            link
            for ident, rate, source in self._find_ports()
            for link in both_ways(
                Link(self.prefix + ident, NETWORK, rate, LATENCY_us["network"], "network", source=source)
            )
        ]

    def _find_ports(self) -> list[tuple[str, Fraction, str]]:
        """Return the devices at which the host is joined to the network: id, rate and source of the rate."""
        nics = [d for d in self.topology.devices if d.kind == "nic" and self.topology.out_neighbours[d.id]]
        up = [d for d in nics if "down" not in str(d.extra.get("state", "")).lower()]
        speeds = {d.id: speed for d in up if (speed := _read_speed_GBps(d)) is not None}
        # a management port of 1 Gbit/s beside 200 Gbit/s is no way for data
        usable = {ident: speed for ident, speed in speeds.items() if speed * _SLOW_PORT >= max(speeds.values())}
        if usable:
            idle = [d.id for d in nics if d.id not in usable]
            if idle:
                self.notes.append(
                    f"{self.name}: {', '.join(idle)}: down, slow or of unknown speed; taken to carry no data"
                )
            return [(ident, speed, "speed of the NIC") for ident, speed in usable.items()]
        cpus = [d.id for d in self.topology.devices if d.kind == "cpu"][:1]
        ends = [d.id for d in up] or cpus or [gpu for gpu in self.topology.ranks if gpu not in self.left_out]
        what = "no NIC of known speed" if up else "no NIC that is up" if nics else "no NIC"
        self.notes.append(
            f"{self.name}: {what}; {', '.join(ends)} taken to send {float(ASSUMED_GBps):g} GB/s into the network"
        )
        return [(ident, ASSUMED_GBps, "assumed: 10 Gbit/s Ethernet") for ident in ends]


def _read_speed_GBps(nic: Device) -> Fraction | None:
    """Return the speed of a NIC, None where it is not known."""
    speed = nic.extra.get("net_speed_GBps")
    return (
        Fraction(str(speed)) if isinstance(speed, (int, float)) and not isinstance(speed, bool) and speed > 0 else None
    )
