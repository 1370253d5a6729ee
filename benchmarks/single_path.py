"""The single-path bound, machine by machine, beside the expected figure.

    python -m benchmarks single_path

Wanted are the one-way optima of recorded machines that were found by other means (in ../shared,
where it is present), and of three whose matrices are written here. Where NCCL's rings are the
optimum, what is wanted is what a ring reaches as it is sent. Every certificate is checked; "sent"
is what the plan at 1 GiB and more reaches on the system's own routes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import Table, make_parser

if TYPE_CHECKING:
    from topoplan.topo.graph import Topology

SHARED = Path(__file__).resolve().parents[2] / "shared"
# How far, as a share, a figure may be from one that is given to two digits.
_WITHIN = 5e-4


def matrix(
    links: dict[tuple[int, int], str],
    numa: list[int],
    cpus: int,
    far: str = "SYS",
    near: str = "NODE",
) -> str:
    """Return the text of `nvidia-smi topo -m` for GPUs on NUMA nodes; of the same node they are
    `near`, else `far`.
    """
    n = len(numa)
    rows = ["\t" + "\t".join(f"GPU{i}" for i in range(n)) + "\tCPU Affinity\tNUMA Affinity"]
    for i in range(n):
        cells = [
            " X "
            if i == j
            else links.get((min(i, j), max(i, j)), near if numa[i] == numa[j] else far)
            for j in range(n)
        ]
        rows.append(
            "\t".join(
                [f"GPU{i}", *cells, f"{numa[i] * cpus}-{numa[i] * cpus + cpus - 1}", str(numa[i])]
            )
        )
    return "\n".join(rows) + "\n"


# Eight A40 in four bridged pairs, each pair on a NUMA node of its own.
A40 = matrix({(i, i + 1): "NV4" for i in range(0, 8, 2)}, [0, 0, 2, 2, 4, 4, 6, 6], 8)
# Two bridged pairs on one socket or two.
TWO_PAIRS = {
    sockets: matrix({(0, 1): "NV4", (2, 3): "NV4"}, [0, 0, sockets - 1, sockets - 1], 16)
    for sockets in (1, 2)
}
# Two pairs of a CPU and a GPU: what goes between the GPUs takes their own links, though the CPUs
# are joined as well.
C2C: dict[str, Any] = {
    "format": "topoplan-topology",
    "version": 1,
    "name": "two superchips",
    "devices": [
        *({"id": f"gpu{i}", "kind": "gpu"} for i in range(2)),
        *({"id": f"cpu{i}", "kind": "cpu"} for i in range(2)),
    ],
    "links": [
        {
            "src": "gpu0",
            "dst": "gpu1",
            "kind": "nvlink",
            "bandwidth_GBps": 384,
            "bidirectional": True,
        },
        *(
            {
                "src": f"gpu{i}",
                "dst": f"cpu{i}",
                "kind": "c2c",
                "bandwidth_GBps": 448,
                "bidirectional": True,
            }
            for i in range(2)
        ),
        {"src": "cpu0", "dst": "cpu1", "kind": "smp", "bandwidth_GBps": 448, "bidirectional": True},
    ],
}

Machine = tuple[str, str | None, str | None, float | None]
MACHINES: tuple[Machine, ...] = (
    # name, file in ../shared or preset, text written here, wanted in GB/s (None: what a ring
    # reaches)
    ("ncv4, bridges 0-1 and 2-3", "inputs/nccl_graphs/ncv4-bridged.topology.xml", None, 24.0),
    ("8x A40, 4 bridges, NPS4", None, A40, 16.0),
    ("2 bridged pairs, 2 sockets", None, TWO_PAIRS[2], 19.2),
    ("2 bridged pairs, 1 socket", None, TWO_PAIRS[1], 24.0),
    (
        "a100, one bridge missing",
        "inputs/nccl_graphs/a100-one-bridge-missing.topology.xml",
        None,
        10.8,
    ),
    ("pcie-3gpu", "inputs/nccl_graphs/pcie-3gpu.topology.xml", None, 16.0),
    ("pcie-2socket", "inputs/nccl_graphs/pcie-2socket.topology.xml", None, 96 / 7),
    ("DGX-1V (smi 01)", "machines/smi/01-dgx1v-8xV100-mlx5x4_msccl-tools.txt", None, 88.46),
    ("dgx1", "inputs/nccl_graphs/dgx1.topology.xml", None, None),
    ("dgx2", "dgx2", None, None),
    ("dgx-a100", "inputs/nccl_graphs/dgx-a100.topology.xml", None, None),
    (
        "plain PCIe (smi 08)",
        "machines/smi/08-l40s-4gpu-2nic-2numa_warpem-miss-alignment-106.txt",
        None,
        None,
    ),
    (
        "plain PCIe (smi 09)",
        "machines/smi/09-pcie-8gpu-mlx5-2socket_lattice-quda-669.txt",
        None,
        None,
    ),
    (
        "plain PCIe (smi 19)",
        "machines/smi/19-7gpu-PIX-PHB-mlx4_find_string37354995983.txt",
        None,
        None,
    ),
    ("oci-h100", "inputs/nccl_graphs/oci-h100.topology.xml", None, 211.89),
    ("GB300, two trays", "inputs/nccl_xml/GB300MP-2hosts.xml", None, 412.46),
    ("two superchips, C2C", None, json.dumps(C2C), 384.0),
    ("MI300X (rccl 940)", "machines/nccl_xml/rccl/topo_8p_940.xml", None, 192.0),
    ("DGX-2 (hwloc)", "machines/hwloc/nvidiaDGX2.xml", None, 80.0),
)


def open_machine(file: str | None, text: str | None) -> Topology | None:
    """Return a machine by its file in SHARED, its preset's name, or the text of a matrix; None
    where its file is absent.
    """
    from topoplan.topo.loader.resolve import load_for_planning

    with tempfile.TemporaryDirectory() as folder:
        source = file if file is None or "/" not in file else str(SHARED / file)
        if source is None:
            path = Path(folder) / "machine.txt"
            path.write_text(text or "")
            source = str(path)
        if "/" in source and not Path(source).exists():
            return None
        return load_for_planning(source)[0]


def measure(machine: Machine) -> dict[str, Any] | None:
    """Return the figures of a machine, in GB/s; None where its file is absent."""
    from planned import synthesize

    from topoplan.synth.bounds.certificate import check_bound
    from topoplan.synth.ir.collective import collective_on

    name, file, text, wanted = machine
    topology = open_machine(file, text)
    if topology is None:
        return None
    collective = collective_on("allreduce", topology)
    plan = synthesize(collective, topology, "packing").plan
    check_bound(plan.bound, collective, topology)
    check_bound(plan.bound_one_way, collective, topology, plan.router)
    found = float(plan.bound_one_way.algbw_GBps)
    if wanted is None:
        ring = synthesize(collective, topology, "ring").plan
        wanted = float(max(ring.limit_GBps(entry) or Fraction(0) for entry in ring.entries))
    return {
        "machine": name,
        "ranks": collective.ranks,
        "any_way_GBps": float(plan.bound.algbw_GBps),
        "one_way_GBps": found,
        "kind": plan.bound_one_way.kind,
        "wanted_GBps": wanted,
        "met": abs(found - wanted) <= _WITHIN * wanted,
        "sent_GBps": float(max(plan.limit_GBps(entry) or Fraction(0) for entry in plan.entries)),
    }


def measure_all() -> Iterator[tuple[Machine, dict[str, Any] | None]]:
    """Yield each machine with its figures."""
    for machine in MACHINES:
        yield machine, measure(machine)


COLUMNS = (
    ("machine", "machine", "<28"),
    ("ranks", "ranks", ">5"),
    ("any_way_GBps", "multipath", ">9.2f"),
    ("one_way_GBps", "single-path", ">11.2f"),
    ("sent_GBps", "sent", ">9.2f"),
    ("wanted_GBps", "expected", ">9.2f"),
    ("met", "met", "<4"),
    ("kind", "certificate", ""),
)


def main() -> int:
    """Print the table; return 1 where a bound is not what is wanted."""
    parser = make_parser(__doc__)
    args = parser.parse_args()
    table = Table(COLUMNS, as_json=args.json)
    missed = False
    for machine, row in measure_all():
        if row is None:
            print(f"{machine[0]:<28} skipped: {machine[1]} is not in {SHARED}", file=sys.stderr)
            continue
        missed = missed or not row["met"]
        table.add(row)
    table.end()
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
