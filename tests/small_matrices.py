"""Small matrices of nvidia-smi topo -m, and what is read of them."""

from __future__ import annotations

from topoplan.topo.facts import Facts, load_facts
from topoplan.topo.formats import smi
from topoplan.topo.graph import Topology
from topoplan.topo.matrix import ConnectionFinder

UUID = "GPU-6968dfc2-d444-d92c-c36b-6abe53445cb{}"


def matrix(labels: str, affinities: str = "", columns: str = "", names: str = "") -> str:
    """Rows of labels (`X NV1 / NV1 X`) under GPU0, GPU1, ..., with the affinities of each (`0-3 0;
    4-7 1`).
    """
    rows = [row.split() for row in labels.split("/")]
    ends = [end.split() for end in affinities.split(";")] + [[]] * len(rows)
    heads = names.split() or [f"GPU{i}" for i in range(len(rows[0]))]
    lines = ["\t".join(["", *heads, *filter(None, columns.split("|"))])]
    lines += [
        "\t".join([name, *row, *end]) for name, row, end in zip(heads, rows, ends, strict=False)
    ]
    return "\n".join(lines) + "\n"


def alike(count: int, label: str, affinities: str = "", columns: str = "") -> str:
    """A matrix in which all pairs have one label."""
    rows = (" ".join("X" if i == j else label for j in range(count)) for i in range(count))
    return matrix("/".join(rows), affinities, columns)


def read(text: str) -> Topology:
    return smi.read(text, "machine.txt")


def notes(topology: Topology) -> str:
    return "\n".join(topology.extra["notes"])


def facts(topology: Topology) -> Facts:
    return load_facts(topology.extra, "test")


def labels(topology: Topology) -> dict[tuple[str, str], str]:
    connections, ends = (
        ConnectionFinder(topology),
        [d.id for d in topology.devices if d.kind in ("gpu", "nic")],
    )
    return {(a, b): connections.find(a, b).label for a in ends for b in ends if a != b}


def status(speeds: dict[int, list[str]]) -> str:
    """`nvlink -s`: for each GPU, what its links say."""
    lines = []
    for gpu, told in speeds.items():
        lines.append(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: {UUID.format(gpu)})")
        lines += [f"\t Link {i}: {speed}" for i, speed in enumerate(told)]
    return "\n".join(lines) + "\n"
