"""Random machines for benchmarks/random_machines.py: eight kinds, each from a seed.

Hosts with PCIe trees, hosts with NVSwitches, clusters with leaf and spine switches, meshes of GPUs,
one-way graphs, loose graphs of GPUs and switches, machines whose switches compute, and recorded
presets with faults. Rates are uneven, some links are dead, slow or differ by direction, and ranks
are in random order. A few machines are not connected.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise

from topoplan.topo.graph import Device, Link, Topology
from topoplan.topo.loader.resolve import load

# GB/s in one direction: whole and odd ones, of links as they are sold and as they are measured.
RATES = (
    *map(Fraction, ("1/3", "1", "2", "7/3", "3", "4", "6", "12.5", "64/3", "22.3", "24", "50")),
)
LATENCIES_US = tuple(map(Fraction, ("0.35", "0.5", "0.7", "0.7", "0.7", "1", "1.3", "5")))
# Shares of their rate that slow links keep: usual ones, and those of links that hardly work.
SLOW = (*(Fraction(i, 10) for i in range(1, 10)), Fraction(1, 1000), Fraction(1, 10**6))
PRESETS = (
    "dgx1", "pcie-2socket", "mesh:2x3", "mesh:3x3", "torus:3x3", "hypercube:3", "ring:5", "path:4",
    "star:5", "switch:5", "dgx-a100:1", "torus:4x4",
)  # fmt: skip
# One machine of this many is large: of 16 to 24 GPUs.
_LARGE_EVERY = 25


@dataclass
class Builder:
    """A machine being built: its devices and links, and the source of its chances."""

    chance: random.Random
    large: bool
    devices: list[Device] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)

    def count(self, least: int, most: int) -> int:
        """Return a number of GPUs: in the range, or 16 to 24 for a large machine."""
        return self.chance.randint(16, 24) if self.large else self.chance.randint(least, most)

    def add(self, kind: str, number: int, **more: object) -> list[str]:
        """Add devices of a kind and return their ids."""
        start = sum(d.kind == kind for d in self.devices)
        ids = [f"{kind}{start + i}" for i in range(number)]
        self.devices += [Device(name, kind, **more) for name in ids]  # type: ignore[arg-type]
        return ids

    def join(self, a: str, b: str, rate: Fraction | None = None, *, both: bool = True) -> None:
        """Link two devices at a rate, or a random one."""
        rate = self.chance.choice(RATES) if rate is None else rate
        latency = self.chance.choice(LATENCIES_US)
        self.links.append(Link(a, b, rate, latency))
        if both:
            self.links.append(Link(b, a, rate, latency))


def make_machine(seed: int) -> tuple[str, Topology]:
    """Return the machine of a seed, and its kind."""
    chance = random.Random(seed)
    names = list(KINDS)
    name = names[seed % len(names)]
    builder = Builder(chance, seed % _LARGE_EVERY == 0)
    KINDS[name](builder)
    _damage(builder, connected=name != "one-way")
    order = {device.id: chance.random() for device in builder.devices}
    devices = sorted(builder.devices, key=lambda device: order[device.id])
    return name, Topology(f"random{seed}", tuple(devices), tuple(builder.links))


def _build_pcie(b: Builder) -> None:
    """Hosts' CPUs with PCIe switches, GPUs at either, and NVLinks between some of the GPUs."""
    cpus = b.add("cpu", b.chance.choice((1, 2, 2)))
    smp, pcie, up = (b.chance.choice(RATES) for _ in range(3))
    for one, other in pairwise(cpus):
        b.join(one, other, smp)
    plugs = b.add("switch", b.chance.randint(0, 3), family="pcie")
    for plug in plugs:
        b.join(plug, b.chance.choice(cpus), up)
    gpus = b.add("gpu", b.count(2, 8))
    for gpu in gpus:
        b.join(gpu, b.chance.choice(plugs or cpus), pcie)
    for _ in range(b.chance.choice((0, 0, 2, 5))):
        b.join(*b.chance.sample(gpus, 2))


def _build_nvswitch(b: Builder) -> None:
    """GPUs at several NVSwitches, with links of one rate or of several."""
    gpus = b.add("gpu", b.count(2, 10))
    rate = b.chance.choice((*RATES, None))
    for switch in b.add("switch", b.chance.randint(1, 4), family="nvswitch"):
        for gpu in gpus:
            b.join(gpu, switch, rate)


def _build_cluster(b: Builder) -> None:
    """Hosts with an NVSwitch or PCIe, and NICs at leaf switches under oversubscribed spines."""
    per_host = b.chance.randint(1, 4)
    hosts = max(2, b.count(4, 12) // per_host)
    leaves = b.add("switch", b.chance.randint(1, 3), family="network")
    spines = b.add("switch", b.chance.randint(1, 3) if len(leaves) > 1 else 0, family="network")
    inside, out, up = (b.chance.choice(RATES) for _ in range(3))
    for leaf in leaves:
        for spine in spines:
            b.join(leaf, spine, up)
    by_rail = b.chance.random() < 0.5
    for host in range(hosts):
        gpus = b.add("gpu", per_host)
        hub = b.add("switch", 1, family="nvswitch") if b.chance.random() < 0.6 else b.add("cpu", 1)
        for gpu in gpus:
            b.join(gpu, hub[0], inside)
        nics = b.add("nic", b.chance.randint(1, per_host))
        for i, nic in enumerate(nics):
            b.join(gpus[i] if by_rail else hub[0], nic, out)
            b.join(nic, leaves[(i if by_rail else host) % len(leaves)], out)


def _build_mesh(b: Builder) -> None:
    """GPUs linked to each other: a random tree and more, of equal or uneven links."""
    gpus = b.add("gpu", b.count(2, 10))
    rate = b.chance.choice((None, None, *RATES))
    for v in range(1, len(gpus)):
        b.join(gpus[v], gpus[b.chance.randrange(v)], rate)
    for _ in range(b.chance.randint(0, len(gpus)) if len(gpus) > 2 else 0):
        b.join(*b.chance.sample(gpus, 2), rate)


def _build_one_way(b: Builder) -> None:
    """GPUs and switches under links of one direction: a cycle through all, mostly, and chords."""
    nodes = b.add("gpu", b.count(2, 8)) + b.add("switch", b.chance.choice((0, 0, 1, 3)))
    b.chance.shuffle(nodes)
    for i, node in enumerate(nodes):
        b.join(node, nodes[i - 1], both=b.chance.random() < 0.3)
    for _ in range(b.chance.randint(0, 2 * len(nodes))):
        b.join(*b.chance.sample(nodes, 2), both=b.chance.random() < 0.3)


def _build_loose(b: Builder) -> None:
    """GPUs, switches and NICs in a random connected graph."""
    nodes = b.add("gpu", b.count(2, 9)) + b.add("switch", b.chance.randint(1, 5))
    nodes += b.add("nic", b.chance.randint(0, 2))
    b.chance.shuffle(nodes)
    for v in range(1, len(nodes)):
        b.join(nodes[v], nodes[b.chance.randrange(v)])
    for _ in range(b.chance.randint(0, len(nodes))):
        b.join(*b.chance.sample(nodes, 2))


def _build_in_network(b: Builder) -> None:
    """Another kind whose switches add, copy, do both or neither."""
    b.chance.choice((_build_nvswitch, _build_cluster, _build_loose, _build_one_way))(b)
    abilities = (
        {},
        {"can_copy": True},
        {"can_reduce": True},
        {"can_copy": True, "can_reduce": True},
    )
    own = b.chance.choice((None, *abilities[1:]))
    b.devices = [
        replace(d, **(b.chance.choice(abilities) if own is None else own))  # type: ignore[arg-type]
        if d.kind == "switch"
        else d
        for d in b.devices
    ]


def _build_preset(b: Builder) -> None:
    """A known machine."""
    known = load("torus:4x4" if b.large else b.chance.choice(PRESETS))
    b.devices, b.links = list(known.devices), list(known.links)


def _damage(b: Builder, *, connected: bool) -> None:
    """Remove links, slow some down in one direction or both, and double some.

    If `connected`, links of both directions are removed only where all devices stay joined, except
    on one machine of twelve.
    """
    keep = connected and b.chance.random() < 11 / 12
    for _ in range(b.chance.choice((0, 0, 1, 1, 2, 3))):
        one = b.chance.choice(b.links)
        ends = {one.src, one.dst}
        what = b.chance.choice(("dead", "slow", "slow one way", "one way", "double"))
        if what == "dead":
            left = [x for x in b.links if {x.src, x.dst} != ends]
        elif what == "one way":
            left = [x for x in b.links if x is not one]
        elif what == "double":
            left = [*b.links, replace(one, bandwidth_GBps=b.chance.choice(RATES))]
        else:
            share = b.chance.choice(SLOW)
            hit = (
                {id(x) for x in b.links if {x.src, x.dst} == ends} if what == "slow" else {id(one)}
            )
            left = [
                replace(x, bandwidth_GBps=x.bandwidth_GBps * share) if id(x) in hit else x
                for x in b.links
            ]
        if left and (not keep or _is_connected(b.devices, left)):
            b.links = left


def _is_connected(devices: list[Device], links: list[Link]) -> bool:
    """Return whether every GPU reaches every other one."""
    out: dict[str, set[str]] = {d.id: set() for d in devices}
    for link in links:
        out[link.src].add(link.dst)
    gpus = {d.id for d in devices if d.kind == "gpu"}
    for gpu in gpus:
        reached, layer = {gpu}, {gpu}
        while layer:
            layer = {near for node in layer for near in out[node]} - reached
            reached |= layer
        if not gpus <= reached:
            return False
    return True


KINDS: dict[str, Callable[[Builder], None]] = {
    "pcie": _build_pcie,
    "nvswitch": _build_nvswitch,
    "cluster": _build_cluster,
    "mesh": _build_mesh,
    "one-way": _build_one_way,
    "loose": _build_loose,
    "in-network": _build_in_network,
    "preset": _build_preset,
}
