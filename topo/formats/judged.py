"""A topology's JSON with what follows from it: fingerprint, GPUDirect verdicts, the doctor's findings.

These are worked out anew each time and not read back: they are for whoever reads the JSON without topoplan.
"""

from __future__ import annotations

from dataclasses import replace

from ..doctor import findings
from ..gpudirect import verdicts
from ..graph import Topology


def write(topology: Topology) -> str:
    """JSON text; `Topology.loads` reads the topology back equal."""
    told = {
        "fingerprint": topology.fingerprint,
        "gpudirect": [verdict.to_json() for verdict in verdicts(topology)],
        "findings": [finding.to_json() for finding in findings(topology)],
    }
    return replace(topology, extra={**topology.extra, **told}).dumps()
