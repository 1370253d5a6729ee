"""Read clusters from the files of schedulers and clouds: hosts and the switches above them.

These files do not describe a host itself; the caller must give its topology, a box.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...errors import InputError
from ...graph import Topology
from . import kubernetes, layers, slurm_conf
from .build import Box, build, read_box
from .cluster import Cluster

__all__ = ["CLUSTER_FORMATS", "Box", "ClusterFormat", "read_box", "read_cluster"]

# Characters at the start of a text in which its format is detected.
_SNIFF_CHARACTERS = 64 * 2**10


@dataclass(frozen=True)
class ClusterFormat:
    """A format: its `name` in messages, a test of a text, and its reader.

    The test reads the start of the text, or all of it if `whole`.
    """

    name: str
    starts: Callable[[str], bool]
    read: Callable[[str, str], Cluster]
    whole: bool = False


def _read_yaml(text: str, where: str) -> Cluster:
    from .slurm_yaml import read  # PyYAML takes longer to import than everything else here

    return read(text, where)


# Formats that locate hosts, in the order in which they are tried.
CLUSTER_FORMATS = (
    ClusterFormat(layers.TOPOGRAPH, layers.looks_like_topograph, layers.read_topograph),
    ClusterFormat("kubectl get nodes -o json", kubernetes.looks_like, kubernetes.read),
    ClusterFormat(slurm_conf.CONF, slurm_conf.looks_like_conf, slurm_conf.read_conf),
    ClusterFormat(slurm_conf.YAML, slurm_conf.looks_like_yaml, _read_yaml),
    ClusterFormat(
        "a list of hosts (first line: host rack spine)",
        layers.looks_like_list,
        layers.read_list,
        True,
    ),
)


def read_cluster(text: str, where: str, box: Box | None) -> Topology | None:
    """Read the topology of a cluster whose hosts are each a `box`.

    Return None for a text in another format. Raise InputError for a malformed file, for a missing
    box, and for a box given with another format.
    """
    start = text[:_SNIFF_CHARACTERS].lstrip("\ufeff \t\r\n")
    format = next(
        (form for form in CLUSTER_FORMATS if form.starts(text if form.whole else start)), None
    )
    if format is None:
        if box is None:
            return None
        raise InputError(
            f"{where}: a box is only for files that say where hosts are, and this is none; leave "
            "it out",
            parameter="box",
        )
    cluster = format.read(text.removeprefix("\ufeff"), where)
    if box is None:
        raise InputError(
            f"{where}: {cluster.what}, {len(cluster.hosts)} hosts: it says where they are, not "
            "what each is; give box='dgx-h100' (a preset or a file of one host), or first save the "
            "cluster with its box as JSON",
            parameter="box",
        )
    return build(cluster, box)
