"""Read Kubernetes nodes and the labels that locate them (`kubectl get nodes -o json`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Any

from msgspec import Struct, field

from ...errors import InputError
from ...schema import Identifier, read_as
from .cluster import Cluster
from .layers import Row, build_cluster, drop_single_tiers, parse_json

START = re.compile(r'\{\s*"(?:apiVersion|items|kind)"\s*:')
_TIER = re.compile(r"fabric\.topograph\.run/tier-(\d{1,3})")
# Labels of one provider each, the closest tier first; the first family that nodes have is used.
FAMILIES: tuple[tuple[str, ...], ...] = tuple(
    tuple(prefix + tier for tier in tiers)
    for prefix, tiers in (
        (
            "network.topology.nvidia.com/",
            ("accelerator", "leaf", "block", "spine", "core", "datacenter"),
        ),
        ("cloud.google.com/gce-topology-", ("host", "subblock", "block")),
        ("topology.k8s.aws/network-node-layer-", ("3", "2", "1")),
        ("cloud.provider.com/topology-", ("rack", "block")),
        ("topology.kubernetes.io/", ("rack", "block")),
    )
)
# Labels of the tiers above those.
ABOVE = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
_GPUS = ("nvidia.com/gpu", "amd.com/gpu")


class Metadata(Struct):
    """A node's name and labels."""

    name: Identifier
    labels: dict[str, str] = field(default_factory=dict)


class Status(Struct):
    """A node's resources."""

    capacity: dict[str, Any] = field(default_factory=dict)


class Node(Struct):
    """A node; its other fields are ignored."""

    metadata: Metadata
    kind: str = "Node"
    status: Status = field(default_factory=Status)


class NodeList(Struct):
    """The output of `kubectl get nodes -o json`."""

    items: list[Node]


def read(text: str, where: str) -> Cluster:
    """Read a list of nodes.

    If any node reports GPUs, nodes without GPUs are left out. Raise InputError that names file and
    node, for example for a missing label.
    """
    data = parse_json(text, where)
    if isinstance(data, Mapping) and "items" not in data:
        data = {"items": [data]}
    nodes = read_as(data, NodeList, where).items
    for number, node in enumerate(nodes):
        if node.kind != "Node":
            raise InputError(
                f"{where}: items[{number}]: a {node.kind!r:.40}; expected nodes: kubectl get "
                "nodes -o json"
            )
    with_gpus = {
        i: node.metadata
        for i, node in enumerate(nodes)
        if any(str(node.status.capacity.get(key, "0")) != "0" for key in _GPUS)
    }
    used = with_gpus or {i: node.metadata for i, node in enumerate(nodes)}
    cluster = Cluster("Kubernetes nodes", where)
    if len(used) < len(nodes):
        cluster.notes.append(f"{len(nodes) - len(used)} nodes without GPUs are left out")
    return build_cluster(cluster, _list_rows(used, where), qualify=True)


def _list_rows(nodes: Mapping[int, Metadata], where: str) -> list[Row]:
    """Return the nodes, by number, each with the values of its labels for the tiers above it."""
    keys = _choose_labels({key for node in nodes.values() for key in node.labels})
    if not keys and nodes:
        raise InputError(
            f"{where}: no node has a label that says where it is; expected such as "
            f"{FAMILIES[0][2]}, fabric.topograph.run/tier-0 or {ABOVE[0]}"
        )
    rows: list[Row] = []
    for number, node in nodes.items():
        place = f"{where}: items[{number}]"
        if missing := [key for key in keys if not node.labels.get(key)]:
            raise InputError(
                f"{place}: node {node.name} has no label {missing[0]}, which others have; label "
                "it or leave it out"
            )
        rows.append((node.name, tuple(node.labels[key] for key in keys), place))
    return drop_single_tiers(rows)


def _choose_labels(present: Set[str]) -> list[str]:
    """Return the labels to use, the closest tier first."""
    tiers = sorted(int(match[1]) for key in present if (match := _TIER.fullmatch(key)))
    chosen = [f"fabric.topograph.run/tier-{tier}" for tier in tiers]
    for family in FAMILIES:
        chosen = chosen or [key for key in family if key in present]
    return [*chosen, *(key for key in ABOVE if key in present)]
