"""Checks of the distance between NICs and GPUs, of unknown NUMA nodes, and of board sizes.

A check takes a DoctorView (the topology, and the facts that a probe read of the machine) and yields
a Finding for each problem; the doctor makes those in `CHECKS`. Like GPUs are those of one model.

Near means below the same PCIe switches, or on the same CPU (the same socket, if it is known): data
then need not cross the link between sockets. A machine with more than two NUMA nodes has several
per socket (NPS, SNC). If its sockets are unknown, each half of the nodes is assumed to be one, and
findings that depend on this assumption are notes. Management NICs do not count.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...derived.board_size import find_short_boards
from ...facts import keys
from ...facts.keys import pci_subject, split_host
from ...facts.view import WIRES
from ...graph import Device
from ...hardware import ASSUMED_PLACE, LOCAL_GBps
from .links import MIN_PEERS
from .nics import list_data_nics
from .view import Check, DisjointSets, DoctorView, Finding, join_names

# The places of each device, by its id: CPUs or sockets, PCIe switches, directly linked devices, and
# itself. Devices that have a place in common are near each other.
Locations = Mapping[str, frozenset[str]]
# Number of sockets assumed if no file assigns the NUMA nodes to sockets.
_MAX_SOCKETS = 2
# CPUs: an island of switches below more of them is near none of them; chosen, to bound the work.
_MAX_CPUS_ABOVE = 64


@dataclass
class _Machine:
    gpus: dict[str, frozenset[str]] = field(default_factory=dict)
    nics: dict[str, frozenset[str]] = field(default_factory=dict)


def check_nic_distance(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs and NICs that are near none of the other kind.

    GPUs without a near NIC, if others have one, are a warning on a machine with several adapters,
    and a note on a machine with one. NICs without a near GPU, if others have one, are a note. If
    all NICs are far from all GPUs, that is a warning. Devices in unknown places are left out.
    """
    for machine in _group_machines(view):
        if not machine.gpus or not machine.nics:
            continue
        guessed = bool(_guess_sockets(view))
        place, link = ("NUMA node", "NUMA nodes") if guessed else ("socket", "CPUs")
        gpus, nics = _list_far(machine.gpus, machine.nics), _list_far(machine.nics, machine.gpus)
        places = {**machine.gpus, **machine.nics}
        evidence = tuple(
            f"{ident} place = {', '.join(sorted(places[ident] - {ident}))} (links of the topology)"
            for ident in ((*gpus, *machine.nics) if gpus else (*nics, *machine.gpus))
        )
        if len(gpus) == len(machine.gpus):
            yield Finding(
                "note" if guessed else "warning",
                "nics-on-other-socket",
                (*gpus, *nics),
                f"{join_names(gpus)}: every NIC ({join_names(nics)}) is beyond the link between "
                f"{link}",
                evidence,
                f"move the NICs to slots of the GPUs' {place}",
            )
        elif gpus:
            adapters = {_find_adapter(view.topology.by_id[nic]) for nic in machine.nics}
            yield Finding(
                "note" if guessed or len(adapters) < 2 else "warning",
                "gpu-without-near-nic",
                gpus,
                f"{join_names(gpus)}: every NIC is beyond the link between {link}, where other "
                "GPUs have one near",
                evidence,
                f"spread the NICs over the {place}s; meanwhile let the GPUs that are near a NIC "
                "send for the others",
            )
        if nics and len(gpus) < len(machine.gpus):
            yield Finding(
                "note",
                "nic-without-near-gpu",
                nics,
                f"{join_names(nics)}: no GPU is near, where other NICs have one",
                evidence,
                f"keep GPU traffic off these (NCCL_IB_HCA), or move them to the GPUs' {place}",
            )


def check_nic_switches(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs that share no PCIe switch with a NIC, if most GPUs of the model do: a warning.

    Only GPUs with a spare NIC on their CPU, one that shares no switch with any GPU, are reported:
    that NIC is in a slot of its own (NODE, PHB), while the NICs of the other GPUs are below these
    GPUs' switches (PIX).
    """
    nics = list_data_nics(view)
    on_cpu = {d.id: _find_cpus(view, d.id) for d in (*view.gpus, *nics)}
    for group in view.like_gpus:
        if len(group) < MIN_PEERS:
            continue
        near = {
            gpu.id: [nic.id for nic in nics if view.share_switch(gpu.id, nic.id)] for gpu in group
        }
        lacking = [ident for ident, own in near.items() if not own]
        spare = [
            nic.id
            for nic in nics
            if not any(view.share_switch(gpu.id, nic.id) for gpu in view.gpus)
            and any(on_cpu[nic.id] & on_cpu[gpu] for gpu in lacking)
        ]
        lacking = [gpu for gpu in lacking if any(on_cpu[nic] & on_cpu[gpu] for nic in spare)]
        served = [ident for ident, own in near.items() if own]
        if not lacking or 2 * len(served) <= len(group):
            continue
        peer = served[0]
        yield Finding(
            "warning",
            "nic-not-at-switch",
            (*lacking, *spare),
            f"{join_names(lacking)}: no NIC below the same PCIe switch, where like GPUs such as "
            f"{peer} have one",
            (
                f"{peer} and {near[peer][0]} share a PCIe switch (links of the topology)",
                *(
                    f"{nic} place = {', '.join(sorted(on_cpu[nic]))} (links of the topology)"
                    for nic in spare
                ),
            ),
            f"move {join_names(spare)} below the switch of {join_names(lacking)}; until then it "
            "goes through the CPU",
        )


def _find_cpus(view: DoctorView, ident: str) -> frozenset[str]:
    by_id = view.topology.by_id
    return frozenset(
        x
        for end in (ident, *view.islands)
        if end == ident or (by_id[end].kind == "switch" and view.share_switch(end, ident))
        for x in view.topology.out_neighbours[end]
        if by_id[x].kind == "cpu"
    )


def _guess_sockets(view: DoctorView) -> dict[str, str]:
    """Assign each CPU to a socket by halving the list of NUMA nodes.

    This applies to a single host if no socket is known and the number of NUMA nodes is even and at
    least four. Return an empty dict for other machines.
    """
    nodes = sorted(view.cpus, key=lambda cpu: (cpu.numa_node is None, cpu.numa_node or 0))
    if (
        any(_get_socket(cpu) or split_host(cpu.id)[0] for cpu in nodes)
        or len(nodes) <= _MAX_SOCKETS
        or len(nodes) % _MAX_SOCKETS
    ):
        return {}
    return {
        cpu.id: f"half {i * _MAX_SOCKETS // len(nodes)} of the NUMA nodes"
        for i, cpu in enumerate(nodes)
    }


def _get_socket(cpu: Device) -> str | None:
    socket = cpu.extra.get("socket")
    return f"socket {socket}" if isinstance(socket, int) else None


def _list_far(places_of: Locations, others: Locations) -> tuple[str, ...]:
    reached = {place for places in others.values() for place in places}
    return tuple(ident for ident, places in places_of.items() if not places & reached)


def _find_adapter(nic: Device) -> str:
    # The ports of one adapter are functions of one PCI device.
    return nic.bus_id.rpartition(".")[0] if nic.bus_id else nic.id


def _group_machines(view: DoctorView) -> Iterator[_Machine]:
    """Yield groups of GPUs and NICs that are connected without networks, NVLink and xGMI."""
    kind_of = {
        d.id: d.kind for d in view.topology.devices if d.family not in ("network", "nvswitch")
    }
    links = [
        x
        for x in view.topology.links
        if x.kind not in (*WIRES, "network") and {x.src, x.dst} <= kind_of.keys()
    ]
    connected = DisjointSets()
    # NUMA nodes of one socket are near each other.
    site = {cpu.id: _get_socket(cpu) or cpu.id for cpu in view.cpus} | _guess_sockets(view)
    # The places of devices, and of islands of switches: the CPUs above these.
    at: dict[str, set[str]] = defaultdict(set)
    for x in links:
        connected.join(x.src, x.dst)
        for a, b in ((x.src, x.dst), (x.dst, x.src)):
            if kind_of[b] != "switch":
                for end in view.islands.get(a, ()) if kind_of[a] == "switch" else (a,):
                    at[end].add(site.get(b, b))
    above_island = {
        island: cpus if len(cpus) <= _MAX_CPUS_ABOVE else set()
        for islands in view.islands.values()
        for island in islands
        for cpus in [at[island] & {*site.values()}]
    }
    machines: dict[str, _Machine] = defaultdict(_Machine)
    for device in (*view.gpus, *list_data_nics(view)):
        islands = view.islands.get(device.id, frozenset())
        above = (cpu for island in islands for cpu in above_island[island])
        places = frozenset({device.id, *at[device.id], *islands, *above})
        if len(places) > 1 and not _has_assumed_place(view, device):
            machine = machines[connected.find_root(device.id)]
            (machine.gpus if device.kind == "gpu" else machine.nics)[device.id] = places
    yield from machines.values()


def _has_assumed_place(view: DoctorView, device: Device) -> bool:
    # Readers link a NIC without a PCI address to its CPU, at a rate that limits nothing.
    links = view.links_from.get(device.id, ())
    return bool(device.extra.get(ASSUMED_PLACE)) or (
        device.kind == "nic" and bool(links) and all(x.bandwidth_GBps >= LOCAL_GBps for x in links)
    )


def check_numa_nodes(view: DoctorView) -> Iterator[Finding]:
    """Report devices with an unknown NUMA node on a machine with several: a warning.

    These are GPUs and NICs for which sysfs reports -1 and no other source has a number, and CPUs
    without a number on a machine that numbers others (except CPUs assumed for NICs). A
    device is not reported if no source was queried about its node.
    """
    numbered = any(cpu.numa_node is not None and cpu.numa_node >= 0 for cpu in view.cpus)
    for _, about, evidence in view.group(
        ("", (device.id,), (line,))
        for device in (*view.gpus, *view.nics, *view.cpus)
        if (line := _describe_unknown_node(view, device, numbered)) is not None
    ):
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


def _describe_unknown_node(view: DoctorView, device: Device, numbered: bool) -> str | None:
    node, subject = device.numa_node, pci_subject(device.bus_id)
    if node is not None:
        return view.format_attribute(device, "numa_node", node) if node < 0 else None
    if device.kind == "cpu" and numbered and not device.extra.get(ASSUMED_PLACE):
        return view.format_attribute(device, "numa_node", "not given")
    is_unknown = device.extra.get(ASSUMED_PLACE) and view.facts.get_reason(
        subject, keys.PCI_NUMA_NODE
    )
    if device.bus_id and (
        is_unknown or (view.facts.get_number(subject, keys.PCI_NUMA_NODE) or 0) < 0
    ):
        return view.format_fact(subject, keys.PCI_NUMA_NODE)
    return None


def check_board_sizes(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs that are fewer than their board has, as a note: others may be lost.

    Boards with NVSwitches, and those whose GPUs xGMI joins all, have 4, 8 or 16 GPUs. If the job or
    CUDA_VISIBLE_DEVICES hides GPUs, or the driver has lost some, other checks say so. Several hosts
    are asked one by one: their boards together are no board.
    """
    if len({split_host(gpu.id)[0] for gpu in view.gpus}) > 1:
        return
    if view.list_notes("gpu-hidden", "gpu-lost", "gpu-not-listed"):
        return
    boards = {gpu.id: view.find_board(gpu.id) for gpu in view.gpus}
    for short in find_short_boards(view.topology, boards):
        yield Finding(
            "note",
            "gpus-of-board-missing",
            short.gpus,
            short.describe(),
            (f"{join_names(short.gpus)} (the topology)",),
            "look for GPUs that fell off the bus (lspci, nvidia-smi -L, dmesg: Xid 79), unless the "
            "job or container shows only some",
        )


# The checks of this file.
CHECKS = (
    Check(
        "NICs near GPUs",
        check_nic_distance,
        lambda view: view.gpus and view.nics,
        "no GPUs or no NICs",
    ),
    Check(
        "NICs at the switches of GPUs",
        check_nic_switches,
        lambda view: view.gpus and view.nics,
        "no GPUs or no NICs",
    ),
    Check("NUMA nodes", check_numa_nodes, lambda view: len(view.cpus) > 1, "no second CPU"),
    Check(
        "all GPUs of a board",
        check_board_sizes,
        lambda view: any(link.kind in WIRES for link in view.topology.links),
        "no NVLink or xGMI",
    ),
)
