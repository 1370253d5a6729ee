"""Add GPUDirect's verdicts to topo-probe's JSON, and to the text below its tables.

A verdict says whether two devices reach each other's memory directly: yes, no or unknown.
"""

from typing import Any

from ...errors import InputError
from ...graph import Topology
from ...pictures.part_of_table import TablePart
from . import format_verdicts, judge_pairs


def describe_verdicts(topology: Topology) -> dict[str, Any]:
    """Return the field `gpudirect` of topo-probe's JSON, or `gpudirect_missing`: why not.

    Its facts are unreadable then, or it is a cluster with too many pairs.
    """
    try:
        return {"gpudirect": [verdict.to_json() for verdict in judge_pairs(topology)]}
    except InputError as error:
        return {"gpudirect_missing": str(error)}


def make_part(topology: Topology, columns: int) -> TablePart | None:
    """Return GPUDirect's verdicts as text of `columns` columns; None without facts or pairs.

    A preset, for example, has no facts on drivers. If the facts are unreadable or the pairs too
    many, the text says so.
    """
    if not (topology.extra.get("facts") or any("gdr" in d.extra for d in topology.devices)):
        return None
    try:
        verdicts = judge_pairs(topology)
    except InputError as error:
        return TablePart(None, [f"GPUDirect: {error}"])
    return TablePart("GPUDirect", format_verdicts(verdicts, columns)) if verdicts else None
