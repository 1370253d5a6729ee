"""Rates of flows at once: tables that are read, facts, and what the doctor says of them."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from called import call_command

from topoplan.topo.errors import InputError
from topoplan.topo.extras.doctor import list_findings
from topoplan.topo.extras.measured.believe import believe
from topoplan.topo.extras.measured.flows import Experiment, Measurements
from topoplan.topo.extras.patterns.facts import Pattern, add_patterns, list_patterns
from topoplan.topo.extras.patterns.table import read_patterns
from topoplan.topo.facts import load_facts
from topoplan.topo.graph import Device, Link, Topology, both_directions

TABLE = """
# two GPUs of a switch write to two roots
0>2 1>3 = 2.7 of 37 write
0>1, 0>2, 0>3 = 25.4 of 44.8
0>2 1>3 = 37 of 37 read  # reads do not collapse
"""
# As p2pBandwidthLatencyTest prints them; the rates are made up.
MATRICES = """\
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1      2
     0 900.00  40.00  40.00
     1  40.00 900.00  40.00
     2  40.00  40.00 900.00
Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)
   D\\D     0      1      2
     0 900.00  78.00  20.00
     1  78.00 900.00  77.00
     2  20.00  77.00 900.00
"""


def build_box() -> Topology:
    """Two switches under one root, with two GPUs each."""
    ends = [(f"gpu{i}", f"plx{i // 2}") for i in range(4)] + [("plx0", "cpu0"), ("plx1", "cpu0")]
    links = [x for a, b in ends for x in both_directions(Link(a, b, Fraction(37)))]
    devices = [Device(f"gpu{i}") for i in range(4)]
    devices += [Device("plx0", "switch", "pcie"), Device("plx1", "switch", "pcie")]
    return Topology("box", (*devices, Device("cpu0", "cpu")), tuple(links))


def test_a_table_becomes_facts_with_their_source() -> None:
    patterns = read_patterns(TABLE, "flows.txt", 4)
    assert patterns[0] == Pattern(
        ((0, 2), (1, 3)), Fraction(27, 10), Fraction(37), "write", "flows.txt"
    )
    assert [pattern.how for pattern in patterns] == ["write", "copy", "read"]
    box = add_patterns(add_patterns(build_box(), patterns[:1]), patterns[1:])
    read = Topology.loads(box.dumps(), "box.json")
    assert list_patterns(load_facts(read.extra, "box"), 4) == patterns
    assert list_patterns(load_facts(read.extra, "box"), 3) == []


def test_the_doctor_names_a_collapse_with_its_figures() -> None:
    found = [
        finding
        for finding in list_findings(
            add_patterns(build_box(), read_patterns(TABLE, "flows.txt", 4))
        )
        if finding.what == "collapse"
    ]
    assert [finding.about for finding in found] == [("plx0",), ("gpu0",)]
    assert (
        "get 2.7 GB/s together, 7% of the 37 GB/s that one of them gets alone" in found[0].message
    )
    assert found[0].evidence == ("0>2 1>3: together 2.7 GB/s, alone 37 GB/s (flows.txt)",)
    assert all(finding.severity == "warning" for finding in found)


def test_what_topo_probe_measured_at_once_is_judged_too() -> None:
    rates = {(0, 1): Fraction(40), (0, 2): Fraction(44), (0, 3): Fraction(42)}
    fan = Experiment("fan-out", dict.fromkeys(rates, Fraction(8)))
    measured = Measurements(
        tuple(Experiment("alone", {pair: rate}) for pair, rate in rates.items()),
        medium="NCCL",
        fans=(fan,),
    )
    box = believe(build_box(), measured)
    (found,) = [x for x in list_findings(box) if x.what == "collapse"]
    assert found.about == ("gpu0",)
    assert "24 GB/s together, 55% of the 44 GB/s" in found.message
    assert "measured over NCCL, fan-out" in found.evidence[0]
    # In one host's memory the data was on none of the links.
    box = believe(build_box(), replace(measured, trusted="none"))
    assert all(x.what != "collapse" for x in list_findings(box))
    odd = replace(box, extra={"measured": {"at_once": [{}, {"flows": 3}], "over": "x"}})
    assert all(x.what != "collapse" for x in list_findings(odd))


def test_flows_that_share_a_link_evenly_are_no_collapse() -> None:
    box = add_patterns(build_box(), read_patterns("0>2 1>3 = 36.1 of 37", "x", 4))
    assert all(finding.what != "collapse" for finding in list_findings(box))


def test_both_directions_are_taken_from_a_tools_matrices() -> None:
    found = read_patterns(MATRICES, "p2p.txt", 4)
    assert [(x.flows, float(x.together_GBps), float(x.alone_GBps)) for x in found] == [
        (((0, 1), (1, 0)), 78, 40),
        (((0, 2), (2, 0)), 20, 40),
        (((1, 2), (2, 1)), 77, 40),
    ]
    assert found[0].source == "p2p.txt (p2pBandwidthLatencyTest)"
    box = add_patterns(build_box(), found)
    (only,) = [x for x in list_findings(box) if x.what == "collapse"]
    assert "0>2 2>0" in only.evidence[0]
    with pytest.raises(InputError, match="both matrices"):
        read_patterns(MATRICES.split("Bi")[0], "p2p.txt", 4)


@pytest.mark.parametrize(
    "line",
    ["", "0>2 1>3", "0>9 1>3 = 1 of 2", "0>0 1>2 = 1 of 2", "0>1 = 0 of 2", "0>1 = 1 of 2 by"],
)
def test_other_tables_are_refused_in_a_line(line: str) -> None:
    with pytest.raises(InputError, match=r"table\.txt") as error:
        read_patterns(line, "table.txt", 4)
    assert len(str(error.value).splitlines()) == 1


def test_topo_probe_takes_a_table_and_checks(tmp_path: Path) -> None:
    box, table, target = (tmp_path / name for name in ("box.json", "flows.txt", "with.json"))
    box.write_text(build_box().dumps(), encoding="utf-8")
    table.write_text(TABLE, encoding="utf-8")
    done = call_command("probe", str(box), "--patterns", str(table), "--check")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[collapse]") == 2
    done = call_command("probe", str(box), "--patterns", str(table), "-o", str(target))
    assert done.returncode == 0, done.stderr
    facts = json.loads(target.read_text(encoding="utf-8"))["facts"]
    assert {
        "subject": "pattern/0",
        "key": "together_GBps",
        "source": "flows.txt",
        "value": "2.7",
    } in (facts)
