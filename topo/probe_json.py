"""Write a topology's JSON with derived results: its fingerprint, and what extras derive.

An extra is an optional part of topoplan (extras.py at the root). The results are computed again
each time and not read back: they are for readers of the JSON without topoplan.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..extras import FIELDS, Names
from .graph import Topology


def write(topology: Topology, more: Mapping[str, Any] | None = None) -> str:
    """Write JSON text with derived results, from which `Topology.loads` restores an equal topology.

    The results are the field `fingerprint`, those that the functions of the extras' group `fields`
    return for the topology, and `more`, all at the top level.
    """
    derived: dict[str, Any] = {"fingerprint": topology.fingerprint, **(more or {})}
    added = Names(FIELDS)
    for name in added.describe():
        derived |= added.find(name)(topology)
    return replace(topology, extra={**topology.extra, **derived}).dumps()
