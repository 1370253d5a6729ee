"""Read NICs from Linux: physical interfaces with their speed, and RDMA devices with the rate of a
port.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ...facts import Fact, Facts, keys
from ...facts.keys import net_subject, rdma_subject
from .files import list_folder, read_fact, show_path
from .sysfs import find_bus_id

_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*Gb/sec")


def read_network(root: Path) -> Facts:
    """Return facts of every interface that is backed by hardware (`net/NAME`) and every RDMA device
    (`rdma/NAME`).
    """
    return Facts((*_read_interfaces(root), *_read_rdma(root)))


def _read_interfaces(root: Path) -> Iterator[Fact]:
    for path in list_folder(root / "sys/class/net"):
        bus_id = find_bus_id(path / "device")
        if bus_id is None or (path / "device/physfn").exists():
            continue
        subject = net_subject(path.name)
        yield Fact(subject, keys.NET_BUS_ID, bus_id, show_path(root, path / "device"))
        yield read_fact(root, path / "operstate", subject, keys.NET_STATE)
        speed = read_fact(root, path / "speed", subject, keys.NET_SPEED_Mbps)
        if speed.value is not None and not re.fullmatch(r"[1-9]\d*", str(speed.value)):
            speed = Fact(
                subject,
                keys.NET_SPEED_Mbps,
                None,
                speed.source,
                f"the driver says {speed.value}: not known",
            )
        yield speed


def _read_rdma(root: Path) -> Iterator[Fact]:
    for path in list_folder(root / "sys/class/infiniband"):
        subject = rdma_subject(path.name)
        source = show_path(root, path / "device")
        bus_id = find_bus_id(path / "device")
        if (path / "device/physfn").exists():
            continue
        if bus_id is None:
            yield Fact(subject, keys.RDMA_BUS_ID, None, source, "no PCI function behind the device")
            continue
        yield Fact(subject, keys.RDMA_BUS_ID, bus_id, source)
        ports = list_folder(path / "ports")
        if not ports:
            missing = "the device lists no port"
            yield Fact(
                subject, keys.RDMA_SPEED_Mbps, None, show_path(root, path / "ports"), missing
            )
        for port in ports[:1]:
            yield read_fact(root, port / "state", subject, keys.RDMA_STATE)
            yield read_fact(root, port / "link_layer", subject, keys.RDMA_LINK_LAYER)
            yield _read_rate(root, port, subject)


def _read_rate(root: Path, port: Path, subject: str) -> Fact:
    """Return the rate of a port in Mb/s; the kernel writes "200 Gb/sec (4X HDR)"."""
    fact = read_fact(root, port / "rate", subject, keys.RDMA_SPEED_Mbps)
    if fact.value is None:
        return fact
    match = _RATE.match(str(fact.value))
    if match is None:
        return Fact(
            subject, keys.RDMA_SPEED_Mbps, None, fact.source, f"{str(fact.value)[:40]!r} is no rate"
        )
    return Fact(subject, keys.RDMA_SPEED_Mbps, round(float(match.group(1)) * 1000), fact.source)
