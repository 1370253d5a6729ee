"""Select the GPUs that become ranks; note the others and all missing facts that matter.

CUDA_VISIBLE_DEVICES is read as the CUDA driver reads it: a list of indices or prefixes of UUIDs,
which ends before the first entry that names no GPU. Indices count GPUs in PCI order if
CUDA_DEVICE_ORDER is PCI_BUS_ID. CUDA's own default puts the fastest GPU first, which is the same
order if all GPUs are of one model. A MIG device, by its UUID or as MIG-GPU-UUID/N/M, shows its GPU:
CUDA gives a process one of them.
"""

from collections.abc import Iterator, Mapping

from ..facts import Facts, keys
from ..facts.keys import GPU, PCI, gpu_subject
from ..grouping import group_by_key
from ..names import join_first
from ..notes import Note
from .linux.gpus import find_gpu_vendor

VARIABLE = "CUDA_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"

_NOTED_KEYS = (
    keys.NVML_LIBRARY,
    keys.NVML_COUNT,
    keys.GPU_BUS_ID,
    keys.NVLINK_STATE,
    keys.RDMA_BUS_ID,
    keys.RDMA_STATE,
    keys.NET_STATE,
    keys.NUMA_NODES,
    keys.PCI_DEVICES,
)


def select_visible(
    facts: Facts, indices: tuple[str, ...], environment: Mapping[str, str]
) -> tuple[tuple[str, ...], list[Note]]:
    """Return the NVML indices of the GPUs that CUDA shows under `environment`, in rank order.

    `indices` are the NVML indices of all GPUs, in PCI order, `environment` the process's variables.
    All are shown without CUDA_VISIBLE_DEVICES. The notes, the second value, say how they were
    selected.
    """
    listed = environment.get(VARIABLE)
    if listed is None:
        return indices, []
    seen: list[str] = []
    notes: list[Note] = []
    for entry in listed.split(","):
        index = _find_index(facts, indices, entry.strip())
        if index is None or index in seen:
            if listed.strip():
                notes.append(
                    Note(
                        f"{VARIABLE}={listed[:80]}: {entry.strip()[:40]!r} names "
                        f"{'no GPU' if index is None else 'a GPU twice'}; CUDA ends the list there",
                        "gpu-hidden",
                    )
                )
            break
        seen.append(index)
    hidden = [f"gpu{index}" for index in indices if index not in seen]
    if hidden:
        notes.append(
            Note(
                f"{', '.join(hidden)}: hidden by {VARIABLE}={listed[:80]}; left out",
                "gpu-hidden",
                hidden,
            )
        )
    if (
        len({facts.get_text(gpu_subject(index), keys.GPU_NAME) for index in indices}) > 1
        and environment.get(_ORDER) != "PCI_BUS_ID"
        and any(e.strip().isdecimal() for e in listed.split(","))
    ):
        notes.append(
            Note(
                f"the GPUs differ and {_ORDER} is not PCI_BUS_ID: CUDA may number them in another "
                "order than the one taken here"
            )
        )
    return tuple(seen), notes


def _find_index(facts: Facts, indices: tuple[str, ...], entry: str) -> str | None:
    # CUDA accepts a prefix of a UUID only if it matches exactly one GPU.
    if entry.isdecimal():
        number = int(entry) if len(entry) < 6 else len(indices)
        return indices[number] if number < len(indices) else None
    if entry.startswith("MIG-GPU-"):
        entry = entry.removeprefix("MIG-").partition("/")[0]
    elif entry.startswith("MIG-"):
        return _find_mig_parent(facts, indices, entry)
    if not entry.startswith("GPU-"):
        return None
    matches = [
        i
        for i in indices
        if (facts.get_text(gpu_subject(i), keys.GPU_UUID) or "").startswith(entry)
    ]
    return matches[0] if len(matches) == 1 else None


def _find_mig_parent(facts: Facts, indices: tuple[str, ...], entry: str) -> str | None:
    """Return the index of the GPU with a MIG device, the only GPU in MIG mode if none lists it."""
    divided = [i for i in indices if facts.get_text(gpu_subject(i), keys.GPU_MIG) == "on"]
    for index in divided:
        devices = facts.get_texts(gpu_subject(index), keys.GPU_MIG_DEVICES)
        if any(uuid.startswith(entry) for uuid in devices):
            return index
    is_listed = any(facts.get_texts(gpu_subject(i), keys.GPU_MIG_DEVICES) for i in divided)
    return divided[0] if len(divided) == 1 and not is_listed else None


def note_missing(facts: Facts) -> Iterator[Note]:
    """Yield a note for each reason why facts that shape the topology are missing."""
    subjects_of = group_by_key(
        ((fact.key, fact.source, fact.missing or ""), fact.subject)
        for fact in facts.missing
        if fact.key in _NOTED_KEYS
    )
    for (key, source, reason), subjects in subjects_of.items():
        if key == keys.NVML_LIBRARY:
            reason = " ".join(word.lower() if word.istitle() else word for word in reason.split())
            effect = "NVLinks are not known" if facts.list_names(GPU) else "GPUs are not listed"
            yield Note(f"NVML does not answer: {reason}; {effect}", "no-driver", (), reason)
        else:
            yield Note(
                f"{join_first(subjects, 4)}: {key.replace('_', ' ')} not known: {source}: {reason}"
            )


def note_lost(facts: Facts) -> Iterator[Note]:
    """Yield a note for each GPU that does not answer (fact `lost`); it cannot be a rank."""
    for index in facts.list_names(GPU):
        reason = facts.get_text(gpu_subject(index), keys.GPU_LOST)
        if reason is not None:
            yield Note(
                f"gpu{index} does not answer ({reason}); it is no rank",
                "gpu-lost",
                (f"gpu{index}",),
                reason,
            )


def note_denied(facts: Facts) -> Iterator[Note]:
    """Yield a note on the GPUs that this process may not use (fact `denied`); they are no ranks."""
    reasons = {
        f"gpu{index}": reason
        for index in facts.list_names(GPU)
        if (reason := facts.get_text(gpu_subject(index), keys.GPU_DENIED)) is not None
    }
    if reasons:
        yield Note(
            f"{', '.join(reasons)}: not for this process ({next(iter(reasons.values()))}), as in a "
            "job that was given other GPUs; left out",
            "gpu-hidden",
            reasons,
        )


def note_unlisted(facts: Facts) -> Iterator[Note]:
    """Yield a note for each GPU that is on PCI but not listed by the driver.

    Such a GPU cannot be a rank.
    """
    listed = {
        facts.get_text(gpu_subject(index), keys.GPU_BUS_ID) for index in facts.list_names(GPU)
    }
    gpus = {
        bus_id: vendor
        for bus_id in facts.list_names(PCI)
        if bus_id not in listed and (vendor := find_gpu_vendor(facts, bus_id)) is not None
    }
    without_address = [
        i
        for i in facts.list_names(GPU)
        if not facts.get_text(gpu_subject(i), keys.GPU_BUS_ID)
        and any(facts.get_text(gpu_subject(i), key) for key in (keys.GPU_LOST, keys.GPU_DENIED))
    ]
    for bus_id, vendor in (
        gpus.items() if len(gpus) != len(without_address) else ()
    ):  # if the numbers match, these are the GPUs that are lost or not for this process
        yield Note(
            f"{bus_id}: a GPU of {vendor} that NVML does not list; it is no rank",
            "gpu-not-listed",
            (bus_id,),
            vendor,
        )
