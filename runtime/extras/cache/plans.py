"""Cache plans in a folder, one file per request: the collective, topology and helpers of a plan.

A plan for a demand (a custom set of transfers) is never cached, since file names do not cover it.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from ....synth.cost.host_costs import FIELD as HOST
from ....synth.ir.demands import Demands
from ....synth.plan import Plan
from ....synth.request import Request
from ....topo.errors import InputError, TopoplanError
from ....topo.graph import Topology
from ....topo.version import VERSION
from .folder import log, warn_without_cache


def find(folder: Path | None, request: Request) -> Plan | None:
    """Return the cached plan of a request from a folder; None if there is none.

    A file that is damaged, or for another request, is logged as a warning and ignored. A folder
    that cannot be used is warned of once.
    """
    if folder is None or isinstance(request.collective, Demands):
        return None
    path = folder / _make_file_name(request)
    try:
        if not path.exists():
            return None
        if not path.is_file():  # reading a FIFO would wait for ever
            raise InputError(f"{path}: not a regular file")
        plan = Plan.load(path)
    except (OSError, ValueError) as error:  # this user cannot enter the folder; an impossible name
        warn_without_cache(path.parent, error)
        return None
    except TopoplanError as error:
        log.warning("%s; it is replaced", error)
        return None
    is_same_machine = _encode(plan.topology) == _encode(request.topology)
    if plan.collective != request.collective or not is_same_machine:
        log.warning("%s: for another machine or collective; it is replaced", path)
        return None
    return plan if (plan.bracketing is not None) == request.reproducible else None


def save(folder: Path | None, request: Request, plan: Plan) -> None:
    """Cache the plan of a request in a folder; warn once if the folder cannot be used."""
    if isinstance(request.collective, Demands):
        return
    if folder is None:
        warn_without_cache(None)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        plan.save(folder / _make_file_name(request), overwrite=True, follow_links=False)
    except (OSError, ValueError, TopoplanError) as error:
        warn_without_cache(folder, error)


def _make_file_name(request: Request) -> str:
    """Return a file name made of all inputs of a plan.

    It includes names and the order of ranks, which fingerprints ignore.
    """
    collective, topology = request.collective, request.topology
    root = "" if collective.root is None else f"-root{collective.root}"
    inputs = _encode(topology)
    if not collective.has_all_gpus:
        inputs += f" {list(collective.members)} {list(request.helpers)}"
    exact = hashlib.sha256(inputs.encode()).hexdigest()[:16]
    bits = "-same-bits" if request.reproducible else ""
    of_plan = f"{collective.name}-{collective.ranks}{root}{bits}"
    return f"{of_plan}-{topology.fingerprint[:16]}-{exact}-{VERSION}.json"


def _encode(topology: Topology) -> str:
    """Return devices, links and host costs as JSON text, in their order."""
    data: dict[str, Any] = topology.to_json()
    return json.dumps([data["devices"], data["links"], data.get(HOST)], sort_keys=True, default=str)
