"""GPUs where NVML cannot be asked: those that the kernel's files show, numbered by bus address as NVML would.

NVIDIA's kernel driver has a folder for each GPU it serves; without it, GPUs are PCI functions of NVIDIA or AMD that are
display controllers or accelerators. What their NVLinks are, no file says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ...facts import Fact, Facts
from .files import list_folder, read_fact, shown_path
from .sysfs import BUS_ID, GPU_CLASSES

GPU_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_LINE = re.compile(r"^\s*([^:]+?)\s*:\s*(.+?)\s*$", re.MULTILINE)
_INFORMATION = {"Model": "name", "GPU UUID": "uuid"}


def read_unlisted(root: Path, facts: Facts) -> Facts:
    """Facts `gpu/N` about the GPUs in the files of the machine whose `/` is at `root`.

    `facts` are those of its PCI functions.
    """
    served = {path.name: path for path in list_folder(root / "proc/driver/nvidia/gpus") if BUS_ID.fullmatch(path.name)}
    shown = {bus_id for bus_id in facts.names("pci") if _is_gpu(facts, bus_id)}
    found: list[Fact] = []
    for index, bus_id in enumerate(sorted({*served, *shown})):
        subject = f"gpu/{index}"
        source = shown_path(root, served.get(bus_id, root / "sys/bus/pci/devices" / bus_id))
        found.append(Fact(subject, "bus_id", bus_id, source))
        if bus_id in served:
            found += _of_driver(root, served[bus_id], subject)
    return Facts(tuple(found))


def vendor_of(facts: Facts, bus_id: str) -> str | None:
    """Who made the GPU at a bus address; None where that is no GPU of a known maker."""
    if not str(facts.text(f"pci/{bus_id}", "class")).startswith(GPU_CLASSES):
        return None
    return GPU_VENDORS.get(str(facts.text(f"pci/{bus_id}", "vendor")))


def _is_gpu(facts: Facts, bus_id: str) -> bool:
    return vendor_of(facts, bus_id) is not None


def _of_driver(root: Path, folder: Path, subject: str) -> Iterator[Fact]:
    information = read_fact(root, folder / "information", subject, "information")
    told = dict(_LINE.findall(str(information.value)))
    for name, key in _INFORMATION.items():
        if name in told and "?" not in told[name]:
            yield Fact(subject, key, told[name], information.source)
    status = read_fact(root, folder / "numa_status", subject, "gpu_numa_id")
    node = dict(_LINE.findall(str(status.value))).get("Node", "")
    if node.isdecimal():
        yield Fact(subject, "gpu_numa_id", int(node), status.source)
