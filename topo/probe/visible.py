"""Select the GPUs that a program sees, in the order of its ranks: CUDA_VISIBLE_DEVICES as the CUDA
driver reads it.

The list has indices or prefixes of UUIDs; the first entry that names no GPU ends it. Indices count
GPUs in PCI order where CUDA_DEVICE_ORDER is PCI_BUS_ID; CUDA's own default puts the fastest first,
which is the same for GPUs that are alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..facts import Facts, keys
from ..facts.keys import gpu_subject
from ..notes import Note

VARIABLE = "CUDA_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True)
class Visible:
    """NVML indices in the order of ranks, and notes on how they were selected."""

    indices: tuple[str, ...]
    notes: tuple[Note, ...] = ()


def select_visible(
    facts: Facts, indices: tuple[str, ...], environment: Mapping[str, str]
) -> Visible:
    """Return those of the GPUs `indices` (NVML's, in PCI order) that CUDA shows under
    `environment`.
    """
    listed = environment.get(VARIABLE)
    if listed is None:
        return Visible(indices)
    seen: list[str] = []
    notes: list[Note] = []
    for entry in listed.split(","):
        index = _find_index(facts, indices, entry.strip())
        if index is None or index in seen:
            why = "names no GPU" if index is None else "names a GPU twice"
            if listed.strip():
                text = f"{VARIABLE}={listed[:80]}: {entry.strip()[:40]!r} {why}"
                notes.append(Note(f"{text}; CUDA ends the list there", "gpu-hidden"))
            break
        seen.append(index)
    hidden = [f"gpu{index}" for index in indices if index not in seen]
    if hidden:
        text = f"{', '.join(hidden)}: hidden by {VARIABLE}={listed[:80]}; left out"
        notes.append(Note(text, "gpu-hidden", hidden))
    names = {facts.get_text(gpu_subject(index), keys.GPU_NAME) for index in indices}
    if (
        len(names) > 1
        and environment.get(_ORDER) != "PCI_BUS_ID"
        and any(e.strip().isdecimal() for e in listed.split(","))
    ):
        notes.append(
            Note(
                f"the GPUs differ and {_ORDER} is not PCI_BUS_ID: CUDA may number them in another "
                "order than the one taken here"
            )
        )
    return Visible(tuple(seen), tuple(notes))


def _find_index(facts: Facts, indices: tuple[str, ...], entry: str) -> str | None:
    """Return the NVML index that an entry of the list names, None where it names no GPU or
    several.
    """
    if entry.isdecimal():
        number = int(entry) if len(entry) < 6 else len(indices)
        return indices[number] if number < len(indices) else None
    if not entry.startswith("GPU-"):
        return None
    matches = [
        i
        for i in indices
        if (facts.get_text(gpu_subject(i), keys.GPU_UUID) or "").startswith(entry)
    ]
    return matches[0] if len(matches) == 1 else None
