"""What Linux says of network cards: physical interfaces with their speed, and RDMA devices with their port rates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ...facts import Fact, Facts
from .files import list_folder, read_fact, shown_path
from .sysfs import bus_id_of

_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*Gb/sec")


def read_network(root: Path) -> Facts:
    """Facts of every interface that has hardware behind it (`net/NAME`) and of every RDMA device (`rdma/NAME`)."""
    return Facts((*_read_interfaces(root), *_read_rdma(root)))


def _read_interfaces(root: Path) -> Iterator[Fact]:
    for path in list_folder(root / "sys/class/net"):
        bus_id = bus_id_of(path / "device")
        if bus_id is None or (path / "device/physfn").exists():
            continue
        subject = f"net/{path.name}"
        yield Fact(subject, "bus_id", bus_id, shown_path(root, path / "device"))
        yield read_fact(root, path / "operstate", subject, "state")
        speed = read_fact(root, path / "speed", subject, "speed_Mbps")
        if speed.value is not None and not re.fullmatch(r"[1-9]\d*", str(speed.value)):
            speed = Fact(subject, "speed_Mbps", None, speed.source, f"the driver says {speed.value}: not known")
        yield speed


def _read_rdma(root: Path) -> Iterator[Fact]:
    for path in list_folder(root / "sys/class/infiniband"):
        subject = f"rdma/{path.name}"
        source = shown_path(root, path / "device")
        bus_id = bus_id_of(path / "device")
        if (path / "device/physfn").exists():
            continue
        if bus_id is None:
            yield Fact(subject, "bus_id", None, source, "no PCI function behind the device")
            continue
        yield Fact(subject, "bus_id", bus_id, source)
        ports = list_folder(path / "ports")
        if not ports:
            missing = "the device lists no port"
            yield Fact(subject, "speed_Mbps", None, shown_path(root, path / "ports"), missing)
        for port in ports[:1]:
            yield read_fact(root, port / "state", subject, "state")
            yield read_fact(root, port / "link_layer", subject, "link_layer")
            yield _port_rate(root, port, subject)


def _port_rate(root: Path, port: Path, subject: str) -> Fact:
    """The rate of a port in Mb/s; the kernel writes "200 Gb/sec (4X HDR)"."""
    fact = read_fact(root, port / "rate", subject, "speed_Mbps")
    if fact.value is None:
        return fact
    match = _RATE.match(str(fact.value))
    if match is None:
        return Fact(subject, "speed_Mbps", None, fact.source, f"{str(fact.value)[:40]!r} is no rate")
    return Fact(subject, "speed_Mbps", round(float(match.group(1)) * 1000), fact.source)
