"""Checks of the fabric that joins GPUs through NVSwitches: its registration and its health.

GPUs register with their fabric through the driver; NVLink joins those of one cluster (named by a
UUID) and in it of one clique (a number). A check takes a DoctorView (the topology, and the facts
that a probe read of the machine) and yields a Finding for each problem; the doctor makes those in
`CHECKS`.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from ...derived.parts import NO_CLUSTER
from ...facts import keys
from ...facts.keys import Key, gpu_subject
from .view import Case, Check, DoctorView, Finding, join_names

_FABRIC: tuple[Key[Any], ...] = (keys.GPU_FABRIC_CLUSTER, keys.GPU_FABRIC_CLIQUE)


def check_fabric(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs whose fabric (NVSwitch or NVL72) is not started or not completed.

    That is an error, since NVLink does not work there; so is one that is completed with an error.
    GPUs of one machine in different clusters or cliques are a warning: no NVLink joins them.
    """
    pending: list[Case] = []
    parts: dict[tuple[str, str | None], list[str]] = defaultdict(list)
    evidence_of: list[str] = []
    for ident, index in view.index_of.items():
        subject = gpu_subject(index)
        state = view.facts.get_text(subject, keys.GPU_FABRIC_STATE)
        if (why := view.describe_pending_fabric(ident)) is not None:
            pending.append((why, (ident,), (view.format_fact(subject, keys.GPU_FABRIC_STATE),)))
        cluster = view.facts.get_text(subject, keys.GPU_FABRIC_CLUSTER) or ""
        if state == "completed" and not NO_CLUSTER.fullmatch(cluster):
            parts[cluster, view.facts.get_text(subject, keys.GPU_FABRIC_CLIQUE)].append(ident)
            evidence_of += [
                view.format_fact(subject, key)
                for key in _FABRIC
                if view.facts.get_source(subject, key)
            ]
    for why, about, evidence in view.group(pending):
        yield Finding(
            "error",
            "fabric-not-completed",
            about,
            f"{join_names(about)}: {why}, so NVLink through the switches does not work",
            evidence,
            "start nvidia-fabricmanager, or on NVL72 look at the IMEX service and the switch "
            "trays; then reset the GPUs",
        )
    if len(parts) > 1:
        about = tuple(ident for part in parts.values() for ident in part)
        yield Finding(
            "warning",
            "fabric-split",
            about,
            f"the GPUs are in {len(parts)} cliques or clusters that no NVLink joins: "
            + " | ".join(map(join_names, parts.values())),
            tuple(evidence_of),
            "have the fabric manager put them into one partition if one job is to use them all",
        )


def check_fabric_health(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs whose fabric the driver does not call healthy (fact `fabric_health`): a warning.

    Such a fabric works at a lower rate, or will soon not work.
    """
    for health, about, evidence in view.group(
        (health, (ident,), (view.format_fact(gpu_subject(index), keys.GPU_FABRIC_HEALTH),))
        for index, ident in view.gpu_of.items()
        if (health := view.facts.get_text(gpu_subject(index), keys.GPU_FABRIC_HEALTH))
        not in (None, "healthy")
    ):
        yield Finding(
            "warning",
            "fabric-unhealthy",
            about,
            f"{join_names(about)}: the NVLink fabric is not well: {health}",
            evidence,
            "check nvidia-smi -q (Fabric, Health), the fabric manager's log and the switches for "
            "SXid errors",
        )


# The checks of this file.
CHECKS = (
    Check(
        "fabric",
        check_fabric,
        lambda view: (
            view.knows_of_gpus(keys.GPU_FABRIC_STATE)
            or any(map(view.describe_pending_fabric, view.index_of))
        ),
        "no states of a fabric",
    ),
    Check(
        "health of the fabric",
        check_fabric_health,
        lambda view: view.knows_of_gpus(keys.GPU_FABRIC_HEALTH),
        "no health of a fabric",
    ),
)
