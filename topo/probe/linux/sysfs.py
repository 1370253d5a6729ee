"""Read CPUs, NUMA nodes and the PCI Express tree from Linux's files, below any root folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...facts import Fact, Facts, keys
from ...facts.keys import CPUINFO, HOST, NUMA, PCI, Key, numa_subject, pci_subject
from .files import list_folder, read_fact, show_path

GPU_CLASSES = ("0x03", "0x12")
NIC_CLASSES = ("0x02",)
BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
ROOT_COMPLEX = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")

MAX_GPUS_AND_NICS = 1024
# Keys that are the names of sysfs files, too.
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


def read_sysfs(root: Path) -> Facts:
    """Return facts of CPUs and NUMA nodes, and of every GPU and NIC on PCI with the bridges above
    it.
    """
    return Facts((*_read_host(root), *_read_cpuinfo(root), *_read_numa(root), *_read_pci(root)))


def _read_host(root: Path) -> Iterator[Fact]:
    yield read_fact(root, root / "proc/sys/kernel/hostname", HOST, keys.HOST_NAME)


def _read_cpuinfo(root: Path) -> Iterator[Fact]:
    """Yield vendor, family and model of the first CPU; all CPUs of a machine are alike."""
    fact = read_fact(root, root / "proc/cpuinfo", CPUINFO, keys.CPUINFO_TEXT)
    if not isinstance(fact.value, str):
        yield fact
        return
    seen: set[str] = set()
    for line in fact.value.splitlines():
        name, colon, value = line.partition(":")
        key = _CPUINFO_KEYS.get(name.strip())
        if colon and key is not None and key not in seen:
            seen.add(key)
            yield Fact(CPUINFO, key, value.strip(), fact.source)


def _read_numa(root: Path) -> Iterator[Fact]:
    """Yield the CPUs and the socket of each NUMA node; a node may have no CPUs (memory of a
    GPU).
    """
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
            package = (
                root
                / f"sys/devices/system/cpu/cpu{first.group() if first else 0}/topology/physical_package_id"
            )
            yield read_fact(root, package, numa_subject(number), keys.NUMA_SOCKET)


def _read_pci(root: Path) -> Iterator[Fact]:
    folder = root / "sys/bus/pci/devices"
    entries = [path for path in list_folder(folder) if BUS_ID.fullmatch(path.name)]
    if not entries:
        yield Fact(
            PCI, keys.PCI_DEVICES, None, show_path(root, folder), "no PCI devices are listed"
        )
    above: dict[str, Path] = {}
    for path in list_gpus_and_nics(root):
        bridges = list_bridges(path)
        above.update((bridge.name, bridge) for bridge in bridges)
        yield read_fact(root, path / "class", pci_subject(path.name), keys.PCI_CLASS)
        chain = tuple(bridge.name for bridge in bridges)
        yield Fact(pci_subject(path.name), keys.PCI_BRIDGES, chain, show_path(root, path))
        yield _read_root(root, path)
        yield from _read_device(root, path)
    for bridge in above.values():
        yield from _read_device(root, bridge)


def list_gpus_and_nics(root: Path) -> Iterator[Path]:
    """Yield the folders of the PCI functions that are GPUs or NICs by their class, virtual
    functions left out.

    Raises InputError for more than MAX_GPUS_AND_NICS.
    """
    count = 0
    for path in list_folder(root / "sys/bus/pci/devices"):
        pci_class = read_fact(root, path / "class", pci_subject(path.name), keys.PCI_CLASS)
        is_card = BUS_ID.fullmatch(path.name) and str(pci_class.value).startswith(
            GPU_CLASSES + NIC_CLASSES
        )
        if is_card and not (path / "physfn").exists():
            count += 1
            if count > MAX_GPUS_AND_NICS:
                raise InputError(
                    f"{root}: more than {MAX_GPUS_AND_NICS} GPUs and NICs on PCI; no machine has "
                    "as many"
                )
            yield path


def _read_root(root: Path, path: Path) -> Fact:
    """Return the fact `root`: the first folder above a function that has the name of a root
    complex.
    """
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
    """Return the fact `driver`: where a function's `driver` link points."""
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
        numa = Fact(subject, keys.PCI_NUMA_NODE, None, numa.source, "the kernel says -1: not known")
    yield numa


def list_bridges(path: Path) -> tuple[Path, ...]:
    """Return the folders of the bridges above a device, from the top: parents with the name of a
    PCI address.
    """
    try:
        parents = path.resolve().parents
    except (OSError, RuntimeError):
        return ()
    bridges: list[Path] = []
    for parent in parents:
        if not BUS_ID.fullmatch(parent.name):
            break
        bridges.append(parent)
    return tuple(reversed(bridges))


def find_bus_id(device: Path) -> str | None:
    """Return the PCI function behind a `device` link, such as a network interface's; virtio has it
    one level up.
    """
    try:
        real = device.resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    return next((p.name for p in (real, *real.parents) if BUS_ID.fullmatch(p.name)), None)
