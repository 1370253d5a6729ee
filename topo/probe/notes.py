"""Notes on what could not be learned of a machine, a line each for people to read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ..facts import Facts, keys
from ..facts.keys import GPU, PCI, gpu_subject
from ..notes import Note
from .linux.unlisted import find_gpu_vendor

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


def note_missing(facts: Facts) -> Iterator[Note]:
    """Yield a line for each reason why facts that shape the topology are missing."""
    subjects_of: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for fact in facts.missing:
        if fact.key in _NOTED_KEYS:
            subjects_of[fact.key, fact.source, fact.missing or ""].append(fact.subject)
    for (key, source, reason), subjects in subjects_of.items():
        if key == keys.NVML_LIBRARY:
            reason = " ".join(word.lower() if word.istitle() else word for word in reason.split())
            effect = "NVLinks are not known" if facts.list_names(GPU) else "GPUs are not listed"
            yield Note(f"NVML does not answer: {reason}; {effect}", "no-driver", (), reason)
        else:
            text = f"{key.replace('_', ' ')} not known: {source}: {reason}"
            yield Note(f"{_join_names(subjects)}: {text}")


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def note_lost(facts: Facts) -> Iterator[Note]:
    """Yield a line for each GPU that does not answer."""
    for index in facts.list_names(GPU):
        reason = facts.get_text(gpu_subject(index), keys.GPU_LOST)
        if reason is not None:
            text = f"gpu{index} does not answer ({reason}); it is no rank"
            yield Note(text, "gpu-lost", (f"gpu{index}",), reason)


def note_unlisted(facts: Facts) -> Iterator[Note]:
    """Yield a line for each GPU that is on PCI but not listed by the driver, so that it cannot be a
    rank.
    """
    listed = {
        facts.get_text(gpu_subject(index), keys.GPU_BUS_ID) for index in facts.list_names(GPU)
    }
    vendors = {
        bus_id: find_gpu_vendor(facts, bus_id)
        for bus_id in facts.list_names(PCI)
        if bus_id not in listed
    }
    gpus = {bus_id: vendor for bus_id, vendor in vendors.items() if vendor is not None}
    without_address = [
        i
        for i in facts.list_names(GPU)
        if facts.get_text(gpu_subject(i), keys.GPU_LOST)
        and not facts.get_text(gpu_subject(i), keys.GPU_BUS_ID)
    ]
    for bus_id, vendor in (
        gpus.items() if len(gpus) != len(without_address) else ()
    ):  # else they are the lost ones
        text = f"{bus_id}: a GPU of {vendor} that NVML does not list; it is no rank"
        yield Note(text, "gpu-not-listed", (bus_id,), vendor)
