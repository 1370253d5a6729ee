"""What Linux says of CPUs, NUMA nodes and the PCI Express tree, read from files under a root that can be given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ...errors import InputError
from ...facts import Fact, Facts
from .files import list_folder, read_fact, shown_path

GPU_CLASSES = ("0x03", "0x12")
NIC_CLASSES = ("0x02",)
BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
ROOT_COMPLEX = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")

MAX_GPUS_AND_NICS = 1024
_LINK_FILES = ("max_link_speed", "max_link_width", "current_link_speed", "current_link_width")
_CPUINFO_KEYS = {
    "vendor_id": "vendor",
    "cpu family": "family",
    "model": "model",
    "model name": "model_name",
    "CPU implementer": "implementer",
    "cpu": "model_name",
}


def read_sysfs(root: Path) -> Facts:
    """CPU and NUMA facts, and of every GPU and NIC on PCI with the bridges above it."""
    return Facts((*_read_host(root), *_read_cpuinfo(root), *_read_numa(root), *_read_pci(root)))


def _read_host(root: Path) -> Iterator[Fact]:
    yield read_fact(root, root / "proc/sys/kernel/hostname", "host", "name")


def _read_cpuinfo(root: Path) -> Iterator[Fact]:
    """Vendor, family and model of the first CPU; they are alike in one machine."""
    fact = read_fact(root, root / "proc/cpuinfo", "cpuinfo", "text")
    if not isinstance(fact.value, str):
        yield fact
        return
    seen: set[str] = set()
    for line in fact.value.splitlines():
        name, colon, value = line.partition(":")
        key = _CPUINFO_KEYS.get(name.strip())
        if colon and key is not None and key not in seen:
            seen.add(key)
            yield Fact("cpuinfo", key, value.strip(), fact.source)


def _read_numa(root: Path) -> Iterator[Fact]:
    """The CPUs of each NUMA node; a node may have none (memory of a GPU)."""
    folder = root / "sys/devices/system/node"
    nodes = [(int(path.name[4:]), path) for path in list_folder(folder) if re.fullmatch(r"node\d{1,6}", path.name)]
    if not nodes:
        yield Fact("numa", "nodes", None, shown_path(root, folder), "no NUMA nodes are listed")
    for number, path in sorted(nodes):
        fact = read_fact(root, path / "cpulist", f"numa/{number}", "cpus")
        yield fact
        if isinstance(fact.value, str):
            first = re.match(r"\d+", fact.value)
            package = root / f"sys/devices/system/cpu/cpu{first.group() if first else 0}/topology/physical_package_id"
            yield read_fact(root, package, f"numa/{number}", "socket")


def _read_pci(root: Path) -> Iterator[Fact]:
    folder = root / "sys/bus/pci/devices"
    entries = [path for path in list_folder(folder) if BUS_ID.fullmatch(path.name)]
    if not entries:
        yield Fact("pci", "devices", None, shown_path(root, folder), "no PCI devices are listed")
    above: dict[str, Path] = {}
    for path in gpus_and_nics(root):
        bridges = bridges_above(path)
        above.update((bridge.name, bridge) for bridge in bridges)
        yield read_fact(root, path / "class", f"pci/{path.name}", "class")
        chain = tuple(bridge.name for bridge in bridges)
        yield Fact(f"pci/{path.name}", "bridges", chain, shown_path(root, path))
        yield _read_root(root, path)
        yield from _read_device(root, path)
    for bridge in above.values():
        yield from _read_device(root, bridge)


def gpus_and_nics(root: Path) -> Iterator[Path]:
    """Folders of the PCI functions that are GPUs or NICs by their class, virtual functions left out.

    Raises InputError for more than MAX_GPUS_AND_NICS.
    """
    found = 0
    for path in list_folder(root / "sys/bus/pci/devices"):
        kind = read_fact(root, path / "class", f"pci/{path.name}", "class")
        told = BUS_ID.fullmatch(path.name) and str(kind.value).startswith(GPU_CLASSES + NIC_CLASSES)
        if told and not (path / "physfn").exists():
            found += 1
            if found > MAX_GPUS_AND_NICS:
                raise InputError(f"{root}: more than {MAX_GPUS_AND_NICS} GPUs and NICs on PCI; no machine has as many")
            yield path


def _read_root(root: Path, path: Path) -> Fact:
    """The root complex that a function hangs below: the first folder above it that is called as one."""
    subject, source = f"pci/{path.name}", shown_path(root, path)
    try:
        name = next((p.name for p in path.resolve().parents if ROOT_COMPLEX.fullmatch(p.name)), None)
    except (OSError, RuntimeError) as error:
        return Fact(subject, "root", None, source, str(error))
    return Fact(subject, "root", name, source, "no root complex above it" if name is None else None)


def _read_driver(root: Path, path: Path) -> Fact:
    """The kernel driver of a function: where its `driver` link points."""
    subject, source = f"pci/{path.name}", shown_path(root, path / "driver")
    try:
        return Fact(subject, "driver", (path / "driver").readlink().name, source)
    except OSError:
        return Fact(subject, "driver", None, source, "no driver is bound to it")


def _read_device(root: Path, path: Path) -> Iterator[Fact]:
    subject = f"pci/{path.name}"
    for key in ("vendor", "device", "subsystem_vendor", "subsystem_device", *_LINK_FILES):
        yield read_fact(root, path / key, subject, key)
    yield _read_driver(root, path)
    numa = read_fact(root, path / "numa_node", subject, "numa_node")
    if numa.value is not None and str(numa.value).startswith("-"):
        numa = Fact(subject, "numa_node", None, numa.source, "the kernel says -1: not known")
    yield numa


def bridges_above(path: Path) -> tuple[Path, ...]:
    """Folders of the bridges above a device, from the top: the parents that look like a bus address."""
    try:
        parents = path.resolve().parents
    except (OSError, RuntimeError):
        return ()
    found: list[Path] = []
    for parent in parents:
        if not BUS_ID.fullmatch(parent.name):
            break
        found.append(parent)
    return tuple(reversed(found))


def bus_id_of(device: Path) -> str | None:
    """The PCI function behind a `device` link (of a network interface, say); a virtio device has it one level up."""
    try:
        real = device.resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    return next((p.name for p in (real, *real.parents) if BUS_ID.fullmatch(p.name)), None)
