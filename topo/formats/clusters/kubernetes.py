"""Read Kubernetes nodes and the labels that locate them (`kubectl get nodes -o json`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from ...errors import InputError
from ...schema import Identifier, read_as
from .cluster import Cluster
from .layers import Row, build_cluster, drop_single_tiers, parse_json

_FIRST = re.compile(r'\{\s*"(?:apiVersion|items|kind)"\s*:')
_TIER = re.compile(r"fabric\.topograph\.run/tier-(\d{1,3})")
_NVIDIA, _GOOGLE, _AWS = (
    "network.topology.nvidia.com/",
    "cloud.google.com/gce-topology-",
    "topology.k8s.aws/",
)
_CLOUD, _USUAL = "cloud.provider.com/topology-", "topology.kubernetes.io/"
# Labels of one provider each, the closest tier first; the first family that nodes have is used.
FAMILIES: tuple[tuple[str, ...], ...] = (
    tuple(
        _NVIDIA + tier for tier in ("accelerator", "leaf", "block", "spine", "core", "datacenter")
    ),
    tuple(_GOOGLE + tier for tier in ("host", "subblock", "block")),
    tuple(f"{_AWS}network-node-layer-{tier}" for tier in (3, 2, 1)),
    tuple(_CLOUD + tier for tier in ("rack", "block")),
    (_USUAL + "rack", "topology.kubernetes.io/block"),
)
# Labels of the tiers above those.
ABOVE = (_USUAL + "zone", _USUAL + "region")
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


def looks_like(text: str) -> bool:
    """Return whether a text is a Kubernetes object, by its first field."""
    return _FIRST.match(text) is not None


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
    numbered = list(enumerate(nodes))
    with_gpus = [
        (i, node)
        for i, node in numbered
        if any(str(node.status.capacity.get(key, "0")) != "0" for key in _GPUS)
    ]
    used = with_gpus or numbered
    cluster = Cluster("Kubernetes nodes", where)
    if len(used) < len(nodes):
        cluster.notes.append(f"{len(nodes) - len(used)} nodes without GPUs are left out")
    rows = _list_rows([(i, node.metadata) for i, node in used], where)
    return build_cluster(cluster, rows, qualify=True)


def _list_rows(nodes: list[tuple[int, Metadata]], where: str) -> list[Row]:
    """Return the nodes, each with the values of its labels for the tiers above it."""
    keys = _choose_labels(list(dict.fromkeys(key for _, node in nodes for key in node.labels)))
    if not keys and nodes:
        raise InputError(
            f"{where}: no node has a label that says where it is; expected such as "
            f"{FAMILIES[0][2]}, fabric.topograph.run/tier-0 or {ABOVE[0]}"
        )
    rows: list[Row] = []
    for number, node in nodes:
        place = f"{where}: items[{number}]"
        for key in keys:
            if not node.labels.get(key):
                raise InputError(
                    f"{place}: node {node.name} has no label {key}, which others have; label it "
                    "or leave it out"
                )
        rows.append((node.name, tuple(node.labels[key] for key in keys), place))
    return drop_single_tiers(rows)


def _choose_labels(present: list[str]) -> list[str]:
    """Return the labels to use, the closest tier first."""
    tiers = sorted(int(match[1]) for key in present if (match := _TIER.fullmatch(key)))
    chosen = [f"fabric.topograph.run/tier-{tier}" for tier in tiers]
    for family in FAMILIES:
        chosen = chosen or [key for key in family if key in present]
    return [*chosen, *(key for key in ABOVE if key in present)]
