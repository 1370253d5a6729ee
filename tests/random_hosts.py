"""Random hosts as NCCL's XML: GPUs on one or two sockets, some of them joined by NVLinks."""

from __future__ import annotations

import random

from topoplan.topo.formats import nccl_xml
from topoplan.topo.graph import Topology

# Compute capability (times ten) and PCIe speed of GPUs; vendor and model of CPUs.
GPUS = ((70, "8.0"), (80, "16.0"), (90, "32.0"), (89, "16.0"))
CPUS = (("AuthenticAMD", 49), ("GenuineIntel", 85), ("GenuineIntel", 143))


def make_host(seed: int) -> Topology:
    """Return a host of 2 to 8 GPUs with random PCIe, sockets and NVLinks."""
    chance = random.Random(seed)
    count, sockets = chance.choice([2, 3, 4, 4, 5, 6, 8]), chance.choice([1, 2, 2])
    sm, speed = chance.choice(GPUS)
    nvlinks: dict[int, str] = dict.fromkeys(range(count), "")
    for _ in range(chance.randrange(2 * count)):
        a, b = chance.sample(range(count), 2)
        for end, target in ((a, b), (b, a)):
            nvlinks[end] += f'<nvlink target="0000:{target + 1:02x}:00.0" count="2" tclass="0x03"/>'
    gpus = [
        f'<pci busid="0000:{i + 1:02x}:00.0" class="0x030200" link_speed="{speed} GT/s PCIe" '
        f'link_width="16"><gpu dev="{i}" rank="{i}" sm="{sm}" gdr="1">{nvlinks[i]}</gpu></pci>'
        for i in range(count)
    ]
    vendor, model = chance.choice(CPUS)
    cut = chance.randrange(1, count + 1) if sockets == 2 else count
    cpus = "".join(
        f'<cpu numaid="{i}" arch="x86_64" vendor="{vendor}" familyid="6" modelid="{model}">'
        f"{''.join(part)}</cpu>"
        for i, part in enumerate((gpus[:cut], gpus[cut:]))
        if part
    )
    return nccl_xml.read(f'<system version="1">{cpus}</system>', f"random{seed}")
