"""NCCL's and RCCL's XML as topoplan writes it: all of a machine is read back, and what NCCL's own
elements can say is said with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from small_xml import check_round_trip, machine, notes, nvlink

from topoplan.topo.derived.stated import state_rates
from topoplan.topo.errors import InputError
from topoplan.topo.extras import nccl_topology
from topoplan.topo.formats import nccl_xml
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.presets import PRESETS, Preset, preset

# Files that lie beside the checkout, of each dialect.
RECORDED = (
    *("oci/H100-topology.xml", "aws/p5.48xl.xml", "azure/ncv4-topo.xml", "rccl/topo_16p1h.xml"),
    *("rccl/topo_3p_pcie.xml", "rccl/topo_4p3l.xml", "rccl/topo_8p6l.xml", "rccl/topo_8p_940.xml"),
    *("rccl/topo_8p_940vm.xml", "rccl/topo_8p_pcie.xml", "rccl/topo_8p_rome.xml"),
)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_machines_survive_being_written_without_any_help(
    name: str, recorded: Callable[[str], Path]
) -> None:
    """NCCL's own elements say everything that came from NCCL's file: topoplan has nothing to
    add.
    """
    path = recorded(f"nccl_xml/{name}")
    topology = nccl_xml.read(path.read_text(encoding="utf-8"), path.name)
    check_round_trip(topology)
    text = nccl_topology.write(topology)
    assert "<topoplan_" not in text
    again = nccl_xml.read(text, topology.name)
    assert (again.devices, again.links) == (topology.devices, topology.links)


@pytest.mark.parametrize("entry", PRESETS.values(), ids=lambda p: p.name)
def test_every_preset_survives_being_written(entry: Preset) -> None:
    topology = preset(
        "torus:4x4" if entry.name == "torus" else entry.example
    )  # 64 GPUs are too many for NCCL
    check_round_trip(topology)
    again = nccl_xml.read(nccl_topology.write(topology), "x")
    assert again.name == topology.name
    assert notes(again) == "", "what topoplan wrote itself leaves no doubts"


def test_what_nccl_would_ask_its_host_for_is_made_up_marked_and_no_fact_when_read() -> None:
    for name, sm, model in (
        ("dgx1", 70, "85"),
        ("dgx-a100", 80, "85"),
        ("pcie-2socket", 89, "143"),
    ):
        topology = preset(name)
        text = nccl_topology.write(topology)
        assert text.count(f'sm="{sm}" topoplan_made_up="sm"') == text.count("<gpu ")
        assert text.count(
            f'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="{model}"'
        ) == text.count("<cpu ")
        again = nccl_xml.read(text, name)
        assert not any(
            d.extra.keys() & {"sm", "arch", "vendor", "familyid", "modelid"} for d in again.devices
        )
    known = [{"subject": "gpu/1", "key": "sm", "value": 90, "source": "NVML"}]
    text = nccl_topology.write(replace(preset("dgx-a100"), extra={"facts": known}))
    assert '<gpu dev="1" rank="1" sm="90">' in text
    amd = Device("cpu0", "cpu", numa_node=0, extra={"vendor": "AuthenticAMD"})
    links = both_directions(Link("gpu0", "cpu0", Fraction(12), kind="pcie"))
    text = nccl_topology.write(Topology("amd", (Device("gpu0"), amd), links))
    assert (
        'vendor="AuthenticAMD" arch="x86_64" familyid="25" modelid="1" topoplan_made_up="model"'
        in text
    )


@pytest.mark.parametrize(
    ("extra", "count", "GBps", "sm"),
    [
        ({"name": "NVIDIA A40"}, 4, "225/4", 86),
        ({"name": "NVIDIA GeForce RTX 3090"}, 4, "225/4", 86),
        ({"name": "Tesla V100-DGXS-32GB"}, 4, "100", 70),
        ({"pci": {"device": "0x2235"}}, 4, "225/4", 86),
        ({}, 4, "225/4", 86),  # no board with faster links has this rate
        ({}, 4, "80", 60),
        ({}, 18, "900", 100),
        ({}, 12, "300", 80),
        ({}, 2, "7", 60),
        ({"name": "NVIDIA L40S"}, 0, "", 89),
    ],
)
def test_the_capability_made_up_is_that_of_the_board_that_name_or_links_tell(
    extra: dict[str, object], count: int, GBps: str, sm: int
) -> None:
    gpus = tuple(Device(f"gpu{i}", extra=dict(extra)) for i in range(2))
    bridge = Link("gpu0", "gpu1", Fraction(GBps or 1), kind="nvlink", count=count or 1)
    machine = Topology("pair", gpus, both_directions(bridge) if count else ())
    text = nccl_topology.write(machine)
    assert text.count(f'sm="{sm}" topoplan_made_up="sm"') == 2
    assert "sm" not in nccl_xml.read(text, "pair").by_id["gpu0"].extra


@pytest.mark.parametrize(
    ("GBps", "speed", "width"),
    [(13, "8.0", 16), (12, "8.0", 16), ("24.5", "16.0", 16), ("0.1", "2.5", 1), (200, "64.0", 16)],
)
def test_a_stated_pcie_rate_is_written_as_the_nearest_slot_not_above_it(
    GBps: float | str, speed: str, width: int
) -> None:
    up = both_directions(Link("gpu0", "cpu0", Fraction(GBps), kind="pcie"))
    topology = Topology("stated", (Device("gpu0"), Device("cpu0", "cpu")), up)
    text = nccl_topology.write(topology)
    assert f'link_speed="{speed} GT/s PCIe" link_width="{width}"' in text
    check_round_trip(topology)


def test_a_stated_rate_replaces_a_speed_and_width_that_are_none() -> None:
    """As in Azure's file for ncv4, whose link_speed is empty and link_width 0."""
    text = machine("", "").replace('"16.0 GT/s PCIe" link_width="16"', '"" link_width="0"')
    unknown = nccl_xml.read(text, "x")
    assert 'link_speed="" link_width="0"' in nccl_topology.write(unknown)
    (stated,) = state_rates([unknown], {"pcie": Fraction(25)})
    assert 'link_speed="16.0 GT/s PCIe" link_width="16"' in nccl_topology.write(stated)
    check_round_trip(stated)


def test_dgx1_is_written_with_nccls_own_nvlinks() -> None:
    text = nccl_topology.write(preset("dgx1"))
    assert text.count("<nvlink ") == 32
    assert text.count('count="2" tclass="0x030200"') == 16
    assert text.count("<gpu ") == 8


def test_written_trees_have_no_help_where_nccl_can_say_it() -> None:
    """Between the sockets 19.2 is none of NCCL's rates; all else of this machine is."""
    text = nccl_topology.write(preset("pcie-2socket"))
    assert text.count("<topoplan_link ") == 2
    assert text.count('link_speed="16.0 GT/s PCIe" link_width="16"') == 12


def test_values_stay_within_what_nccls_parser_takes() -> None:
    long = replace(
        preset("dgx1"),
        devices=tuple(replace(d, extra={"x": "y" * 1000}) for d in preset("dgx1").devices),
    )
    assert max(map(len, nccl_topology.write(long).split('"'))) < 255


def test_odd_names_and_odd_graphs_survive() -> None:
    devices = (
        Device('a<"&>'),
        Device("b"),
        Device("s", "switch", "pcie", can_reduce=True),
        Device("n", "nic"),
    )
    links = (
        Link('a<"&>', "b", Fraction(1, 3), Fraction(0), "pigeon", 7),
        *both_directions(Link("b", "s", Fraction(12), kind="pcie")),
        *both_directions(Link("n", "b", Fraction(5), kind="network")),
        Link("s", 'a<"&>', Fraction(64, 3), kind="pcie"),
    )
    topology = Topology("odd", devices, links)
    check_round_trip(topology)
    assert nccl_xml.read(nccl_topology.write(topology), "x").by_id["s"].can_reduce


def test_a_topology_without_gpus_cannot_be_written() -> None:
    with pytest.raises(InputError, match="has no GPUs"):
        nccl_topology.write(Topology("none", (Device("c", "cpu"),), ()))


def test_rccls_dialect_has_its_version() -> None:
    links = [nvlink(f"0000:0{peer}:00.0", 2, "0x120000") for peer in (1, 0)]
    text = machine(*links, sm=304, version=2).replace("nvlink", "xgmi")
    written = nccl_topology.write(nccl_xml.read(text, "small.xml"))
    assert '<system version="2"' in written


def test_names_that_terminals_would_obey_are_written_by_number() -> None:
    devices = [Device("gpu\u202e0\u200b", "gpu"), Device("gpu1", "gpu")]
    links = both_directions(Link("gpu\u202e0\u200b", "gpu1", Fraction(25), kind="nvlink"))
    text = nccl_topology.write(Topology("bo\u2066x", tuple(devices), links))
    assert "gpu&#8238;0&#8203;" in text
    assert [mark for mark in "\u202e\u200b\u2066" if mark in text] == []
