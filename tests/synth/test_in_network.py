"""What switches could do: read and kept with its source, never counted as done, and its bound
printed beside the other.
"""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from called import call_command
from hypothesis import given, settings
from random_graphs import graphs
from thorough import count_examples

from topoplan.synth.bounds.in_network import bound_in_network, list_possible, switch_on
from topoplan.synth.bounds.multipath import bound
from topoplan.synth.ir.collective import collective_on
from topoplan.topo.devices import ABILITIES, InNetwork
from topoplan.topo.errors import InputError
from topoplan.topo.formats import nccl_xml, smi
from topoplan.topo.graph import Device, Topology
from topoplan.topo.presets import preset

XML = """<system version="1"><cpu numaid="0">{gpus}</cpu></system>"""
GPU = """<pci busid="0000:{i}0:00.0" class="0x030200"><gpu dev="{i}" sm="{sm}" rank="{i}">
<nvlink target="0000:f0:00.0" count="{count}" tclass="0x068000"/></gpu></pci>"""


def ability(topology: Topology) -> str | None:
    (switch,) = (d for d in topology.devices if d.family == "nvswitch")
    return None if switch.in_network is None else switch.in_network.reduce


@pytest.mark.parametrize(("name", "answer"), [("dgx-h100", "possible"), ("dgx-a100", "no")])
def test_presets_say_what_their_switches_could_do(name: str, answer: str) -> None:
    assert ability(preset(name)) == answer
    assert {
        d.in_network and d.in_network.reduce for d in preset("dgx2").devices if d.kind == "switch"
    } == {"no"}


@pytest.mark.parametrize(("links", "answer"), [(18, "possible"), (12, "no"), (6, "no"), (8, None)])
def test_a_matrix_says_it_by_its_links(links: int, answer: str | None) -> None:
    rows = ["\t" + "\t".join(f"GPU{j}" for j in range(8))]
    rows += [
        f"GPU{i}\t" + "\t".join("X" if i == j else f"NV{links}" for j in range(8)) for i in range(8)
    ]
    assert ability(smi.read("\n".join(rows) + "\n", "matrix.txt")) == answer


@pytest.mark.parametrize(
    ("sm", "count", "answer"), [(90, 18, "possible"), (100, 18, "possible"), (80, 12, "no")]
)
def test_nccl_xml_says_it_by_the_gpus(sm: int, count: int, answer: str) -> None:
    gpus = "".join(GPU.format(i=i, sm=sm, count=count) for i in range(4))
    assert ability(nccl_xml.read(XML.format(gpus=gpus), "x.xml")) == answer


def test_possible_is_kept_and_counts_as_not() -> None:
    h100 = preset("dgx-h100")
    again = Topology.loads(h100.dumps())
    assert again == h100 and again.fingerprint == h100.fingerprint
    silent = replace(h100, devices=tuple(replace(d, in_network=None) for d in h100.devices))
    assert silent.fingerprint == h100.fingerprint
    allreduce = collective_on("allreduce", h100)
    assert (
        bound(allreduce, h100).algbw_GBps
        == bound(allreduce, silent).algbw_GBps
        == Fraction(1800, 7)
    )
    beside = bound_in_network(allreduce, h100, bound(allreduce, h100))
    assert beside is not None and beside.algbw_GBps == 450
    assert bound_in_network(allreduce, silent, bound(allreduce, silent)) is None


def test_a_file_that_says_yes_is_believed() -> None:
    text = preset("dgx-h100").dumps().replace('"can_reduce": false', '"can_reduce": true')
    for able in (
        Topology.loads(text),
        Topology.loads(preset("dgx-h100").dumps().replace('"possible"', '"yes"')),
    ):
        assert able.by_id["nvswitch0"].can_reduce and able.by_id["nvswitch0"].can_copy
        assert ability(able) == "yes" and not list_possible(able)
        assert bound(collective_on("allreduce", able), able).algbw_GBps == 450
        assert Topology.loads(able.dumps()) == able


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (
            '{"reduce": "maybe"}',
            "devices[1].in_network.reduce: expected one of no, possible, yes, got 'maybe'",
        ),
        ("true", "devices[1].in_network: expected a JSON object, got true"),
        ("{}", "devices[1].in_network.reduce: expected one of"),
    ],
)
def test_other_answers_are_refused(field: str, says: str) -> None:
    text = f'{{"devices": [{{"id": "a"}}, {{"id": "s", "kind": "switch", "in_network": {field}}}]}}'
    with pytest.raises(InputError) as caught:
        Topology.loads(text, "box.json")
    assert says in str(caught.value)


@settings(max_examples=count_examples(3), deadline=None)
@given(graphs(most=4, switches=2))
def test_what_is_possible_never_makes_the_bound_lower(topology: Topology) -> None:
    for answer in ABILITIES:
        said = InNetwork(answer, "somebody")
        devices = (
            d if d.kind == "gpu" else replace(d, in_network=said, can_reduce=False)
            for d in topology.devices
        )
        machine = replace(topology, devices=tuple(devices))
        assert len(list_possible(switch_on(machine))) == 0
        collective = collective_on("allreduce", machine)
        limit = bound(collective, machine)
        beside = bound_in_network(collective, machine, limit)
        assert (beside is None) == (
            answer != "possible" or all(d.kind == "gpu" for d in machine.devices)
        )
        assert beside is None or beside.s_per_GB <= limit.s_per_GB


def test_the_commands_print_both_bounds_and_what_they_rest_on(tmp_path: Path) -> None:
    asked = ("--collective", "allreduce", "--topology", "dgx-h100", "--bound-only")
    shown = call_command("synth", *asked).stdout
    assert "at most 257.1" in shown and "no switch adds or copies; nvswitch0 could add" in shown
    assert "the bound is 450 GB/s algbw" in shown
    plan = tmp_path / "plan.json"
    done = call_command("synth", *asked[:-1], "--strategy", "direct", "--json", "-o", str(plan))
    out = json.loads(done.stdout)
    assert (
        out["bound_in_network"]["algbw_GBps"] == 450
        and out["bound_assumes"] == "no switch adds or copies"
    )
    assert out["bound"]["algbw_GBps"] == pytest.approx(1800 / 7)
    assert "could add" in call_command("synth", *asked[:-1], "--strategy", "direct").stdout
    out = json.loads(
        call_command("synth", *asked[:2], "--topology", "dgx-a100", "--bound-only", "--json").stdout
    )
    assert "bound_in_network" not in out
    assert "sums in nvswitch0: possible" in call_command("probe", "dgx-h100").stdout


def test_what_moves_only_gains_nothing() -> None:
    h100 = preset("dgx-h100")
    for name in ("alltoall", "gather", "scatter"):
        collective = collective_on(name, h100)
        limit = bound(collective, h100)
        assert bound_in_network(collective, h100, limit) == limit


def test_a_device_alone() -> None:
    assert Device("s", "switch", in_network=InNetwork("yes", "x")).can_copy
    with pytest.raises(InputError, match="expected one of yes, no, possible"):
        InNetwork("perhaps", "x")
