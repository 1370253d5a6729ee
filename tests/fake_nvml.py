"""Machines as NVML describes them, for the compiled stand-in of libnvidia-ml.so.1 that the real
pynvml loads.

machine = hybrid_cube_mesh()
machine.fail("nvmlDeviceGetUUID", 15, gpu=3)  # any answer can fail, everywhere, for a GPU, for a
                                              link or a peer
done = probe(machine, tmp_path, "--json")     # topo-probe, called in this process, with the
                                              captured /sys
topology = probed(machine, tmp_path)          # the same as a Topology
facts = asked(machine)                        # what read_nvml says, alone
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from pathlib import Path

import pytest
from called import call_command
from captures import GPU
from fake_library import HIDDEN, serve, variables
from fake_machine import (
    C2C_COUNT,
    C2C_MAX_BW,
    C2C_STATUS,
    CAPABILITIES,
    CHIPSET,
    LINK_COUNT,
    NODE,
    NOT_SUPPORTED,
    OK,
    SINGLE,
    SYSTEM,
    TOPOLOGY,
    Machine,
)
from launch import run_module

from topoplan.topo.facts import Facts, facts_from_json
from topoplan.topo.facts.keys import NVLINK_STATE
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset
from topoplan.topo.probe.nvml.questions import read_nvml


def _system(machine: Machine) -> Machine:
    machine.lines = {
        "driver": "570.86.15",
        "version": "12.570.86.15",
        "cuda_version": 12080,
        "count": 0,
    }
    return machine


def _pairs(machine: Machine, linked: Iterable[tuple[int, int]] = (), **others: int) -> None:
    """P2P status of every ordered pair: all of it over NVLink where it is `linked`, `others`
    else.
    """
    over_pcie = {
        "read": OK,
        "write": OK,
        "nvlink": NOT_SUPPORTED,
        "atomics": NOT_SUPPORTED,
        "pcie": OK,
    }
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


def hybrid_cube_mesh() -> Machine:
    """A DGX-1 with V100: NVLinks as in the preset `dgx1`, four PCIe switches with two GPUs and a
    NIC each.
    """
    machine = _system(Machine(cpus_a_socket=20))
    buses = (0x06, 0x07, 0x0A, 0x0B, 0x85, 0x86, 0x89, 0x8A)
    for index, bus in enumerate(buses):
        first = buses[index // 2 * 2]  # of the two below one switch
        switch = f"{'00' if index < 4 else '80'}:0{index // 2 % 2 + 2}.0 {first - 2:02x}:00.0"
        machine.gpu(
            f"{bus:02x}:00.0",
            index // 4,
            "Tesla V100-SXM2-32GB",
            70,
            3,
            f"{switch} {first - 1:02x}:0{index % 2}.0",
        )
        if bus == first:
            machine.nic(
                f"mlx5_{index // 2}",
                f"{first | 0x10:02x}:00.0",
                index // 4,
                100,
                f"{switch} {first - 1:02x}:08.0",
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


def _switched(
    name: str, sm: int, generation: int, links: int, version: int, speed_MBps: int, gpus: int = 8
) -> Machine:
    """GPUs whose links all lead to NVSwitches, two below each PCIe switch."""
    machine = _system(Machine(cpu="amd", cpus_a_socket=64))
    for index in range(gpus):
        pair, bus = index // 2, 0x10 + index // 2 * 16
        node = pair // max(1, gpus // 4)
        switch = f"{'80' if node else '00'}:0{pair + 1}.0 {bus:02x}:00.0"
        machine.gpu(
            f"{bus + 2 + index % 2:02x}:00.0",
            node,
            name,
            sm,
            generation,
            f"{switch} {bus + 1:02x}:0{index % 2}.0",
        )
        if index % 2 == 0:
            machine.nic(
                f"mlx5_{pair}", f"{bus + 8:02x}:00.0", node, 200, f"{switch} {bus + 1:02x}:08.0"
            )
        machine.lines |= {f"gpu.{index}.mig": 0, f"gpu.{index}.field.{LINK_COUNT}.0": links}
        for link in range(links):
            machine.link(
                index, link, "switch", f"00000000:{0xC0 + link % 6:02X}:00.0", version, speed_MBps
            )
    _pairs(machine, permutations(range(gpus), 2))
    return machine


def nvswitch_box() -> Machine:
    """Eight A100 with twelve links each into NVSwitches."""
    return _switched("NVIDIA A100-SXM4-80GB", 80, 4, 12, 4, 25000)


def bridged_pairs(missing: bool = True) -> Machine:
    """Four H100 PCIe in two pairs with three bridges each (four links a bridge); one bridge of the
    second is missing.
    """
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
            f"{0x17 + 0x30 * index:02x}:00.0",
            node,
            "NVIDIA L40S",
            89,
            4,
            f"{'80' if node else '00'}:0{index + 1}.0",
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
    """`nvswitch_box` with one GPU off the bus: NVML gives no handle, or gives one and answers
    nothing more.
    """
    machine = nvswitch_box().fail("*", 15, gpu)
    return machine if at_handle else machine.fail("nvmlDeviceGetHandleByIndex_v2", 0, gpu)


def b200() -> Machine:
    """Eight B200 with 18 links each: NVML knows 36 numbers, and state answers for the real ones
    only.
    """
    machine = _switched("NVIDIA B200", 100, 5, 18, 7, 53125)
    for gpu in range(8):
        machine.lines |= {f"gpu.{gpu}.fabric.state": 3, f"gpu.{gpu}.fabric.clique": 0}
    return machine


CLUSTER = "0123456789abcdef0123456789abcdef"


def nvl72_tray() -> Machine:
    """A compute tray of an NVL72: four GB200 on two Grace CPUs, registered with a fabric of many
    trays.
    """
    machine = _system(Machine(cpu="arm", cpus_a_socket=72, gpu_nodes=(2, 10, 18, 26)))
    for index, domain in enumerate(("0008", "0009", "0018", "0019")):
        machine.gpu(f"{domain}:01:00.0", index // 2, "NVIDIA GB200", 100, 5)
        machine.lines |= {f"gpu.{index}.numa_id": machine.gpu_nodes[index], f"gpu.{index}.mig": 0}
        machine.lines |= {f"gpu.{index}.fabric.state": 3, f"gpu.{index}.fabric.clique": 32766}
        machine.lines |= {
            f"gpu.{index}.fabric.cluster": CLUSTER,
            f"gpu.{index}.field.{LINK_COUNT}.0": 18,
        }
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


# Variables beside those that lead to the machine.
Env = Mapping[str, str] | None
# Captured /sys and /proc that tests share, by what they show.
_SHARED: dict[str, tempfile.TemporaryDirectory[str]] = {}


@contextmanager
def _at_work(machine: Machine, without: tuple[str, ...], env: Env) -> Iterator[None]:
    """Let pynvml in this process find the machine."""
    with pytest.MonkeyPatch.context() as patch:
        for name in HIDDEN:
            patch.delenv(name, raising=False)
        serve(patch, machine, without)
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        yield


def _run_apart(
    module: str,
    arguments: Sequence[str],
    machine: Machine,
    folder: Path,
    without: tuple[str, ...] = (),
    env: Env = None,
) -> subprocess.CompletedProcess[str]:
    told = dict.fromkeys(HIDDEN) | variables(machine, folder, without) | dict(env or {})
    return run_module(module, *arguments, quiet_s=60, env=told)


def asked(machine: Machine, without: tuple[str, ...] = (), env: Env = None) -> Facts:
    """What read_nvml says in this process."""
    with _at_work(machine, without, env):
        return read_nvml()


def asked_apart(
    machine: Machine, folder: Path, without: tuple[str, ...] = (), env: Env = None
) -> Facts:
    """What read_nvml says in a process of its own."""
    done = _run_apart("ask_nvml", [], machine, folder, without, env)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return facts_from_json(json.loads(done.stdout), "read_nvml")


def probe(
    machine: Machine,
    folder: Path,
    *arguments: str,
    env: Env = None,
    without: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """`topo-probe ARGUMENTS` on the machine, with its `show_tree`, called in this process."""
    with _at_work(machine, without, env):
        return call_command("probe", "--sysfs-root", str(show_tree(machine, folder)), *arguments)


def probed(
    machine: Machine, folder: Path, env: Env = None, without: tuple[str, ...] = ()
) -> Topology:
    """What `topo-probe --json` finds on the machine."""
    return _read(probe(machine, folder, "--json", env=env, without=without))


def probed_apart(machine: Machine, folder: Path) -> Topology:
    """What `topo-probe --json` finds on it in a process of its own."""
    arguments = ["--sysfs-root", str(show_tree(machine, folder)), "--json"]
    return _read(_run_apart("topoplan.cli.probe", arguments, machine, folder))


def _read(done: subprocess.CompletedProcess[str]) -> Topology:
    assert done.returncode == 0, done.stderr
    return Topology.loads(done.stdout)


def captured(machine: Machine, folder: Path) -> Path:
    """`folder`/root with the machine's /sys and /proc, which a test may change; what it put there
    before stays.
    """
    root = folder / "root"
    if not root.exists():
        machine.capture(root)
    return root


def show_tree(machine: Machine, folder: Path) -> Path:
    """The machine's /sys and /proc, to be read: `folder`/root where the test made that, else those
    that are written once for all tests.
    """
    if (folder / "root").exists():
        return folder / "root"
    shown = repr(replace(machine, lines={}))
    if shown not in _SHARED:
        _SHARED[shown] = tempfile.TemporaryDirectory(prefix="captured-")
        machine.capture(Path(_SHARED[shown].name))
    return Path(_SHARED[shown].name)


def known(facts: Facts) -> set[tuple[str, str]]:
    """Subject and key of every fact that has a value."""
    return {(f.subject, f.key) for f in facts.items if f.value is not None}


def states(facts: Facts, gpu: int) -> dict[int, str | None]:
    """NVLinks of a GPU by number, with their state."""
    prefix = f"gpu/{gpu}/nvlink/"
    found = [f for f in facts.items if f.subject.startswith(prefix) and f.key == "state"]
    return {
        int(f.subject.removeprefix(prefix)): facts.get_text(f.subject, NVLINK_STATE) for f in found
    }


def nvlinks(topology: Topology) -> dict[tuple[str, str], tuple[Fraction, int]]:
    """GB/s and number of the NVLinks from one device to another."""
    return {
        (x.src, x.dst): (x.bandwidth_GBps, x.count) for x in topology.links if x.kind == "nvlink"
    }


def notes(topology: Topology) -> list[str]:
    """What a topology says of itself."""
    return list(topology.extra["notes"])
