"""Add the doctor's findings, the problems of a machine, to topo-probe's JSON."""

from typing import Any

from ...graph import Topology
from . import list_findings


def describe_findings(topology: Topology) -> dict[str, Any]:
    """Return the field `findings` of topo-probe's JSON: the doctor's findings on a topology."""
    return {"findings": [finding.to_json() for finding in list_findings(topology)]}
