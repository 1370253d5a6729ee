"""What the doctor asks of the driver: that it is there and lists every GPU, and that GPUs are whole and in one fabric."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from .case import Case, Check, Finding, Grouped, names

_NVIDIA = "0x10de"
_GPU_CLASSES = ("0x0300", "0x0302")
_NO_DRIVER_NOTE = re.compile(r"NVML does not answer: .*")
_UNLISTED_NOTE = re.compile(r"([0-9a-fA-F:.]{7,20}): a GPU of NVIDIA that NVML does not list.*")
_NO_CLUSTER = re.compile(r"[0-]*")


def driver(case: Case) -> Iterator[Finding]:
    """The driver's library did not answer (fact `nvml` `library` missing, or the probe's note): an error where library and
    kernel module are of unlike versions, or NVIDIA GPUs are on PCI; else a note.
    """
    reason = case.facts.reason("nvml", "library")
    notes = [f"{note} (the topology's notes)" for note in case.notes if _NO_DRIVER_NOTE.fullmatch(note)]
    if reason is None and not notes:
        return
    evidence = (case.fact("nvml", "library"),) if reason is not None else tuple(notes)
    if "mismatch" in evidence[0].lower():
        message = "the driver's library and its kernel module are of unlike versions, so that no GPU is listed"
        advice = (
            "reboot, or reload the kernel module, after an update of the driver; in a container use the host's library"
        )
        yield Finding("error", "driver-mismatch", (), message, evidence, advice)
        return
    there = tuple(_nvidia_gpus(case))
    if there:
        ids = {gpu.bus_id: gpu.id for gpu in case.gpus}
        about = tuple(ids.get(bus_id, bus_id) for bus_id in there)
        message = f"NVML, the driver's library, does not answer, though {names(about)} are NVIDIA GPUs"
        evidence += tuple(
            case.fact(f"pci/{bus_id}", "class") for bus_id in there if case.facts.text(f"pci/{bus_id}", "class")
        )
        advice = "install and load the NVIDIA driver and the package nvidia-ml-py; nvidia-smi has to work"
        yield Finding("error", "no-driver", about, message, evidence, advice)
    else:
        message = "NVML, the driver's library, does not answer; if this machine has NVIDIA GPUs, they are not known"
        yield Finding("note", "no-driver", (), message, evidence, "install the NVIDIA driver if there are such GPUs")


def unlisted_gpus(case: Case) -> Iterator[Finding]:
    """NVIDIA GPUs that are on PCI though the driver, which answers, does not list them (facts, or the probe's notes); bound to
    another driver, such as vfio-pci for a virtual machine, that is a note.
    """
    if case.facts.reason("nvml", "library") is not None or any(_NO_DRIVER_NOTE.fullmatch(n) for n in case.notes):
        return
    listed = {case.facts.text(f"gpu/{index}", "bus_id") for index in case.facts.names("gpu")}
    found = Grouped(case)
    for bus_id in _nvidia_gpus(case) if listed or case.facts.source("nvml", "count") else ():
        if bus_id not in listed:
            bound = case.facts.text(f"pci/{bus_id}", "driver")
            lines = [
                case.fact(f"pci/{bus_id}", key)
                for key in ("class", "driver")
                if case.facts.source(f"pci/{bus_id}", key)
            ]
            found.add("" if bound in (None, "nvidia") else bound, (bus_id,), lines)
    if not listed - {None}:
        for note in case.notes:
            match = _UNLISTED_NOTE.fullmatch(note)
            if match:
                found.add("", (match[1],), (f"{note} (the topology's notes)",))
    for bound, about, evidence in found:
        message = f"{names(about)}: on PCI, but not among the GPUs that the driver lists"
        if bound:
            message += f": bound to {bound}"
        advice = "if this is no container that was given fewer GPUs, look for Xid and RmInit errors in the kernel log"
        yield Finding("note" if bound else "warning", "gpu-not-listed", about, message, evidence, advice)


def _nvidia_gpus(case: Case) -> Iterator[str]:
    """Addresses of NVIDIA's display and 3D controllers on PCI."""
    for bus_id in case.facts.names("pci"):
        told = case.facts.text(f"pci/{bus_id}", "class") or ""
        if case.facts.text(f"pci/{bus_id}", "vendor") == _NVIDIA and told.startswith(_GPU_CLASSES):
            yield bus_id


def lost_gpus(case: Case) -> Iterator[Finding]:
    """GPUs that no longer answer the driver (fact `lost`): an error."""
    found = Grouped(case)
    for index, ident in case.gpu_of.items():
        if case.facts.source(f"gpu/{index}", "lost") is not None:
            found.add("", (ident,), (case.fact(f"gpu/{index}", "lost"),))
    for _, about, evidence in found:
        message = f"{names(about)}: no longer answers the driver; whatever uses it hangs or fails"
        advice = "take its work off the machine, look for Xid errors in the kernel log, then reset the GPU or reboot"
        yield Finding("error", "gpu-lost", about, message, evidence, advice)


def mig(case: Case) -> Iterator[Finding]:
    """MIG switched on (fact `mig`): an error, since instances have neither P2P nor NVLink, which NCCL needs between GPUs."""
    found = Grouped(case)
    for index, ident in case.gpu_of.items():
        if case.facts.text(f"gpu/{index}", "mig") == "on":
            found.add("", (ident,), (case.fact(f"gpu/{index}", "mig"),))
    for _, about, evidence in found:
        message = f"{names(about)}: MIG is on, and its instances have neither P2P nor NVLink for NCCL"
        yield Finding(
            "error", "mig-on", about, message, evidence, "switch it off to train on several GPUs (nvidia-smi -mig 0)"
        )


def fabric(case: Case) -> Iterator[Finding]:
    """A fabric (NVSwitch or NVL72) that is not started or not completed on a GPU that has one: an error, NVLink does not work
    there. GPUs of one machine in unlike clusters or cliques: a warning, no NVLink joins them.
    """
    pending = Grouped(case)
    parts: dict[tuple[str, str], list[str]] = defaultdict(list)
    evidence_of: list[str] = []
    for index, ident in case.gpu_of.items():
        subject = f"gpu/{index}"
        state = case.facts.text(subject, "fabric_state")
        if state in ("not started", "in progress"):
            pending.add(state, (ident,), (case.fact(subject, "fabric_state"),))
        cluster = case.facts.text(subject, "fabric_cluster") or ""
        if state == "completed" and not _NO_CLUSTER.fullmatch(cluster):
            parts[cluster, case.facts.text(subject, "fabric_clique") or ""].append(ident)
            keys = ("fabric_cluster", "fabric_clique")
            evidence_of += [case.fact(subject, key) for key in keys if case.facts.source(subject, key)]
    for state, about, evidence in pending:
        message = f"{names(about)}: the fabric's state is {state!r}, so NVLink through the switches does not work"
        advice = (
            "start nvidia-fabricmanager, or on NVL72 look at the IMEX service and the switch trays; then reset the GPUs"
        )
        yield Finding("error", "fabric-not-completed", about, message, evidence, advice)
    if len(parts) > 1:
        about = tuple(ident for part in parts.values() for ident in part)
        groups = " | ".join(names(part) for part in parts.values())
        message = f"the GPUs are in {len(parts)} cliques or clusters that no NVLink joins: {groups}"
        advice = "have the fabric manager put them into one partition if one job is to use them all"
        yield Finding("warning", "fabric-split", about, message, tuple(evidence_of), advice)


def _wants_driver(case: Case) -> str | None:
    asked = any(fact.subject == "nvml" for fact in case.facts.items)
    return None if asked or any(_NO_DRIVER_NOTE.fullmatch(n) for n in case.notes) else "no word of the driver"


def _wants_lists(case: Case) -> str | None:
    seen = case.facts.names("pci") and (case.facts.names("gpu") or case.facts.source("nvml", "count"))
    return None if seen or any(_UNLISTED_NOTE.fullmatch(n) for n in case.notes) else "no lists of GPUs to compare"


def _wants_answers(case: Case) -> str | None:
    known = case.facts.source("nvml", "count") or any(case.facts.source(f"gpu/{i}", "lost") for i in case.gpu_of)
    return None if known else "no word of the driver"


def _wants_mig(case: Case) -> str | None:
    return None if any(case.facts.source(f"gpu/{i}", "mig") for i in case.gpu_of) else "no MIG modes"


def _wants_fabric(case: Case) -> str | None:
    return None if any(case.facts.source(f"gpu/{i}", "fabric_state") for i in case.gpu_of) else "no states of a fabric"


CHECKS = (
    Check("driver", driver, _wants_driver),
    Check("GPUs that the driver does not list", unlisted_gpus, _wants_lists),
    Check("lost GPUs", lost_gpus, _wants_answers),
    Check("MIG", mig, _wants_mig),
    Check("fabric", fabric, _wants_fabric),
)
"""The checks of this file."""
