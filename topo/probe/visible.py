"""Which GPUs a program sees, and as which ranks: CUDA_VISIBLE_DEVICES as the CUDA driver reads it.

The list holds indices or beginnings of UUIDs; the first entry that names no GPU ends it. Indices count GPUs in PCI order
where CUDA_DEVICE_ORDER is PCI_BUS_ID; CUDA's own default puts the fastest first, which is the same for GPUs that are alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..facts import Facts

VARIABLE = "CUDA_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"


@dataclass(frozen=True)
class Visible:
    """NVML indices in the order of ranks, and what there is to say about them."""

    indices: tuple[str, ...]
    notes: tuple[str, ...] = ()


def visible(facts: Facts, indices: tuple[str, ...], environment: Mapping[str, str]) -> Visible:
    """Those of the GPUs `indices` (NVML's, in PCI order) that CUDA shows under `environment`."""
    told = environment.get(VARIABLE)
    if told is None:
        return Visible(indices)
    seen: list[str] = []
    notes: list[str] = []
    for entry in told.split(","):
        index = _named(facts, indices, entry.strip())
        if index is None or index in seen:
            why = "names no GPU" if index is None else "names a GPU twice"
            if told.strip():
                notes.append(f"{VARIABLE}={told[:80]}: {entry.strip()[:40]!r} {why}; CUDA ends the list there")
            break
        seen.append(index)
    hidden = [f"gpu{index}" for index in indices if index not in seen]
    if hidden:
        notes.append(f"{', '.join(hidden)}: hidden by {VARIABLE}={told[:80]}; left out")
    names = {facts.text(f"gpu/{index}", "name") for index in indices}
    if (
        len(names) > 1
        and environment.get(_ORDER) != "PCI_BUS_ID"
        and any(e.strip().isdecimal() for e in told.split(","))
    ):
        notes.append(
            f"the GPUs differ and {_ORDER} is not PCI_BUS_ID: CUDA may number them in another order than the one taken here"
        )
    return Visible(tuple(seen), tuple(notes))


def _named(facts: Facts, indices: tuple[str, ...], entry: str) -> str | None:
    """The NVML index that an entry of the list names."""
    if entry.isdecimal():
        number = int(entry) if len(entry) < 6 else len(indices)
        return indices[number] if number < len(indices) else None
    if not entry.startswith("GPU-"):
        return None
    found = [i for i in indices if (facts.text(f"gpu/{i}", "uuid") or "").startswith(entry)]
    return found[0] if len(found) == 1 else None
