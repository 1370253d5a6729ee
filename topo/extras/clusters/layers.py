"""Read formats that list each host with the switches above it, the closest first.

These are NVIDIA topograph's JSON, Kubernetes nodes with labels that locate them, and lists of hosts
written by hand (lines `host rack spine`). A tier is one column of these: the switches at one height
above the hosts, or what stands for them, such as racks. The result is a Cluster: hosts in the
file's order, and the switches above them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from ...errors import InputError
from ...exact import load_json
from ...schema import Identifier, read_as
from .cluster import Cluster

TOPOGRAPH = "topograph's graph JSON"
TOPOGRAPH_START = re.compile(r'\{\s*"instances"\s*:')
# Far more than 16,384 hosts with their tiers and labels have; chosen, not measured.
_MAX_JSON_VALUES = 5_000_000
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HEADING = "host"
# Not within a word: lstopo prints PCIBridge L#6.
_COMMENT = re.compile(r"(?<!\S)#")
# A measured value, which is no name of a rack.
_DECIMAL = re.compile(r"\d{1,15}\.\d{1,15}(?:[eE][+-]?\d{1,3})?")
# Longer texts are no list of at most MAX_HOSTS hosts, and checking all their lines is slow.
_MAX_LIST_CHARACTERS = 2**21

KUBERNETES_START = re.compile(r'\{\s*"(?:apiVersion|items|kind)"\s*:')
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

# A host, the names of the switches above it, the closest first, and the place in the file (its line
# or item, for errors).
Row = tuple[str, tuple[str, ...], str]


class Instance(Struct):
    """A host in topograph's JSON, and the switches above it, the closest first."""

    id: Identifier
    network_layers: Annotated[list[Identifier], Meta(min_length=1, max_length=16)]


class Graph(Struct):
    """The JSON that NVIDIA topograph's graph engine prints."""

    instances: Annotated[list[Instance], Meta(min_length=1)]


def read_topograph(text: str, where: str) -> Cluster:
    """Read topograph's JSON.

    Raise InputError that names the file, `where`, and the instance.
    """
    rows = [
        (x.id, tuple(x.network_layers), f"{where}: instances[{i}]")
        for i, x in enumerate(read_as(parse_json(text, where), Graph, where).instances)
    ]
    return build_cluster(Cluster(TOPOGRAPH, where), rows, qualify=False)


def parse_json(text: str, where: str) -> object:
    """Parse JSON text; raise InputError, which names the file `where`, if it is malformed."""
    try:
        return load_json(text, _MAX_JSON_VALUES)
    except ValueError as error:
        raise InputError(f"{where}: malformed JSON: {error}") from None


def looks_like_list(text: str) -> bool:
    """Return whether a text is a list of hosts, one per line, with the switches above each.

    Either its first line begins with the word host, or all lines have the same number of names, at
    least two, and some lines share their last name. Lines with numbers, such as measurements, are
    not.
    """
    rows = [words for _, words in _list_lines(text)] if len(text) <= _MAX_LIST_CHARACTERS else []
    if not rows or len(rows[0]) == 1:
        return False
    if rows[0][0].lower() == _HEADING and all(map(_WORD.fullmatch, rows[0])):
        return True
    return (
        all(len(row) == len(rows[0]) for row in rows)
        and len({row[-1] for row in rows}) < len(rows)
        and not any("X" in row for row in rows)  # the diagonal of nvidia-smi's matrix
        and all(_WORD.fullmatch(word) for row in rows for word in row)
        and not any(map(_is_measured, zip(*rows, strict=True)))
    )


def _is_measured(column: Sequence[str]) -> bool:
    """Return whether most words of a column are decimal fractions; some may be 0 or a heading."""
    return 2 * sum(_DECIMAL.fullmatch(word) is not None for word in column) > len(column)


def read_list(text: str, where: str) -> Cluster:
    """Read a list of hosts, one per line with the switches above each, the closest first.

    Raise InputError that names the file, `where`, and the line.
    """
    lines = _list_lines(text)
    columns = [_HEADING, *(f"tier {number}" for number in range(1, len(lines[0][1])))]
    if lines[0][1][0].lower() == _HEADING:
        columns = lines.pop(0)[1]
    rows: list[Row] = []
    for number, words in lines:
        place = f"{where}: line {number}"
        if len(words) != len(columns):
            raise InputError(
                f"{place}: {len(words)} words, and {len(columns)} columns ({', '.join(columns)}); "
                "give each host all tiers"
            )
        rows.append((words[0], tuple(words[1:]), place))
    return build_cluster(Cluster("a list of hosts", where), rows, qualify=False)


def _list_lines(text: str) -> list[tuple[int, list[str]]]:
    """Return the number and words of each line that has any; # before a word begins a comment."""
    return [
        (i, words)
        for i, line in enumerate(text.splitlines(), 1)
        if (words := _COMMENT.split(line, maxsplit=1)[0].split())
    ]


def build_cluster(cluster: Cluster, rows: list[Row], *, qualify: bool) -> Cluster:
    """Add hosts and their switches to `cluster`, then a network above all if needed; finish it.

    A row is a host, the switches above it (the closest first), and its place in the file. With
    `qualify`, switches of one name below different switches are different (labels name domains
    within domains). Without it such a name is refused by an InputError, like a host that occurs
    twice.
    """
    seen: dict[tuple[int, str], tuple[tuple[str, ...], str]] = {}
    ids = _name_paths([path for _, path, _ in rows]) if qualify else {}
    for name, path, place in rows:
        for depth, switch in enumerate(path):
            rest = path[depth + 1 :]
            before, first = seen.setdefault((depth, switch), (rest, place))
            if before != rest and not qualify:
                one, other = (" and ".join(above) or "nothing" for above in (rest, before))
                raise InputError(
                    f"{place}: {switch} is below {one}, and below {other} at "
                    f"{first.removeprefix(cluster.where + ': ')}; give different switches "
                    "different names"
                )
        names = [ids.get(path[depth:], switch) for depth, switch in enumerate(path)]
        if len(set(names)) < len(names):
            raise InputError(
                f"{place}: host {name} is below one switch twice ({', '.join(names)}); give each "
                "tier its own name"
            )
        for switch in names:
            cluster.add_switch(switch, place)
        for child, parent in pairwise(names):
            cluster.put_below(child, parent, place)
        cluster.add_host(name, names[0], place)
    cluster.join_tops()
    return cluster.finish()


def _name_paths(paths: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Return a name for each switch, which is given together with the switches above it.

    It is the switch's own name if that is unique.
    """
    switches = dict.fromkeys(path[depth:] for path in paths for depth in range(len(path)))
    count = Counter(path[0] for path in switches)
    return {path: path[0] if count[path[0]] == 1 else ".".join(reversed(path)) for path in switches}


def drop_single_tiers(rows: list[Row]) -> list[Row]:
    """Return rows without tiers in which every host is alone or is grouped as in the tier before.

    If that leaves none, the last tier stays. A row is as in `build_cluster`.
    """
    depths = range(min((len(path) for _, path, _ in rows), default=0))
    # the number of parts never grows from one tier to the next
    parts = [len(rows), *(len({path[depth:] for _, path, _ in rows}) for depth in depths)]
    used = [depth for depth in depths if parts[depth + 1] < parts[depth]] or depths[-1:]
    return [(name, tuple(path[depth] for depth in used), place) for name, path, place in rows]


# -- Kubernetes


class NodeMetadata(Struct):
    """The name and labels of a Kubernetes node."""

    name: Identifier
    labels: dict[str, str] = field(default_factory=dict)


class NodeStatus(Struct):
    """The resources (`capacity`) of a Kubernetes node."""

    capacity: dict[str, Any] = field(default_factory=dict)


class Node(Struct):
    """A Kubernetes node; its other fields are ignored."""

    metadata: NodeMetadata
    kind: str = "Node"
    status: NodeStatus = field(default_factory=NodeStatus)


class NodeList(Struct):
    """The nodes that `kubectl get nodes -o json` prints."""

    items: list[Node]


def read_kubernetes(text: str, where: str) -> Cluster:
    """Read the nodes of `kubectl get nodes -o json` and the labels that locate them.

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


def _list_rows(nodes: Mapping[int, NodeMetadata], where: str) -> list[Row]:
    """Return the nodes, by number, each with the values of its labels for the tiers above it."""
    present = {key for node in nodes.values() for key in node.labels}
    tiers = sorted(int(match[1]) for key in present if (match := _TIER.fullmatch(key)))
    keys = [f"fabric.topograph.run/tier-{tier}" for tier in tiers]
    for family in FAMILIES:
        keys = keys or [key for key in family if key in present]
    keys += [key for key in ABOVE if key in present]
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
