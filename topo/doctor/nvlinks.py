"""Checks of NVLinks by what the driver says of each: that they are active, and that their fabric is
well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..facts import keys
from ..facts.keys import gpu_subject, nvlink_subject
from .finding import Finding, Groups, join_names
from .links import LEAST_FOR_PEERS, check_link_counts
from .view import Check, DoctorView

_HEALTHY = "healthy"
_NOT_YET = ("not started", "in progress")


def check_any_active(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs on boards with NVLink (SXM modules and the like) where the driver has not one
    active NVLink on any of them: an error, all traffic then goes over PCIe. A fabric that is not
    started yet is reported as such.
    """
    about = view.without_nvlink
    if not about:
        return
    subjects = {ident: gpu_subject(view.find_gpu_index(ident)) for ident in about}
    if any(
        view.facts.get_text(subject, keys.GPU_FABRIC_STATE) in _NOT_YET
        for subject in subjects.values()
    ):
        return
    evidence: list[str] = []
    for ident, subject in subjects.items():
        links = view.nvlink_subjects.get(view.index_of[ident], ())
        evidence += [view.format_fact(link, keys.NVLINK_STATE) for link in links[:1]]
        evidence += [] if links else [view.format_fact(subject, keys.GPU_NVLINK_COUNT)]
    yield Finding(
        "error",
        "no-active-nvlink",
        about,
        f"{join_names(about)}: no NVLink is active on boards that have it, so everything goes over "
        "PCIe",
        tuple(evidence),
        "look at nvidia-smi nvlink -s and the kernel log (Xid, SXid), at nvidia-fabricmanager "
        "where there are NVSwitches, and "
        "whether the hypervisor passed all GPUs and NVSwitches on; leave NCCL_P2P_LEVEL until "
        "NVLink works",
    )


def check_fabric_health(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs whose fabric the driver does not call healthy (fact `fabric_health`): a warning,
    it works at a lower rate or will soon not work.
    """
    groups = Groups(view.order)
    for index, ident in view.gpu_of.items():
        health = view.facts.get_text(gpu_subject(index), keys.GPU_FABRIC_HEALTH)
        if health not in (None, _HEALTHY):
            groups.add(
                health, (ident,), (view.format_fact(gpu_subject(index), keys.GPU_FABRIC_HEALTH),)
            )
    for health, about, evidence in groups:
        yield Finding(
            "warning",
            "fabric-unhealthy",
            about,
            f"{join_names(about)}: the NVLink fabric is not well: {health}",
            evidence,
            "look at nvidia-smi -q (Fabric, Health), at the fabric manager's log and for SXid "
            "errors on the switches",
        )


def check_inactive_links(view: DoctorView) -> Iterator[Finding]:
    """Report inactive NVLinks of a GPU where more than half of three or more GPUs of the model have
    the link of that number active: a warning, unless the topology lacks the lanes, too (reported as
    `fewer-links`).
    """
    short = {ident for finding in check_link_counts(view) for ident in finding.about}
    for group in view.like_gpus:
        judged = [gpu.id for gpu in group if view.index_of.get(gpu.id) in view.nvlink_subjects]
        if len(judged) < LEAST_FOR_PEERS:
            continue
        active = Counter(
            name
            for ident in judged
            for name, state in _list_states(view, ident)
            if state == "active"
        )
        groups = Groups(view.order)
        for ident in judged:
            dead = [
                n
                for n, state in _list_states(view, ident)
                if state == "inactive" and 2 * active[n] > len(judged)
            ]
            if dead and ident not in short:
                index = view.index_of[ident]
                groups.add(
                    len(dead),
                    (ident,),
                    [view.format_fact(nvlink_subject(index, n), keys.NVLINK_STATE) for n in dead],
                )
        for dead_links, about, evidence in groups:
            yield Finding(
                "warning",
                "inactive-links",
                about,
                f"{join_names(about)}: {dead_links} inactive NVLink{'s' * (dead_links > 1)}, "
                "active on most like GPUs",
                evidence,
                "look for link errors (nvidia-smi nvlink -e) and in the kernel log; reset the GPU "
                "or reseat its bridge",
            )


def _list_states(view: DoctorView, ident: str) -> Iterator[tuple[str, str | None]]:
    for subject in view.nvlink_subjects.get(view.index_of.get(ident, ""), ()):
        yield subject.rpartition("/")[2], view.facts.get_text(subject, keys.NVLINK_STATE)


# The checks of this file.
CHECKS = (
    Check(
        "any active NVLink",
        check_any_active,
        lambda view: view.nvlink_subjects,
        "no states of NVLinks",
    ),
    Check(
        "inactive links",
        check_inactive_links,
        lambda view: view.nvlink_subjects,
        "no states of NVLinks",
    ),
    Check(
        "health of the fabric",
        check_fabric_health,
        lambda view: view.knows_of_gpus(keys.GPU_FABRIC_HEALTH),
        "no health of a fabric",
    ),
)
