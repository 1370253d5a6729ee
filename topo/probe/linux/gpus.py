"""Find GPUs in the kernel's files if NVML does not answer.

NVIDIA's kernel driver has a folder for each GPU that it serves; without it, GPUs are PCI functions
of NVIDIA or AMD that are display controllers or accelerators, numbered by PCI address as NVML would
number them. No file lists their NVLinks.

AMD's driver (KFD) lists GPUs and their xGMI links in /sys/class/kfd/kfd/topology. A GPU's file of
properties gives its PCI address and architecture. Its folder of links has an entry for each GPU of
its hive with a weight (15 per hop, so less than 30 is direct) and two bandwidths in MB/s: the least
is that of one link, the greatest that of all links between the two. Older kernels report 0 for
both.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from ...facts import Fact, Facts, keys
from ...facts.keys import PCI, gpu_subject, pci_subject, xgmi_subject
from .sysfs import BUS_ID, GPU_CLASSES, list_folder, read_fact, read_text, show_path

GPU_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD"}
_LINE = re.compile(r"^\s*([^:]+?)\s*:\s*(.+?)\s*$", re.MULTILINE)
_INFORMATION = {"Model": keys.GPU_NAME, "GPU UUID": keys.GPU_UUID}

TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"
_PAIR = re.compile(r"^(\w+) +(\d{1,20})$", re.MULTILINE)
# KFD's type of an xGMI link (enum in Linux's kfd_crat.h), and the weight of two hops.
_XGMI, _TWO_HOPS = 11, 30
# Links between two GPUs, chosen (two dies of an MI250 have 4): a higher quotient of the bandwidths
# is taken for a driver error.
_MAX_LINKS = 64


def read_unlisted(root: Path, facts: Facts) -> Facts:
    """Return facts `gpu/N` about GPUs in the kernel's files, for machines whose driver lists none.

    `root` is the folder that is `/` on the machine; `facts` are those about its PCI functions. N
    counts the GPUs by PCI address.
    """
    served = {
        path.name: path
        for path in list_folder(root / "proc/driver/nvidia/gpus")
        if BUS_ID.fullmatch(path.name)
    }
    shown = {bus_id for bus_id in facts.list_names(PCI) if find_gpu_vendor(facts, bus_id)}
    read: list[Fact] = []
    for index, bus_id in enumerate(sorted({*served, *shown})):
        subject = gpu_subject(index)
        folder = served.get(bus_id, root / "sys/bus/pci/devices" / bus_id)
        read.append(Fact(subject, keys.GPU_BUS_ID, bus_id, show_path(root, folder)))
        if bus_id in served:
            read += _read_driver(root, folder, subject)
    return Facts(tuple(read))


def find_gpu_vendor(facts: Facts, bus_id: str) -> str | None:
    """Return NVIDIA or AMD for the GPU at a PCI address, None if no GPU of either is there."""
    if not str(facts.get_text(pci_subject(bus_id), keys.PCI_CLASS)).startswith(GPU_CLASSES):
        return None
    return GPU_VENDORS.get(str(facts.get_text(pci_subject(bus_id), keys.PCI_VENDOR)))


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


def read_kfd(root: Path) -> Facts:
    """Return facts `gpu/N` and `gpu/N/xgmi/M` from AMD's driver (KFD); M is the other GPU.

    `root` is the folder that is `/` on the machine.
    """
    nodes = {
        int(path.name): (path, _read_properties(path / "properties"))
        for path in list_folder(root / TOPOLOGY)
        if re.fullmatch(r"\d{1,4}", path.name)
    }
    index = {
        number: i
        for i, number in enumerate(n for n in sorted(nodes) if nodes[n][1].get("simd_count"))
    }
    facts: list[Fact] = []
    for number, i in index.items():
        path, properties = nodes[number]
        facts += _read_gpu(root, path, properties, gpu_subject(i))
        for link in list_folder(path / "io_links"):
            facts += _read_link(root, link, index, i)
    return Facts(tuple(facts))


def _read_properties(path: Path) -> dict[str, int]:
    try:
        return {name: int(value) for name, value in _PAIR.findall(read_text(path))}
    except OSError:
        return {}


def _read_gpu(root: Path, node: Path, properties: dict[str, int], subject: str) -> Iterator[Fact]:
    source = show_path(root, node / "properties")
    location = properties.get("location_id")
    if location is None:
        yield Fact(subject, keys.GPU_BUS_ID, None, source, "no location_id")
    else:
        yield Fact(
            subject,
            keys.GPU_BUS_ID,
            f"{properties.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:"
            f"{location >> 3 & 0x1F:02x}.{location & 7}",
            source,
        )
    if version := properties.get("gfx_target_version", 0):
        yield Fact(
            subject,
            keys.GPU_GCN,
            f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}",
            source,
        )
    if properties.get("unique_id"):
        yield Fact(subject, keys.GPU_UUID, f"{properties['unique_id']:016x}", source)
    yield read_fact(root, node / "name", subject, keys.GPU_NAME)


def _read_link(root: Path, link: Path, index: dict[int, int], gpu: int) -> Iterator[Fact]:
    properties = _read_properties(link / "properties")
    peer = index.get(properties.get("node_to", -1))
    if (
        properties.get("type") != _XGMI
        or peer is None
        or properties.get("weight", _TWO_HOPS) >= _TWO_HOPS
    ):
        return
    source, subject = show_path(root, link / "properties"), xgmi_subject(gpu, peer)
    least, most = properties.get("min_bandwidth", 0), properties.get("max_bandwidth", 0)
    if least and most >= least and most // least <= _MAX_LINKS:
        yield Fact(subject, keys.XGMI_COUNT, most // least, source)
        yield Fact(subject, keys.XGMI_SPEED_MBps, least, source)
    else:
        yield Fact(subject, keys.XGMI_COUNT, 1, source)
        yield Fact(
            subject, keys.XGMI_SPEED_MBps, None, source, f"the kernel says {least} to {most} MB/s"
        )
