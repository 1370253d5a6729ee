"""The doctor's findings in topo-probe's JSON."""

from typing import Any

from ...graph import Topology
from . import list_findings


def describe_findings(topology: Topology) -> dict[str, Any]:
    """Return the field `findings`."""
    return {"findings": [finding.to_json() for finding in list_findings(topology)]}
