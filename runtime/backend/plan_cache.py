"""A cache of plans in a folder, so that the next start need not synthesize them again."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from ...synth.cost.host_costs import FIELD as HOST
from ...synth.ir.collective import Collective
from ...synth.plan import Plan
from ...topo.errors import InputError, TopoplanError
from ...topo.graph import Topology
from ...topo.routes import HARDWARE, Router
from ...topo.version import VERSION
from ..cache.folder import describe_problem, warn_of_no_home, warn_without_cache

log = logging.getLogger("topoplan")


def load_or_synthesize(
    collective: Collective,
    topology: Topology,
    folder: Path | None,
    time_limit_s: float,
    *,
    reproducible: bool = False,
    router: Router = HARDWARE,
) -> Plan:
    """Return the plan in `folder`, verified, or else synthesize one and save it there.

    A plan whose search the time limit cut short is not saved. A file that is damaged, or for
    another machine, is replaced. A folder that is None or cannot be used costs one warning. Raises
    what `synthesize` raises.
    """
    name = _make_file_name(collective, topology, reproducible=reproducible)
    loaded = None if folder is None else _load_fitting(folder / name, collective, topology)
    if loaded is not None and (loaded.bracketing is not None) == reproducible:
        log.info("%s: plan %s from %s", _describe(collective), loaded.hash[:16], folder)
        return loaded
    # The planner's imports take more than a second of a core, and only the first rank of the first
    # start needs them.
    from ...synth.planner.synthesize import synthesize

    result = synthesize(
        collective,
        topology,
        time_limit_s=time_limit_s,
        reproducible=reproducible,
        router=router,
    )
    log.info(
        "%s: plan %s synthesized in %.1f s",
        _describe(collective),
        result.plan.hash[:16],
        result.seconds,
    )
    if result.cut_short:
        log.warning(
            "%s: search cut short by the time limit of %g s (%s); plan %s is not cached, the next "
            "start searches again",
            _describe(collective),
            time_limit_s,
            ", ".join(result.cut_short),
            result.plan.hash[:16],
        )
        return result.plan
    _save(result.plan, folder, name)
    return result.plan


def _save(plan: Plan, folder: Path | None, name: str) -> None:
    """Save a plan in the folder; warn, once per folder, where that fails."""
    if folder is None:
        warn_of_no_home()
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        plan.save(folder / name, overwrite=True, follow_links=False)
    except (OSError, ValueError, TopoplanError) as error:
        warn_without_cache(folder, describe_problem(error))


def _load_fitting(path: Path, collective: Collective, topology: Topology) -> Plan | None:
    """Return the plan in a file, or None where there is none, it is damaged, or it is for another
    machine or collective.
    """
    try:
        if not path.exists():
            return None
        if not path.is_file():  # reading a FIFO would wait for ever
            raise InputError(f"{path}: not a regular file")
        plan = Plan.load(path)
    except (OSError, ValueError) as error:  # this user cannot enter the folder; an impossible name
        warn_without_cache(path.parent, describe_problem(error))
        return None
    except TopoplanError as error:
        log.warning("%s; it is replaced", error)
        return None
    if plan.collective != collective or _encode(plan.topology) != _encode(topology):
        log.warning("%s: for another machine or collective; it is replaced", path)
        return None
    return plan


def _make_file_name(collective: Collective, topology: Topology, *, reproducible: bool) -> str:
    """Return a file name made of all inputs of a plan: also names and the order of ranks, which
    fingerprints ignore.
    """
    root = "" if collective.root is None else f"-root{collective.root}"
    exact = hashlib.sha256(_encode(topology).encode()).hexdigest()[:16]
    kind = "-same-bits" if reproducible else ""
    of_plan = f"{collective.name}-{collective.ranks}{root}{kind}"
    return f"{of_plan}-{topology.fingerprint[:16]}-{exact}-{VERSION}.json"


def _encode(topology: Topology) -> str:
    """Return devices, links and host costs as JSON text, in their order."""
    data: dict[str, Any] = topology.to_json()
    return json.dumps([data["devices"], data["links"], data.get(HOST)], sort_keys=True, default=str)


def _describe(collective: Collective) -> str:
    return f"{collective.name} over {collective.ranks} ranks"
