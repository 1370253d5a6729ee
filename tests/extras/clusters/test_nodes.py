"""The part of a cluster that a job runs on: --nodes, as Slurm lists a job's hosts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from topoplan.cli.probe import main as probe
from topoplan.topo.derived.hosts import join_hosts
from topoplan.topo.errors import InputError
from topoplan.topo.extras.clusters.nodes import select_nodes
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import resolve
from topoplan.topo.presets import preset

CONF = """\
SwitchName=leaf0 Nodes=node[01-04]
SwitchName=leaf1 Nodes=node[05-08],gpu-b[1-3]
SwitchName=spine Switches=leaf[0-1]
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Topology:
    (tmp_path / "topology.conf").write_text(CONF)
    return resolve(str(tmp_path / "topology.conf"), "dgx1")


@pytest.mark.parametrize(
    ("listed", "hosts", "switches"),
    [
        ("node[01-04,07],gpu-b[1,3]", "node01 node02 node03 node04 node07 gpu-b1 gpu-b3", 3),
        ("node[02-03]", "node02 node03", 1),
        ("node08,node01", "node08 node01", 3),
        ("gpu-b2", "gpu-b2", 0),
    ],
)
def test_the_hosts_of_a_list_are_left_in_its_order(
    cluster: Topology, listed: str, hosts: str, switches: int
) -> None:
    part = select_nodes(cluster, listed)
    names = hosts.split()
    assert part.extra["hosts"] == names
    assert list(dict.fromkeys(part.by_id[gpu].extra["host"] for gpu in part.ranks)) == names
    assert len(part.ranks) == 8 * len(names)
    assert sum(d.family == "network" for d in part.devices) == switches
    assert {end for x in part.links for end in (x.src, x.dst)} <= part.by_id.keys()


def test_domains_may_be_left_out(cluster: Topology) -> None:
    hosts = join_hosts([replace(preset("dgx1"), name=f"n{i}.cluster.org") for i in range(3)])
    assert select_nodes(hosts, "n[1-2]").extra["hosts"] == ["n1.cluster.org", "n2.cluster.org"]
    assert len(select_nodes(hosts, "n2.cluster.org").ranks) == 8


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        ("node[01-", "the list of nodes: 'node[01-' is no list of names"),
        ("", "is no list of names"),
        ("node9", "node9 is no host of topology.conf (did you mean 'node0"),
        (
            "elsewhere",
            "is no host of topology.conf; it has node01, node02, node03, node04 and 7 more",
        ),
        ("node[01,01]", "node01 is there twice"),
    ],
)
def test_a_list_of_other_hosts_is_refused(cluster: Topology, listed: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        select_nodes(cluster, listed)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_machine_without_hosts_is_refused() -> None:
    with pytest.raises(InputError, match="dgx1: its devices have no hosts"):
        select_nodes(preset("dgx1"), "node1")


def test_the_commands_take_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("topology.conf").write_text(CONF)
    asked = ["topology.conf", "--box", "dgx1", "--nodes", "node[01,05]"]
    assert probe([*asked, "-o", "job.json"]) == 0
    job = json.loads(Path("job.json").read_text())
    assert job["hosts"] == ["node01", "node05"]
    assert probe(["job.json", "--nodes", "node05", "--format", "tree"]) == 0
    assert "node01" not in capsys.readouterr().out
    assert probe(["job.json", "--nodes", "node77"]) == 2
    said = capsys.readouterr().err
    assert "the list of nodes: node77 is no host of topology.conf, 2 of 11 hosts" in said
