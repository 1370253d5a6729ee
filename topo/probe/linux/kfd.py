"""Read GPUs and the xGMI links between them from the AMD driver (KFD), in
/sys/class/kfd/kfd/topology.

A GPU's file of properties gives its PCI address and architecture; its folder of links, an entry for
each GPU of its hive with a weight (15 a hop, so less than 30 is direct) and the least and greatest
bandwidth in MB/s: of one link, and of all between the two. Older kernels say 0 for both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ...facts import Fact, Facts, keys
from ...facts.keys import gpu_subject, xgmi_subject
from .files import list_folder, read_fact, read_text, show_path

TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"
_PAIR = re.compile(r"^(\w+) +(\d{1,20})$", re.MULTILINE)
_XGMI = 11
_TWO_HOPS = 30
_MOST_LINKS = 64


def read_kfd(root: Path) -> Facts:
    """Return facts `gpu/N` and `gpu/N/xgmi/M` (M: the other GPU) of the machine whose `/` is at
    `root`.
    """
    nodes = {
        int(path.name): path
        for path in list_folder(root / TOPOLOGY)
        if re.fullmatch(r"\d{1,4}", path.name)
    }
    properties = {
        number: _read_properties(path / "properties") for number, path in sorted(nodes.items())
    }
    gpus = [number for number, values in properties.items() if values.get("simd_count")]
    index = {number: i for i, number in enumerate(gpus)}
    facts: list[Fact] = []
    for number in gpus:
        facts += _read_gpu(root, nodes[number], properties[number], gpu_subject(index[number]))
        for link in list_folder(nodes[number] / "io_links"):
            facts += _read_link(root, link, index, index[number])
    return Facts(tuple(facts))


def _read_properties(path: Path) -> dict[str, int]:
    """Return the numbers in a file of properties, by name; none where it cannot be read."""
    try:
        text = read_text(path)
    except OSError:
        return {}
    return {name: int(value) for name, value in _PAIR.findall(text)}


def _read_gpu(root: Path, node: Path, properties: dict[str, int], subject: str) -> Iterator[Fact]:
    source = show_path(root, node / "properties")
    location = properties.get("location_id")
    if location is None:
        yield Fact(subject, keys.GPU_BUS_ID, None, source, "no location_id")
    else:
        bus_id = f"{properties.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
        yield Fact(subject, keys.GPU_BUS_ID, bus_id, source)
    version = properties.get("gfx_target_version", 0)
    if version:
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
    if least and most >= least and most // least <= _MOST_LINKS:
        yield Fact(subject, keys.XGMI_COUNT, most // least, source)
        yield Fact(subject, keys.XGMI_SPEED_MBps, least, source)
    else:
        yield Fact(subject, keys.XGMI_COUNT, 1, source)
        yield Fact(
            subject, keys.XGMI_SPEED_MBps, None, source, f"the kernel says {least} to {most} MB/s"
        )
