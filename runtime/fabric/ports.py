"""List this host's network ports: interfaces with addresses, speeds, RDMA devices, connectors."""

import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

from ...topo.errors import InputError
from ...topo.fabric.facts import HostFacts, PortFacts

_SYS = Path("/sys/class")
# Kinds of interfaces (linux/if_arp.h) that are ports: Ethernet, InfiniBand.
_PORT_KINDS = ("1", "32")
# Domain and bus of a PCI address: 0002:01:00.1.
_PCI = re.compile(r"^[0-9a-f]+:[0-9a-f]+:")
# Kinds of interfaces on other ones, whose cable they share.
_ON_OTHERS = ("vlan", "macvlan", "ipvlan")
# Bridges and interfaces of containers and virtual machines: no cable ends there.
_VIRTUAL = re.compile(r"(docker|br-|virbr|cni|flannel|cali|podman|vnet|tap|lxc|weave|kube)")


def describe_host(name: str, ranks: Sequence[int], meeting: str) -> HostFacts:
    """Return this host's ports; its ranks meet at the address `meeting`.

    Raise InputError if the program `ip` is missing.
    """
    chosen = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")
    return HostFacts(
        name,
        tuple(ranks),
        tuple(_list_ports()),
        _find_port_towards(meeting),
        tuple(filter(None, chosen)),
    )


def _list_ports() -> Iterator[PortFacts]:
    try:
        printed = subprocess.run(
            ["ip", "-d", "-j", "addr", "show"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise InputError(
            f"ip -d -j addr show: {error}; install iproute2 to find this host's ports"
        ) from None
    rdma = _find_rdma()
    for row in json.loads(printed or "[]"):
        name = str(row.get("ifname", ""))
        if _VIRTUAL.match(name) or _read(_SYS / "net" / name / "type") not in _PORT_KINDS:
            continue
        addresses = [
            f"{x['local']}/{x['prefixlen']}"
            for x in row.get("addr_info", ())
            if x.get("family") == "inet" and "local" in x
        ]
        # One that the administrator chose comes before one that the port gave itself.
        addresses.sort(key=lambda x: IPv4Interface(x).is_link_local)
        if row.get("master") and not addresses:
            continue  # in a bond or bridge, which has the address
        flags = row.get("flags", ())
        yield PortFacts(
            name,
            addresses[0] if addresses else "",
            int(row.get("mtu", 1500)),
            _read_speed(name),
            "UP" in flags and "LOWER_UP" in flags,
            rdma.get(name, ""),
            _find_connector(row, rdma),
        )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:  # a port that is down has no speed
        return ""


def _find_connector(row: Mapping[str, Any], rdma: Mapping[str, str]) -> str:
    """Return a name for the connector of a port; empty if the driver does not say.

    A VLAN has the connector of the interface that it is on.
    """
    if row.get("linkinfo", {}).get("info_kind") in _ON_OTHERS and row.get("link"):
        below = str(row["link"])
        return _read_connector(below, rdma.get(below, "")) or f"port {below}"
    return _read_connector(str(row["ifname"]), rdma.get(row["ifname"], ""))


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


def _find_port_towards(address: str) -> str:
    """Return the name of the interface on the route to an address; empty if there is none."""
    with suppress(OSError, ValueError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing
        own = probe.getsockname()[0]
        printed = subprocess.run(
            ["ip", "-j", "addr", "show", "to", f"{own}/32"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        for row in json.loads(printed or "[]"):
            if row.get("ifname") and row["ifname"] != "lo":
                return str(row["ifname"])
    return ""
