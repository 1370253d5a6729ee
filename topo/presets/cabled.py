"""Build the presets of hosts that cables join, with one GPU each and no switch.

A cable is a link in each direction, with the ports at its ends in `extra`: `src_port` and
`dst_port` are interfaces, `src_rdma` and `dst_rdma` their RDMA devices. A GPU's `extra` names its
host, all of the host's ports for cables, and the interface of its management network, if known.
Rates are those that a port can carry in one direction, in GB/s; the sources also say what was
measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..errors import InputError
from ..graph import Device, Link, Topology
from ..hardware import LATENCY_us

# Both halves of a path through a network, since no switch lies between.
_CABLE_us = 2 * LATENCY_us["network"]
# An end of a cable: the host's number, and the number of its port.
_End = tuple[int, int]


@dataclass(frozen=True)
class _Box:
    """A host: its ports and their RDMA devices, what a port carries, and what all together do.

    `together_GBps` is None if nothing but the ports limits the host.
    """

    name: str
    ports: Mapping[str, tuple[str, ...]]
    port_GBps: Fraction
    source: str
    together_GBps: Fraction | None = None
    together_source: str = ""
    management: str | None = None


# The two sockets of a Spark's ConnectX-7 share two PCIe 5.0 x4 links, and each socket has an RDMA
# device on either link (servethehome.com, "The NVIDIA GB10 ConnectX-7 200GbE networking is really
# different"). Port 0 is next to the Ethernet socket. NVIDIA's playbook says that one cable carries
# the full bandwidth; NCCL was measured at 23.7 GB/s over one (NVIDIA/dgx-spark-playbooks#103).
_SPARK = _Box(
    "spark",
    {
        "enp1s0f0np0": ("rocep1s0f0", "roceP2p1s0f0"),
        "enp1s0f1np1": ("rocep1s0f1", "roceP2p1s0f1"),
    },
    Fraction(25),
    "DGX Spark user guide: ConnectX-7, 200 Gbit/s a port",
    # ib_write_bw reached 111.85 Gbit/s over one x4 link (forums.developer.nvidia.com/t/373387),
    # iperf3 160 to 198 over both (servethehome.com, as above); 126 each is the rate before headers.
    Fraction(28),
    "PCIe 5.0 x4 twice for both ports, 112 Gbit/s each as measured",
    "enP7s7",
)
# USB4 is 40 Gbit/s each direction. What software carries is less: thunderbolt-net 10 Gbit/s
# (geerlingguy/ai-benchmarks#21), RDMA over two cables 48 (blog.hellas.ai, thunderbolt-ibverbs).
_STRIX = _Box(
    "strix",
    {"thunderbolt0": (), "thunderbolt1": ()},
    Fraction(5),
    "Framework Desktop specifications: USB4, 40 Gbit/s a port",
)
# 80 Gbit/s each direction. RDMA needs macOS 26.2 (Apple's technical note TN3205); files were
# copied at 3.5 GB/s over one cable (ml-explore/mlx#3207).
_MAC = _Box(
    "mac",
    {f"en{i}": (f"rdma_en{i}",) for i in range(2, 8)},
    Fraction(10),
    "Mac Studio (M3 Ultra) specifications: Thunderbolt 5, 80 Gbit/s a port",
)


def spark_ring(hosts: int) -> Topology:
    """Return `hosts` NVIDIA DGX Sparks in a ring: port 0 of each is joined to port 1 of the next.

    Raise InputError for too few hosts.
    """
    return _make_ring("spark-ring", _SPARK, hosts, "two are spark-pair")


def spark_pair(hosts: int = 1) -> Topology:
    """Return two NVIDIA DGX Sparks with two cables, between equal ports. `hosts` is ignored."""
    return _join_hosts("spark-pair", _SPARK, 2, [((0, port), (1, port)) for port in range(2)])


def spark_cable(hosts: int = 1) -> Topology:
    """Return two NVIDIA DGX Sparks with one cable, between equal ports. `hosts` is ignored."""
    return _join_hosts("spark-cable", _SPARK, 2, [((0, 0), (1, 0))])


def strix_ring(hosts: int) -> Topology:
    """Return `hosts` boxes with a Ryzen AI Max (Strix Halo) in a ring over their two USB4 ports.

    Raise InputError for too few hosts.
    """
    return _make_ring("strix-ring", _STRIX, hosts, "two have no ring")


def mac_mesh(hosts: int) -> Topology:
    """Return `hosts` Mac Studios with a Thunderbolt 5 cable between every two of them.

    Raise InputError if they have too few ports for that.
    """
    most = len(_MAC.ports) + 1
    if not 2 <= hosts <= most:
        raise InputError(
            f"'mac-mesh:{hosts}': expected from 2 to {most} Macs, since a Mac Studio has "
            f"{len(_MAC.ports)} Thunderbolt 5 ports"
        )
    # The k-th port leads to the k-th of the other Macs.
    cables = [((a, b - 1), (b, a)) for b in range(hosts) for a in range(b)]
    return _join_hosts(f"mac-mesh:{hosts}", _MAC, hosts, cables)


def _make_ring(name: str, box: _Box, hosts: int, instead: str) -> Topology:
    if hosts < 3:
        raise InputError(f"'{name}:{hosts}': expected at least 3 hosts in a ring; {instead}")
    cables = [((host, 0), ((host + 1) % hosts, 1)) for host in range(hosts)]
    return _join_hosts(f"{name}:{hosts}", box, hosts, cables)


def _join_hosts(name: str, box: _Box, hosts: int, cables: Sequence[tuple[_End, _End]]) -> Topology:
    """Return `hosts` boxes and the cables between their ports.

    If a box limits what all of its ports carry, data leaves and enters it through two devices,
    since no NIC forwards from cable to cable.
    """
    ports = list(box.ports)
    names = [f"{box.name}{host}" for host in range(hosts)]
    own = {"management": box.management} if box.management else {}
    devices = [
        Device(f"gpu{i}", extra={"host": host, "ports": ports, **own})
        for i, host in enumerate(names)
    ]
    links = []
    ends = [(device.id, device.id) for device in devices]
    if box.together_GBps is not None:
        ends = [(f"{host}/out", f"{host}/in") for host in names]
        devices += [
            Device(ident, "cpu", numa_node=0, extra={"host": host})
            for host, pair in zip(names, ends, strict=True)
            for ident in pair
        ]
        for i, (out, into) in enumerate(ends):
            for src, dst in ((f"gpu{i}", out), (into, f"gpu{i}")):
                links.append(
                    Link(
                        src,
                        dst,
                        box.together_GBps,
                        Fraction(0),
                        "pcie",
                        source=box.together_source,
                    )
                )
    for cable in cables:
        for (a, x), (b, y) in (cable, cable[::-1]):
            extra = {
                "src_port": ports[x],
                "dst_port": ports[y],
                "src_rdma": list(box.ports[ports[x]]),
                "dst_rdma": list(box.ports[ports[y]]),
            }
            links.append(
                Link(
                    ends[a][0],
                    ends[b][1],
                    box.port_GBps,
                    _CABLE_us,
                    "network",
                    source=box.source,
                    extra=extra,
                )
            )
    return Topology(name, tuple(devices), tuple(links), box.source, {"hosts": names})
