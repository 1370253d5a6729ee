"""Kubernetes nodes with labels that say where they are: `kubectl get nodes -o json`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from ...errors import InputError
from ...schema import Identifier, read_as
from .cluster import Cluster
from .layers import Row, add_rows, drop_single_tiers
from .topograph import parse_json

WHAT = "Kubernetes nodes"
_FIRST = re.compile(r'\{\s*"(?:apiVersion|items|kind)"\s*:')
_TIER = re.compile(r"fabric\.topograph\.run/tier-(\d{1,3})")
_NVIDIA, _GOOGLE, _AWS = (
    "network.topology.nvidia.com/",
    "cloud.google.com/gce-topology-",
    "topology.k8s.aws/",
)
_CLOUD, _USUAL = "cloud.provider.com/topology-", "topology.kubernetes.io/"
# Labels of one maker each, from the closest tier on; the first family of which nodes have labels is
# used.
FAMILIES: tuple[tuple[str, ...], ...] = (
    tuple(
        _NVIDIA + tier for tier in ("accelerator", "leaf", "block", "spine", "core", "datacenter")
    ),
    tuple(_GOOGLE + tier for tier in ("host", "subblock", "block")),
    tuple(f"{_AWS}network-node-layer-{tier}" for tier in (3, 2, 1)),
    tuple(_CLOUD + tier for tier in ("rack", "block")),
    (_USUAL + "rack", "topology.kubernetes.io/block"),
)
# Labels of whatever is above those.
ABOVE = (_USUAL + "zone", _USUAL + "region")
_GPUS = ("nvidia.com/gpu", "amd.com/gpu")


class Metadata(Struct):
    """A node's name and labels."""

    name: Identifier
    labels: dict[str, str] = field(default_factory=dict)


class Status(Struct):
    """What a node has to give."""

    capacity: dict[str, Any] = field(default_factory=dict)


class Node(Struct):
    """A node; all else of it is read over."""

    metadata: Metadata
    kind: str = "Node"
    status: Status = field(default_factory=Status)


class NodeList(Struct):
    """What `kubectl get nodes -o json` prints."""

    items: list[Node]


def looks_like(text: str) -> bool:
    """Return whether a text is a Kubernetes object, by its first field."""
    return _FIRST.match(text) is not None


def read(text: str, where: str) -> Cluster:
    """Return the cluster of a list of nodes: those with GPUs, where any says that it has some.

    Raises InputError, naming file and node, where labels are missing, or for what is wrong else.
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
    with_gpus = [any(str(n.status.capacity.get(key, "0")) != "0" for key in _GPUS) for n in nodes]
    if any(with_gpus):
        kept = [(i, n.metadata) for i, n in enumerate(nodes) if with_gpus[i]]
    else:
        kept = [(i, n.metadata) for i, n in enumerate(nodes)]
    cluster = Cluster(WHAT, where)
    if len(kept) < len(nodes):
        cluster.notes.append(f"{len(nodes) - len(kept)} nodes without GPUs are left out")
    add_rows(cluster, _list_rows(kept, where), qualify=True)
    return cluster.finish()


def _list_rows(nodes: list[tuple[int, Metadata]], where: str) -> list[Row]:
    """Return the nodes with the values of the labels that say where they are."""
    keys = _choose_labels(list(dict.fromkeys(key for _, node in nodes for key in node.labels)))
    if not keys and nodes:
        raise InputError(
            f"{where}: no node has a label that says where it is; expected such as "
            f"{FAMILIES[0][2]}, "
            f"fabric.topograph.run/tier-0 or {ABOVE[0]}"
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


def _choose_labels(there: list[str]) -> list[str]:
    """Return the labels to go by, from the closest tier on."""
    tiers = sorted(int(match[1]) for key in there if (match := _TIER.fullmatch(key)))
    found = [f"fabric.topograph.run/tier-{tier}" for tier in tiers]
    for family in FAMILIES:
        found = found or [key for key in family if key in there]
    return [*found, *(key for key in ABOVE if key in there)]
