"""What could not be learned of a machine, in the few lines that people read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from ..facts import Facts
from .linux.unlisted import vendor_of

_NOTED_KEYS = ("library", "count", "bus_id", "state", "nodes", "devices")


def absent(facts: Facts) -> Iterator[str]:
    """A line for each reason why facts that shape the topology are missing."""
    grouped: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for fact in facts.missing:
        if fact.key in _NOTED_KEYS:
            grouped[fact.key, fact.source, fact.missing or ""].append(fact.subject)
    for (key, source, reason), subjects in grouped.items():
        if key == "library":
            told = " ".join(word.lower() if word.istitle() else word for word in reason.split())
            effect = "NVLinks are not known" if facts.names("gpu") else "GPUs are not listed"
            yield f"NVML does not answer: {told}; {effect}"
        else:
            yield f"{_listed(subjects)}: {key.replace('_', ' ')} not known: {source}: {reason}"


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:4]) + (f" and {len(every) - 4} more" if len(every) > 4 else "")


def lost(facts: Facts) -> Iterator[str]:
    """GPUs that do not answer."""
    for index in facts.names("gpu"):
        reason = facts.text(f"gpu/{index}", "lost")
        if reason is not None:
            yield f"gpu{index} does not answer ({reason}); it is no rank"


def unlisted(facts: Facts) -> Iterator[str]:
    """GPUs that are on PCI but not listed, so that they cannot be ranks."""
    listed = {facts.text(f"gpu/{index}", "bus_id") for index in facts.names("gpu")}
    vendors = {bus_id: vendor_of(facts, bus_id) for bus_id in facts.names("pci") if bus_id not in listed}
    found = {bus_id: vendor for bus_id, vendor in vendors.items() if vendor is not None}
    nowhere = [i for i in facts.names("gpu") if facts.text(f"gpu/{i}", "lost") and not facts.text(f"gpu/{i}", "bus_id")]
    for bus_id, vendor in found.items() if len(found) != len(nowhere) else ():  # else they are the lost ones
        yield f"{bus_id}: a GPU of {vendor} that NVML does not list; it is no rank"
