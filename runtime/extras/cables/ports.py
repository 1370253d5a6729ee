"""List this host's network ports: interfaces with addresses, speeds, RDMA devices, connectors.

A connector is the socket that a cable goes into; several interfaces of a card may share one.
"""

import ctypes
import os
import re
import socket
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from ipaddress import IPv4Interface
from pathlib import Path

from ....topo.errors import InputError
from ....topo.extras.cables.facts import HostFacts, PortFacts

_SYS = Path("/sys/class")
# Kinds of interfaces (linux/if_arp.h) that are ports: Ethernet, InfiniBand.
_PORT_KINDS = ("1", "32")
# Domain and bus of a PCI address: 0002:01:00.1.
_PCI = re.compile(r"^[0-9a-f]+:[0-9a-f]+:")
# Bridges and interfaces of containers, virtual machines and overlays: no cable ends there.
_VIRTUAL = re.compile(r"(docker|br-|virbr|cni|flannel|cali|podman|vnet|tap|lxc|weave|kube|zt)")
# Requests of linux/sockios.h; the bytes of a row of the answer (struct ifreq of 64-bit systems),
# and of a buffer for 1,600 rows.
_SIOCGIFCONF, _SIOCGIFNETMASK = 0x8912, 0x891B
_ROW_BYTES, _ROWS_BYTES = 40, 64_000


def describe_host(name: str, ranks: Sequence[int], meeting: str) -> HostFacts:
    """Return this host's network ports and their speeds, under the host's `name`.

    `ranks` are those that run on it, `meeting` the IP address of the store where they meet. Raise
    InputError on systems other than Linux.
    """
    if sys.platform != "linux":
        raise InputError(
            f"ports are found on Linux, and this is {sys.platform}; write the cables into a "
            "topology by hand, from that of the preset mac-mesh:2, say"
        )
    chosen = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")
    addresses = list_addresses()
    return HostFacts(
        name,
        tuple(ranks),
        tuple(_list_ports(addresses)),
        _find_port_towards(meeting, addresses),
        tuple(filter(None, chosen)),
    )


def list_addresses() -> dict[str, list[IPv4Interface]]:
    """Return the IPv4 addresses of this host by interface.

    By the kernel's own calls: images for containers often lack the program `ip`.
    """
    from fcntl import ioctl

    addresses: dict[str, list[IPv4Interface]] = defaultdict(list)
    rows = ctypes.create_string_buffer(_ROWS_BYTES)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        buffer = struct.pack("iP", _ROWS_BYTES, ctypes.addressof(rows))
        used, _ = struct.unpack("iP", ioctl(asked, _SIOCGIFCONF, buffer))
        for at in range(0, used, _ROW_BYTES):
            row = rows.raw[at : at + _ROW_BYTES]
            mask = ioctl(asked, _SIOCGIFNETMASK, row)
            name = row[:16].rstrip(b"\0").decode().partition(":")[0]  # without an alias
            ip, netmask = (socket.inet_ntoa(x[20:24]) for x in (row, mask))
            addresses[name].append(IPv4Interface(f"{ip}/{netmask}"))
    return addresses


def _list_ports(addresses: Mapping[str, Sequence[IPv4Interface]]) -> Iterator[PortFacts]:
    rdma = _find_rdma()
    for port in sorted((_SYS / "net").iterdir(), key=lambda x: int(_read(x / "ifindex") or 0)):
        name = port.name
        if _VIRTUAL.match(name) or _read(port / "type") not in _PORT_KINDS:
            continue
        # One that the administrator chose for a cable comes before one that the port gave itself,
        # and before one of a service, which is in no subnet.
        own = sorted(
            addresses.get(name, ()), key=lambda x: (x.network.prefixlen == 32, x.is_link_local)
        )
        if (port / "master").exists() and not own:
            continue  # in a bond or bridge, which has the address
        # The interfaces that a VLAN, bond or bridge is on.
        lower = [x.name.removeprefix("lower_") for x in port.glob("lower_*")]
        devices = {rdma[x] for x in (name, *lower) if x in rdma}
        yield PortFacts(
            name,
            str(own[0]) if own else "",
            int(_read(port / "mtu") or 1500),
            _read_speed(name),
            int(_read(port / "flags") or "0", 16) % 2 == 1 and _read(port / "carrier") == "1",
            devices.pop() if len(devices) == 1 else "",
            _find_connector(name, lower, rdma),
        )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:  # a port that is down has no speed
        return ""


def _find_connector(name: str, lower: Sequence[str], rdma: Mapping[str, str]) -> str:
    """Return a name for the connector of a port; empty if the driver does not say.

    What is on one other interface, such as a VLAN, has the connector of that one.
    """
    if len(lower) == 1:
        return _read_connector(lower[0], rdma.get(lower[0], "")) or f"port {lower[0]}"
    return _read_connector(name, rdma.get(name, ""))


def _read_connector(name: str, rdma: str) -> str:
    """Return what the driver says of an interface's connector.

    Two PCIe functions of a ConnectX that share a connector, as on a DGX Spark, have one card
    (phys_switch_id, or the RDMA device's sys_image_guid) and one place on it (phys_port_name, or
    the same device and function number on their two PCIe buses).
    """
    port = _SYS / "net" / name
    if known := _read(port / "phys_port_id"):
        return known
    card = _read(port / "phys_switch_id")
    if not card and rdma:
        guid = _read(_SYS / "infiniband" / rdma / "sys_image_guid").replace(":", "")
        card = guid if guid.strip("0") else ""
    place = _read(port / "phys_port_name")
    if not place and (port / "device").exists():
        place = _PCI.sub("", (port / "device").resolve().name)
    return f"{card} {place}" if card and place else ""


def _read_speed(name: str) -> int | None:
    """Return the speed of a port's link in Mbit/s; None if the driver does not know it."""
    text = _read(_SYS / "net" / name / "speed")
    return int(text) if text.isdigit() and 0 < int(text) < 1 << 31 else None


def _find_rdma() -> dict[str, str]:
    """Return the RDMA device of each interface that has one."""
    devices = {}
    with suppress(OSError):
        for device in sorted((_SYS / "infiniband").iterdir()):
            with suppress(OSError):
                for interface in (device / "device" / "net").iterdir():
                    devices[interface.name] = device.name
    return devices


def _find_port_towards(address: str, addresses: Mapping[str, Sequence[IPv4Interface]]) -> str:
    """Return the name of the interface on the route to an address; empty if there is none."""
    own = ""
    with suppress(OSError, ValueError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing
        own = probe.getsockname()[0]
    having = (name for name, of in addresses.items() if own in {str(x.ip) for x in of})
    return next((name for name in having if name != "lo"), "")
