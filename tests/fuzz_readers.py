"""Damaged inputs for every reader: each must give a topology that can be written again, or one
clear line.

Run as a program by test_fuzz.py, so that memory can be bounded for the process and time for each
input: `python fuzz_readers.py READER EXAMPLES [READER EXAMPLES]...`. Ends with 1 and the input where
a reader fails.
"""

from __future__ import annotations

import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from needs import has_extra
from small_xml import machine, nvlink

from topoplan.topo import probe_json
from topoplan.topo.errors import InputError
from topoplan.topo.formats import smi
from topoplan.topo.formats.detect import read_topology_text
from topoplan.topo.graph import Topology
from topoplan.topo.pictures import table
from topoplan.topo.pictures import text_tree as tree
from topoplan.topo.presets import preset
from topoplan.topo.probe.join import probe_local

MEMORY_BYTES = 2**30
SLOW_WRITERS: list[Callable[[Topology], str]] = [table.write, tree.write]
FAST_WRITERS: list[Callable[[Topology], str]] = [probe_json.write, smi.write]
if has_extra("pictures"):
    from topoplan.topo.extras.pictures import dot

    SLOW_WRITERS.append(dot.write)
if has_extra("nccl-topology"):
    from topoplan.topo.extras import nccl_topology

    FAST_WRITERS.append(nccl_topology.write)
COUNT = count()
SECONDS_AN_INPUT = 10

HWLOC = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x3" nodeset="0x1" gp_index="1">
    <info name="CPUVendor" value="GenuineIntel"/><info name="CPUModelNumber" value="85"/>
    <object type="Package" os_index="0" cpuset="0x3" nodeset="0x1" gp_index="2">
      <object type="NUMANode" os_index="0" cpuset="0x3" nodeset="0x1" gp_index="3" local_memory="1024"/>
      <object type="Bridge" gp_index="4" bridge_type="0-1" depth="0" bridge_pci="0000:[00-07]">
        <object type="Bridge" gp_index="5" bridge_type="1-1" depth="1" bridge_pci="0000:[01-03]"
                pci_busid="0000:00:01.0" pci_type="0604 [8086:2030] [8086:0000] 04" pci_link_speed="15.753846">
          <object type="PCIDev" gp_index="6" pci_busid="0000:01:00.0" pci_type="0302 [10de:1db8] [10de:131d] a1"
                  pci_link_speed="15.753846"><object type="OSDev" gp_index="16" name="nvml0" osdev_type="12"/></object>
          <object type="PCIDev" gp_index="7" pci_busid="0000:02:00.0" pci_type="0302 [10de:1db8] [10de:131d] a1"
                  pci_link_speed="15.753846"><object type="OSDev" gp_index="17" name="nvml1" osdev_type="12"/></object>
          <object type="PCIDev" gp_index="8" pci_busid="0000:03:00.0" pci_type="0207 [15b3:1017] [15b3:0006] 00"
                  pci_link_speed="15.753846"><object type="OSDev" gp_index="18" name="mlx5_0" osdev_type="3"/></object>
        </object>
      </object>
    </object>
  </object>
  <distances2hetero nbobjs="2" kind="10" name="NVLinkBandwidth" indexing="gp">
    <indexes length="16">PCIDev:6 PCIDev:7</indexes>
    <u64values length="18">0 50000 50000 0</u64values>
  </distances2hetero>
</topology>
"""

SMI = """\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV4\tPIX\tSYS\tPIX\t0-7\t0\tN/A
GPU1\tNV4\t X \tPXB\tSYS\tNODE\t0-7\t0\tN/A
GPU2\tPIX\tPXB\t X \tSYS\tPHB\t0-7\t0\tN/A
GPU3\tSYS\tSYS\tSYS\t X \tSYS\t8-15\t1\tN/A
mlx5_0\tPIX\tNODE\tPHB\tSYS\t X

NIC Legend:

  NIC0: mlx5_0

$ nvidia-smi topo -p2p r
 \tGPU0\tGPU1
 GPU0\tX\tCNS
 GPU1\tOK\tX
GPU 0: NVIDIA H100 PCIe (UUID: GPU-6968dfc2)
         Link 0: 26.562 GB/s
         Link 1: <inactive>
GPU 0: NVIDIA H100 PCIe (UUID: GPU-6968dfc2)
         Link 0: Remote Device 00000000:D5:00.0: Link 0
"""


def _list_xml() -> list[str]:
    pair = machine(nvlink("0000:01:00.0", 4), nvlink("0000:00:00.0", 4))
    names = ("pcie-2socket", "dgx-a100:2", "dgx1", "mi250") if has_extra("nccl-topology") else ()
    return [pair, *(nccl_topology.write(preset(name)) for name in names)]


_RICH_JSON = """{"format": "topoplan-topology", "version": 1, "name": "x", "devices": [{"id": "gpu0", "kind": "gpu",
"numa_node": 0, "bus_id": "0000:01:00.0", "pci": {"link_width": "16"}}, {"id": "gpu1", "kind": "gpu", "root": "pci0000:00"},
{"id": "plx", "kind": "switch", "family": "pcie"}, {"id": "cpu0", "kind": "cpu"}, {"id": "mlx5_0", "kind": "nic", "gdr": 1}],
"links": [{"src": "gpu0", "dst": "plx", "bandwidth_GBps": "64/3", "kind": "pcie", "bidirectional": true},
{"src": "plx", "dst": "gpu1", "measured": {"GBps": 3, "us": 1.5, "source": "s", "how": "alone"}, "bidirectional": true},
{"src": "mlx5_0", "dst": "plx", "latency_us": 0.7, "kind": "pcie", "count": 2, "bidirectional": true},
{"src": "plx", "dst": "cpu0", "declared": {"GBps": 24, "us": 1, "source": "d"}, "kind": "pcie", "bidirectional": true}],
"facts": [{"subject": "gpu/0/p2p/1", "key": "read", "source": "s", "value": "ok"},
{"subject": "gpu/0", "key": "mig", "source": "s", "value": "on"}, {"subject": "pci/0000:01:00.0", "key": "acs", "source": "s",
"value": "request redirect"}, {"subject": "host", "key": "iommu", "source": "s", "missing": "who knows"}], "notes": ["n"]}
"""

NCCL_LOG = """=== System : maxBw 24.0 totalBw 48.0 ===
CPU/0-0 (1/1/2)
+ PCI[24.0] - PCI/0-1b000 (1000c010)
              + PCI[24.0] - GPU/0-10000 (0)
                            + NVL[240.0] - NVS/0-0
              + PCI[24.0] - GPU/0-11000 (1)
                            + NVL[48.0] - GPU/0-10000
                            + C2C[300.0] - CPU/0-0
              + PCI[12.0] - NIC/0-12000
                            + NET[25.0] - NET/0-1 (1/0/25.000000)
+ SYS[10.0] - CPU/0-1
CPU/0-1 (1/1/2)
+ PCI[24.0] - GPU/0-20000 (2)
==========================================
"""

SEEDS: dict[str, Callable[[], list[str]]] = {
    "json": lambda: [_RICH_JSON, preset("pcie-2socket").dumps(), preset("dgx1").dumps()],
    "nccl-xml": _list_xml,
    "hwloc-xml": lambda: [HWLOC],
    "nccl-log": lambda: [NCCL_LOG],
    "smi": lambda: [SMI, smi.write(preset("pcie-2socket")), smi.write(preset("dgx1"))],
}

SYSFS = {
    "proc/sys/kernel/hostname": "box",
    "proc/cpuinfo": "processor : 0\nvendor_id : AuthenticAMD\ncpu family : 23\nmodel : 49\nflags "
    ": fpu hypervisor",
    "proc/cmdline": "quiet intel_iommu=on iommu=pt",
    "proc/sys/kernel/osrelease": "5.15.0-1-generic",
    "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t H100\nGPU UUID: \t GPU-1",
    "proc/driver/nvidia/gpus/0000:01:00.0/numa_status": "Node: 4",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54",
    "sys/class/kfd/kfd/topology/nodes/1/properties": "simd_count 9\nlocation_id "
    "256\ngfx_target_version 90402\ndomain 0",
    "sys/class/kfd/kfd/topology/nodes/2/properties": "simd_count 9\nlocation_id 512\nunique_id 7",
    "sys/class/kfd/kfd/topology/nodes/1/io_links/0/properties": "type 11\nnode_to 2\nweight "
    "15\nmin_bandwidth 9",
    "sys/devices/system/node/node0/cpulist": "0-7",
    "sys/devices/system/node/node1/cpulist": "8-15",
    "sys/class/dmi/id/sys_vendor": "QEMU",
    "sys/kernel/iommu_groups/1/type": "DMA",
    "sys/module/nvidia_peermem/version": "550",
    **{
        f"sys/bus/pci/devices/{bus}/{name}": text
        for bus, kind in (
            ("0000:01:00.0", "0x030200"),
            ("0000:02:00.0", "0x030200"),
            ("0000:03:00.0", "0x020700"),
        )
        for name, text in {
            "class": kind,
            "vendor": "0x10de",
            "device": "0x20b0",
            "numa_node": "0",
            "max_link_speed": "16.0 GT/s PCIe",
            "max_link_width": "16",
            "current_link_speed": "2.5 GT/s PCIe",
            "current_link_width": "8",
            "local_cpulist": "0-7",
            "local_cpus": "0000,000000ff",
            "config": "\0" * 256 + "\x0d\0\x01\0\0\0\x1d\0" + "\0" * 64,
        }.items()
    },
    "sys/class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)",
    "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
    "sys/class/net/ib0/speed": "200000",
}

TOKENS = (
    *(
        "",
        "-1",
        "0",
        "1",
        "99999999999999999999999",
        "1e999",
        "nan",
        "0x",
        "-",
        "null",
        "true",
        "[]",
        "{}",
        "é",
        "\0",
        "\n",
    ),
    *(
        "<",
        ">",
        "/>",
        '"',
        "&lt;",
        "&x;",
        "<!--",
        "]]>",
        "<!ENTITY a 'b'>",
        "<gpu/>",
        "<pci",
        "\t",
        "GPU0",
        "GPU9",
        "NV99999",
    ),
    *(
        "X",
        "SYS",
        "N/A",
        "gpu0",
        "cpu0",
        ",",
        ":",
        "0000:01:00.0",
        "ffffff:ff:ff.0",
        "0-4294967295",
        "1/0",
        "\x1b[4m",
        "🙂",
    ),
)


@st.composite
def damaged(draw: st.DrawFn, seeds: list[str]) -> str:
    """One of the seeds after one to six cuts, repeats, swaps, insertions or changed digits."""
    text = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 6))):
        here = draw(st.integers(0, max(0, len(text))))
        span = draw(st.integers(0, 60))
        what = draw(
            st.sampled_from(("insert", "replace", "delete", "repeat", "cut", "move", "digit"))
        )
        token = draw(st.sampled_from(TOKENS)) if what in ("insert", "replace") else ""
        piece, after = text[here : here + span], text[here + span :]
        if what == "insert":
            text = text[:here] + token + text[here:]
        elif what in ("replace", "delete"):
            text = text[:here] + token + after
        elif what == "repeat":
            text = text[:here] + piece * draw(st.integers(2, 40)) + after
        elif what == "cut":
            text = text[:here] if draw(st.booleans()) else text[here:]
        elif what == "move":
            text = after + text[:here] + piece
        else:
            at = next((i for i in range(here, len(text)) if text[i].isdigit()), None)
            text = (
                text if at is None else text[:at] + str(draw(st.integers(0, 99))) + text[at + 1 :]
            )
    return text


def judge(make: Callable[[], Topology]) -> None:
    """A topology, and all that can be written of it (by the slow writers every fifth one), or one
    clear line.
    """
    signal.setitimer(signal.ITIMER_REAL, SECONDS_AN_INPUT)
    try:
        topology = make()
        assert Topology.loads(topology.dumps()) == topology
        for write in (
            *FAST_WRITERS,
            *(SLOW_WRITERS if next(COUNT) % 5 == 0 else ()),
        ):
            try:
                write(topology)
            except InputError as error:
                assert_one_line(error)
    except InputError as error:
        assert_one_line(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def assert_one_line(error: InputError) -> None:
    assert str(error).strip() and len(str(error).splitlines()) == 1, (
        f"no single line: {str(error)!r}"
    )


def fuzz_text(reader: str, examples: int) -> None:
    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(damaged(SEEDS[reader]()))
    def run(text: str) -> None:
        judge(lambda: read_topology_text(text, "fuzzed"))

    run()


def fuzz_sysfs(examples: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in SYSFS.items():
            write_file(Path(folder, name), text)
        fuzz_files(examples, Path(folder))


def write_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="latin-1", errors="replace")


def remove_file(path: Path, root: Path) -> None:
    """Remove a file, and the folders up to `root` that are empty without it."""
    path.unlink()
    for parent in path.parents:
        if parent == root or any(parent.iterdir()):
            return
        parent.rmdir()


def fuzz_files(examples: int, folder: Path) -> None:
    """Damage, or take away, some of the files in `folder`, and then put back what was in them."""
    files = sorted(SYSFS)

    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(
        st.dictionaries(
            st.sampled_from(files), st.none() | damaged([""]) | st.sampled_from(TOKENS), max_size=12
        ),
        st.data(),
    )
    def run(changes: dict[str, str | None], data: st.DataObject) -> None:
        try:
            for name in sorted(changes):
                text = changes[name]
                if text is None:
                    remove_file(folder / name, folder)
                else:
                    write_file(
                        folder / name, text if text != "" else data.draw(damaged([SYSFS[name]]))
                    )
            judge(lambda: probe_local(folder))
        finally:
            for name in changes:
                write_file(folder / name, SYSFS[name])

    run()


def main(wanted: dict[str, int]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    def too_long(*_: object) -> None:
        raise TimeoutError(f"an input took more than {SECONDS_AN_INPUT} s")

    signal.signal(signal.SIGALRM, too_long)
    for reader, examples in wanted.items():
        if reader == "sysfs":
            fuzz_sysfs(examples)
        else:
            fuzz_text(reader, examples)
        print(f"{reader}: {examples} inputs", flush=True)


if __name__ == "__main__":
    main(dict(zip(sys.argv[1::2], map(int, sys.argv[2::2]), strict=True)))
