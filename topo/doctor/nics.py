"""What the doctor asks of NICs: whether their ports work, run at like speeds, and have slots that keep up."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from ..graph import Device
from .case import Case, Check, Finding, Grouped, gbps, names, pci
from .pcie import is_placeholder, nic_GBps, pcie_state

_NOT_AT_WORK = re.compile(
    r"(?:\d+: *)?(?:down|init|armed|active_defer|lowerlayerdown|notpresent|testing|dormant|disabled|polling|inactive)"
)
_STEM = re.compile(r"[a-z]+\d*_|[a-z]+", re.IGNORECASE)


def ports_down(case: Case) -> Iterator[Finding]:
    """A NIC whose port says that it is not active: a warning for what may carry traffic of GPUs, a note for a plain network
    interface (machines have spare ones). Words that are no state of a port are passed over.
    """
    found = Grouped(case)
    for nic in case.nics:
        state, line = _state(case, nic)
        if _NOT_AT_WORK.fullmatch(state):
            plain = nic.id in case.facts.names("net") and nic.id not in case.facts.names("rdma")
            found.add((plain, state.split(":")[-1].strip()), (nic.id,), (line,))
    for (plain, state), about, evidence in found:
        message = f"{names(about)}: the port is {state}, so it carries nothing"
        advice = "look at cable, switch port and subnet manager (ibstat, ethtool)"
        yield Finding("note" if plain else "warning", "nic-down", about, message, evidence, advice)


def _state(case: Case, nic: Device) -> tuple[str, str]:
    for top in ("rdma", "net"):
        text = case.facts.text(f"{top}/{nic.id}", "state")
        if text is not None:
            return text.strip().lower(), case.fact(f"{top}/{nic.id}", "state")
    told = nic.extra.get("state")
    return str(told).strip().lower() if told else "", case.said(nic, "state", told)


def uneven_nics(case: Case) -> Iterator[Finding]:
    """NICs of one sort (PCI vendor and device, else the letters of the name: mlx5_0 and mlx5_1) that run at unlike speeds;
    those slower than the fastest are named. NICs that are down, and other models, are not compared.
    """
    sorts: dict[str, list[Device]] = defaultdict(list)
    for nic in case.nics:
        if nic_GBps(nic) is not None and not _NOT_AT_WORK.fullmatch(_state(case, nic)[0]):
            stem = _STEM.match(str(nic.extra.get("name") or nic.id).rpartition("/")[2])
            model = (pci(nic).get("vendor"), pci(nic).get("device"))
            sorts[str(model) if all(model) else stem.group() if stem else nic.id].append(nic)
    for nics in sorts.values():
        rates = {nic.id: nic_GBps(nic) or 0 for nic in nics}
        best = max(rates.values())
        slow = tuple(ident for ident, rate in rates.items() if rate < best)
        if slow:
            fast = tuple(ident for ident in rates if ident not in slow)
            evidence = tuple(case.said(nic, "speed", f"{nic.extra['speed']} Mb/s") for nic in nics)
            message = f"{names(slow)}: slower than {names(fast)}, which are of the same sort ({gbps(best)})"
            advice = "look at the cable, the switch port and the negotiated speed (ibstat, ethtool)"
            yield Finding("warning", "uneven-nics", slow, message, evidence, advice)


def beyond_slot(case: Case) -> Iterator[Finding]:
    """A NIC's port is faster than its PCIe link even before packet headers (100 Gb/s on Gen3 x16 is not; 200 Gb/s on Gen3 x8
    is). Links declared as placeholders are told as such.
    """
    found = Grouped(case)
    for nic in case.nics:
        rate, state = nic_GBps(nic), pcie_state(case, nic)
        raw = state.raw_GBps if state else None
        if rate is not None and state is not None and raw is not None and rate > raw and not is_placeholder(nic, state):
            speed = case.said(nic, "speed", f"{nic.extra['speed']} Mb/s")
            found.add((rate, f"Gen{state.generation} x{state.lanes}", raw), (nic.id,), (speed, *state.evidence))
    for (rate, slot, raw), about, evidence in found:
        message = f"{names(about)}: a port of {gbps(rate)} behind PCIe {slot}, which carries {gbps(raw)} at most"
        advice = "move the NIC to a wider or newer slot, or count on the slot's rate"
        yield Finding("warning", "nic-above-pcie", about, message, evidence, advice)


def _wants_port_states(case: Case) -> str | None:
    return None if any(_state(case, nic)[0] for nic in case.nics) else "no states of NIC ports"


def _wants_speeds(case: Case) -> str | None:
    return None if any(nic_GBps(nic) for nic in case.nics) else "no speeds of NICs"


def _wants_slots(case: Case) -> str | None:
    return None if any(nic_GBps(nic) and pcie_state(case, nic) for nic in case.nics) else "no speeds and slots of NICs"


CHECKS = (
    Check("NIC ports", ports_down, _wants_port_states),
    Check("NIC speeds", uneven_nics, _wants_speeds),
    Check("NICs and their slots", beyond_slot, _wants_slots),
)
"""The checks of this file."""
