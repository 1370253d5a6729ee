"""The doctor: each fault is found on a machine that has it and not on its healthy twin, and no file
makes it fail.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import count_examples

from topoplan.topo.derived.hosts import join_hosts
from topoplan.topo.extras.doctor import Finding, examine, list_checks, list_findings, report
from topoplan.topo.facts.keys import FABRIC_FAILED
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.hardware import LOCAL_GBps
from topoplan.topo.loader.resolve import resolve
from topoplan.topo.notes import Note, assumed
from topoplan.topo.presets import PRESETS, preset

Machine = Topology
FactTable = dict[tuple[str, str], Any]

GPUS = tuple(f"gpu{i}" for i in range(4))
BUS = {f"gpu{i}": f"0000:{i + 1}a:00.0" for i in range(4)}
SOURCES = {
    "gpu": "NVML",
    "pci": "sysfs",
    "rdma": "sysfs",
    "nvml": "NVML",
    "host": "sysfs",
    "numa": "sysfs",
}


def healthy() -> Machine:
    """4 GPUs on an NVSwitch; two sockets with a PCIe switch each, which has two of the GPUs and a
    NIC; all facts known.
    """
    devices = [
        Device(g, numa_node=i // 2, bus_id=BUS[g], extra={"name": "A100", "sm": 80})
        for i, g in enumerate(GPUS)
    ]
    devices += [Device(f"cpu{n}", "cpu", numa_node=n, extra={"socket": n}) for n in range(2)]
    devices += [
        Device(f"plx{n}", "switch", "pcie", numa_node=n, bus_id=f"0000:0{n}:01.0") for n in range(2)
    ]
    devices += [Device("nvswitch0", "switch", "nvswitch")]
    nic = {"speed": 200000, "state": "4: ACTIVE", "pci": {"vendor": "0x15b3", "device": "0x101b"}}
    devices += [
        Device(f"mlx5_{n}", "nic", numa_node=n, bus_id=f"0000:{n}f:00.0", extra=nic)
        for n in range(2)
    ]
    links = [x for g in GPUS for x in cable(g, "nvswitch0", 300, "nvlink", 12)]
    for n in range(2):
        for end in (*GPUS[2 * n : 2 * n + 2], f"mlx5_{n}", f"cpu{n}"):
            links += cable(end, f"plx{n}", 24, "pcie")
    links += cable("cpu0", "cpu1", 16, "smp")
    machine = Topology("box", tuple(devices), tuple(links), "written down for a test")
    return with_facts(machine, healthy_facts())


def healthy_facts() -> FactTable:
    facts: FactTable = {("nvml", "count"): 4, ("nvml", "driver"): "570.1"}
    facts |= {("host", "iommu"): "passthrough", ("host", "virtual"): "no"}
    for i, gpu in enumerate(GPUS):
        own = {
            "bus_id": BUS[gpu],
            "mig": "off",
            "fabric_state": "completed",
            "fabric_cluster": "c0ffee",
            "fabric_clique": 7,
        }
        pcie = {
            "pcie_max_generation": 4,
            "pcie_max_width": 16,
            "pcie_current_generation": 4,
            "pcie_current_width": 16,
        }
        facts |= {(f"gpu/{i}", key): value for key, value in {**own, **pcie}.items()}
        facts |= {(f"gpu/{i}/nvlink/{n}", "state"): "active" for n in range(12)}
        facts |= {
            (f"gpu/{i}/p2p/{j}", key): "ok" for j in range(4) if j != i for key in ("read", "write")
        }
        on_pci = {"class": "0x030200", "vendor": "0x10de", "driver": "nvidia", "numa_node": i // 2}
        facts |= {(f"pci/{BUS[gpu]}", key): value for key, value in on_pci.items()}
        facts[f"pci/{BUS[gpu]}", "bridges"] = [f"0000:0{i // 2}:01.0", f"0000:0{i // 2}:02.{i}"]
        facts[f"pci/0000:0{i // 2}:02.{i}", "acs"] = "off"
    for n in range(2):
        slot = {
            "max_link_speed": "16.0 GT/s PCIe",
            "max_link_width": "16",
            "current_link_width": "16",
        }
        facts |= {(f"pci/0000:{n}f:00.0", key): value for key, value in slot.items()}
        facts |= {
            (f"rdma/mlx5_{n}", "state"): "4: ACTIVE",
            (f"rdma/mlx5_{n}", "speed_Mbps"): 200000,
        }
    return facts


def bridged() -> Machine:
    """4 GPUs, bridged in two pairs with 12 links each, all on one CPU; no facts."""
    links = [*cable("gpu0", "gpu1", 300, "nvlink", 12), *cable("gpu2", "gpu3", 300, "nvlink", 12)]
    links += [x for g in GPUS for x in cable(g, "cpu0", 24, "pcie")]
    return Topology("bridged", (*map(Device, GPUS), Device("cpu0", "cpu")), tuple(links))


def two_sockets(nics: tuple[int, ...], gpus: tuple[int, ...] = (0, 0, 1, 1)) -> Machine:
    """GPUs and NICs each directly on the CPU whose number is given."""
    ends = {f"gpu{i}": cpu for i, cpu in enumerate(gpus)} | {
        f"nic{i}": cpu for i, cpu in enumerate(nics)
    }
    devices = [Device(name, name[:3], numa_node=cpu) for name, cpu in ends.items()]
    devices += [Device(f"cpu{i}", "cpu", numa_node=i) for i in range(2)]
    links = [x for name, cpu in ends.items() for x in cable(name, f"cpu{cpu}", 24, "pcie")]
    return Topology("sockets", tuple(devices), (*links, *cable("cpu0", "cpu1", 16, "smp")))


def cable(a: str, b: str, GBps: int | Fraction, kind: str, count: int = 1) -> tuple[Link, Link]:
    return both_directions(Link(a, b, Fraction(GBps), kind=kind, count=count))


def fact_json(facts: FactTable) -> list[dict[str, Any]]:
    told = []
    for (subject, key), value in facts.items():
        source = SOURCES.get(subject.partition("/")[0], "a test")
        said = {"missing": value["missing"]} if isinstance(value, dict) else {"value": value}
        told.append({"subject": subject, "key": key, "source": source, **said})
    return told


def with_facts(machine: Machine, changed: FactTable, without: str | None = None) -> Machine:
    """Other values of these facts; a dictionary with `missing` is a fact that was not learned."""
    known = {
        (f["subject"], f["key"]): f
        for f in machine.extra.get("facts", [])
        if f["subject"] != without
    }
    known |= {(f["subject"], f["key"]): f for f in fact_json(changed)}
    return replace(machine, extra={**machine.extra, "facts": list(known.values())})


def with_notes(machine: Machine, *notes: str) -> Machine:
    return replace(machine, extra={**machine.extra, "notes": list(notes)})


def with_device(
    machine: Machine, ident: str, extra: dict[str, Any] | None = None, **changes: Any
) -> Machine:
    def changed(device: Device) -> Device:
        return (
            replace(device, extra={**device.extra, **(extra or {})}, **changes)
            if device.id == ident
            else device
        )

    return replace(machine, devices=tuple(changed(d) for d in machine.devices))


def with_link(machine: Machine, a: str, b: str, two_way: bool = True, **changes: Any) -> Machine:
    pairs = ((a, b), (b, a)) if two_way else ((a, b),)
    links = tuple(replace(x, **changes) if (x.src, x.dst) in pairs else x for x in machine.links)
    assert links != machine.links
    return replace(machine, links=links)


def without_link(machine: Machine, a: str, b: str, two_way: bool = True) -> Machine:
    pairs = ((a, b), (b, a)) if two_way else ((a, b),)
    return replace(machine, links=tuple(x for x in machine.links if (x.src, x.dst) not in pairs))


def measured(machine: Machine, a: str, b: str, GBps: object) -> Machine:
    told = {
        "measured": {"GBps": GBps, "us": 2, "source": "bench"},
        "declared": {"GBps": 24, "source": "sysfs"},
    }
    return with_link(machine, a, b, extra=told)


def p2p(machine: Machine, pair: tuple[int, int], status: str, two_way: bool = True) -> Machine:
    ways = (pair, pair[::-1]) if two_way else (pair,)
    return with_facts(machine, {(f"gpu/{a}/p2p/{b}", "read"): status for a, b in ways})


COPIED = ("host0/gpu0", "host1/gpu0")


def two_hosts(second: str) -> Machine:
    """Two hosts with a GPU each; the second GPU has this UUID."""
    hosts = [
        Topology(f"h{i}", (Device("gpu0", extra={"uuid": uuid}), Device("cpu0", "cpu")), links)
        for i, uuid in enumerate(("GPU-0", second))
        for links in [cable("gpu0", "cpu0", 24, "pcie")]
    ]
    return join_hosts(hosts)


def p2p_refused(machine: Machine) -> Machine:
    for pair in combinations(range(4), 2):
        machine = with_facts(
            machine,
            {
                (f"gpu/{a}/p2p/{b}", key): "not supported"
                for a, b in (pair, pair[::-1])
                for key in ("read", "write")
            },
        )
    return machine


def silent_nvlinks() -> FactTable:
    return {
        (f"gpu/{i}/nvlink/0", "state"): {"missing": "Insufficient Permissions"} for i in range(4)
    }


def no_nvlinks(machine: Machine) -> Machine:
    facts = [f for f in machine.extra["facts"] if "/nvlink/" not in f["subject"]]
    links = tuple(x for x in machine.links if x.kind != "nvlink")
    return replace(machine, links=links, extra={**machine.extra, "facts": facts})


def nvlink_pair(back: int) -> Machine:
    """Two GPUs that tell of 4 and `back` NVLinks to each other, in facts only."""
    ends = {i: {"bus_id": f"0000:0{i}:00.0"} for i in range(2)}
    facts: FactTable = {(f"gpu/{i}", "bus_id"): ends[i]["bus_id"] for i in ends}
    for i, count in ((0, 4), (1, back)):
        for n in range(4):
            facts[f"gpu/{i}/nvlink/{n}", "state"] = "active" if n < count else "inactive"
            facts[f"gpu/{i}/nvlink/{n}", "remote_bus_id"] = ends[1 - i]["bus_id"]
    machine = Topology(
        "pair", (Device("gpu0"), Device("gpu1")), cable("gpu0", "gpu1", 100, "nvlink", 4)
    )
    return with_facts(machine, facts)


NO_LIBRARY = {("nvml", "library"): {"missing": "NVML Shared Library Not Found"}}
MISMATCH = {("nvml", "library"): {"missing": "Driver/library version mismatch"}}
REDIRECT = {("pci/0000:00:02.1", "acs"): "source validation, request redirect"}
SPARE = ("0000:7a:00.0",)
SXM, GEN4 = "NVIDIA H100 80GB HBM3", "16.0 GT/s PCIe"
MP_NOTE = Note("nvidia-smi topo -mp leaves NVLinks out", "nvlinks-left-out")
SLOT = {"link_speed": "16.0 GT/s PCIe", "link_width": 16}


def xml_like(**pci: Any) -> Machine:
    """Two GPUs and a NIC on one CPU with PCIe details as an NCCL XML file gives them; `pci` changes
    those of gpu1.
    """
    machine = two_sockets((0,), (0, 0))
    for ident in ("gpu0", "gpu1", "nic0"):
        machine = with_device(machine, ident, {"pci": {**SLOT, **(pci if ident == "gpu1" else {})}})
    return with_device(machine, "nic0", {"speed": 100000})


def nic_slot(speed: str, width: int, Mbps: int) -> Machine:
    return with_device(
        two_sockets((0,), (0,)),
        "nic0",
        {"speed": Mbps, "pci": {"link_speed": speed, "link_width": width}},
    )


def switch_uplink(speed: str, below: str = "32.0 GT/s PCIe", width: int = 16) -> Machine:
    machine = no_nvlinks(healthy())
    for ident, told in (("plx0", speed), ("plx1", below), *((g, below) for g in GPUS)):
        lanes = width if ident == "plx0" else 16
        machine = with_device(machine, ident, {"pci": {"link_speed": told, "link_width": lanes}})
    return replace(machine, extra={})


def xgmi_pair(GBps: int, **changes: Any) -> Machine:
    gpus = tuple(Device(f"gpu{i}", extra={"gcn": "gfx942"}) for i in range(2))
    links = tuple(replace(x, **changes) for x in cable("gpu0", "gpu1", GBps, "xgmi"))
    return Topology("pair", gpus, links)


def same_address(second: str) -> Machine:
    machine = with_device(two_sockets((0, 1)), "gpu0", bus_id="0000:0a:00.0")
    return with_device(machine, "gpu1", bus_id=second)


def island(joined: bool) -> Machine:
    links = (*cable("gpu0", "gpu1", 25, "link"), *cable("gpu2", "gpu3", 25, "link"))
    bridge = cable("gpu1", "gpu2", 25, "link") if joined else ()
    return Topology("islands", tuple(map(Device, GPUS)), (*links, *bridge))


def numa(node: int) -> Machine:
    machine = with_device(healthy(), "gpu3", numa_node=None if node < 0 else node)
    return with_facts(machine, {(f"pci/{BUS['gpu3']}", "numa_node"): node})


def half_hung(hung: bool) -> Machine:
    machine = preset("full:3@25")
    links = [
        x
        for g in machine.ranks
        if hung or g != machine.ranks[2]
        for x in cable(g, "cpu0", 24, "pcie")
    ]
    return replace(
        machine, devices=(*machine.devices, Device("cpu0", "cpu")), links=(*machine.links, *links)
    )


def without_stock(machine: Machine) -> tuple[Finding, ...]:
    """The findings but for the note that every machine with bridged pairs has: what stock NCCL does
    with them.
    """
    return tuple(f for f in list_findings(machine) if f.what != "nccl-bridged-groups")


def named(machine: Machine, name: str, nvlinks: str = "active") -> Machine:
    """All GPUs of this model, and all their NVLinks, in facts and topology, in one state."""
    for gpu in machine.ranks:
        machine = with_device(machine, gpu, {"name": name})
    facts = {
        (f"gpu/{i}/nvlink/{n}", "state"): nvlinks
        for i in range(len(machine.ranks))
        for n in range(12)
    }
    links = (
        machine.links
        if nvlinks == "active"
        else tuple(x for x in machine.links if x.kind != "nvlink")
    )
    return with_facts(replace(machine, links=links), facts)


def at_switches(nics: tuple[int, ...]) -> Machine:
    """Four GPUs, each on a PCIe switch of its own below one CPU; NIC i is below switch i, or, for
    those not in `nics`, on the CPU itself.
    """
    links = [
        x
        for i in range(4)
        for x in (*cable(f"gpu{i}", f"plx{i}", 24, "pcie"), *cable(f"plx{i}", "cpu0", 24, "pcie"))
    ]
    links += [
        x
        for i in range(4)
        for x in cable(f"nic{i}", f"plx{i}" if i in nics else "cpu0", 24, "pcie")
    ]
    ends = [
        Device(f"{kind}{i}", kind, "pcie" if kind == "switch" else None)
        for i in range(4)
        for kind in ("gpu", "nic")
    ]
    switches = [Device(f"plx{i}", "switch", "pcie") for i in range(4)]
    return Topology("switches", (*ends, *switches, Device("cpu0", "cpu")), tuple(links))


def nodes_of_a_socket(nic_on: int, socket: bool = False) -> Machine:
    """Eight NUMA nodes (NPS4 on two sockets) with a GPU each; a NIC on node 0, and one on
    another.
    """
    devices = [Device(f"gpu{i}", numa_node=i) for i in range(8)] + [
        Device(f"nic{i}", "nic") for i in range(2)
    ]
    devices += [
        Device(f"cpu{i}", "cpu", numa_node=i, extra={"socket": i // 4} if socket else {})
        for i in range(8)
    ]
    links = [x for i in range(8) for x in cable(f"gpu{i}", f"cpu{i}", 24, "pcie")]
    links += [*cable("nic0", "cpu0", 24, "pcie"), *cable("nic1", f"cpu{nic_on}", 24, "pcie")]
    links += [
        x for a, b in combinations(range(8), 2) for x in cable(f"cpu{a}", f"cpu{b}", 16, "smp")
    ]
    return Topology("nps4", tuple(devices), tuple(links))


def of_sm(sm: int, GBps: int) -> Machine:
    """Two GPUs of this compute capability and a NIC on one CPU, each at this rate."""
    machine = two_sockets((0,), (0, 0))
    machine = replace(
        machine, links=tuple(replace(x, bandwidth_GBps=Fraction(GBps)) for x in machine.links)
    )
    return with_device(with_device(machine, "gpu0", {"sm": sm}), "gpu1", {"sm": sm})


def locality_parts(parts: bool) -> Machine:
    machine = same_address("0000:0a:00.0" if parts else "0000:0b:00.0")
    for i in range(2):
        machine = with_device(machine, f"gpu{i}", {"mlopart": i} if parts else {})
    return machine


def pairs_beside_others(bridged_pair: bool) -> Machine:
    """Four GPUs of two models on one CPU, the two of the one model bridged or not."""
    links = [x for g in GPUS for x in cable(g, "cpu0", 24, "pcie")]
    links += cable("gpu0", "gpu1", 300, "nvlink", 12) if bridged_pair else ()
    gpus = [Device(g, extra={"name": "A" if g in GPUS[:2] else "B"}) for g in GPUS]
    return Topology("pair", (*gpus, Device("cpu0", "cpu")), tuple(links))


def made_by(vendor: str) -> Machine:
    machine = with_device(two_sockets((0,), (0, 0)), "gpu0", {"pci": {"vendor": "0x10de"}})
    return with_device(machine, "gpu1", {"pci": {"vendor": vendor}})


Case = tuple[str, str, tuple[str, ...], Machine, Machine]


def faults() -> list[Case]:
    """Severity, kind, devices, the machine that has the fault, and its healthy twin."""
    box, pairs, dgx1 = healthy(), bridged(), preset("dgx1")
    pcie_only = no_nvlinks(box)
    stray = {("pci/0000:7a:00.0", "class"): "0x030200", ("pci/0000:7a:00.0", "vendor"): "0x10de"}
    aspeed = {("pci/0000:7a:00.0", "class"): "0x030000", ("pci/0000:7a:00.0", "vendor"): "0x1a03"}
    given_away = {**stray, ("pci/0000:7a:00.0", "driver"): "vfio-pci"}
    gen3 = {("gpu/3", f"pcie_{part}_generation"): 3 for part in ("max", "current")}
    lanes, half = {"max": "Gen4 x16", "current": "Gen4 x4"}, Fraction(12)
    apart, ring = two_sockets((0, 1)), preset("ring:4")
    bare_host = Topology("host", (Device("cpu0", "cpu"),), ())
    own_target = Note(
        "gpu0, gpu1: its nvlink has the GPU itself as target",
        "link-without-peer",
        ("gpu0", "gpu1"),
        "nvlink",
    )
    return [
        # links
        (
            "error",
            "one-way-link",
            ("gpu1", "nvswitch0"),
            without_link(box, "nvswitch0", "gpu1", False),
            box,
        ),
        (
            "warning",
            "one-way-link",
            ("gpu3", "gpu0"),
            without_link(ring, "gpu0", "gpu3", False),
            ring,
        ),
        (
            "warning",
            "asymmetric-link",
            ("plx0", "cpu0"),
            with_link(box, "cpu0", "plx0", False, bandwidth_GBps=half),
            box,
        ),
        (
            "warning",
            "link-count-mismatch",
            ("gpu0", "gpu1"),
            with_link(pairs, "gpu1", "gpu0", False, count=8),
            pairs,
        ),
        ("warning", "link-count-mismatch", ("gpu0", "gpu1"), nvlink_pair(3), nvlink_pair(4)),
        ("error", "not-connected", ("gpu2", "gpu3"), island(False), island(True)),
        ("note", "no-way-but-gpus", ("gpu2",), half_hung(False), half_hung(True)),
        ("warning", "missing-bridge", ("gpu2", "gpu3"), without_link(pairs, "gpu2", "gpu3"), pairs),
        ("warning", "fewer-links", ("gpu2",), with_link(box, "gpu2", "nvswitch0", count=10), box),
        ("error", "fewer-links", ("gpu2",), without_link(box, "gpu2", "nvswitch0"), box),
        ("warning", "fewer-links", ("gpu0", "gpu1"), without_link(dgx1, "gpu0", "gpu1"), dgx1),
        (
            "warning",
            "inactive-links",
            ("gpu2",),
            with_facts(box, {("gpu/2/nvlink/5", "state"): "inactive"}),
            box,
        ),
        ("error", "no-active-nvlink", GPUS, named(box, SXM, "inactive"), named(box, SXM)),
        (
            "error",
            "no-active-nvlink",
            GPUS,
            named(box, "B200", "inactive"),
            named(box, "L40S", "inactive"),
        ),
        (
            "warning",
            "no-nvlink-told",
            ("gpu0", "gpu1"),
            with_notes(xml_like(), MP_NOTE),
            xml_like(),
        ),
        (
            "warning",
            "link-without-peer",
            ("gpu0", "gpu1"),
            with_notes(xml_like(), own_target),
            xml_like(),
        ),
        # PCI Express
        (
            "warning",
            "placeholder-pcie",
            ("gpu1",),
            xml_like(link_speed="2.5 GT/s PCIe", link_width=1),
            xml_like(),
        ),
        ("warning", "unknown-pcie", ("gpu1",), xml_like(link_speed="", link_width=0), xml_like()),
        ("warning", "unknown-pcie", ("gpu1",), xml_like(link_speed="Unknown"), xml_like()),
        # a slot that is only assumed to be slower is not said to be
        (
            "warning",
            "uneven-pcie",
            ("gpu0",),
            with_link(pairs, "gpu0", "cpu0", bandwidth_GBps=Fraction(12), source="a file"),
            with_link(pairs, "gpu0", "cpu0", bandwidth_GBps=Fraction(12), source=assumed("Gen3")),
        ),
        (
            "warning",
            "slow-uplink",
            ("plx0",),
            switch_uplink("5.0 GT/s PCIe"),
            switch_uplink("16.0 GT/s PCIe"),
        ),
        (
            "warning",
            "slow-uplink",
            ("plx0",),
            switch_uplink(GEN4, width=1),
            switch_uplink(GEN4, width=8),
        ),
        (
            "warning",
            "narrow-pcie",
            ("gpu3",),
            with_facts(box, {("gpu/3", "pcie_current_width"): 8}),
            box,
        ),
        (
            "warning",
            "narrow-pcie",
            ("gpu1",),
            with_device(xml_like(), "gpu1", {"pcie": lanes}),
            xml_like(),
        ),
        (
            "note",
            "slow-pcie-now",
            GPUS,
            with_facts(box, {(f"gpu/{i}", "pcie_current_generation"): 1 for i in range(4)}),
            box,
        ),
        ("warning", "uneven-pcie", ("gpu1",), xml_like(link_width=8), xml_like()),
        ("warning", "uneven-pcie", ("gpu3",), with_facts(box, gen3), box),
        (
            "warning",
            "uneven-pcie",
            ("gpu0",),
            with_link(pairs, "gpu0", "cpu0", bandwidth_GBps=Fraction(12)),
            pairs,
        ),
        # NICs and places
        (
            "warning",
            "gpu-without-near-nic",
            ("gpu0", "gpu1"),
            two_sockets((1, 1)),
            two_sockets((0, 1)),
        ),
        ("note", "gpu-without-near-nic", ("gpu0", "gpu1"), two_sockets((1,)), two_sockets((0, 1))),
        (
            "note",
            "nic-without-near-gpu",
            ("nic1",),
            two_sockets((0, 1), (0, 0)),
            two_sockets((0, 0), (0, 0)),
        ),
        (
            "warning",
            "nics-on-other-socket",
            ("gpu0", "gpu1", "nic0"),
            two_sockets((1,), (0, 0)),
            two_sockets((0,), (0, 0)),
        ),
        (
            "warning",
            "nic-not-at-switch",
            ("gpu3", "nic3"),
            at_switches((0, 1, 2)),
            at_switches((0, 1, 2, 3)),
        ),
        (
            "note",
            "gpu-without-near-nic",
            tuple(f"gpu{i}" for i in range(4, 8)),
            nodes_of_a_socket(1),
            nodes_of_a_socket(5),
        ),
        (
            "warning",
            "impossible-nic-rate",
            ("mlx5_1",),
            with_device(box, "mlx5_1", {"speed": 200000000}),
            box,
        ),
        ("warning", "uneven-nics", ("mlx5_1",), with_device(box, "mlx5_1", {"speed": 100000}), box),
        (
            "warning",
            "nic-down",
            ("mlx5_1",),
            with_facts(box, {("rdma/mlx5_1", "state"): "1: DOWN"}),
            box,
        ),
        ("warning", "nic-down", ("nic0",), with_device(apart, "nic0", {"state": "down"}), apart),
        ("note", "nic-down", ("nic0",), with_facts(apart, {("net/nic0", "state"): "down"}), apart),
        (
            "warning",
            "nic-above-pcie",
            ("nic0",),
            nic_slot("8.0 GT/s PCIe", 8, 200000),
            nic_slot("8.0 GT/s PCIe", 16, 100000),
        ),
        (
            "warning",
            "placeholder-pcie",
            ("nic0",),
            nic_slot("2.5 GT/s", 1, 10000),
            nic_slot("2.5 GT/s", 1, 1000),
        ),
        ("warning", "numa-unknown", ("gpu3",), numa(-1), numa(1)),
        # peer to peer
        (
            "error",
            "p2p-refused",
            ("gpu0", "gpu1"),
            p2p(pcie_only, (0, 1), "chipset not supported"),
            pcie_only,
        ),
        (
            "warning",
            "p2p-refused",
            ("gpu0", "gpu1"),
            p2p(pcie_only, (0, 1), "gpu not supported"),
            pcie_only,
        ),
        (
            "note",
            "p2p-refused",
            ("gpu0", "gpu2"),
            p2p(pcie_only, (0, 2), "topology not supported"),
            pcie_only,
        ),
        ("error", "p2p-refused", ("gpu0", "gpu2"), p2p(box, (0, 2), "not supported"), box),
        ("error", "p2p-one-sided", ("gpu1", "gpu0"), p2p(box, (0, 1), "not supported", False), box),
        ("warning", "acs-redirect", ("gpu1",), with_facts(box, REDIRECT), box),
        (
            "warning",
            "iommu-translating",
            (),
            with_facts(box, {("host", "iommu"): "translating"}),
            box,
        ),
        # the driver and its GPUs
        ("error", "mig-on", ("gpu2",), with_facts(box, {("gpu/2", "mig"): "on"}), box),
        ("error", "gpu-lost", ("gpu2",), with_facts(box, {("gpu/2", "lost"): "GPU is lost"}), box),
        ("warning", "gpu-not-listed", SPARE, with_facts(box, stray), with_facts(box, aspeed)),
        ("note", "gpu-not-listed", SPARE, with_facts(box, given_away), box),
        ("note", "gpu-not-permitted", ("gpu2",), with_facts(box, {("gpu/2", "denied"): "no"}), box),
        (
            "warning",
            "confidential-computing",
            GPUS,
            p2p_refused(with_facts(box, {("nvml", "confidential_computing"): "on"})),
            with_facts(box, {("nvml", "confidential_computing"): "off"}),
        ),
        (
            "warning",
            "nvlink-unknown",
            GPUS,
            with_facts(no_nvlinks(box), silent_nvlinks()),
            no_nvlinks(box),
        ),
        (
            "error",
            "fabric-not-completed",
            ("gpu1",),
            with_facts(box, {("gpu/1", "fabric_state"): {"missing": f"{FABRIC_FAILED}: Unknown"}}),
            box,
        ),
        (
            "error",
            "no-driver",
            SPARE,
            with_facts(bare_host, NO_LIBRARY | stray),
            with_facts(bare_host, aspeed),
        ),
        (
            "note",
            "no-driver",
            (),
            with_facts(bare_host, NO_LIBRARY | aspeed),
            with_facts(bare_host, aspeed),
        ),
        ("error", "driver-mismatch", (), with_facts(bare_host, MISMATCH), bare_host),
        (
            "error",
            "fabric-not-completed",
            ("gpu1",),
            with_facts(box, {("gpu/1", "fabric_state"): "in progress"}),
            box,
        ),
        ("warning", "fabric-split", GPUS, with_facts(box, {("gpu/1", "fabric_clique"): 8}), box),
        (
            "warning",
            "fabric-unhealthy",
            ("gpu1",),
            with_facts(box, {("gpu/1", "fabric_health"): "degraded bandwidth"}),
            with_facts(box, {("gpu/1", "fabric_health"): "healthy"}),
        ),
        # what stock libraries do
        (
            "note",
            "nccl-bridged-groups",
            ("gpu0", "gpu1"),
            pairs_beside_others(True),
            pairs_beside_others(False),
        ),
        ("warning", "nccl-no-ring", ("gpu0", "gpu1"), of_sm(120, 12), of_sm(120, 24)),
        ("warning", "nccl-no-ring", ("gpu0", "gpu1"), of_sm(100, 12), of_sm(90, 12)),
        ("warning", "mixed-makers", ("gpu0", "gpu1"), made_by("0x1002"), made_by("0x10de")),
        ("warning", "same-host-twice", COPIED, two_hosts("GPU-0"), two_hosts("GPU-1")),
        # figures
        ("note", "mlopart", ("gpu0", "gpu1"), locality_parts(True), locality_parts(False)),
        (
            "warning",
            "slow-link",
            ("gpu0", "cpu0"),
            measured(pairs, "gpu0", "cpu0", 16),
            measured(pairs, "gpu0", "cpu0", 17),
        ),
        (
            "error",
            "slow-link",
            ("gpu0", "cpu0"),
            measured(pairs, "gpu0", "cpu0", 9.5),
            measured(pairs, "gpu0", "cpu0", 24),
        ),
        (
            "note",
            "fast-link",
            ("gpu0", "cpu0"),
            measured(pairs, "gpu0", "cpu0", "30"),
            measured(pairs, "gpu0", "cpu0", 27),
        ),
        (
            "error",
            "impossible-rate",
            ("cpu0", "plx0"),
            with_link(box, "cpu0", "plx0", bandwidth_GBps=Fraction(200)),
            box,
        ),
        (
            "error",
            "impossible-rate",
            ("gpu0", "gpu1"),
            with_link(pairs, "gpu0", "gpu1", bandwidth_GBps=Fraction(700)),
            pairs,
        ),
        (
            "note",
            "unlimited-rate",
            ("cpu0", "cpu1"),
            with_link(box, "cpu0", "cpu1", bandwidth_GBps=Fraction(5000)),
            box,
        ),
        ("warning", "pcie-like-rate", ("gpu0", "gpu1"), xgmi_pair(24), xgmi_pair(48)),
        (
            "warning",
            "pcie-between-gpus",
            ("gpu0", "gpu1"),
            xgmi_pair(24, kind="pcie"),
            xgmi_pair(48),
        ),
        (
            "error",
            "shared-bus-id",
            ("gpu0", "gpu1"),
            same_address("0000:0a:00.0"),
            same_address("0000:0b:00.0"),
        ),
    ]


FAULTS = faults()


def test_a_rate_that_stands_for_no_limit_is_no_direction_to_compare() -> None:
    cpus = (Device("cpu0", "cpu"), Device("cpu1", "cpu"))
    for rate, what in ((LOCAL_GBps - 1, ["asymmetric-link"]), (LOCAL_GBps, [])):
        links = (
            Link("cpu0", "cpu1", Fraction(6), kind="smp"),
            Link("cpu1", "cpu0", rate, kind="smp"),
        )
        found = list_findings(Topology("two cpus", cpus, links))
        assert [f.what for f in found if f.what == "asymmetric-link"] == what


@pytest.mark.parametrize(
    ("speed", "width", "taken"),
    [("32.0 GT/s PCIe", 0, "x16"), ("Unknown", 16, "Gen3"), ("Unknown", 0, "Gen3 x16")],
)
def test_what_nccl_takes_for_an_invalid_speed_or_width_is_only_that(
    speed: str, width: int, taken: str
) -> None:
    found = list_findings(xml_like(link_speed=speed, link_width=width))
    (text,) = (f.message for f in found if f.what == "unknown-pcie")
    assert f"NCCL takes {taken} in its place" in text


@pytest.mark.parametrize(
    "fault", FAULTS, ids=[f"{severity}-{what}-{i}" for i, (severity, what, *_) in enumerate(FAULTS)]
)
def test_a_fault_is_the_one_finding_on_the_machine_that_has_it_and_its_twin_has_none(
    fault: Case,
) -> None:
    severity, what, about, broken, twin = fault
    seen = list_findings if what == "nccl-bridged-groups" else without_stock
    assert [(f.severity, f.what, set(f.about)) for f in seen(broken)] == [
        (severity, what, set(about))
    ]
    assert seen(twin) == ()


def behind_nvswitches(count: int, **extra: object) -> Machine:
    gpus = tuple(Device(f"gpu{i}", extra=dict(extra)) for i in range(count))
    links = [x for gpu in gpus for x in cable(gpu.id, "nvswitch0", 450, "nvlink", 18)]
    return Topology("box", (*gpus, Device("nvswitch0", "switch", "nvswitch")), tuple(links))


def all_by_xgmi(count: int) -> Machine:
    gpus = tuple(Device(f"gpu{i}", extra={"name": "AMD Instinct MI300X"}) for i in range(count))
    links = [x for a, b in combinations(gpus, 2) for x in cable(a.id, b.id, 64, "xgmi")]
    return Topology("box", gpus, tuple(links))


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        (
            behind_nvswitches(7, name="NVIDIA B300 SXM6 AC"),
            "7 GPUs behind NVSwitches: boards of B300",
        ),
        (
            behind_nvswitches(6),
            "6 GPUs behind NVSwitches: boards of such GPUs have 8; 2 may be lost",
        ),
        (behind_nvswitches(15, name="Tesla V100-SXM3-32GB"), "boards of V100 have 16; 1 may be"),
        (all_by_xgmi(7), "7 GPUs all joined by xGMI: boards of MI300X have 8; 1 may be lost"),
        (behind_nvswitches(8), ""),
        (behind_nvswitches(4), ""),
        (behind_nvswitches(72), ""),
        (all_by_xgmi(8), ""),
    ],
)
def test_boards_with_a_gpu_too_few_get_a_note(machine: Machine, says: str) -> None:
    found = [f.message for f in list_findings(machine) if f.what == "gpus-of-board-missing"]
    assert len(found) == bool(says)
    assert all(says in message for message in found)


def test_gpus_that_are_hidden_are_not_missed() -> None:
    hidden = Note("CUDA_VISIBLE_DEVICES hides gpu7", "gpu-hidden", ["gpu7"])
    machine = replace(behind_nvswitches(7), extra={"notes": [hidden]})
    assert "gpus-of-board-missing" not in [f.what for f in list_findings(machine)]


def test_every_finding_says_what_is_wrong_on_what_evidence_and_what_to_do() -> None:
    for _, _, _, broken, _ in FAULTS:
        for finding in list_findings(broken):
            assert finding.message and "\n" not in finding.message
            assert finding.advice and finding.evidence
            assert all("(" in line or "not known" in line for line in finding.evidence), (
                finding.evidence
            )


def test_a_finding_is_a_plain_json_object() -> None:
    finding = list_findings(with_facts(healthy(), {("gpu/2", "mig"): "on"}))[0]
    assert json.loads(json.dumps(finding.to_json())) == {
        "severity": "error",
        "what": "mig-on",
        "about": ["gpu2"],
        "message": "gpu2: MIG is on, and its instances have neither P2P nor NVLink for NCCL",
        "evidence": ["gpu/2 mig = on (NVML)"],
        "advice": "switch it off to train on several GPUs (nvidia-smi -mig 0)",
    }


def test_equal_findings_over_devices_are_one_and_errors_come_first() -> None:
    machine = with_facts(healthy(), {(f"gpu/{i}", "pcie_current_generation"): 1 for i in range(4)})
    machine = with_facts(machine, {(f"gpu/{i}", "mig"): "on" for i in range(4)})
    machine = with_facts(machine, {("host", "iommu"): "translating"})
    assert [(f.severity, len(f.about)) for f in list_findings(machine)] == [
        ("error", 4),
        ("warning", 0),
        ("note", 4),
    ]


def test_all_p2p_refused_on_a_box_is_a_finding_a_way_not_a_pair() -> None:
    machine = no_nvlinks(healthy())
    for pair in combinations(range(4), 2):
        machine = p2p(machine, pair, "chipset not supported")
    assert [(f.severity, f.about) for f in list_findings(machine)] == [
        ("error", GPUS),
        ("note", GPUS),
    ]


def test_mig_and_p2p_name_the_gpu_at_the_bus_address_when_numbers_differ() -> None:
    machine = with_device(healthy(), "gpu0", bus_id=BUS["gpu3"])
    machine = with_device(machine, "gpu3", bus_id=BUS["gpu0"])
    found = list_findings(with_facts(machine, {("gpu/0", "mig"): "on"}))
    assert ("mig-on", ("gpu3",)) in [(f.what, f.about) for f in found]


def test_the_probes_notes_stand_in_for_facts() -> None:
    host = Topology("host", (Device("cpu0", "cpu"),), ())
    silent = Note("NVML does not answer: NVML shared library not found", "no-driver")
    assert [f.what for f in list_findings(with_notes(host, silent))] == ["no-driver"]
    unlike = Note("NVML does not answer: driver/library version mismatch", "no-driver")
    assert [f.what for f in list_findings(with_notes(host, unlike))] == ["driver-mismatch"]
    unlisted = Note("not listed", "gpu-not-listed", ("0000:3b:00.0",), "NVIDIA")
    assert not list_findings(with_notes(host, str(silent), str(unlisted)))  # text says nothing
    assert [(f.what, f.about) for f in list_findings(with_notes(host, unlisted))] == [
        ("gpu-not-listed", ("0000:3b:00.0",))
    ]


EXAMPLES = sorted(
    {p.example for p in PRESETS.values()}
    | {"dgx-a100", "dgx-h100", "mi250", "ring:2", "full:5", "path:2"}
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_preset_has_nothing_wrong(name: str) -> None:
    assert list_findings(preset(name)) == ()


def test_a_single_gpu_and_an_odd_one_beside_a_bridged_pair_are_no_alarm() -> None:
    assert list_findings(Topology("one", (Device("gpu0"),), ())) == ()
    pairs = bridged()
    three = [d for d in pairs.devices if d.id != "gpu3"]
    links = [x for x in pairs.links if "gpu3" not in (x.src, x.dst)]
    assert without_stock(Topology("three", tuple(three), tuple(links))) == ()


def test_a_measured_lower_bound_is_no_slow_link_unless_it_is_believed() -> None:
    told = {
        "measured": {"GBps": 5, "limit": False, "source": "bench"},
        "declared": {"GBps": 24, "source": "sysfs"},
    }
    machine = with_link(bridged(), "gpu0", "cpu0", extra=told)
    assert without_stock(machine) == ()
    believed = with_link(bridged(), "gpu0", "cpu0", extra={**told, "believed": "measured"})
    assert [(f.severity, f.what) for f in without_stock(believed)] == [("error", "slow-link")]


def test_nics_of_unlike_models_may_differ_in_speed() -> None:
    onboard = {"speed": 1000, "pci": {"vendor": "0x8086", "device": "0x1533"}}
    assert {f.what for f in list_findings(with_device(healthy(), "mlx5_1", onboard))} == {
        "gpu-without-near-nic"
    }


def test_words_that_are_no_state_of_a_port_are_passed_over() -> None:
    assert list_findings(with_facts(healthy(), {("rdma/mlx5_0", "state"): "5: WHATEVER"})) == ()
    assert list_findings(with_facts(healthy(), {("net/mlx5_0", "state"): "unknown"})) == ()


def test_links_that_are_inactive_on_all_gpus_alike_are_no_alarm() -> None:
    facts = {(f"gpu/{i}/nvlink/{n}", "state"): "inactive" for i in range(4) for n in (12, 13)}
    assert list_findings(with_facts(healthy(), facts)) == ()


def test_acs_on_a_port_with_all_gpus_of_its_switch_below_is_no_alarm() -> None:
    assert (
        list_findings(with_facts(healthy(), {("pci/0000:00:01.0", "acs"): "request redirect"}))
        == ()
    )


def test_an_iommu_that_translates_in_a_virtual_machine_is_no_alarm() -> None:
    assert (
        list_findings(
            with_facts(healthy(), {("host", "iommu"): "translating", ("host", "virtual"): "kvm"})
        )
        == ()
    )


def test_on_numa_nodes_of_unknown_sockets_a_nic_in_the_same_half_is_near_and_the_words_are_numa_node() -> (
    None
):
    assert list_findings(nodes_of_a_socket(5)) == ()
    found = list_findings(nodes_of_a_socket(1))[0]
    assert (
        "beyond the link between NUMA nodes" in found.message
        and "socket" not in found.message + found.advice
    )
    assert [(f.severity, f.what) for f in list_findings(nodes_of_a_socket(1, socket=True))] == [
        ("warning", "gpu-without-near-nic")
    ]


def test_nics_for_management_are_near_no_gpu_and_far_from_none() -> None:
    far = two_sockets((0, 1), (0, 0, 1, 1))
    for slow in ({"speed": 10000}, {"gdr": 0}):
        machine = with_device(with_device(far, "nic0", {"speed": 200000, "gdr": 1}), "nic1", slow)
        assert [f.about for f in list_findings(machine) if f.what == "gpu-without-near-nic"] == [
            ("gpu2", "gpu3")
        ]
    assert list_findings(with_device(two_sockets((0, 1), (0, 0)), "nic1", {"speed": 1000})) == ()


def test_no_active_nvlink_comes_before_p2p_and_is_its_advice() -> None:
    machine = named(healthy(), "NVIDIA H100 80GB HBM3", "inactive")
    machine = p2p(machine, (0, 1), "chipset not supported")
    assert [f.what for f in list_findings(machine)] == ["no-active-nvlink", "p2p-refused"]


def test_numa_nodes_of_one_socket_are_near_each_other() -> None:
    machine = two_sockets((1, 1), (0, 0))
    for cpu in ("cpu0", "cpu1"):
        machine = with_device(machine, cpu, {"socket": 0})
    assert list_findings(machine) == ()


RECORDED: dict[str, list[tuple[str, str, int]]] = {
    # The file gives no speed, width or peer: each nvlink has the GPU itself as target. The bridges
    # are there in truth.
    "nccl_xml/azure/ncv4-topo.xml": [
        ("warning", "link-without-peer", 4),
        ("warning", "unknown-pcie", 4),
        ("note", "unlimited-rate", 2),
    ],
    "nccl_xml/rccl/topo_8p_940vm.xml": [],  # whole: full mesh, NICs on both sockets
    "nccl_xml/rccl/topo_8p_940.xml": [],
    "nccl_xml/rccl/topo_16p1h.xml": [],
    # Every switch says 5 GT/s towards its CPU, with Gen5 devices below: NCCL then counts 6 GB/s out
    # of 48.
    "nccl_xml/oci/H100-topology.xml": [("warning", "slow-uplink", 8)],
    "nccl_xml/aws/p5.48xl.xml": [("note", "no-nvlink-told", 8)],
    "nccl_xml/rccl/topo_8p6l.xml": [
        ("note", "gpu-without-near-nic", 4)
    ],  # one NIC, which can be near one socket only
    "nccl_xml/rccl/topo_8p_rome.xml": [("note", "gpu-without-near-nic", 4)],
    "nccl_xml/rccl/topo_8p_pcie.xml": [],
    "nccl_xml/rccl/topo_3p_pcie.xml": [("note", "gpu-without-near-nic", 2)],
    # A 10 Gb/s NIC behind 2.5 GT/s x1, and a virtual interface without a PCI address
    "nccl_xml/rccl/topo_4p3l.xml": [
        ("warning", "placeholder-pcie", 1),
        ("note", "unlimited-rate", 2),
    ],
}


@pytest.mark.parametrize("name", RECORDED)
def test_on_recorded_machines_it_finds_what_is_wrong_with_them(
    name: str, recorded: Callable[[str], Path]
) -> None:
    found = [
        (f.severity, f.what, len(f.about)) for f in list_findings(resolve(str(recorded(name))))
    ]
    assert sorted(found) == sorted(RECORDED[name])


MORE_INPUTS: dict[str, list[tuple[str, str, int]]] = {
    "smi/22-dgxh100-12nic-glued-columns_vllm-13855.txt": [],
    "smi/23-b200-13nic-glued-header_vllm-31594.txt": [],
    "smi/24-8x4090-all-SYS_go-gpuallocator-17.txt": [
        ("warning", "gpu-without-near-nic", 4)
    ],  # both NICs are at GPU6
    "smi/25-h100-topo-mp_deepep-60.txt": [("warning", "no-nvlink-told", 8)],
    # the ports that NIC and GPU share say 16 GT/s x1, below them all is Gen6 x16
    "nccl_xml/GB300MP-2hosts.xml": [("warning", "slow-uplink", 8)],
}


@pytest.mark.parametrize("name", MORE_INPUTS)
def test_on_further_inputs_it_finds_what_is_wrong_with_them(
    name: str, more_inputs: Callable[[str], Path]
) -> None:
    found = [
        (f.severity, f.what, len(f.about)) for f in list_findings(resolve(str(more_inputs(name))))
    ]
    assert sorted(found) == sorted(MORE_INPUTS[name])


def test_a_missing_bridge_is_found_on_the_recorded_shape_of_four_a100_with_nics_on_one_socket() -> (
    None
):
    """smi/13: gpu0 and gpu1 have NV12; gpu2 and gpu3, on the other socket than both NICs, have no
    bridge.
    """
    machine = two_sockets((0, 0))
    machine = replace(machine, links=(*machine.links, *cable("gpu0", "gpu1", 300, "nvlink", 12)))
    found = [(f.severity, f.what, f.about) for f in list_findings(machine)]
    assert found == [
        ("warning", "missing-bridge", ("gpu2", "gpu3")),
        ("warning", "gpu-without-near-nic", ("gpu2", "gpu3")),
        ("note", "nccl-bridged-groups", ("gpu0", "gpu1")),
    ]


def test_the_report_says_how_many_checks_were_made_and_what_the_others_want() -> None:
    whole = report(examine(healthy()))
    assert whole[0] == f"nothing wrong found in {len(examine(healthy()).checked)} checks"
    bare = examine(preset("ring:4"))
    assert len(bare.checked) + len(bare.skipped) == len(list_checks())
    text = " ".join(line.strip() for line in report(bare))
    assert "not checked: " in text and "P2P, P2P in both directions (no P2P status)" in text


def test_the_report_gives_evidence_and_advice_below_each_finding_and_counts_at_the_end() -> None:
    machine = with_facts(healthy(), {("gpu/2", "mig"): "on", ("host", "iommu"): "translating"})
    lines = report(examine(machine))
    assert (
        lines[0]
        == "error: gpu2: MIG is on, and its instances have neither P2P nor NVLink for NCCL [mig-on]"
    )
    assert lines[1:3] == [
        "    gpu/2 mig = on (NVML)",
        "    advice: switch it off to train on several GPUs (nvidia-smi -mig 0)",
    ]
    assert any(line.startswith("1 error, 1 warning in ") for line in lines)


def test_long_evidence_is_cut_in_the_report_and_whole_in_the_finding() -> None:
    machine = no_nvlinks(healthy())
    for pair in combinations(range(4), 2):
        machine = p2p(machine, pair, "chipset not supported")
    assert len(list_findings(machine)[1].evidence) == 8
    assert "    and 6 more of the kind" in report(examine(machine))


PAIRS = st.sampled_from(list(permutations(range(4), 2)))


@given(st.data())
@settings(max_examples=count_examples(15))
def test_one_thing_broken_on_a_healthy_machine_is_named_with_its_devices(
    data: st.DataObject,
) -> None:
    breaks: dict[str, Callable[[int, int], tuple[Machine, str, set[str]]]] = {
        "a link direction": lambda i, _: (
            without_link(healthy(), "nvswitch0", f"gpu{i}", False),
            "one-way-link",
            {f"gpu{i}"},
        ),
        "a bridge": lambda i, _: (
            without_link(bridged(), f"gpu{i}", f"gpu{i ^ 1}"),
            "missing-bridge",
            {f"gpu{i}", f"gpu{i ^ 1}"},
        ),
        "a width": lambda i, _: (
            with_facts(healthy(), {(f"gpu/{i}", "pcie_current_width"): 8}),
            "narrow-pcie",
            {f"gpu{i}"},
        ),
        "a port": lambda i, _: (
            with_facts(healthy(), {(f"rdma/mlx5_{i % 2}", "state"): "1: DOWN"}),
            "nic-down",
            {f"mlx5_{i % 2}"},
        ),
        "P2P": lambda i, j: (
            p2p(healthy(), (i, j), "chipset not supported"),
            "p2p-refused",
            {f"gpu{i}", f"gpu{j}"},
        ),
        "P2P one way": lambda i, j: (
            p2p(healthy(), (i, j), "chipset not supported", False),
            "p2p-one-sided",
            {f"gpu{i}", f"gpu{j}"},
        ),
        "lanes": lambda i, j: (
            with_link(healthy(), f"gpu{i}", "nvswitch0", count=1 + j),
            "fewer-links",
            {f"gpu{i}"},
        ),
        "a slot": lambda i, _: (
            with_link(bridged(), f"gpu{i}", "cpu0", bandwidth_GBps=Fraction(12)),
            "uneven-pcie",
            {f"gpu{i}"},
        ),
    }
    broken, what, about = breaks[data.draw(st.sampled_from(sorted(breaks)))](*data.draw(PAIRS))
    found = list_findings(broken)
    assert what in [f.what for f in found]
    assert all(about <= set(f.about) for f in found if f.what == what)


WORDS = [
    "ok",
    "on",
    "active",
    "inactive",
    "completed",
    "-1",
    "16",
    "Gen4 x16",
    "2.5 GT/s",
    "9" * 5000,
    "1e9999",
    "1/0",
]
PARTS = ["GBps", "link_speed", "link_width", "device", "max", "current", "source"]
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(WORDS),
    st.lists(st.text(max_size=5), max_size=3),
    st.dictionaries(
        st.sampled_from(PARTS), st.text(max_size=5) | st.floats() | st.none(), max_size=4
    ),
)
SUBJECTS = """nvml host gpu/0 gpu/1 gpu/x gpu// gpu/0/nvlink/1 gpu/1/nvlink/1 gpu/2/nvlink/1 gpu/0/p2p/1 gpu/1/p2p/0
gpu/0/p2p/z gpu/a/p2p/ pci/b pci/0000:00:00.0 pci/ rdma/d1 net/d2 numa/0 /// -"""
KEYS = """state bus_id mig lost library count read write acs bridges class vendor iommu virtual fabric_state fabric_cluster
fabric_clique pcie_max_width pcie_current_width numa_node pcie_max_generation max_link_speed max_link_width
current_link_width remote_bus_id ancestor"""
OWN_KEYS = [
    "pci",
    "pcie",
    "speed",
    "state",
    "sm",
    "gcn",
    "name",
    "socket",
    "box",
    "root",
    "measured",
    "declared",
]
EXTRA = st.dictionaries(st.sampled_from(OWN_KEYS), JUNK, max_size=5)


@st.composite
def facts(draw: st.DrawFn) -> object:
    if draw(st.integers(0, 9)) == 0:
        return draw(JUNK)
    plain = st.one_of(
        st.integers(-(10**20), 10**20),
        st.text(max_size=8),
        st.lists(st.sampled_from(["b", "c"]), max_size=3),
        JUNK,
    )
    subjects, keys = st.sampled_from(SUBJECTS.split()), st.sampled_from(KEYS.split())
    told = draw(st.lists(st.tuples(subjects, keys, plain, st.booleans()), max_size=25))
    return [
        {
            "subject": s,
            "key": k,
            "source": "x",
            **({"missing": "mismatch"} if gone else {"value": v}),
        }
        for s, k, v, gone in told
    ]


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    devices = []
    for i in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from(["gpu", "gpu", "gpu", "cpu", "switch", "nic"]))
        family = (
            draw(st.sampled_from([None, "pcie", "nvswitch", "network"]))
            if kind == "switch"
            else None
        )
        node, bus = (
            draw(st.sampled_from([None, -1, 0, 1])),
            draw(st.sampled_from([None, "b", "c", ""])),
        )
        name = draw(st.sampled_from(["gpu", "d", "host0/gpu"])) + str(i)
        devices.append(Device(name, kind, family, numa_node=node, bus_id=bus, extra=draw(EXTRA)))
    ids = [d.id for d in devices]
    links = []
    for a, b in draw(st.lists(st.tuples(st.sampled_from(ids), st.sampled_from(ids)), max_size=12)):
        if a != b:
            rate = draw(
                st.sampled_from([Fraction(1, 7), Fraction(12), Fraction(5000), Fraction(10**400)])
            )
            kind = draw(
                st.sampled_from(["nvlink", "xgmi", "pcie", "smp", "network", "link", "c2c", ""])
            )
            links.append(
                Link(a, b, rate, Fraction(1), kind, draw(st.integers(1, 20)), extra=draw(EXTRA))
            )
    extra = {"facts": draw(facts()), "notes": draw(JUNK)}
    return Topology(
        "random", tuple(devices), tuple(links), extra=extra if draw(st.booleans()) else {}
    )


@given(topologies())
@settings(max_examples=count_examples(15))
def test_whatever_a_topology_and_its_facts_hold_the_doctor_answers(topology: Topology) -> None:
    examination = examine(topology)
    for finding in examination.findings:
        assert isinstance(finding, Finding)
        assert finding.severity in ("error", "warning", "note")
        assert "\n" not in finding.message
        json.dumps(finding.to_json())
    assert all(isinstance(line, str) for line in report(examination))


def test_facts_that_cannot_be_read_are_a_finding_and_the_rest_is_judged_all_the_same() -> None:
    machine = replace(without_link(bridged(), "gpu2", "gpu3"), extra={"facts": "none"})
    assert [f.what for f in without_stock(machine)] == ["unreadable-facts", "missing-bridge"]


def test_a_pair_with_fewer_bridges_than_the_others_misses_one() -> None:
    def pairs(*lanes: int) -> Topology:
        devices = (
            *(Device(f"gpu{i}", extra={"name": "H100 PCIe"}) for i in range(2 * len(lanes))),
            Device("cpu0", "cpu"),
        )
        links = [
            x
            for i in range(2 * len(lanes))
            for x in both_directions(Link(f"gpu{i}", "cpu0", Fraction(48), kind="pcie"))
        ]
        links += [
            x
            for i, n in enumerate(lanes)
            for x in both_directions(
                Link(f"gpu{2 * i}", f"gpu{2 * i + 1}", Fraction(25 * n), kind="nvlink", count=n)
            )
        ]
        return Topology("pairs", devices, tuple(links))

    assert not [f for f in list_findings(pairs(12, 12, 12)) if f.severity != "note"]
    assert [(f.what, f.about) for f in list_findings(pairs(12, 8)) if f.severity == "warning"] == [
        ("missing-bridge", ("gpu2", "gpu3"))
    ]
    assert [
        (f.what, f.about) for f in list_findings(pairs(8, 12, 12)) if f.severity == "warning"
    ] == [("missing-bridge", ("gpu0", "gpu1"))]
