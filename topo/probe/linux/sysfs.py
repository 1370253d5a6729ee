"""Read CPUs, NUMA nodes, the PCI Express tree and NICs from Linux's files.

The `/` of the machine may be any folder. Each file becomes a fact with its source, or with the
reason why it is missing.
"""

import errno
import os
import re
import stat
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from ...facts import Fact, Facts, keys
from ...facts.keys import (
    CPUINFO,
    HOST,
    NUMA,
    PCI,
    Key,
    net_subject,
    numa_subject,
    pci_subject,
    rdma_subject,
)

# No file is read further than this: in longer ones (`/proc/cpuinfo`) the values that the probe
# needs are at the beginning.
MAX_BYTES = 2**20

GPU_CLASSES = ("0x03", "0x12")
NIC_CLASSES = ("0x02",)
BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
ROOT_COMPLEX = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")

# PCI functions of GPUs and NICs that are read: of more, NICs are folded. Chosen, far above those of
# the recorded machines.
MAX_GPUS_AND_NICS = 1024
# Keys that are also names of sysfs files.
_DEVICE_FILES: tuple[Key[Any], ...] = (
    keys.PCI_VENDOR,
    keys.PCI_DEVICE,
    keys.PCI_SUBSYSTEM_VENDOR,
    keys.PCI_SUBSYSTEM_DEVICE,
    keys.PCI_MAX_LINK_SPEED,
    keys.PCI_MAX_LINK_WIDTH,
    keys.PCI_CURRENT_LINK_SPEED,
    keys.PCI_CURRENT_LINK_WIDTH,
)

_CPUINFO_KEYS: dict[str, Key[Any]] = {
    "vendor_id": keys.CPUINFO_VENDOR,
    "cpu family": keys.CPUINFO_FAMILY,
    "model": keys.CPUINFO_MODEL,
    "model name": keys.CPUINFO_MODEL_NAME,
    "CPU implementer": keys.CPUINFO_IMPLEMENTER,
    "cpu": keys.CPUINFO_MODEL_NAME,
}

# Parts of a PCI address that a bus and a domain have.
_BUS, _DOMAIN = 2, 1
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*Gb/sec")
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_MASK = re.compile(r"[0-9a-f]{1,8}(?:,[0-9a-f]{1,8})*", re.IGNORECASE)


def read_fact(root: Path, path: Path, subject: str, key: Key[Any]) -> Fact:
    """Return a file's text, stripped, as the fact `key` about `subject`.

    It is missing, with the reason, if the file is unreadable or empty. `root` is the folder that is
    `/` on the machine.
    """
    source = show_path(root, path)
    try:
        text = read_text(path)
    except OSError as error:
        return Fact(subject, key, None, source, error.strerror or str(error))
    return (
        Fact(subject, key, text, source)
        if text
        else Fact(subject, key, None, source, "the file is empty")
    )


def read_text(path: Path) -> str:
    """Return a file's text, stripped; `read_fact` returns it as a fact instead.

    Raise OSError if it cannot be read.
    """
    return read_start(path, MAX_BYTES).decode("utf-8", errors="replace").strip()


def read_start(path: Path, most: int) -> bytes:
    """Return the first `most` bytes of a regular file.

    Raise OSError for pipes and devices, which may never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(most)


def show_path(root: Path, path: Path) -> str:
    """Return `path` as seen on the machine whose `/` is at `root`: without `root`.

    A path outside `root` is unchanged.
    """
    return f"/{path.relative_to(root)}" if path.is_relative_to(root) else str(path)


def list_folder(folder: Path) -> tuple[Path, ...]:
    """Return the entries of a folder, sorted by name; none if it cannot be read."""
    try:
        return tuple(sorted(folder.iterdir()))
    except OSError:
        return ()


def read_sysfs(root: Path) -> Facts:
    """Return facts about CPUs, NUMA nodes, and every GPU and NIC on PCI.

    The bridges above the GPUs and NICs are included. `root` is the folder that is `/` on the
    machine.
    """
    return Facts(
        (
            read_fact(root, root / "proc/sys/kernel/hostname", HOST, keys.HOST_NAME),
            *_read_cpuinfo(root),
            *_read_numa(root),
            *_read_pci(root),
        )
    )


def _read_cpuinfo(root: Path) -> Iterator[Fact]:
    # Only the first CPU is read: all CPUs of a machine are of one model.
    fact = read_fact(root, root / "proc/cpuinfo", CPUINFO, keys.CPUINFO_TEXT)
    if not isinstance(fact.value, str):
        yield fact
        return
    values: dict[Key[Any], str] = {}
    for line in fact.value.splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() in _CPUINFO_KEYS:
            values.setdefault(_CPUINFO_KEYS[name.strip()], value.strip())
    for key, value in values.items():
        yield Fact(CPUINFO, key, value, fact.source)


def _read_numa(root: Path) -> Iterator[Fact]:
    # A node may have no CPUs: a GPU's memory can be a node.
    folder = root / "sys/devices/system/node"
    nodes = [
        (int(path.name[4:]), path)
        for path in list_folder(folder)
        if re.fullmatch(r"node\d{1,6}", path.name)
    ]
    if not nodes:
        yield Fact(NUMA, keys.NUMA_NODES, None, show_path(root, folder), "no NUMA nodes are listed")
    for number, path in sorted(nodes):
        fact = read_fact(root, path / "cpulist", numa_subject(number), keys.NUMA_CPUS)
        yield fact
        if isinstance(fact.value, str):
            first = re.match(r"\d+", fact.value)
            cpu = root / f"sys/devices/system/cpu/cpu{first.group() if first else 0}"
            yield read_fact(
                root, cpu / "topology/physical_package_id", numa_subject(number), keys.NUMA_SOCKET
            )


def _read_pci(root: Path) -> Iterator[Fact]:
    folder = root / "sys/bus/pci/devices"
    if not [path for path in list_folder(folder) if BUS_ID.fullmatch(path.name)]:
        yield Fact(
            PCI, keys.PCI_DEVICES, None, show_path(root, folder), "no PCI devices are listed"
        )
    above: dict[str, Path] = {}
    kept = list_gpus_and_nics(root)
    if folded := sum(1 for _ in _iterate_gpus_and_nics(root)) - len(kept):
        yield Fact(
            PCI,
            keys.PCI_DEVICES,
            None,
            show_path(root, folder),
            f"{folded + len(kept)} GPUs and NICs; NICs near each other are listed as one",
        )
    for path in kept:
        bridges = list_bridges(path)
        above.update((bridge.name, bridge) for bridge in bridges)
        yield read_fact(root, path / "class", pci_subject(path.name), keys.PCI_CLASS)
        yield Fact(
            pci_subject(path.name),
            keys.PCI_BRIDGES,
            tuple(bridge.name for bridge in bridges),
            show_path(root, path),
        )
        yield _read_root(root, path)
        yield from _read_device(root, path)
    for bridge in above.values():
        yield from _read_device(root, bridge)


def list_gpus_and_nics(root: Path) -> list[Path]:
    """Return the folders of the PCI functions whose class is that of a GPU or NIC.

    Virtual functions are left out. Of more than MAX_GPUS_AND_NICS, as machines with virtual
    functions passed through have them, NICs on one PCI bus are folded into the first of them; if
    those are more, the NICs of one PCI domain, and at last the first MAX_GPUS_AND_NICS count.
    """
    functions = list(_iterate_gpus_and_nics(root))
    for level in (None, _BUS, _DOMAIN):
        first: dict[str, Path] = {}
        for path, is_gpu in functions:
            first.setdefault(
                path.name if is_gpu or level is None else ":".join(path.name.split(":")[:level]),
                path,
            )
        if len(first) <= MAX_GPUS_AND_NICS:
            break
    return list(first.values())[:MAX_GPUS_AND_NICS]


def _iterate_gpus_and_nics(root: Path) -> Iterator[tuple[Path, bool]]:
    for path in list_folder(root / "sys/bus/pci/devices"):
        pci_class = read_fact(root, path / "class", pci_subject(path.name), keys.PCI_CLASS)
        if (
            BUS_ID.fullmatch(path.name)
            and str(pci_class.value).startswith(GPU_CLASSES + NIC_CLASSES)
            and not (path / "physfn").exists()
        ):
            yield path, str(pci_class.value).startswith(GPU_CLASSES)


def _read_root(root: Path, path: Path) -> Fact:
    subject, source = pci_subject(path.name), show_path(root, path)
    try:
        name = next(
            (p.name for p in path.resolve().parents if ROOT_COMPLEX.fullmatch(p.name)), None
        )
    except (OSError, RuntimeError) as error:
        return Fact(subject, keys.PCI_ROOT, None, source, str(error))
    return Fact(
        subject, keys.PCI_ROOT, name, source, "no root complex above it" if name is None else None
    )


def _read_driver(root: Path, path: Path) -> Fact:
    subject, source = pci_subject(path.name), show_path(root, path / "driver")
    try:
        return Fact(subject, keys.PCI_DRIVER, (path / "driver").readlink().name, source)
    except OSError:
        return Fact(subject, keys.PCI_DRIVER, None, source, "no driver is bound to it")


def _read_device(root: Path, path: Path) -> Iterator[Fact]:
    subject = pci_subject(path.name)
    for key in _DEVICE_FILES:
        yield read_fact(root, path / key, subject, key)
    yield _read_driver(root, path)
    numa = read_fact(root, path / "numa_node", subject, keys.PCI_NUMA_NODE)
    if numa.value is not None and str(numa.value).startswith("-"):
        numa = replace(numa, value=None, missing="the kernel says -1: not known")
    yield numa


def list_bridges(path: Path) -> tuple[Path, ...]:
    """Return the folders of the bridges above a device, the topmost first.

    `path` is the device's folder in /sys. Bridges are the parent folders whose names are PCI
    addresses.
    """
    try:
        parents = path.resolve().parents
    except (OSError, RuntimeError):
        return ()
    return tuple(takewhile(lambda parent: BUS_ID.fullmatch(parent.name), parents))[::-1]


def find_bus_id(device: Path) -> str | None:
    """Return the PCI address of the function behind a `device` link, None if there is none.

    `device` is the path of that link, which network interfaces have, for example. For a virtio
    device, the function is one level up.
    """
    try:
        real = device.resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    return next((p.name for p in (real, *real.parents) if BUS_ID.fullmatch(p.name)), None)


def read_network(root: Path) -> Facts:
    """Return facts `net/NAME` of interfaces backed by hardware, and `rdma/NAME` of RDMA devices.

    Virtual functions are left out, and NICs that `list_gpus_and_nics` folds. `root` is the folder
    that is `/` on the machine.
    """
    kept = {path.name for path in list_gpus_and_nics(root)}
    folded = {path.name for path, _ in _iterate_gpus_and_nics(root)} - kept
    return Facts((*_read_interfaces(root, folded), *_read_rdma(root, folded)))


def _read_interfaces(root: Path, folded: Collection[str]) -> Iterator[Fact]:
    for path in list_folder(root / "sys/class/net"):
        bus_id = find_bus_id(path / "device")
        if bus_id is None or bus_id in folded or (path / "device/physfn").exists():
            continue
        subject = net_subject(path.name)
        yield Fact(subject, keys.NET_BUS_ID, bus_id, show_path(root, path / "device"))
        yield read_fact(root, path / "operstate", subject, keys.NET_STATE)
        speed = read_fact(root, path / "speed", subject, keys.NET_SPEED_Mbps)
        if speed.value is not None and not re.fullmatch(r"[1-9]\d*", str(speed.value)):
            speed = replace(speed, value=None, missing=f"the driver says {speed.value}: not known")
        yield speed


def _read_rdma(root: Path, folded: Collection[str]) -> Iterator[Fact]:
    for path in list_folder(root / "sys/class/infiniband"):
        subject = rdma_subject(path.name)
        source = show_path(root, path / "device")
        bus_id = find_bus_id(path / "device")
        if bus_id in folded or (path / "device/physfn").exists():
            continue
        if bus_id is None:
            yield Fact(subject, keys.RDMA_BUS_ID, None, source, "no PCI function behind the device")
            continue
        yield Fact(subject, keys.RDMA_BUS_ID, bus_id, source)
        ports = list_folder(path / "ports")
        if not ports:
            yield Fact(
                subject,
                keys.RDMA_SPEED_Mbps,
                None,
                show_path(root, path / "ports"),
                "the device lists no port",
            )
        for port in ports[:1]:
            yield read_fact(root, port / "state", subject, keys.RDMA_STATE)
            yield read_fact(root, port / "link_layer", subject, keys.RDMA_LINK_LAYER)
            yield _read_rate(root, port, subject)


def _read_rate(root: Path, port: Path, subject: str) -> Fact:
    # The kernel writes "200 Gb/sec (4X HDR)".
    fact = read_fact(root, port / "rate", subject, keys.RDMA_SPEED_Mbps)
    if fact.value is None:
        return fact
    match = _RATE.match(str(fact.value))
    if match is None:
        return replace(fact, value=None, missing=f"{str(fact.value)[:40]!r} is no rate")
    return replace(fact, value=round(float(match[1]) * 1000))


def read_locality(root: Path, facts: Facts) -> Facts:
    """Infer facts `pci/BUS numa_node` for the functions in `facts` that have none.

    The CPUs that Linux calls local to a function decide, if they are of a single NUMA node. `root`
    is the folder that is `/` on the machine.
    """
    cpus_of = {
        int(name): parse_cpu_list(facts.get_text(numa_subject(name), keys.NUMA_CPUS) or "")
        for name in facts.list_names(NUMA)
        if name
    }
    nodes: dict[str, Fact] = {}
    for bus_id in facts.list_names(PCI) if len(cpus_of) > 1 else ():
        subject, folder = pci_subject(bus_id), root / "sys/bus/pci/devices" / bus_id
        if facts.get_number(subject, keys.PCI_NUMA_NODE) is not None:
            continue
        for file, read in (("local_cpulist", parse_cpu_list), ("local_cpus", parse_cpu_mask)):
            listed = read_fact(root, folder / file, subject, keys.PCI_NUMA_NODE)
            near = [node for node, cpus in cpus_of.items() if cpus & read(str(listed.value or ""))]
            if len(near) == 1:
                nodes.setdefault(bus_id, replace(listed, value=near[0]))
    return Facts(tuple(nodes.values()))


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return the CPU numbers of a list such as `0-19,40-59`; empty for anything else."""
    cpus: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            return frozenset()
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first > 10**5:
            return frozenset()
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def parse_cpu_mask(text: str) -> frozenset[int]:
    """Return the CPU numbers of a mask such as `0000,0000ffff`; empty for anything else.

    Its groups have 32 bits each, the highest first.
    """
    if not _MASK.fullmatch(text) or len(text) > 10**4:
        return frozenset()
    bits = int("".join(group.rjust(8, "0") for group in text.split(",")), 16)
    return frozenset(i for i in range(bits.bit_length()) if bits >> i & 1)
