"""What the doctor asks of places: how near NICs are to GPUs, and whether NUMA nodes are known.

Near means below the same PCIe switches, or on the same CPU (the same socket, where it is known): data then need not
cross the link between sockets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..graph import Device
from ..hardware import LOCAL_GBps
from .case import WIRES, Case, Check, Finding, Grouped, Union, names

Places = Mapping[str, frozenset[str]]
"""Of each device the places that it is at: CPUs or sockets, PCIe switches, devices that it is linked to directly."""


@dataclass
class _Machine:
    """The GPUs and NICs of one machine with their places."""

    gpus: dict[str, frozenset[str]] = field(default_factory=dict)
    nics: dict[str, frozenset[str]] = field(default_factory=dict)


def far_nics(case: Case) -> Iterator[Finding]:
    """GPUs of which the next NIC is beyond the link between CPUs, while other GPUs of the machine have one near: a warning
    where there are several adapters to lay out, a note where there is but one. NICs that are near no GPU, where
    others are: a note. All NICs far from all GPUs: a warning. Devices whose place is not known are left out.
    """
    for machine in _machines(case):
        if not machine.gpus or not machine.nics:
            continue
        gpus, nics = _far(machine.gpus, machine.nics), _far(machine.nics, machine.gpus)
        evidence = _lines({**machine.gpus, **machine.nics}, (*gpus, *machine.nics) if gpus else (*nics, *machine.gpus))
        if len(gpus) == len(machine.gpus):
            message = f"{names(gpus)}: every NIC ({names(nics)}) is beyond the link between CPUs"
            advice = "move the NICs to slots of the GPUs' socket"
            yield Finding("warning", "nics-on-other-socket", (*gpus, *nics), message, evidence, advice)
            continue
        if gpus:
            message = f"{names(gpus)}: every NIC is beyond the link between CPUs, where other GPUs have one near"
            advice = "spread the NICs over the sockets; meanwhile let the GPUs that are near a NIC send for the others"
            several = len({_adapter(case.topology.by_id[nic]) for nic in machine.nics}) > 1
            yield Finding("warning" if several else "note", "gpu-without-near-nic", gpus, message, evidence, advice)
        if nics:
            message = f"{names(nics)}: no GPU is near, where other NICs have one"
            advice = "keep GPU traffic off these (NCCL_IB_HCA), or move them to the GPUs' socket"
            yield Finding("note", "nic-without-near-gpu", nics, message, evidence, advice)


def _far(ours: Places, theirs: Places) -> tuple[str, ...]:
    """Those of `ours` that share no place with any of `theirs`."""
    reached = {place for places in theirs.values() for place in places}
    return tuple(ident for ident, places in ours.items() if not places & reached)


def _lines(places: Places, ids: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        f"{ident} place = {', '.join(sorted(places[ident] - {ident}))} (links of the topology)" for ident in ids
    )


def _adapter(nic: Device) -> str:
    """What the ports of one adapter have in common: the PCI address without the function."""
    return nic.bus_id.rpartition(".")[0] if nic.bus_id else nic.id


_MOST_ABOVE = 64  # an island below more CPUs than that is near none of them


def _machines(case: Case) -> Iterator[_Machine]:
    """GPUs and NICs by machine: what hangs together without networks, NVLink and xGMI."""
    kind_of = {d.id: d.kind for d in case.topology.devices if d.family not in ("network", "nvswitch")}
    links = [x for x in case.topology.links if x.kind not in (*WIRES, "network") and {x.src, x.dst} <= kind_of.keys()]
    whole = Union()
    site = {cpu.id: _site(cpu) for cpu in case.cpus}
    at: dict[str, set[str]] = defaultdict(set)  # of islands, too: the CPUs above
    for x in links:
        whole.join(x.src, x.dst)
        for a, b in ((x.src, x.dst), (x.dst, x.src)):
            if kind_of[b] != "switch":
                for here in case.islands.get(a, ()) if kind_of[a] == "switch" else (a,):
                    at[here].add(site.get(b, b))
    sites = set(site.values())
    above_island = {island: at[island] & sites for islands in case.islands.values() for island in islands}
    machines: dict[str, _Machine] = defaultdict(_Machine)
    for device in (*case.gpus, *case.nics):
        islands = case.islands.get(device.id, frozenset())
        above = {place for i in islands if len(above_island[i]) <= _MOST_ABOVE for place in above_island[i]}
        places = frozenset({device.id, *at[device.id], *islands, *above})
        if len(places) > 1 and not _unplaced(case, device):
            machine = machines[whole.root(device.id)]
            (machine.gpus if device.kind == "gpu" else machine.nics)[device.id] = places
    yield from machines.values()


def _site(cpu: Device) -> str:
    """A CPU's socket where it is known: NUMA nodes of one socket are near each other."""
    socket = cpu.extra.get("socket")
    return f"socket {socket}" if isinstance(socket, int) else cpu.id


def _unplaced(case: Case, device: Device) -> bool:
    """Whether a NIC hangs on its CPU only because its PCI address is not known."""
    links = case.links_from.get(device.id, ())
    return device.kind == "nic" and bool(links) and all(x.bandwidth_GBps >= LOCAL_GBps for x in links)


def unknown_numa(case: Case) -> Iterator[Finding]:
    """On a machine with several NUMA nodes: GPUs and NICs of which sysfs says node -1 and nobody says another, and CPUs
    without a number beside CPUs that have one. What no source was asked for is not claimed.
    """
    numbered = sum(cpu.numa_node is not None and cpu.numa_node >= 0 for cpu in case.cpus)
    if len(case.cpus) < 2:
        return
    found = Grouped(case)
    for device in (*case.gpus, *case.nics, *case.cpus):
        node = device.numa_node
        subject = f"pci/{device.bus_id}"
        if node is not None and node < 0:
            found.add("", (device.id,), (case.said(device, "numa_node", node),))
        elif node is None and device.kind == "cpu" and numbered:
            found.add("", (device.id,), (case.said(device, "numa_node", "not given"),))
        elif node is None and device.bus_id and (case.facts.number(subject, "numa_node") or 0) < 0:
            found.add("", (device.id,), (case.fact(subject, "numa_node"),))
    for _, about, evidence in found:
        message = f"{names(about)}: NUMA node unknown, so the place on one of {len(case.cpus)} CPUs is a guess"
        advice = "look whether the BIOS or the hypervisor tells it; else pin by measuring from each node"
        yield Finding("warning", "numa-unknown", about, message, evidence, advice)


def _wants_both(case: Case) -> str | None:
    return None if case.gpus and case.nics else "no GPUs" if case.nics else "no NICs"


def _wants_nodes(case: Case) -> str | None:
    return None if len(case.cpus) > 1 else "no second CPU"


CHECKS = (
    Check("NICs near GPUs", far_nics, _wants_both),
    Check("NUMA nodes", unknown_numa, _wants_nodes),
)
"""The checks of this file."""
