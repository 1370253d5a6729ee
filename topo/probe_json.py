"""Write a topology's JSON with derived results: fingerprint, GPUDirect verdicts, findings.

These are computed again each time and not read back: they are for readers of the JSON without
topoplan.
"""

from dataclasses import replace
from typing import Any

from .doctor import list_findings
from .errors import InputError
from .gpudirect import judge_pairs
from .graph import Topology


def write(topology: Topology) -> str:
    """Write JSON text with derived results, from which `Topology.loads` restores an equal topology.

    The results are under `fingerprint`, `gpudirect` and `findings`. If GPUDirect cannot be judged
    (unreadable facts, or a cluster with too many pairs), `gpudirect_missing` gives the reason
    instead.
    """
    derived: dict[str, Any] = {"fingerprint": topology.fingerprint}
    try:
        derived["gpudirect"] = [verdict.to_json() for verdict in judge_pairs(topology)]
    except InputError as error:
        derived["gpudirect_missing"] = str(error)
    derived["findings"] = [finding.to_json() for finding in list_findings(topology)]
    return replace(topology, extra={**topology.extra, **derived}).dumps()
