"""NVIDIA topograph's graph engine: JSON of instances with their network layers, closest first."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from ...errors import InputError
from ...exact import load_json
from ...schema import Identifier, read_as
from .cluster import Cluster
from .layers import add_rows

WHAT = "topograph's graph JSON"
_FIRST = re.compile(r'\{\s*"instances"\s*:')


class Instance(Struct):
    """A host, and the switches above it from the closest on; labels are read over."""

    id: Identifier
    network_layers: Annotated[list[Identifier], Meta(min_length=1, max_length=16)]


class Graph(Struct):
    """What topograph's graph engine returns."""

    instances: Annotated[list[Instance], Meta(min_length=1)]


def looks_like(text: str) -> bool:
    """Return whether a text is topograph's JSON, by its first field."""
    return _FIRST.match(text) is not None


def read(text: str, where: str) -> Cluster:
    """Return the cluster of topograph's JSON. Raises InputError, naming file and instance, for what
    is wrong in it.
    """
    graph = read_as(parse_json(text, where), Graph, where)
    cluster = Cluster(WHAT, where)
    rows = [
        (x.id, tuple(x.network_layers), f"{where}: instances[{i}]")
        for i, x in enumerate(graph.instances)
    ]
    add_rows(cluster, rows, qualify=False)
    return cluster.finish()


def parse_json(text: str, where: str) -> object:
    """Return the value of JSON text. Raises InputError where it is none."""
    try:
        return load_json(text, 5_000_000)
    except ValueError as error:
        raise InputError(f"{where}: no JSON that is understood: {error}") from None
