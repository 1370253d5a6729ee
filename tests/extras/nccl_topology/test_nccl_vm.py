"""Virtual machines: skeletons filled in from the machine at hand, and files that a machine's own
NCCL is to load.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import nccl_rules as rules
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import count_examples

from topoplan.topo.errors import InputError
from topoplan.topo.extras import nccl_topology
from topoplan.topo.facts import Fact, Facts, facts_to_json
from topoplan.topo.formats import nccl_xml
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.presets import preset

ALL_AZURE_GPUS = [f"000{x}:00:00.0" for x in "1234bcde"]
PLACEHOLDER = Fraction(3, 16)


def pcie(src: str, dst: str, rate: Fraction = Fraction(12), **facts: Any) -> tuple[Link, Link]:
    return both_directions(Link(src, dst, rate, Fraction(1, 2), "pcie", **facts))


def flat_vm(
    gpus: Iterable[str],
    nics: Iterable[str] = (),
    rate: Fraction = PLACEHOLDER,
    numa: int | None = 0,
    known: Iterable[Fact] = (),
    **extra: Any,
) -> Topology:
    """A machine as it sees itself from inside: all hangs on one CPU, GPUs on one NVSwitch."""
    cards = [
        Device(f"gpu{i}", bus_id=bus, extra={"uuid": f"GPU-{i}", "sm": 80, **extra})
        for i, bus in enumerate(gpus)
    ]
    ports = [
        Device(f"mlx5_{i}", "nic", bus_id=bus, extra={"net_speed_GBps": 25})
        for i, bus in enumerate(nics)
    ]
    devices = [
        Device("cpu0", "cpu", numa_node=numa),
        *cards,
        *ports,
        Device("nvswitch0", "switch", "nvswitch"),
    ]
    links = [x for d in (*cards, *ports) for x in pcie(d.id, "cpu0", rate)]
    links += [
        x
        for d in cards
        for x in both_directions(Link(d.id, "nvswitch0", Fraction(300), kind="nvlink", count=12))
    ]
    facts = facts_to_json(Facts(tuple(known)))
    return Topology(
        "vm", tuple(devices), tuple(links), "probed", {"notes": ["all is flat"], "facts": facts}
    )


def notes(topology: Topology) -> str:
    return "\n".join(topology.extra["notes"])


def slot(
    bus: str, *below: str, speed: str = "16.0 GT/s PCIe", width: int = 16, kind: str = "0x030200"
) -> str:
    return (
        f'<pci busid="{bus}" class="{kind}" link_speed="{speed}" '
        f'link_width="{width}">{"".join(below)}</pci>'
    )


def skeleton(*below: str) -> str:
    cpus = (f'<cpu numaid="{i}" arch="x86_64">{text}</cpu>' for i, text in enumerate(below))
    return f'<system version="1">{"".join(cpus)}</system>'


def parents(topology: Topology) -> dict[str, str]:
    """What each GPU and NIC hangs on."""
    ends = {d.id for d in topology.devices if d.kind in ("gpu", "nic")}
    return {x.src: x.dst for x in topology.links if x.kind == "pcie" and x.src in ends}


# -- skeletons


def test_the_tree_is_the_files_and_the_devices_are_the_machines() -> None:
    bridge = "ffff:ff:01.0", slot("0001:00:00.0"), slot("0101:00:00.0", kind="0x020700")
    text = skeleton(slot(*bridge, kind="0x060400"), slot("0002:00:00.0", speed="8 GT/s"))
    live = flat_vm(["0002:00:00.0", "0001:00:00.0"], ["0101:00:00.0"])
    full = nccl_topology.fill_skeleton(text, "vm.xml", live)
    assert full.ranks == ("gpu0", "gpu1")
    assert parents(full) == {
        "gpu0": "cpu1",
        "gpu1": "pci-ffff:ff:01.0",
        "mlx5_0": "pci-ffff:ff:01.0",
    }
    assert full.capacity_GBps["gpu0", "cpu1"] == 12
    assert full.capacity_GBps["gpu1", "pci-ffff:ff:01.0"] == 24
    assert [full.by_id[name].numa_node for name in ("gpu0", "gpu1", "mlx5_0")] == [1, 0, 0]
    assert full.by_id["gpu1"].extra["uuid"] == "GPU-1"
    assert full.by_id["mlx5_0"].extra["net_speed_GBps"] == 25
    assert full.capacity_GBps["gpu0", "nvswitch0"] == full.capacity_GBps["nvswitch0", "gpu1"] == 300
    assert notes(full) == "as probed: all is flat"
    assert full.source == "NCCL XML, version 1, filled in: probed"


@pytest.mark.parametrize("name", ["azure/ndv2-topo.xml", "azure/ndv4-topo.xml", "aws/p4d-24xl.xml"])
def test_recorded_skeletons_are_filled_in(name: str, recorded: Callable[[str], Path]) -> None:
    text = recorded(f"nccl_xml/{name}").read_text(encoding="utf-8")
    assert nccl_topology.is_skeleton(text)
    places = [n for n in rules.load(text).walk() if n.name == "pci"]
    gpus = [n.attrs["busid"] for n in places if n.attrs["class"].startswith("0x03")]
    nics = [n.attrs["busid"] for n in places if n.attrs["class"].startswith("0x02")]
    full = nccl_topology.fill_skeleton(text, name, flat_vm(gpus, nics))
    assert [full.by_id[gpu].bus_id for gpu in full.ranks] == gpus
    assert notes(full) == "as probed: all is flat"
    above = {n.attrs["busid"]: n.parent.attrs for n in places if n.parent is not None}
    for name, parent in parents(full).items():
        attrs = above[full.by_id[name].bus_id or ""]
        assert parent == (f"pci-{attrs['busid']}" if "busid" in attrs else f"cpu{attrs['numaid']}")


def test_places_without_a_device_are_left_out_and_empty_bridges_with_them() -> None:
    empty = slot(
        "ffff:ff:02.0", slot("0003:00:00.0"), slot("0103:00:00.0", kind="0x020700"), kind="0x060400"
    )
    text = skeleton(slot("0001:00:00.0"), empty)
    full = nccl_topology.fill_skeleton(text, "vm.xml", flat_vm(["0001:00:00.0"]))
    assert [d.id for d in full.devices] == ["gpu0", "cpu0", "cpu1", "nvswitch0"]
    assert "0003:00:00.0: a slot for a GPU that this machine does not have; left out" in notes(full)
    assert "0103:00:00.0: a slot for a NIC that this machine does not have; left out" in notes(full)


def test_devices_without_a_place_stand_as_probed() -> None:
    live = flat_vm(["0001:00:00.0", "0002:00:00.0"], ["0101:00:00.0"], numa=7)
    switch = Device("pci-x", "switch", "pcie", bus_id="00ff:00:00.0")
    moved = [x for x in live.links if {x.src, x.dst} != {"gpu1", "cpu0"}]
    links = (*moved, *pcie("gpu1", "pci-x", Fraction(24)), *pcie("pci-x", "cpu0", Fraction(6)))
    live = replace(live, devices=(*live.devices, switch), links=links)
    full = nccl_topology.fill_skeleton(skeleton(slot("0001:00:00.0")), "vm.xml", live)
    assert parents(full) == {"gpu0": "cpu0", "gpu1": "pci-x", "mlx5_0": "cpu0#2"}
    assert full.capacity_GBps["pci-x", "cpu0#2"] == 6
    assert full.by_id["cpu0#2"].numa_node == 7
    assert ("cpu0#2", "cpu0") in full.capacity_GBps
    assert full.ranks == ("gpu0", "gpu1")
    assert (
        "gpu1 at 0002:00:00.0: a GPU that has no slot in the file; it stays where it was probed"
        in notes(full)
    )
    assert "mlx5_0 at 0101:00:00.0: a NIC that has no slot in the file" in notes(full)


def test_links_to_a_cpu_lead_to_the_one_that_the_file_says() -> None:
    live = flat_vm(["0001:00:00.0"])
    live = replace(
        live,
        links=(
            *live.links,
            *both_directions(Link("gpu0", "cpu0", Fraction(450), kind="c2c", count=10)),
        ),
    )
    full = nccl_topology.fill_skeleton(skeleton("", slot("0001:00:00.0")), "vm.xml", live)
    assert [(x.src, x.dst) for x in full.links if x.kind == "c2c"] == [
        ("gpu0", "cpu1"),
        ("cpu1", "gpu0"),
    ]


def test_links_between_cpus_that_the_file_has_as_one_are_dropped() -> None:
    live = flat_vm(["0001:00:00.0"])
    other = Device("cpu1", "cpu", numa_node=0)
    odd = both_directions(Link("cpu0", "cpu1", Fraction(5), kind="nvlink"))
    live = replace(live, devices=(*live.devices, other), links=(*live.links, *odd))
    full = nccl_topology.fill_skeleton(skeleton(slot("0001:00:00.0")), "vm.xml", live)
    assert {(x.src, x.dst) for x in full.links if x.kind == "nvlink"} == {
        ("gpu0", "nvswitch0"),
        ("nvswitch0", "gpu0"),
    }


def test_nics_that_the_file_names_stay_where_it_has_them() -> None:
    nets = '<nic><net name="mlx5_0" dev="0" speed="200000"/><net name="gone" dev="1"/></nic>'
    full = nccl_topology.fill_skeleton(
        skeleton(slot("0001:00:00.0"), nets), "vm.xml", flat_vm(["0001:00:00.0"], ["x"])
    )
    assert parents(full)["mlx5_0"] == "cpu1"
    assert "gone" not in full.by_id
    assert "gone: a NIC of the file that this machine does not have; left out" in notes(full)


def test_addresses_are_matched_however_they_are_written() -> None:
    text = skeleton(slot("0001:0A:00.0"), slot("00000001:0b:00.0"))
    full = nccl_topology.fill_skeleton(
        text, "vm.xml", flat_vm(["0001:0a:00.0", "00000001:0B:00.0"])
    )
    assert parents(full) == {"gpu0": "cpu0", "gpu1": "cpu1"}
    assert "0001:0A:00.0, 00000001:0b:00.0: NCCL compares addresses letter by letter" in notes(full)


@pytest.mark.parametrize(
    ("text", "live", "says"),
    [
        (
            skeleton(*map(slot, ALL_AZURE_GPUS)),
            flat_vm(["0000:3b:00.0"]),
            "its GPU slots are at 0001:00:00.0, 0002:00:00.0, 0003:00:00.0 and 5 more, the GPUs "
            "here at 0000:3b:00.0",
        ),
        (
            skeleton(slot("0001:00:00.0")),
            preset("dgx1"),
            "the GPUs here at unknown, unknown, unknown and 5 more",
        ),
        (skeleton(""), flat_vm(["0000:3b:00.0"]), "its GPU slots are at no address"),
        (
            skeleton(slot("0001:00:00.0")),
            flat_vm([]),
            "lists 1 PCI slots of GPU class but no <gpu> element",
        ),
        (
            skeleton('<pci busid="0000:00:1b.0"/>'),
            flat_vm([]),
            "lists 1 PCI slots, none of GPU class, and no <gpu> element",
        ),
        (skeleton(slot("0001:00:00.0", '<gpu dev="0"/>')), flat_vm([]), "already lists its GPUs"),
        ("<topology/>", flat_vm([]), "expected <system>"),
    ],
)
def test_what_cannot_be_filled_in_gets_one_clear_line(text: str, live: Topology, says: str) -> None:
    with pytest.raises(InputError) as caught:
        nccl_topology.fill_skeleton(text, "vm.xml", live)
    assert str(caught.value).startswith("vm.xml")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "{}", "<system>", "<topology/>", skeleton(slot("0001:00:00.0", "<gpu/>"))]
)
def test_other_texts_are_no_skeletons(text: str) -> None:
    assert not nccl_topology.is_skeleton(text)


# -- files for virtual machines


def parent_of(node: rules.Node) -> rules.Node:
    assert node.parent is not None
    return node.parent


def written(topology: Topology) -> dict[str, rules.Node]:
    """The places that NCCL reads of the file for `topology`, by address, after checking the
    file.
    """
    text = nccl_topology.write_for_vm(topology)
    assert rules.check(text) == []
    assert "topoplan" not in text
    system = rules.load(text)
    assert {n.name for n in system.walk()} == {"system", "cpu", "pci"}
    assert text.count("<!--") == 1 + len(nccl_topology.list_vm_notes(topology))
    return {n.attrs["busid"]: n for n in system.walk() if n.name == "pci"}


def test_placeholders_are_replaced_by_what_the_devices_are_made_for() -> None:
    vm = flat_vm(["0001:00:00.0", "0002:00:00.0"], ["0101:00:00.0"])
    places = written(vm)
    assert {bus: rules.pcie_GBps(n) for bus, n in places.items()} == dict.fromkeys(places, 24)
    assert nccl_topology.list_vm_notes(vm) == [
        "gpu0, gpu1: 2.5 GT/s x1, a placeholder or read while idle; written as 16 GT/s x16, "
        "what GPUs of compute capability 8.0 are made for",
        "mlx5_0: 2.5 GT/s x1, a placeholder or read while idle; written as 16 GT/s x16, "
        "what a NIC of 200 Gb/s is made for",
    ]


def test_the_bottleneck_of_0_12_GBps_between_switch_and_cpu_is_gone() -> None:
    """The file of NVIDIA/nccl#749: a made-up switch at 2.5 GT/s x1 above all."""
    text = skeleton(
        slot("ffff:ff:00.0", slot("0001:00:00.0"), speed="2.5 GT/s", width=1, kind="0x060400")
    )
    assert rules.pcie_GBps(rules.load(text).subs[0].subs[0]) == 0.1875
    vm = nccl_topology.fill_skeleton(text, "vm.xml", flat_vm(["0001:00:00.0"]))
    assert rules.pcie_GBps(written(vm)["ffff:ff:00.0"]) == 24
    assert "as the fastest device below" in "\n".join(nccl_topology.list_vm_notes(vm))


@pytest.mark.parametrize(
    ("extra", "known", "GTps", "says"),
    [
        ({"sm": 70}, (), "8.0", "compute capability 7.0"),
        ({"sm": 90}, (), "32.0", "compute capability 9.0"),
        ({"sm": 103}, (), "64.0", "compute capability 10.3"),
        ({"sm": 120}, (), "32.0", "compute capability 12.0"),
        (
            {"sm": None, "name": "NVIDIA H100 80GB HBM3"},
            (),
            "32.0",
            "what NVIDIA H100 80GB HBM3 is made for",
        ),
        ({"sm": None, "name": "Tesla V100-SXM2-16GB"}, (), "8.0", "what Tesla V100"),
        ({"sm": None, "gcn": "gfx90a:sramecc+"}, (), "16.0", "what gfx90a is made for"),
        ({"sm": None}, (), "8.0", "as NCCL takes it, since nothing is known of the GPU"),
        ({"sm": 90, "pcie": {"max": "Gen4 x8"}}, (), "16.0", "as NVML says"),
        ({"sm": 90, "pcie": {"max": "Gen1 x1"}}, (), "32.0", "compute capability 9.0"),
        ({"sm": 90}, (("pcie_max_generation", 4), ("pcie_max_width", 8)), "16.0", "as NVML says"),
        ({"sm": None}, (("sm", 90),), "32.0", "compute capability 9.0"),
        (
            {"sm": None},
            (("name", "NVIDIA A100-SXM4-40GB"),),
            "16.0",
            "what NVIDIA A100-SXM4-40GB is made for",
        ),
    ],
)
def test_what_a_gpu_is_made_for(
    extra: dict[str, Any], known: tuple[Any, ...], GTps: str, says: str
) -> None:
    facts = [
        Fact("gpu/0", "bus_id", "0001:00:00.0", "NVML"),
        *(Fact("gpu/0", k, v, "NVML") for k, v in known),
    ]
    vm = flat_vm(["0001:00:00.0"], known=facts, **extra)
    assert written(vm)["0001:00:00.0"].attrs["link_speed"] == f"{GTps} GT/s PCIe"
    assert says in nccl_topology.list_vm_notes(vm)[0]


@pytest.mark.parametrize(
    ("GBps", "GTps"), [(Fraction(25, 2), 8), (25, 16), (50, 32), (100, 64), (None, 8)]
)
def test_what_a_nic_is_made_for(GBps: Fraction | None, GTps: int) -> None:
    vm = flat_vm(["0001:00:00.0"], ["0101:00:00.0"])
    extra = {} if GBps is None else {"net_speed_GBps": float(GBps)}
    vm = replace(
        vm, devices=tuple(replace(d, extra=extra) if d.kind == "nic" else d for d in vm.devices)
    )
    assert written(vm)["0101:00:00.0"].attrs["link_speed"] == f"{GTps}.0 GT/s PCIe"


@pytest.mark.parametrize(("generation", "width"), [(3, 16), (4, 8), (4, 1), (5, 16), (6, 16)])
def test_speeds_that_can_be_true_are_kept_without_a_word(generation: int, width: int) -> None:
    vm = flat_vm(["0001:00:00.0"], rate=Fraction(width * 15 * 2 ** (generation - 1), 80))
    assert rules.pcie_GBps(written(vm)["0001:00:00.0"]) == width * 15 * 2 ** (generation - 1) / 80
    assert nccl_topology.list_vm_notes(vm) == []


def test_declared_speeds_count_before_rates_and_assumed_ones_count_for_nothing() -> None:
    vm = flat_vm(["0001:00:00.0"])
    bare = replace(vm, links=())
    declared = pcie(
        "gpu0", "cpu0", Fraction(20), extra={"declared": "32 GT/s x8", "measured": "11.5"}
    )
    assert rules.pcie_GBps(written(replace(bare, links=declared))["0001:00:00.0"]) == 24
    assert nccl_topology.list_vm_notes(replace(bare, links=declared)) == []
    assumed = replace(
        bare, links=pcie("gpu0", "cpu0", Fraction(12), source="assumed: link_speed not given")
    )
    assert rules.pcie_GBps(written(assumed)["0001:00:00.0"]) == 24
    assert "gpu0: link unknown; written as 16 GT/s x16" in nccl_topology.list_vm_notes(assumed)[0]
    odd = replace(bare, links=pcie("gpu0", "cpu0", Fraction(64, 3)))
    assert rules.pcie_GBps(written(odd)["0001:00:00.0"]) == 24
    assert "21.3333 GB/s is no PCIe rate; written as" in nccl_topology.list_vm_notes(odd)[0]


def test_numa_nodes_are_those_that_the_facts_know() -> None:
    known = [
        Fact("pci/0001:00:00.0", "numa_node", 1, "sysfs"),
        Fact("gpu/1", "bus_id", "0002:00:00.0", "NVML"),
    ]
    known.append(Fact("gpu/1", "numa_node", 0, "NVML"))
    vm = flat_vm(
        ["0001:00:00.0", "0002:00:00.0", "0003:00:00.0"], numa=None, known=known, rate=Fraction(24)
    )
    system = rules.load(nccl_topology.write_for_vm(vm))
    assert {cpu.attrs["numaid"]: [n.attrs["busid"] for n in cpu.subs] for cpu in system.subs} == {
        "0": ["0002:00:00.0", "0003:00:00.0"],
        "1": ["0001:00:00.0"],
    }
    assert nccl_topology.list_vm_notes(vm) == [
        "cpu0: NUMA node unknown; from what is known of the devices below: 0, 1",
    ]


def test_one_cpu_of_unknown_numa_node_is_node_0() -> None:
    vm = flat_vm(["0001:00:00.0"], numa=None, rate=Fraction(24))
    assert parent_of(written(vm)["0001:00:00.0"]).attrs["numaid"] == "0"
    assert nccl_topology.list_vm_notes(vm) == [
        "cpu0: NUMA node unknown; written as 0, since it is the only CPU"
    ]


def test_gpus_of_which_no_place_is_known_hang_on_a_cpu() -> None:
    gpus = (
        Device("gpu0", bus_id="0001:00:00.0", numa_node=1),
        Device("gpu1", bus_id="0002:00:00.0"),
    )
    vm = Topology("t", gpus, ())
    places = written(vm)
    assert {bus: parent_of(n).attrs for bus, n in places.items()} == {
        bus: {"numaid": "1"} for bus in places
    }
    assert (
        "gpu1: not known what it hangs on; put below CPU 1, the first one"
        in nccl_topology.list_vm_notes(vm)
    )


def test_real_switches_keep_their_addresses_and_others_get_one_that_does_not_exist() -> None:
    vm = flat_vm(["0001:00:00.0", "0002:00:00.0"], rate=Fraction(24))
    switches = Device("a", "switch", "pcie", bus_id="0000:AF:00.0"), Device("b", "switch", "pcie")
    hang = (*pcie("gpu0", "a"), *pcie("a", "cpu0"), *pcie("gpu1", "b"), *pcie("b", "cpu0"))
    places = written(replace(vm, devices=(*vm.devices, *switches), links=hang))
    assert places["0001:00:00.0"].parent is places["0000:af:00.0"]
    assert parent_of(places["0002:00:00.0"]).attrs["busid"].startswith("f000:")


def test_a_nic_without_an_address_is_left_out_and_said() -> None:
    vm = flat_vm(["0001:00:00.0"], rate=Fraction(24))
    vm = replace(
        vm, devices=(*vm.devices, Device("eth0", "nic")), links=(*vm.links, *pcie("eth0", "cpu0"))
    )
    assert set(written(vm)) == {"0001:00:00.0"}
    assert nccl_topology.list_vm_notes(vm) == [
        "eth0: no PCI address known; left out, and NCCL puts it where it finds it"
    ]


def test_a_nic_at_the_address_of_a_switch_is_left_out_and_said() -> None:
    vm = flat_vm(["0001:00:00.0"], ["0000:af:00.0"], rate=Fraction(24))
    switch = Device("s", "switch", "pcie", bus_id="0000:af:00.0")
    hang = (
        *pcie("gpu0", "s", Fraction(24)),
        *pcie("s", "cpu0", Fraction(24)),
        *pcie("mlx5_0", "cpu0"),
    )
    written(vm := replace(vm, devices=(*vm.devices, switch), links=hang))
    assert nccl_topology.list_vm_notes(vm) == [
        "mlx5_0: its PCI address is that of a switch; left out"
    ]


@pytest.mark.parametrize(
    ("topology", "says"),
    [
        (
            preset("dgx1"),
            r"'gpu0' has no PCI address, by which NCCL would find it \(presets have none\)",
        ),
        (Topology("none", (Device("c", "cpu"),), ()), "has no GPUs"),
        (flat_vm(["0001:00:00.0", "nonsense"]), "'gpu1' has no PCI address"),
        (flat_vm(["0001:00:00.1"]), "functions 0, 4, 8 and c only"),
        (flat_vm([f"0001:{i:02x}:00.0" for i in range(255)]), "more than the 255 that NCCL reads"),
        (
            Topology(
                "two",
                (
                    Device("g", bus_id="0001:00:00.0"),
                    Device("a", "cpu", extra={"host_hash": "0x1"}),
                    Device("b", "cpu", extra={"host_hash": "0x2"}),
                ),
                (),
            ),
            "is of 2 hosts",
        ),
    ],
)
def test_what_is_no_machine_at_hand_is_refused(topology: Topology, says: str) -> None:
    with pytest.raises(InputError, match=says):
        nccl_topology.write_for_vm(topology)
    with pytest.raises(InputError, match=says):
        nccl_topology.list_vm_notes(topology)


def check_believed(vm: Topology) -> None:
    """The file for a machine, filled in on that machine, gives it back with believed speeds."""
    text = nccl_topology.write_for_vm(vm)
    places = written(vm)
    full = nccl_topology.fill_skeleton(text, "topo.xml", vm)
    read = nccl_xml.read(nccl_topology.write(full), "again")
    assert (read.ranks, read.capacity_GBps) == (full.ranks, full.capacity_GBps)
    assert full.ranks == vm.ranks
    assert {d.id for d in full.devices if d.kind == "nic"} == {
        d.id for d in vm.devices if d.kind == "nic"
    }
    for name, parent in parents(full).items():
        bus = full.by_id[name].bus_id
        if bus in places:
            assert full.capacity_GBps[name, parent] == Fraction(rules.pcie_GBps(places[bus]))
    cross = Counter(
        (x.src, x.dst, x.kind) for x in vm.links if x.kind not in ("pcie", "smp", "c2c")
    )
    assert cross <= Counter((x.src, x.dst, x.kind) for x in full.links)
    assert all("no PCI address known" in line for line in nccl_topology.list_vm_notes(full))
    again = written(full)
    for bus, place in places.items():
        assert rules.pcie_GBps(again[bus]) == rules.pcie_GBps(place)
        assert parent_of(again[bus]).name == parent_of(place).name
        assert (
            parent_of(again[bus]).attrs["numaid" if parent_of(place).name == "cpu" else "busid"]
            in parent_of(place).attrs.values()
        )


@pytest.mark.parametrize(
    "name",
    [
        "oci/H100-topology.xml",
        "aws/p5.48xl.xml",
        "azure/ncv4-topo.xml",
        "rccl/topo_8p_940vm.xml",
        "rccl/topo_4p3l.xml",
    ],
)
def test_recorded_machines_are_believed(name: str, recorded: Callable[[str], Path]) -> None:
    check_believed(nccl_xml.read(recorded(f"nccl_xml/{name}").read_text(encoding="utf-8"), name))


def test_the_slow_switches_of_a_recorded_machine_are_believed_faster(
    recorded: Callable[[str], Path],
) -> None:
    text = recorded("nccl_xml/oci/H100-topology.xml").read_text(encoding="utf-8")
    vm = nccl_xml.read(text, "oci.xml")
    assert {float(rules.pcie_GBps(n)) for n in written(vm).values()} == {48}
    said = nccl_topology.list_vm_notes(vm)
    assert len(said) == 1
    assert re.match(
        r"(pci-\S+, ){7}pci-\S+: 5 GT/s x16, a placeholder .* written as 32 GT/s x16, as the",
        said[0],
    )


@settings(max_examples=count_examples(15))
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True),
    st.lists(st.integers(31, 60), max_size=4, unique=True),
    st.sampled_from([PLACEHOLDER, Fraction(3), Fraction(12), Fraction(24), Fraction(64, 3)]),
    st.sampled_from([None, 0, 3]),
)
def test_any_flat_machine_is_believed(
    gpus: list[int], nics: list[int], rate: Fraction, numa: int | None
) -> None:
    check_believed(
        flat_vm([f"{g:04x}:01:00.0" for g in gpus], [f"{n:04x}:01:00.0" for n in nics], rate, numa)
    )
