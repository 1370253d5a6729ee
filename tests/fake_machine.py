"""A machine as NVML and the kernel's files describe it: what fake_nvml.c answers, and the `/sys`
that goes with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from captures import BRIDGE, GPU, NIC_IB, Tree

REMOTE = {"gpu": 0, "cpu": 1, "switch": 2, "unknown": 255}
CAPABILITIES = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3, "pcie": 4}
OK, CHIPSET, GPU_CANNOT, TOPOLOGY, REGISTRY, NOT_SUPPORTED, UNKNOWN = range(7)
INTERNAL, SINGLE, MULTIPLE, HOSTBRIDGE, NODE, SYSTEM = range(0, 60, 10)
GET_SPEED, SPEED_COMMON, LINK_COUNT = 164, 90, 91
C2C_COUNT, C2C_STATUS, C2C_MAX_BW = 170, 171, 172
NO_PEER = "FFFFFFFF:FF:FF.0"


@dataclass
class Slot:
    """Where a PCI function sits: bus addresses from the top bridge down, and its NUMA node."""

    chain: str
    node: int
    kind: str = GPU
    speed: str = "16.0 GT/s PCIe"
    width: str = "16"


@dataclass
class Machine:
    """What NVML answers (`lines`, in the words of fake_nvml.c) and what `/sys` shows beside it."""

    lines: dict[str, object] = field(default_factory=dict)
    slots: list[Slot] = field(default_factory=list)
    rdma: dict[str, tuple[str, str]] = field(default_factory=dict)
    sockets: int = 2
    cpu: str = "intel"
    cpus_a_socket: int = 8
    gpu_nodes: tuple[int, ...] = ()

    def set(self, key: str, value: object) -> Machine:
        """One answer, by its key in fake_nvml.c."""
        self.lines[key] = value
        return self

    def fail(
        self, function: str, code: int, gpu: int | None = None, other: int | None = None
    ) -> Machine:
        """Makes a function (`*`: all) fail with a code: everywhere, for a GPU, or for its link,
        peer or field `other`.
        """
        return self.set(
            ".".join(str(p) for p in ("fail", function, gpu, other) if p is not None), code
        )

    def gpu(
        self, bus: str, node: int, name: str, sm: int, generation: int = 4, above: str = ""
    ) -> int:
        """One more GPU at a bus address below the bridges `above`; its index."""
        index = self.count
        cpus = range(node * self.cpus_a_socket, (node + 1) * self.cpus_a_socket)
        told = {
            "bus_id": f"0000{bus.upper()}" if bus.count(":") == 2 else f"00000000:{bus.upper()}",
            "uuid": f"GPU-{index:08x}-0000-0000-0000-000000000000",
            "name": name,
            "sm": sm,
            "max_generation": generation,
            "max_width": 16,
            "generation": 1,
            "width": 16,
            "cpus": ",".join(map(str, cpus)),
            "nodes": node,
        }
        self.lines |= {f"gpu.{index}.{key}": value for key, value in told.items()}
        self.lines["count"] = index + 1
        speed = {3: "8.0", 4: "16.0", 5: "32.0"}[generation]
        self.slots.append(Slot(f"{above} {bus}".strip(), node, speed=f"{speed} GT/s PCIe"))
        return index

    def nic(self, name: str, bus: str, node: int, Gbps: int, above: str) -> None:
        """An InfiniBand card at a bus address below the bridges `above`."""
        self.slots.append(Slot(f"{above} {bus}", node, NIC_IB))
        self.rdma[name] = (bus, f"{Gbps} Gb/sec (4X)")

    @property
    def count(self) -> int:
        """How many GPUs there are."""
        return int(str(self.lines["count"]))

    def bus_id(self, gpu: int) -> str:
        """The address of a GPU as NVML writes it."""
        return str(self.lines[f"gpu.{gpu}.bus_id"])

    def link(
        self,
        gpu: int,
        link: int,
        kind: str,
        bus_id: str,
        version: int,
        speed_MBps: int | None = None,
    ) -> None:
        """An active NVLink."""
        here = f"gpu.{gpu}.link.{link}"
        self.lines |= {
            f"{here}.state": 1,
            f"{here}.remote_type": REMOTE[kind],
            f"{here}.remote_bus_id": bus_id,
        }
        self.lines[f"{here}.version"] = version
        if speed_MBps is not None:
            self.lines |= {f"gpu.{gpu}.field.{GET_SPEED}.{link}": speed_MBps}

    def inactive(self, gpu: int, *links: int) -> None:
        """NVLinks that are there and carry nothing."""
        for link in links:
            for key in [key for key in self.lines if key.startswith(f"gpu.{gpu}.link.{link}.")]:
                del self.lines[key]
            self.lines.pop(f"gpu.{gpu}.field.{GET_SPEED}.{link}", None)
            self.lines[f"gpu.{gpu}.link.{link}.state"] = 0

    def p2p(self, a: int, b: int, **status: int) -> None:
        """What GPU `a` may do to `b`: read, write, nvlink, atomics, pcie."""
        self.lines |= {f"p2p.{a}.{b}.{CAPABILITIES[name]}": code for name, code in status.items()}

    def text(self) -> str:
        """The file that fake_nvml.c reads."""
        return "".join(f"{key} {value}\n" for key, value in self.lines.items())

    def capture(self, root: Path) -> Tree:
        """Its `/sys` and `/proc`, written below `root`."""
        tree = Tree(root).cpus(self.sockets, self.cpu, self.cpus_a_socket)
        for node in self.gpu_nodes:
            tree.node(node, "")
        folders: dict[str, Path] = {}
        for slot in self.slots:
            *above, _ = parts = slot.chain.split()
            root_complex = f"pci{_domain(parts[0])}:{'80' if slot.node else '00'}"
            for depth in range(1, len(above) + 1):
                tree.pci(" ".join(above[:depth]), BRIDGE, slot.node, slot.speed, root=root_complex)
            vendor = "0x10de" if slot.kind == GPU else "0x15b3"
            where = tree.pci(
                slot.chain,
                slot.kind,
                slot.node,
                slot.speed,
                slot.width,
                root_complex,
                vendor=vendor,
            )
            folders[parts[-1]] = where
        for name, (bus, rate) in self.rdma.items():
            tree.rdma(name, folders[bus], rate)
        return tree


def _domain(bus: str) -> str:
    return bus.partition(":")[0] if bus.count(":") == 2 else "0000"
