"""Find GPUs in the kernel's files where NVML does not answer, numbered by PCI address as NVML
would.

NVIDIA's kernel driver has a folder for each GPU it serves; without it, GPUs are PCI functions of
NVIDIA or AMD that are display controllers or accelerators. No file lists their NVLinks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ...facts import Fact, Facts, keys
from ...facts.keys import PCI, gpu_subject, pci_subject
from .files import list_folder, read_fact, show_path
from .sysfs import BUS_ID, GPU_CLASSES

GPU_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_LINE = re.compile(r"^\s*([^:]+?)\s*:\s*(.+?)\s*$", re.MULTILINE)
_INFORMATION = {"Model": keys.GPU_NAME, "GPU UUID": keys.GPU_UUID}


def read_unlisted(root: Path, facts: Facts) -> Facts:
    """Return facts `gpu/N` about the GPUs in the files of the machine whose `/` is at `root`.

    `facts` are those of its PCI functions.
    """
    served = {
        path.name: path
        for path in list_folder(root / "proc/driver/nvidia/gpus")
        if BUS_ID.fullmatch(path.name)
    }
    shown = {bus_id for bus_id in facts.list_names(PCI) if _is_gpu(facts, bus_id)}
    read: list[Fact] = []
    for index, bus_id in enumerate(sorted({*served, *shown})):
        subject = gpu_subject(index)
        source = show_path(root, served.get(bus_id, root / "sys/bus/pci/devices" / bus_id))
        read.append(Fact(subject, keys.GPU_BUS_ID, bus_id, source))
        if bus_id in served:
            read += _read_driver(root, served[bus_id], subject)
    return Facts(tuple(read))


def find_gpu_vendor(facts: Facts, bus_id: str) -> str | None:
    """Return the vendor of the GPU at a PCI address, None where there is no GPU of a known
    vendor.
    """
    if not str(facts.get_text(pci_subject(bus_id), keys.PCI_CLASS)).startswith(GPU_CLASSES):
        return None
    return GPU_VENDORS.get(str(facts.get_text(pci_subject(bus_id), keys.PCI_VENDOR)))


def _is_gpu(facts: Facts, bus_id: str) -> bool:
    return find_gpu_vendor(facts, bus_id) is not None


def _read_driver(root: Path, folder: Path, subject: str) -> Iterator[Fact]:
    information = read_fact(root, folder / "information", subject, keys.GPU_NAME)
    values = dict(_LINE.findall(str(information.value)))
    for name, key in _INFORMATION.items():
        if name in values and "?" not in values[name]:
            yield Fact(subject, key, values[name], information.source)
    status = read_fact(root, folder / "numa_status", subject, keys.GPU_OWN_NUMA_NODE)
    node = dict(_LINE.findall(str(status.value))).get("Node", "")
    if node.isdecimal():
        yield Fact(subject, keys.GPU_OWN_NUMA_NODE, int(node), status.source)
