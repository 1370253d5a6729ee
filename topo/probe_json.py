"""Write a topology's JSON with derived results: its fingerprint, and what extras derive.

These are computed again each time and not read back: they are for readers of the JSON without
topoplan.
"""

from dataclasses import replace
from typing import Any

from ..extras import FIELDS, Names
from .graph import Topology


def write(topology: Topology) -> str:
    """Write JSON text with derived results, from which `Topology.loads` restores an equal topology.

    The results are under `fingerprint` and the names that the group `fields` of the extras has.
    """
    derived: dict[str, Any] = {"fingerprint": topology.fingerprint}
    added = Names(FIELDS)
    for name in added.describe():
        derived |= added.find(name)(topology)
    return replace(topology, extra={**topology.extra, **derived}).dumps()
