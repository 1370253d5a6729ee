"""Convert topologies to graphs of networkx, and back.

Attributes of nodes and edges are the fields of devices and links in topoplan's JSON, so reading
checks them in the same way. Numbers stay exact: bandwidths and latencies are fractions.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

import networkx as nx

from ..errors import InputError
from ..exact import fraction_to_json
from ..graph import Topology
from ..notes import assumed
from ..topology_file import FORMAT, VERSION, links_to_json

# Fields of a file that are no attributes of a graph: its nodes and edges, and what marks a file.
_OF_FILES = ("format", "version", "devices", "links")
_PLACE = re.compile(r"\b(devices|links)\[(\d+)\]")
_WHERE, _BANDWIDTH = "networkx graph", "bandwidth_GBps"
_Edge = tuple[Hashable, Hashable, dict[str, Any]]


def write(topology: Topology, merge_parallel: bool) -> nx.MultiDiGraph[str] | nx.DiGraph[str]:
    """Return a topology as a networkx graph: nodes are device ids, edges links, with their fields.

    With `merge_parallel` it is a DiGraph, in which parallel links are one with the total bandwidth
    and the highest latency, and no other attributes; else a MultiDiGraph, whose edges have the
    number of the link as key.
    """
    data = topology.to_json()
    about = {key: value for key, value in data.items() if key not in _OF_FILES}
    nodes = [(device.pop("id"), device) for device in data["devices"]]
    if merge_parallel:
        merged: nx.DiGraph[str] = nx.DiGraph(**about)
        merged.add_nodes_from(nodes)
        for (src, dst), GBps in topology.capacity_GBps.items():
            latency_us = topology.latency_us[src, dst]
            merged.add_edge(src, dst, bandwidth_GBps=GBps, latency_us=latency_us)
        return merged
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph(**about)
    graph.add_nodes_from(nodes)
    for number, link in enumerate(topology.links):
        (fields,) = links_to_json([link])
        for key in ("src", "dst", "bidirectional"):
            del fields[key]
        exact = {_BANDWIDTH: link.bandwidth_GBps, "latency_us": link.latency_us}
        graph.add_edge(link.src, link.dst, number, **fields | exact)
    return graph


def read(graph: nx.Graph[Any], name: str | None, bandwidth: str) -> Topology:
    """Return a networkx graph as a topology called `name`; None takes the graph's own name.

    `bandwidth` is the edges' attribute that has the GB/s; an edge without it gets an assumed rate.
    An undirected edge is a link in both directions. Raise InputError if the graph has no nodes, if
    `bandwidth` is not the default name and no edge has it, or if a node or an edge is malformed.
    """
    if not isinstance(graph, nx.Graph) or not len(graph):
        what = "one without nodes" if isinstance(graph, nx.Graph) else type(graph).__name__
        raise InputError(f"{_WHERE}: expected a graph with nodes, got {what}")
    nodes, edges = list(graph.nodes(data=True)), _list_edges(graph)
    if bandwidth != _BANDWIDTH and all(bandwidth not in fields for *_, fields in edges):
        raise InputError(
            f"{_WHERE}: no edge has the attribute {bandwidth!r:.40}; expected the one with the "
            "bandwidth in GB/s"
        )
    both = {} if graph.is_directed() else {"bidirectional": True}
    data = {
        **_to_json(graph.graph, _WHERE),
        "format": FORMAT,
        "version": VERSION,
        "name": name or graph.graph.get("name") or "networkx",
        "devices": [
            _to_json(fields, f"{_WHERE}: node {node!r:.40}") | {"id": str(node)}
            for node, fields in nodes
        ],
        "links": [
            _to_json(_find_bandwidth(fields, bandwidth), f"{_WHERE}: {_name_edge(src, dst)}")
            | {"src": str(src), "dst": str(dst), **both}
            for src, dst, fields in edges
        ],
    }

    def name_place(place: re.Match[str]) -> str:
        number = int(place[2])
        is_node = place[1] == "devices"
        return f"node {nodes[number][0]!r:.40}" if is_node else _name_edge(*edges[number][:2])

    try:
        return Topology.from_json(data, _WHERE)
    except InputError as error:
        # Nodes and edges have names here, where a file has numbers.
        raise InputError(_PLACE.sub(name_place, str(error), count=1)) from None


def _list_edges(graph: nx.Graph[Any]) -> list[_Edge]:
    """Return the edges in the order of the links that `write` numbered, else the graph's own."""
    if not isinstance(graph, nx.MultiGraph):
        return list(graph.edges(data=True))
    edges = list(graph.edges(keys=True, data=True))
    keys = [key for _, _, key, _ in edges]
    if all(isinstance(key, int) for key in keys) and len(set(keys)) == len(keys):
        edges.sort(key=lambda edge: edge[2])
    return [(src, dst, fields) for src, dst, _, fields in edges]


def _name_edge(src: Hashable, dst: Hashable) -> str:
    return f"edge {src!r:.40} -> {dst!r:.40}"


def _find_bandwidth(fields: Mapping[str, Any], bandwidth: str) -> dict[str, Any]:
    """Return an edge's attributes with its bandwidth under our name; without one, it is assumed."""
    out = dict(fields)
    if bandwidth in out:
        out[_BANDWIDTH] = out.pop(bandwidth)
    if out.get(_BANDWIDTH) is None:
        out["source"] = assumed(f"the graph has no {bandwidth}")
    return out


def _to_json(fields: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """Return attributes as JSON data; raise InputError for values of other kinds."""
    out = {}
    for key, value in fields.items():
        try:
            out[str(key)] = _plain(value)
        except TypeError as error:
            raise InputError(
                f"{where}: {key!s:.40}: expected text, numbers, lists or dicts, got {error}; "
                "remove the attribute"
            ) from None
    return out


def _plain(value: Any) -> Any:
    """Return JSON data, with numpy's numbers as Python's; raise TypeError with the bad type."""
    match value:
        case None | bool() | Decimal():
            return value
        case str():
            return str(value)
        case Integral():
            return int(value)
        case Fraction():
            return fraction_to_json(value)
        case Real():
            return float(value)
        case Mapping():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
    raise TypeError(type(value).__name__)
