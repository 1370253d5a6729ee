"""Machines as NVML describes them, for the compiled stand-in of libnvidia-ml.so.1 that the real pynvml loads.

machine = hybrid_cube_mesh()
machine.fail("nvmlDeviceGetUUID", 15, gpu=3)      # any answer can fail, everywhere, for a GPU, for a link or a peer
done = probe(machine, tmp_path, "--json")         # topo-probe in a process of its own, with its captured /sys
topology = probed(machine, tmp_path)              # the same as a Topology
facts = asked(machine)                            # what read_nvml says, alone
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import permutations
from pathlib import Path

import pytest
from captures import BRIDGE, GPU, NIC_IB, Tree

from topoplan.topo.facts import Facts, facts_from_json
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset

SOURCE = Path(__file__).with_name("fake_nvml.c")
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

    def fail(self, function: str, code: int, gpu: int | None = None, other: int | None = None) -> Machine:
        """Makes a function (`*`: all) fail with a code: everywhere, for a GPU, or for its link, peer or field `other`."""
        return self.set(".".join(str(p) for p in ("fail", function, gpu, other) if p is not None), code)

    def gpu(self, bus: str, node: int, name: str, sm: int, generation: int = 4, above: str = "") -> int:
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

    def link(self, gpu: int, link: int, kind: str, bus_id: str, version: int, speed_MBps: int | None = None) -> None:
        """An active NVLink."""
        here = f"gpu.{gpu}.link.{link}"
        self.lines |= {f"{here}.state": 1, f"{here}.remote_type": REMOTE[kind], f"{here}.remote_bus_id": bus_id}
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
            where = tree.pci(slot.chain, slot.kind, slot.node, slot.speed, slot.width, root_complex, vendor=vendor)
            folders[parts[-1]] = where
        for name, (bus, rate) in self.rdma.items():
            tree.rdma(name, folders[bus], rate)
        return tree


def _domain(bus: str) -> str:
    return bus.partition(":")[0] if bus.count(":") == 2 else "0000"


def _system(machine: Machine) -> Machine:
    machine.lines = {"driver": "570.86.15", "version": "12.570.86.15", "cuda_version": 12080, "count": 0}
    return machine


def _pairs(machine: Machine, linked: Iterable[tuple[int, int]] = (), **others: int) -> None:
    """P2P status of every ordered pair: all of it over NVLink where it is `linked`, `others` else."""
    over_pcie = {"read": OK, "write": OK, "nvlink": NOT_SUPPORTED, "atomics": NOT_SUPPORTED, "pcie": OK}
    together = set(linked)
    nodes = [slot.node for slot in machine.slots if slot.kind == GPU]
    above = [slot.chain.split()[:-1] for slot in machine.slots if slot.kind == GPU]
    for a, b in permutations(range(machine.count), 2):
        if (a, b) in together or (b, a) in together:
            machine.p2p(a, b, **dict.fromkeys(CAPABILITIES, OK))
        else:
            machine.p2p(a, b, **{**over_pcie, **others})
        switched = bool(above[a]) and above[a][:2] == above[b][:2] and len(above[a]) > 1
        level = SYSTEM if nodes[a] != nodes[b] else SINGLE if switched else NODE
        machine.set(f"ancestor.{a}.{b}", level)


# -- machines ----------------------------------------------------------------------------------------------------------


def hybrid_cube_mesh() -> Machine:
    """A DGX-1 with V100: NVLinks as in the preset `dgx1`, four PCIe switches with two GPUs and a NIC each."""
    machine = _system(Machine(cpus_a_socket=20))
    buses = (0x06, 0x07, 0x0A, 0x0B, 0x85, 0x86, 0x89, 0x8A)
    for index, bus in enumerate(buses):
        first = buses[index // 2 * 2]  # of the two below one switch
        switch = f"{'00' if index < 4 else '80'}:0{index // 2 % 2 + 2}.0 {first - 2:02x}:00.0"
        machine.gpu(
            f"{bus:02x}:00.0", index // 4, "Tesla V100-SXM2-32GB", 70, 3, f"{switch} {first - 1:02x}:0{index % 2}.0"
        )
        if bus == first:
            machine.nic(
                f"mlx5_{index // 2}", f"{first | 0x10:02x}:00.0", index // 4, 100, f"{switch} {first - 1:02x}:08.0"
            )
    used = [0] * 8
    linked = []
    for cable in preset("dgx1").links:
        if cable.kind == "nvlink":
            src, dst = int(cable.src[3:]), int(cable.dst[3:])
            linked.append((src, dst))
            for _ in range(cable.count):
                machine.link(src, 5 - used[src], "gpu", machine.bus_id(dst), 3, 25781)
                used[src] += 1
    for gpu in range(8):
        machine.set(f"gpu.{gpu}.field.{LINK_COUNT}.0", 6)
    _pairs(machine, linked, read=TOPOLOGY, write=TOPOLOGY, pcie=TOPOLOGY)
    for a, b in permutations(range(8), 2):
        if a // 2 == b // 2 and (a, b) not in linked:
            machine.p2p(a, b, read=OK, write=OK, pcie=OK)
    return machine


def _switched(name: str, sm: int, generation: int, links: int, version: int, speed_MBps: int, gpus: int = 8) -> Machine:
    """GPUs whose links all lead to NVSwitches, two below each PCIe switch."""
    machine = _system(Machine(cpu="amd", cpus_a_socket=64))
    for index in range(gpus):
        pair, bus = index // 2, 0x10 + index // 2 * 16
        node = pair // max(1, gpus // 4)
        switch = f"{'80' if node else '00'}:0{pair + 1}.0 {bus:02x}:00.0"
        machine.gpu(
            f"{bus + 2 + index % 2:02x}:00.0", node, name, sm, generation, f"{switch} {bus + 1:02x}:0{index % 2}.0"
        )
        if index % 2 == 0:
            machine.nic(f"mlx5_{pair}", f"{bus + 8:02x}:00.0", node, 200, f"{switch} {bus + 1:02x}:08.0")
        machine.lines |= {f"gpu.{index}.mig": 0, f"gpu.{index}.field.{LINK_COUNT}.0": links}
        for link in range(links):
            machine.link(index, link, "switch", f"00000000:{0xC0 + link % 6:02X}:00.0", version, speed_MBps)
    _pairs(machine, permutations(range(gpus), 2))
    return machine


def nvswitch_box() -> Machine:
    """Eight A100 with twelve links each into NVSwitches."""
    return _switched("NVIDIA A100-SXM4-80GB", 80, 4, 12, 4, 25000)


def bridged_pairs(missing: bool = True) -> Machine:
    """Four H100 PCIe in two pairs with three bridges each (four links a bridge); one bridge of the second is missing."""
    machine = _system(Machine(cpus_a_socket=32))
    for index in range(4):
        node = index // 2
        machine.gpu(
            f"{0x10 + 0x30 * index:02x}:00.0",
            node,
            "NVIDIA H100 PCIe",
            90,
            5,
            f"{'80' if node else '00'}:0{index + 1}.0",
        )
        machine.lines |= {f"gpu.{index}.mig": 0, f"gpu.{index}.field.{LINK_COUNT}.0": 18}
    for gpu in range(4):
        machine.inactive(gpu, *range(18))
        for bridge in (0, 6, 12):
            if not (missing and gpu >= 2 and bridge == 12):
                for link in range(bridge, bridge + 4):
                    machine.link(gpu, link, "gpu", machine.bus_id(gpu ^ 1), 6, 26562)
    _pairs(machine, ((0, 1), (2, 3)))
    return machine


def two_socket_pcie() -> Machine:
    """Four L40S without NVLink, two a socket; no peer access between the sockets."""
    machine = _system(Machine(cpus_a_socket=32))
    for index in range(4):
        node = index // 2
        machine.gpu(
            f"{0x17 + 0x30 * index:02x}:00.0", node, "NVIDIA L40S", 89, 4, f"{'80' if node else '00'}:0{index + 1}.0"
        )
        machine.fail("nvmlDeviceGetNvLinkState", 3, index)
    _pairs(machine)
    for a, b in permutations(range(4), 2):
        if a // 2 != b // 2:
            machine.p2p(a, b, read=CHIPSET, write=CHIPSET, pcie=CHIPSET)
    return machine


def mig() -> Machine:
    """Two A100 behind NVSwitches, the first in MIG mode, which rules out peer access."""
    machine = _switched("NVIDIA A100-SXM4-80GB", 80, 4, 12, 4, 25000, gpus=2)
    machine.set("gpu.0.mig", 1)
    for a, b in ((0, 1), (1, 0)):
        machine.p2p(a, b, **dict.fromkeys(CAPABILITIES, NOT_SUPPORTED))
    return machine


def lost_gpu(gpu: int = 3, at_handle: bool = True) -> Machine:
    """`nvswitch_box` with one GPU off the bus: NVML gives no handle, or gives one and answers nothing more."""
    machine = nvswitch_box().fail("*", 15, gpu)
    return machine if at_handle else machine.fail("nvmlDeviceGetHandleByIndex_v2", 0, gpu)


def b200() -> Machine:
    """Eight B200 with 18 links each: NVML knows 36 numbers, and state answers for the real ones only."""
    machine = _switched("NVIDIA B200", 100, 5, 18, 7, 53125)
    for gpu in range(8):
        machine.lines |= {f"gpu.{gpu}.fabric.state": 3, f"gpu.{gpu}.fabric.clique": 0}
    return machine


CLUSTER = "0123456789abcdef0123456789abcdef"


def nvl72_tray() -> Machine:
    """A compute tray of an NVL72: four GB200 on two Grace CPUs, registered with a fabric of many trays."""
    machine = _system(Machine(cpu="arm", cpus_a_socket=72, gpu_nodes=(2, 10, 18, 26)))
    for index, domain in enumerate(("0008", "0009", "0018", "0019")):
        machine.gpu(f"{domain}:01:00.0", index // 2, "NVIDIA GB200", 100, 5)
        machine.lines |= {f"gpu.{index}.numa_id": machine.gpu_nodes[index], f"gpu.{index}.mig": 0}
        machine.lines |= {f"gpu.{index}.fabric.state": 3, f"gpu.{index}.fabric.clique": 32766}
        machine.lines |= {f"gpu.{index}.fabric.cluster": CLUSTER, f"gpu.{index}.field.{LINK_COUNT}.0": 18}
        _c2c(machine, index, 10, 45000)
        for link in range(18):
            machine.link(index, link, "switch", f"00000000:{link:02X}:00.0", 7, 53125)
    _pairs(machine, permutations(range(4), 2))
    return machine


def grace() -> Machine:
    """One GH200: the GPU's memory is NUMA node 1, and ten C2C links join it to the Grace CPU."""
    machine = _system(Machine(sockets=1, cpu="arm", cpus_a_socket=72, gpu_nodes=(1,)))
    machine.gpu("0009:01:00.0", 0, "NVIDIA GH200 480GB", 90, 5)
    machine.lines |= {"gpu.0.numa_id": 1, "gpu.0.mig": 0, f"gpu.0.field.{LINK_COUNT}.0": 18}
    machine.inactive(0, *range(18))
    _c2c(machine, 0, 10, 45000)
    return machine


def _c2c(machine: Machine, gpu: int, links: int, each_MBps: int) -> None:
    machine.set(f"gpu.{gpu}.field.{C2C_COUNT}.0", links)
    for link in range(links):
        machine.set(f"gpu.{gpu}.field.{C2C_STATUS}.{link}", 1)
        machine.set(f"gpu.{gpu}.field.{C2C_MAX_BW}.{link}", each_MBps)


# -- asking them -------------------------------------------------------------------------------------------------------


@cache
def library(without: tuple[str, ...] = ()) -> Path:
    """The folder of a compiled libnvidia-ml.so.1 that lacks some symbols; the test skips where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc or clang) to build the stand-in of libnvidia-ml.so.1 with")
    folder = Path(_folder().name) / f"nvml-{len(list(Path(_folder().name).iterdir()))}"
    folder.mkdir()
    versions = folder / "versions"
    versions.write_text("{ global: nvml*;" + (f" local: {'; '.join(without)};" if without else "") + " };\n")
    options = (
        "-std=c11",
        "-O1",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libnvidia-ml.so.1",
        f"-Wl,--version-script={versions}",
    )
    built = subprocess.run(
        [compiler, *options, "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    return folder


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Goes with the process."""
    return tempfile.TemporaryDirectory(prefix="topoplan-nvml-")


def environment(machine: Machine, folder: Path, without: tuple[str, ...] = ()) -> dict[str, str]:
    """What a process needs in order to find `machine` at work; its description is written into `folder`."""
    description = folder / "machine.txt"
    description.write_text(machine.text())
    mine = {"LD_LIBRARY_PATH": str(library(without)), "FAKE_NVML_MACHINE": str(description)}
    hidden = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    return {name: value for name, value in os.environ.items() if name not in hidden} | mine


def _run(arguments: list[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env=dict(variables), capture_output=True, text=True, timeout=60, check=False
    )


_ASK = "import json; from topoplan.topo.facts import facts_to_json; from topoplan.topo.probe.nvml import read_nvml; "
_PROBE = (
    "import sys, pathlib; from topoplan.topo.probe.join import probe_local; "
    "sys.stdout.write(probe_local(pathlib.Path(sys.argv[1])).dumps())"
)


def asked(machine: Machine, folder: Path, without: tuple[str, ...] = (), env: Mapping[str, str] | None = None) -> Facts:
    """What read_nvml says in a process of its own."""
    variables = environment(machine, folder, without) | dict(env or {})
    done = _run(["-c", _ASK + "print(json.dumps(facts_to_json(read_nvml())))"], variables)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return facts_from_json(json.loads(done.stdout), "read_nvml")


def probe(
    machine: Machine,
    folder: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    without: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """`topo-probe ARGUMENTS` on the machine, with its captured /sys, which is written to `folder`/root."""
    root = captured(machine, folder)
    variables = environment(machine, folder, without) | dict(env or {})
    return _run(["-m", "topoplan.cli.probe", "--sysfs-root", str(root), *arguments], variables)


def probed(
    machine: Machine, folder: Path, env: Mapping[str, str] | None = None, without: tuple[str, ...] = ()
) -> Topology:
    """The topology that probe_local finds on the machine, with its captured /sys."""
    root = captured(machine, folder)
    done = _run(["-c", _PROBE, str(root)], environment(machine, folder, without) | dict(env or {}))
    assert done.returncode == 0, done.stderr
    return Topology.loads(done.stdout)


def captured(machine: Machine, folder: Path) -> Path:
    """`folder`/root with the machine's /sys and /proc; what a test put there before stays."""
    root = folder / "root"
    if not root.exists():
        machine.capture(root)
    return root
