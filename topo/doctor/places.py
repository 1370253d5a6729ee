"""Checks of places: how near NICs are to GPUs, and whether NUMA nodes are known.

Near means below the same PCIe switches, or on the same CPU (the same socket, where it is known):
data then need not cross the link between sockets. A machine with more than two NUMA nodes has
several in a socket (NPS, SNC); where the sockets are not known, the first half of the nodes is
taken for one, and no more than a note rests on that. NICs for management do not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..facts import keys
from ..facts.keys import pci_subject
from ..facts.view import WIRES
from ..graph import Device
from ..hardware import LOCAL_GBps
from .finding import Case, Finding, Severity, join_names
from .nics import list_data_nics
from .view import Check, DisjointSets, DoctorView

# The places of each device: CPUs or sockets, PCIe switches, devices that it is linked to directly.
Places = Mapping[str, frozenset[str]]


@dataclass
class _Machine:
    gpus: dict[str, frozenset[str]] = field(default_factory=dict)
    nics: dict[str, frozenset[str]] = field(default_factory=dict)


def check_nic_places(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs whose NICs are all beyond the link between CPUs, while other GPUs have one near:
    a warning where the machine has several adapters, a note where it has one. NICs that are near no
    GPU, where others are, are a note; all NICs far from all GPUs a warning. Devices whose place is
    not known are left out.
    """
    for machine in _group_machines(view):
        if not machine.gpus or not machine.nics:
            continue
        guessed = len(_guess_sockets(view)) > 0
        place, link = ("NUMA node", "NUMA nodes") if guessed else ("socket", "CPUs")
        gpus, nics = _list_far(machine.gpus, machine.nics), _list_far(machine.nics, machine.gpus)
        evidence = _format_places(
            {**machine.gpus, **machine.nics},
            (*gpus, *machine.nics) if gpus else (*nics, *machine.gpus),
        )
        if len(gpus) == len(machine.gpus):
            message = (
                f"{join_names(gpus)}: every NIC ({join_names(nics)}) is beyond the link between "
                f"{link}"
            )
            advice = f"move the NICs to slots of the GPUs' {place}"
            severity: Severity = "note" if guessed else "warning"
            yield Finding(
                severity, "nics-on-other-socket", (*gpus, *nics), message, evidence, advice
            )
            continue
        if gpus:
            several = (
                len({_find_adapter(view.topology.by_id[nic]) for nic in machine.nics}) > 1
                and not guessed
            )
            yield Finding(
                "warning" if several else "note",
                "gpu-without-near-nic",
                gpus,
                f"{join_names(gpus)}: every NIC is beyond the link between {link}, where other "
                "GPUs have one near",
                evidence,
                f"spread the NICs over the {place}s; meanwhile let the GPUs that are near a NIC "
                "send for the others",
            )
        if nics:
            yield Finding(
                "note",
                "nic-without-near-gpu",
                nics,
                f"{join_names(nics)}: no GPU is near, where other NICs have one",
                evidence,
                f"keep GPU traffic off these (NCCL_IB_HCA), or move them to the GPUs' {place}",
            )


def check_nic_switches(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs that share no PCIe switch with a NIC, where most like GPUs do and a NIC beside
    shares none with a GPU: a warning. Their NIC is in a slot of its own (NODE, PHB), where those of
    the others are below their GPUs' switches (PIX).
    """
    nics = list_data_nics(view)
    on_cpu = {d.id: _find_cpus(view, d.id) for d in (*view.gpus, *nics)}
    for group in view.like_gpus:
        if len(group) < _MIN_PEERS:
            continue
        near = {
            gpu.id: [nic.id for nic in nics if _share_switch(view, gpu.id, nic.id)] for gpu in group
        }
        lacking = [ident for ident, own in near.items() if not own]
        spare = [
            nic.id
            for nic in nics
            if not any(_share_switch(view, gpu.id, nic.id) for gpu in view.gpus)
        ]
        spare = [nic for nic in spare if any(on_cpu[nic] & on_cpu[gpu] for gpu in lacking)]
        lacking = [gpu for gpu in lacking if any(on_cpu[nic] & on_cpu[gpu] for nic in spare)]
        served = [ident for ident, own in near.items() if own]
        if not lacking or 2 * len(served) <= len(group):
            continue
        peer = served[0]
        evidence = [f"{peer} and {near[peer][0]} share a PCIe switch (links of the topology)"]
        evidence += [
            f"{nic} place = {', '.join(sorted(on_cpu[nic]))} (links of the topology)"
            for nic in spare
        ]
        yield Finding(
            "warning",
            "nic-not-at-switch",
            (*lacking, *spare),
            f"{join_names(lacking)}: no NIC below the same PCIe switch, where like GPUs such as "
            f"{peer} have one",
            tuple(evidence),
            f"move {join_names(spare)} below the switch of {join_names(lacking)}; until then it "
            "goes through the CPU",
        )


def _share_switch(view: DoctorView, a: str, b: str) -> bool:
    return bool(view.islands.get(a, frozenset()) & view.islands.get(b, frozenset()))


def _find_cpus(view: DoctorView, ident: str) -> frozenset[str]:
    islands = view.islands.get(ident, frozenset())
    ends = [
        ident,
        *(
            switch
            for switch, names in view.islands.items()
            if names & islands and _is_switch(view, switch)
        ),
    ]
    return frozenset(
        x
        for end in ends
        for x in view.topology.out_neighbours[end]
        if view.topology.by_id[x].kind == "cpu"
    )


def _is_switch(view: DoctorView, ident: str) -> bool:
    return view.topology.by_id[ident].kind == "switch"


def _guess_sockets(view: DoctorView) -> dict[str, str]:
    """Return a socket for each CPU of a machine with an even number of NUMA nodes above two and no
    known socket, else none.
    """
    nodes = sorted(view.cpus, key=lambda cpu: (cpu.numa_node is None, cpu.numa_node or 0))
    known = any(isinstance(cpu.extra.get("socket"), int) for cpu in nodes)
    if known or len(nodes) <= _MAX_SOCKETS or len(nodes) % _MAX_SOCKETS:
        return {}
    return {
        cpu.id: f"half {i * _MAX_SOCKETS // len(nodes)} of the NUMA nodes"
        for i, cpu in enumerate(nodes)
    }


def _list_far(places_of: Places, others: Places) -> tuple[str, ...]:
    reached = {place for places in others.values() for place in places}
    return tuple(ident for ident, places in places_of.items() if not places & reached)


def _format_places(places: Places, ids: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        f"{ident} place = {', '.join(sorted(places[ident] - {ident}))} (links of the topology)"
        for ident in ids
    )


def _find_adapter(nic: Device) -> str:
    # The ports of one adapter are functions of one PCI device.
    return nic.bus_id.rpartition(".")[0] if nic.bus_id else nic.id


_MIN_PEERS, _MAX_SOCKETS = 3, 2
_MAX_CPUS_ABOVE = 64  # an island below more CPUs than that is near none of them


def _group_machines(view: DoctorView) -> Iterator[_Machine]:
    """Yield the GPUs and NICs of each machine: what is connected without networks, NVLink and
    xGMI.
    """
    kind_of = {
        d.id: d.kind for d in view.topology.devices if d.family not in ("network", "nvswitch")
    }
    links = [
        x
        for x in view.topology.links
        if x.kind not in (*WIRES, "network") and {x.src, x.dst} <= kind_of.keys()
    ]
    connected = DisjointSets()
    site = {cpu.id: _find_site(cpu) for cpu in view.cpus} | _guess_sockets(view)
    at: dict[str, set[str]] = defaultdict(set)  # of islands, too: the CPUs above
    for x in links:
        connected.join(x.src, x.dst)
        for a, b in ((x.src, x.dst), (x.dst, x.src)):
            if kind_of[b] != "switch":
                for end in view.islands.get(a, ()) if kind_of[a] == "switch" else (a,):
                    at[end].add(site.get(b, b))
    sites = set(site.values())
    above_island = {
        island: at[island] & sites for islands in view.islands.values() for island in islands
    }
    machines: dict[str, _Machine] = defaultdict(_Machine)
    for device in (*view.gpus, *list_data_nics(view)):
        islands = view.islands.get(device.id, frozenset())
        above = {
            place
            for i in islands
            if len(above_island[i]) <= _MAX_CPUS_ABOVE
            for place in above_island[i]
        }
        places = frozenset({device.id, *at[device.id], *islands, *above})
        if len(places) > 1 and not _has_assumed_place(view, device):
            machine = machines[connected.find_root(device.id)]
            (machine.gpus if device.kind == "gpu" else machine.nics)[device.id] = places
    yield from machines.values()


def _find_site(cpu: Device) -> str:
    # NUMA nodes of one socket are near each other.
    socket = cpu.extra.get("socket")
    return f"socket {socket}" if isinstance(socket, int) else cpu.id


def _has_assumed_place(view: DoctorView, device: Device) -> bool:
    # Readers link a NIC without a PCI address to its CPU, at a rate that limits nothing.
    links = view.links_from.get(device.id, ())
    return (
        device.kind == "nic" and bool(links) and all(x.bandwidth_GBps >= LOCAL_GBps for x in links)
    )


def check_numa_nodes(view: DoctorView) -> Iterator[Finding]:
    """Report devices with an unknown NUMA node on a machine with several: a warning. That is GPUs
    and NICs for which sysfs says -1 and no other source knows better, and CPUs without a number
    beside CPUs that have one. What no source was asked for is not reported.
    """
    numbered = sum(cpu.numa_node is not None and cpu.numa_node >= 0 for cpu in view.cpus)
    if len(view.cpus) < 2:
        return
    cases: list[Case] = []
    for device in (*view.gpus, *view.nics, *view.cpus):
        node = device.numa_node
        subject = pci_subject(device.bus_id)
        if node is not None and node < 0:
            cases.append(("", (device.id,), (view.format_attribute(device, "numa_node", node),)))
        elif node is None and device.kind == "cpu" and numbered:
            cases.append(
                ("", (device.id,), (view.format_attribute(device, "numa_node", "not given"),))
            )
        elif (
            node is None
            and device.bus_id
            and (view.facts.get_number(subject, keys.PCI_NUMA_NODE) or 0) < 0
        ):
            cases.append(("", (device.id,), (view.format_fact(subject, keys.PCI_NUMA_NODE),)))
    for _, about, evidence in view.group(cases):
        yield Finding(
            "warning",
            "numa-unknown",
            about,
            f"{join_names(about)}: NUMA node unknown, so the place on one of {len(view.cpus)} CPUs "
            "is a guess",
            evidence,
            "check whether the BIOS or the hypervisor reports it; else pin by measuring from each "
            "node",
        )


def _has_gpus_and_nics(view: DoctorView) -> bool:
    return bool(view.gpus and view.nics)


# The checks of this file.
CHECKS = (
    Check("NICs near GPUs", check_nic_places, _has_gpus_and_nics, "no GPUs or no NICs"),
    Check(
        "NICs at the switches of GPUs", check_nic_switches, _has_gpus_and_nics, "no GPUs or no NICs"
    ),
    Check("NUMA nodes", check_numa_nodes, lambda view: len(view.cpus) > 1, "no second CPU"),
)
