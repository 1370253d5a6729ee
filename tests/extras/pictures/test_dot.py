"""Graphviz's form: every device and link is there, and no id breaks it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pictured import NASTY, PRESETS, odd

from topoplan.cli.probe import main
from topoplan.topo.extras.pictures import dot
from topoplan.topo.graph import Topology
from topoplan.topo.pictures.cables import find_cables
from topoplan.topo.presets import preset

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|->|[\[\]{};=,]|[\w.]+|\s+')


def tokens(text: str) -> list[str]:
    """Splits dot text; what is no token of the language fails."""
    out, at = [], 0
    while at < len(text):
        match = TOKEN.match(text, at)
        assert match is not None, text[at : at + 40]
        out.append(match.group())
        at = match.end()
    return [token for token in out if not token.isspace()]


@pytest.mark.parametrize("name", PRESETS)
def test_dot_has_a_node_a_device_and_an_edge_a_cable(name: str) -> None:
    topology = preset(name)
    found = tokens(dot.write(topology))
    assert found.count("{") == found.count("}") and found.count("[") == found.count("]")
    assert found.count("->") == len(find_cables(topology))
    for device in topology.devices:
        assert f'"{device.id}"' in found


@pytest.mark.parametrize("ident", NASTY)
def test_no_id_breaks_the_dot(ident: str) -> None:
    found = tokens(dot.write(odd([ident, "gpu1"])))
    assert found.count("->") == 2
    assert found.count("{") == found.count("}") == 1


def test_dot_groups_by_box_or_numa_node() -> None:
    assert dot.write(preset("dgx-a100:2")).count("subgraph cluster_") == 2
    assert 'label="NUMA node 1"' in dot.write(preset("pcie-2socket"))


def test_ids_that_look_alike_are_two_nodes_in_dot() -> None:
    devices = [{"id": "gpu\u202e0\u200b"}, {"id": "gpu0"}]
    links = [{"src": "gpu\u202e0\u200b", "dst": "gpu0", "bidirectional": True}]
    text = dot.write(Topology.loads(json.dumps({"devices": devices, "links": links})))
    assert text.isascii()
    assert '"gpu\\\\u202e0\\\\u200b" -> "gpu0"' in text


def test_the_command_writes_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dgx1", "--format", "svg", "-o", str(tmp_path / "dgx1.svg")]) == 0
    assert ElementTree.parse(tmp_path / "dgx1.svg").getroot().tag.endswith("svg")
    assert main(["dgx1", "--format", "dot"]) == 0
    assert capsys.readouterr().out.startswith('digraph "dgx1" {')
