"""Files that say where hosts are: Slurm's, topograph's, Kubernetes', lists by hand; read alike, and
refused in one line.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import count_examples

from topoplan.cli.probe import main as probe
from topoplan.topo.derived.stated import state_rates
from topoplan.topo.errors import InputError
from topoplan.topo.extras.clusters import read_box
from topoplan.topo.extras.clusters.cluster import MAX_HOSTS
from topoplan.topo.extras.clusters.slurm_conf import expand_hostlist
from topoplan.topo.formats.detect import read_topology_text
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.loader.resolve import load, resolve
from topoplan.topo.presets import preset

TREE = """\
# leaves and a spine
switchname=leaf0 Nodes=n[0-1]
SwitchName=leaf1 Nodes=n2,n3 LinkSpeed=4
SwitchName=spine \\
    Switches=leaf[0-1]
"""
TREE_YAML = """\
---
- topology: flat
  flat: true
- topology: net
  cluster_default: true
  tree:
    switches:
      - switch: spine
        children: leaf[0-1]
      - switch: leaf0   # comments are read over
        nodes: n[0-1]
      - switch: leaf1
        nodes: n2,n3
"""
SCONTROL = """\
$ scontrol show topology
SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=n[0-1]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[2-3]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[0-3] Switches=leaf[0-1]
"""
HOSTS = [("n0", "leaf0"), ("n1", "leaf0"), ("n2", "leaf1"), ("n3", "leaf1")]
GRAPH = json.dumps(
    {
        "instances": [
            {"id": h, "network_layers": [leaf, "spine"], "labels": {"x": "y"}} for h, leaf in HOSTS
        ]
    }
)
LIST = "# where hosts are\nhost rack spine\n" + "".join(f"{h} {leaf} spine\n" for h, leaf in HOSTS)


def node(name: str, labels: dict[str, str], gpus: str = "8") -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux", **labels}, "uid": "1"},
        "status": {"capacity": {"cpu": "96", "nvidia.com/gpu": gpus}},
    }


def nodes(*items: dict[str, object]) -> str:
    return json.dumps(
        {"apiVersion": "v1", "items": list(items), "kind": "List", "metadata": {}}, indent=4
    )


NVIDIA = "network.topology.nvidia.com/"
ZONE = "topology.kubernetes.io/zone"
KUBERNETES = nodes(
    node("control", {}, "0"),
    *(node(h, {NVIDIA + "block": leaf, NVIDIA + "spine": "spine", ZONE: "a"}) for h, leaf in HOSTS),
)
ALIKE = {
    "topology.conf": TREE,
    "topology.yaml": TREE_YAML,
    "a conf in a document": f"Ours is:\n```\n$ cat topology.conf\n{TREE}```\nLinkSpeed=4 is old.\n",
    "scontrol show topology": SCONTROL,
    "graph.json": GRAPH,
    "nodes.json": KUBERNETES,
    "hosts": LIST,
    "hosts without a head": LIST.partition("spine\n")[2],
}
A100 = read_box("dgx-a100", resolve)


@pytest.mark.parametrize("name", ALIKE)
def test_all_formats_give_the_same_cluster(name: str) -> None:
    """Boxes with their own devices and links, 200 GB/s each into a leaf; a leaf's way up half of
    its two hosts', so 200.
    """
    topology = read_topology_text(ALIKE[name], name, A100)
    box = preset("dgx-a100")
    assert topology.extra["hosts"] == ["n0", "n1", "n2", "n3"]
    assert topology.ranks == tuple(f"{h}/gpu{i}" for h, _ in HOSTS for i in range(8))
    assert {d.extra["host"] for d in topology.devices if "/" in d.id} == {"n0", "n1", "n2", "n3"}
    for host, leaf in HOSTS:
        for link in box.links:
            assert (
                topology.capacity_GBps[f"{host}/{link.src}", f"{host}/{link.dst}"]
                == link.bandwidth_GBps
            )
        assert all(topology.capacity_GBps[f"{host}/gpu{i}", leaf] == 25 for i in range(8))
    assert topology.is_symmetric
    switches = {d.id: d for d in topology.devices if d.family == "network"}
    assert set(switches) == {"leaf0", "leaf1", "spine"}
    assert (
        topology.capacity_GBps["leaf0", "spine"] == topology.capacity_GBps["leaf1", "spine"] == 200
    )
    between = [x for x in topology.links if x.src in switches and x.dst in switches]
    assert len(between) == 4 and all((x.source or "").startswith("assumed") for x in between)
    assert topology.extra["notes"][-1].endswith("GB/s into the network")
    assert Topology.loads(topology.dumps(), "again") == topology
    with pytest.raises(InputError, match=r"4 hosts: it says where they are.*box=") as caught:
        read_topology_text(ALIKE[name], name)
    assert "\n" not in str(caught.value)


def test_a_given_rate_takes_the_place_of_assumed_ones_only() -> None:
    topology = state_rates([read_topology_text(TREE, "t", A100)], {"network": Fraction(77)})[0]
    assert topology.capacity_GBps["leaf0", "spine"] == 77
    assert topology.capacity_GBps["n0/gpu0", "leaf0"] == 25
    assert topology.extra["notes"] == []


def test_boxes_are_presets_or_files_of_one_host(tmp_path: Path) -> None:
    """A file's NICs of known speed are its ways out; without any the rate is assumed, and noted."""
    nic = Device("mlx5_0", "nic", extra={"net_speed_GBps": 12.5})
    wires = (
        *both_directions(Link("gpu0", "mlx5_0", Fraction(20))),
        *both_directions(Link("gpu1", "mlx5_0", Fraction(20))),
    )
    (tmp_path / "box.json").write_text(
        Topology("box", (Device("gpu0"), Device("gpu1"), nic), wires).dumps()
    )
    (tmp_path / "topology.conf").write_text(TREE)
    topology = load(tmp_path / "topology.conf", box=tmp_path / "box.json")
    assert topology.capacity_GBps["n3/mlx5_0", "leaf1"] == Fraction(25, 2)
    assert len(topology.ranks) == 8
    lone = resolve(str(tmp_path / "topology.conf"), "dgx1")
    assert lone.capacity_GBps["n3/gpu7", "leaf1"] == Fraction(5, 4)
    assert any("every host: no NIC" in note for note in lone.extra["notes"])
    nics = resolve(str(tmp_path / "topology.conf"), "mi250")
    assert nics.capacity_GBps["n1/nic7", "leaf0"] == 25 and len(nics.ranks) == 64
    for box, says in (
        ("dgx-a100:2", "2 hosts"),
        ("tpu", "unknown topology"),
        (str(tmp_path / "topology.conf"), "give box="),
    ):
        with pytest.raises(InputError, match=says):
            resolve(str(tmp_path / "topology.conf"), box)
    for argument in ("dgx1", "local", str(tmp_path), str(tmp_path / "box.json")):
        with pytest.raises(InputError, match="a box is only for files that say where hosts are"):
            resolve(argument, "dgx1")


def test_commands_take_them_with_a_box(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "topology.conf"
    path.write_text(TREE)
    assert probe([str(path), "--box", "dgx-h100", "--json"]) == 0
    assert Topology.loads(capsys.readouterr().out, "out").ranks[8] == "n1/gpu0"
    assert probe([str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert probe([str(path), "--box", "dgx-h100", "--network", "much"]) == 2


BLOCKS = (
    "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockName=b3 "
    "Nodes=n[5-6]\nBlockSizes=2,4\n"
)
BLOCKS_YAML = """\
- topology: blocks
  block:
    block_sizes: [2, 4]
    blocks:
      - {block: b1, nodes: "n[1-2]"}
      - {block: b2, nodes: "n[3-4]"}
      - {block: b3, nodes: "n[5-6]"}
"""


BLOCKS_SHOWN = """\
BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2
BlockName=b2 BlockIndex=1 Nodes=n[3-4] BlockSize=2
BlockName=b3 BlockIndex=2 Nodes=n[5-6] BlockSize=2
BlockSizes=2,4
"""


@pytest.mark.parametrize("text", [BLOCKS, BLOCKS_YAML, BLOCKS_SHOWN])
def test_blocks_are_leaves_and_their_sizes_what_is_above(text: str) -> None:
    topology = read_topology_text(text, "t", A100)
    upper = {
        x.src: x.dst
        for x in topology.links
        if x.kind == "network" and x.src.startswith("b") and "-" in x.dst
    }
    assert upper == {"b1": "blocks-of-4-0", "b2": "blocks-of-4-0", "b3": "blocks-of-4-1"}
    assert {
        ("blocks-of-4-0", "network0"),
        ("blocks-of-4-1", "network0"),
    } <= topology.capacity_GBps.keys()
    assert topology.capacity_GBps["blocks-of-4-0", "network0"] == 400


def test_spines_above_the_same_leaves_are_one() -> None:
    """Four spines, and two above these, are one of each; a switch without hosts below is left
    out.
    """
    leaves = (
        "SwitchName=l0 Nodes=a\nSwitchName=l1 Nodes=b\nSwitchName=t0 "
        "Switches=s[0-3]\nSwitchName=t1 Switches=s[0-3]\n"
    )
    topology = read_topology_text(
        leaves + "".join(f"SwitchName=s{i} Switches=l[0-1]\n" for i in range(4)), "t", A100
    )
    assert {d.id for d in topology.devices if d.family == "network"} == {"l0", "l1", "s0", "t0"}
    assert any(
        note.startswith("s0, s1, s2 and 1 more: above the same switches")
        for note in topology.extra["notes"]
    )
    assert topology.capacity_GBps["l0", "s0"] == topology.capacity_GBps["s0", "t0"] == 200


def test_labels_name_domains_within_domains() -> None:
    """Racks of one name in two zones are two; a tier in which every host is alone says nothing."""
    google = "cloud.google.com/gce-topology-"
    items = [
        node(
            f"n{i}",
            {google + "host": f"h{i}", google + "subblock": f"r{i % 2}", ZONE: f"z{i // 2 % 2}"},
        )
        for i in range(8)
    ]
    topology = read_topology_text(nodes(*items), "nodes", A100)
    names = {d.id for d in topology.devices if d.family == "network"}
    assert names == {"z0.r0", "z0.r1", "z1.r0", "z1.r1", "z0", "z1", "network0"}
    assert any("assumed to be joined by one network" in note for note in topology.extra["notes"])
    tiers = [
        node(
            f"n{i}",
            {"fabric.topograph.run/tier-0": f"l{i // 2}", "fabric.topograph.run/tier-1": "s"},
        )
        for i in range(4)
    ]
    assert ("l1", "s") in read_topology_text(nodes(*tiers), "nodes", A100).capacity_GBps


REFUSED = {
    "host twice": (
        "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n[0-2]\n",
        r"t: line 2: host n1 is there already \(t: line 1\)",
    ),
    "switch twice": (
        "SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n",
        r"line 2: switch a is there already",
    ),
    "apart": (
        "SwitchName=a Nodes=n1\n\nSwitchName=b Nodes=n2\n",
        r"line 3: nothing joins n2's switch b to n1's, a",
    ),
    "circle": (
        "SwitchName=a Nodes=n1\nSwitchName=b Switches=a,c\nSwitchName=c Switches=b\n",
        r"line \d: switches in a circ",
    ),
    "below itself": ("SwitchName=a Switches=a\n", r"line 1: switch a is below itself"),
    "no hosts": (
        "SwitchName=a Switches=b\nSwitchName=b Switches=c\nSwitchName=c LinkSpeed=1\n",
        r"line 3: .*names nothing",
    ),
    "unknown switch": ("SwitchName=a Nodes=n1\nSwitchName=b Switches=a,z\n", r"line 2: .*'z'"),
    "not a field": (
        "SwitchName=a Nodes=n1\nSwitchName=b Nodes = n2 x\n",
        r"line 2: 'x' is not Name=value",
    ),
    "another line": ("SwitchName=a Nodes=n1\nNodeName=b\n", r"line 2: .*begins with neither"),
    "bad list": ("SwitchName=a Nodes=n[1-\n", r"line 1: .*is no list of names"),
    "too many": ("SwitchName=a Nodes=n[0-9][0-9][0-9][0-9][0-9]\n", r"line 1: .*more than"),
    "both kinds": ("SwitchName=a Nodes=n1\nBlockName=b Nodes=n2\n", r"in one file"),
    "block sizes": (BLOCKS.replace("2,4", "2,3"), r"line 4: block sizes"),
    "yaml host twice": (TREE_YAML.replace("n2,n3", "n2,n1"), r"t: line 12: host n1 .*line 10"),
    "yaml key twice": (
        TREE_YAML.replace("nodes: n2,n3", "switch: x"),
        r"line 13: 'switch' is there twice",
    ),
    "yaml alias": ("- topology: &x a\n  flat: *x\n", r"line 2: an alias"),
    "yaml flat": ("- topology: a\n  flat: true\n", r"line 1: topology a is flat"),
    "yaml no default": (TREE_YAML.replace("cluster_default: true", ""), r"none of 2 topologies"),
    "yaml broken": ("- topology: a\n  tree: [\n", r"line \d: no YAML"),
    "yaml deep": ("- topology: " + "[" * 5000, r"line 1: deeper than"),
    "yaml no tree": ("- topology: a\n  tree: leaf\n", r"line 2: expected names with values"),
    "graph host twice": (
        GRAPH.replace('"n3"', '"n1"'),
        r"instances\[3\]: host n1 .*instances\[1\]",
    ),
    "graph contradicts": (
        GRAPH.replace('["leaf1", "spine"]', '["leaf1", "x"]', 1),
        r"instances\[3\]: leaf1 is below spine",
    ),
    "graph no layers": ('{"instances": [{"id": "a"}]}', r"instances\[0\]"),
    "graph cut off": (GRAPH[:-5], r"malformed JSON"),
    "no label": (
        nodes(node("a", {ZONE: "z"}), node("b", {})),
        r"items\[1\]: node b has no label topology",
    ),
    "no labels": (nodes(node("a", {}), node("b", {})), r"no node has a label"),
    "pods": (nodes({**node("a", {}), "kind": "Pod"}), r"items\[0\]: a 'Pod'; expected nodes"),
    "no nodes": (nodes(), r"without a host"),
    "list host twice": (LIST + "n0 leaf0 spine\n", r"t: line 7: host n0 .*line 3"),
    "list contradicts": (
        LIST + "n4 leaf0 other\n",
        r"line 7: leaf0 is below other, and below spine at line 3",
    ),
    "list short": (LIST + "n4 leaf0\n", r"line 7: 2 words, and 3 columns \(host, rack, spine\)"),
    "list no hosts": ("host rack\n", r"without a host"),
    "a bad name": ("host rack\nn/1 r\nn2 r\n", r"line 2: 'n/1' is no name of a host"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_one_line_with_its_place(case: str) -> None:
    text, says = REFUSED[case]
    with pytest.raises(InputError, match=says) as caught:
        read_topology_text(text, "t", A100)
    assert "\n" not in str(caught.value) and str(caught.value).startswith("t:")


def test_other_texts_are_not_taken_for_lists_of_hosts() -> None:
    for text in (
        "GPU0 X SYS\nGPU1 X SYS\n",
        "a poem\nof two words\n",
        "one two\nthree four\n",
        "alone\nalone\n",
        "copy_to_gpu0 25.5\ncopy_to_gpu1 25.5\ncopy_back 0\n",
        "name rate\nread 11.25\nwrite 11.25\n",
        "read 11.25 us\nwrite 1.5e-3 us\n",
    ):
        with pytest.raises(InputError, match=r"not a format|nvidia-smi|GPU"):
            read_topology_text(text, "t")
        with pytest.raises(InputError, match="a box is only for files that say where hosts are"):
            read_topology_text(text, "t", A100)


def test_racks_may_be_numbers() -> None:
    for racks in ("1 1 2 2", "rack-1.5 rack-1.5 r2 r2"):
        text = "".join(f"n{i} {rack}\n" for i, rack in enumerate(racks.split()))
        assert len(read_topology_text(text, "t", A100).ranks) == 32
    assert read_topology_text("host rack\nn0 1.5\nn1 1.5\n", "t", A100)


def test_host_lists_expand_as_slurm_does() -> None:
    assert expand_hostlist("tux[0-2,12],login", "t") == ["tux0", "tux1", "tux2", "tux12", "login"]
    assert expand_hostlist("r[0-1]n[08-10]x", "t") == [
        f"r{r}n{n}x" for r in "01" for n in ("08", "09", "10")
    ]
    for bad in ("", "a[", "a]", "a[[1]]", "a[3-1]", "a[x]", f"a[0-{MAX_HOSTS}]"):
        with pytest.raises(InputError):
            expand_hostlist(bad, "t")


DAMAGE = ("", "[", "]", ",", "n0", "leaf0", "\n", "\\", "{", '"', ":", "- ", "\0", "é", "#")


@settings(max_examples=count_examples(15), deadline=None)
@given(st.sampled_from(sorted(ALIKE)), st.data())
def test_damaged_files_give_a_cluster_or_one_line(name: str, data: st.DataObject) -> None:
    text = ALIKE[name]
    for _ in range(data.draw(st.integers(1, 3))):
        at, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 12))
        text = text[:at] + data.draw(st.sampled_from(DAMAGE)) + text[at + length :]
    try:
        topology = read_topology_text(text, "t", A100)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert Topology.loads(topology.dumps(), "again") == topology
