"""What the AMD driver (KFD) says of GPUs and the xGMI links between them, in /sys/class/kfd/kfd/topology.

A GPU's file of properties gives its PCI address and architecture; its folder of links, an entry for each GPU of its hive with
a weight (15 a hop, so less than 30 is direct) and the least and greatest bandwidth in MB/s: of one link, and of all
between the two. Older kernels say 0 for both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ...facts import Fact, Facts
from .files import list_folder, read_fact, shown_path

TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"
_PAIR = re.compile(r"^(\w+) +(\d{1,20})$", re.MULTILINE)
_XGMI = 11
_TWO_HOPS = 30
_MOST_LINKS = 64


def read_kfd(root: Path) -> Facts:
    """Facts `gpu/N` and `gpu/N/xgmi/M` (M: the other GPU) of the machine whose `/` is at `root`, in the driver's order."""
    nodes = {int(path.name): path for path in list_folder(root / TOPOLOGY) if re.fullmatch(r"\d{1,4}", path.name)}
    told = {number: _properties(path / "properties") for number, path in sorted(nodes.items())}
    gpus = [number for number, properties in told.items() if properties.get("simd_count")]
    index = {number: i for i, number in enumerate(gpus)}
    found: list[Fact] = []
    for number in gpus:
        found += _gpu(root, nodes[number], told[number], f"gpu/{index[number]}")
        for link in list_folder(nodes[number] / "io_links"):
            found += _link(root, link, index, f"gpu/{index[number]}/xgmi")
    return Facts(tuple(found))


def _properties(path: Path) -> dict[str, int]:
    text = read_fact(path, path, "", "").value
    return {key: int(value) for key, value in _PAIR.findall(str(text or ""))}


def _gpu(root: Path, node: Path, told: dict[str, int], subject: str) -> Iterator[Fact]:
    source = shown_path(root, node / "properties")
    where = told.get("location_id")
    if where is None:
        yield Fact(subject, "bus_id", None, source, "no location_id")
    else:
        bus_id = f"{told.get('domain', 0):04x}:{where >> 8 & 0xFF:02x}:{where >> 3 & 0x1F:02x}.{where & 7}"
        yield Fact(subject, "bus_id", bus_id, source)
    version = told.get("gfx_target_version", 0)
    if version:
        yield Fact(subject, "gcn", f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}", source)
    if told.get("unique_id"):
        yield Fact(subject, "uuid", f"{told['unique_id']:016x}", source)
    yield read_fact(root, node / "name", subject, "name")


def _link(root: Path, link: Path, index: dict[int, int], subject: str) -> Iterator[Fact]:
    told = _properties(link / "properties")
    peer = index.get(told.get("node_to", -1))
    if told.get("type") != _XGMI or peer is None or told.get("weight", _TWO_HOPS) >= _TWO_HOPS:
        return
    source = shown_path(root, link / "properties")
    least, most = told.get("min_bandwidth", 0), told.get("max_bandwidth", 0)
    if least and most >= least and most // least <= _MOST_LINKS:
        yield Fact(f"{subject}/{peer}", "count", most // least, source)
        yield Fact(f"{subject}/{peer}", "speed_MBps", least, source)
    else:
        yield Fact(f"{subject}/{peer}", "count", 1, source)
        yield Fact(f"{subject}/{peer}", "speed_MBps", None, source, f"the kernel says {least} to {most} MB/s")
