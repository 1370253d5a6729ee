"""Where a cluster's hosts are, as schedulers and clouds write it: behind which switches; what each
is must be said besides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...errors import InputError
from ...graph import Topology
from . import host_tiers, kubernetes, slurm_conf, topograph
from .boxes import Box, read_box
from .build import build
from .cluster import Cluster

__all__ = ["CLUSTER_FORMATS", "Box", "ClusterFormat", "read_box", "read_cluster"]


_SNIFF_CHARACTERS = 64 * 2**10


@dataclass(frozen=True)
class ClusterFormat:
    """A format: its `name` in messages, a test of how its texts start (or of whole ones), and its
    reader.
    """

    name: str
    starts: Callable[[str], bool]
    read: Callable[[str, str], Cluster]
    whole: bool = False


def _read_yaml(text: str, where: str) -> Cluster:
    """Return the cluster of a topology.yaml."""
    from .slurm_yaml import read  # PyYAML takes longer to import than all else here

    return read(text, where)


# Formats that say where hosts are, in the order in which they are tried.
CLUSTER_FORMATS = (
    ClusterFormat(topograph.WHAT, topograph.looks_like, topograph.read),
    ClusterFormat("kubectl get nodes -o json", kubernetes.looks_like, kubernetes.read),
    ClusterFormat(slurm_conf.WHAT, slurm_conf.looks_like, slurm_conf.read),
    ClusterFormat(slurm_conf.YAML, slurm_conf.looks_like_yaml, _read_yaml),
    ClusterFormat(
        "a list of hosts (first line: host rack spine)",
        host_tiers.looks_like,
        host_tiers.read,
        True,
    ),
)


def read_cluster(text: str, where: str, box: Box | None) -> Topology | None:
    """Return the topology of a text that says where hosts are, each of them being `box`; None where
    it is of another format.

    Raises InputError, naming the place, for what is wrong in it, and where a box is missing or of
    no use.
    """
    start = text[:_SNIFF_CHARACTERS].lstrip("\ufeff \t\r\n")
    format = next(
        (form for form in CLUSTER_FORMATS if form.starts(text if form.whole else start)), None
    )
    if format is None and box is not None:
        raise InputError(
            f"{where}: a box is only for files that say where hosts are, and this is none; leave it out",
            parameter="box",
        )
    if format is None:
        return None
    cluster = format.read(text.removeprefix("\ufeff"), where)
    if box is None:
        raise InputError(
            f"{where}: {cluster.what}, {len(cluster.hosts)} hosts: it says where they are, not what "
            "each is; give box='dgx-h100' (a preset or a file of one host), or first save the cluster "
            "with its box as JSON",
            parameter="box",
        )
    return build(cluster, box)
