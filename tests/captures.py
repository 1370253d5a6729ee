"""Builds the part of a machine's `/sys` and `/proc` that the probe reads, in a folder."""

from __future__ import annotations

import os
from pathlib import Path

BRIDGE, GPU, NIC_IB, NIC_ETH, NVSWITCH = "0x060400", "0x030200", "0x020700", "0x020000", "0x068000"
ROOT = "pci0000:00"

_INTEL = ("vendor_id\t: GenuineIntel", "cpu family\t: 6", "model\t\t: 85", "model name\t: Xeon")
_AMD = (
    "vendor_id\t: AuthenticAMD",
    "cpu family\t: 23",
    "model\t\t: 49",
    "model name\t: AMD EPYC 7742 64-Core Processor",
)
_ARM = ("CPU implementer\t: 0x41", "CPU architecture: 8", "CPU part\t: 0xd4f")
CPUINFO = {"intel": _INTEL, "amd": _AMD, "arm": _ARM}


def write(path: Path, text: str) -> None:
    """A file with one line (or several), and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def link_to(link: Path, target: Path) -> None:
    """A link as /sys has them: relative."""
    link.symlink_to(os.path.relpath(target, link.parent))


class Tree:
    """Builds the part of /sys and /proc that the probe reads."""

    def __init__(self, root: Path, hostname: str = "box") -> None:
        self.root = root
        write(root / "proc/sys/kernel/hostname", hostname)

    def cpus(self, nodes: int, kind: str = "intel", each: int = 8) -> Tree:
        """NUMA nodes with `each` CPUs."""
        write(self.root / "proc/cpuinfo", "\n".join(("processor : 0", *CPUINFO[kind])))
        for node in range(nodes):
            self.node(node, f"{node * each}-{node * each + each - 1}")
            write(
                self.root / f"sys/devices/system/cpu/cpu{node * each}/topology/physical_package_id",
                str(node),
            )
        return self

    def node(self, number: int, cpus: str) -> None:
        """A NUMA node; the memory of a GPU is one without CPUs."""
        write(self.root / f"sys/devices/system/node/node{number}/cpulist", cpus)

    def pci(
        self,
        chain: str,
        kind: str,
        node: int = -1,
        speed: str = "8.0 GT/s PCIe",
        width: str = "16",
        root: str = ROOT,
        **more: str,
    ) -> Path:
        """A function at the end of `chain`, such as "00:01.0 01:00.0"; bridges are made by calls of
        their own.
        """
        ids = [part if part.count(":") == 2 else f"0000:{part}" for part in chain.split()]
        folder = self.root / "sys/devices" / root / "/".join(ids)
        files = {"class": kind, "vendor": "0x10de", "device": "0x1db1", "numa_node": str(node)}
        files |= {
            "max_link_speed": speed,
            "max_link_width": width,
            "current_link_speed": "2.5 GT/s PCIe",
        }
        for name, text in {**files, "current_link_width": width, **more}.items():
            write(folder / name, text)
        link = self.root / "sys/bus/pci/devices" / ids[-1]
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link_to(link, folder)
        return folder

    def net(self, name: str, device: Path, speed: str) -> None:
        """A network interface of a PCI function."""
        write(self.root / f"sys/class/net/{name}/speed", speed)
        write(self.root / f"sys/class/net/{name}/operstate", "up")
        link_to(self.root / f"sys/class/net/{name}/device", device)

    def rdma(self, name: str, device: Path, rate: str) -> None:
        """An RDMA device of a PCI function, with one active port."""
        write(self.root / f"sys/class/infiniband/{name}/ports/1/rate", rate)
        write(self.root / f"sys/class/infiniband/{name}/ports/1/state", "4: ACTIVE")
        link_to(self.root / f"sys/class/infiniband/{name}/device", device)
