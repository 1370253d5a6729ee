"""Settings for NCCL, host files for MLX and the next cable, on hosts that cables join."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import on
from thorough import count_examples
from unhurried import make_effort

from topoplan.cli.synth import main
from topoplan.extras import FILES, Names
from topoplan.synth.bounds.single_path import find_bounds
from topoplan.synth.extras.cables.hosts import read_hosts
from topoplan.synth.extras.cables.next_cable import find_next_cables
from topoplan.synth.extras.cables.rings import list_rings
from topoplan.synth.ir.collective import Collective
from topoplan.synth.library_format import Export, LibraryRequest
from topoplan.synth.numeric.effort import Effort
from topoplan.topo.errors import InfeasibleError
from topoplan.topo.extras.cables import (
    FabricFacts,
    Hello,
    HostFacts,
    PortAnswer,
    PortFacts,
    make_topology,
)
from topoplan.topo.extras.cables.facts import list_possible_pairs
from topoplan.topo.graph import Device, Link, Topology
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

# Two ends of a cable: a host's number, and the number of its port.
Wire = tuple[tuple[int, int], tuple[int, int]]
# Names of a host's ports on Linux, by their numbers.
PORT, RDMA = "enp1s0f{}np{}", "roce{}"


def cable(
    hosts: int,
    wires: Sequence[Wire],
    *,
    port: str = PORT,
    rdma: str = RDMA,
    ports: int = 0,
    GBps: int = 25,
    out_GBps: int | None = None,
) -> Topology:
    """Return hosts that cables join; `ports` is how many each has. With `out_GBps` a host sends and
    receives as much over all of its ports.
    """
    free = [port.format(k, k) for k in range(ports)]
    devices = [Device(f"gpu{h}", extra={"host": f"h{h}", "ports": free}) for h in range(hosts)]
    ends = [(f"gpu{h}", f"gpu{h}") for h in range(hosts)]
    links = []
    if out_GBps is not None:
        ends = [(f"h{h}/out", f"h{h}/in") for h in range(hosts)]
        for h, pair in enumerate(ends):
            devices += [Device(x, "cpu", extra={"host": f"h{h}"}) for x in pair]
            links.append(Link(f"gpu{h}", pair[0], Fraction(out_GBps)))
            links.append(Link(pair[1], f"gpu{h}", Fraction(out_GBps)))
    for wire in wires:
        for (a, x), (b, y) in (wire, wire[::-1]):
            extra = {"src_port": port.format(x, x), "dst_port": port.format(y, y)}
            if rdma:
                extra |= {"src_rdma": [rdma.format(x)], "dst_rdma": [rdma.format(y)]}  # type: ignore[dict-item]
            links.append(Link(ends[a][0], ends[b][1], Fraction(GBps), kind="network", extra=extra))
    return Topology("cabled", tuple(devices), tuple(links))


def ring(order: Sequence[int], crossed: bool = True) -> list[Wire]:
    """Return the cables of a ring: from port 0 to port 1, or between equal ports in turns."""
    edges = [*pairwise(order), (order[-1], order[0])]
    return [
        ((a, 0), (b, 1)) if crossed else ((a, i % 2), (b, i % 2)) for i, (a, b) in enumerate(edges)
    ]


NCCL_ENV, MLX_HOSTFILE = "nccl-env", "mlx-hostfile"
MESH_OF_4 = [((0, 0), (1, 0)), ((2, 0), (3, 0)), ((0, 1), (2, 1)), ((1, 1), (3, 1)),
             ((0, 2), (3, 2)), ((1, 2), (2, 2))]  # fmt: skip


def write(
    topology: Topology, form: str = NCCL_ENV, name: str = "allreduce", version: str = "2.30.7"
) -> Export:
    wanted = LibraryRequest(
        on(name, topology), Router(topology), make_effort(), None, version, size_bytes=1 << 30
    )
    made: Export = Names(FILES).find(form).write(wanted)
    return made


def source(script: str, host: str) -> Mapping[str, str]:
    """Return the NCCL variables that a script sets on a host."""
    shell = subprocess.run(
        ["sh", "-c", f'hostname() {{ echo {host}; }}\n{script}\nenv | grep "^NCCL_"'],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    return dict(line.split("=", 1) for line in shell.stdout.splitlines())


def test_a_ring_of_three_sparks_has_the_settings_of_nvidias_playbook() -> None:
    made = write(preset("spark-ring:3"))
    assert made.reason is None
    assert source(made.text, "spark1") == {
        "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
        "NCCL_IB_MERGE_NICS": "0",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_SOCKET_IFNAME": "=enP7s7",
        "NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0,rocep1s0f1,roceP2p1s0f1",
    }
    assert made.beside == "spark0 slots=1\nspark1 slots=1\nspark2 slots=1\n"
    assert made.figures["nccl_since"] == "2.30.7"
    # 25 GB/s one way round, while both ways together reach the 28 of two PCIe links.
    assert made.figures["algbw_GBps"] == 18.75
    assert made.figures["bound_one_way"] == 21


def test_from_four_hosts_on_only_rings_connect() -> None:
    for hosts in (4, 5):
        made = write(preset(f"spark-ring:{hosts}"))
        assert made.figures["rings_only"]
        settings_ = source(made.text, "spark0")
        assert settings_["NCCL_ALGO"] == "RING"
        assert settings_["NCCL_CUMEM_ENABLE"] == settings_["NCCL_RUNTIME_CONNECT"] == "1"
        assert "ncclTransportTreeConnect" in made.text
    assert not write(preset("spark-ring:3")).figures["rings_only"]


def test_two_cables_between_equal_ports_need_no_new_nccl() -> None:
    made = write(preset("spark-pair"), version="2.18")
    assert made.reason is None
    assert source(made.text, "spark0").keys() == {"NCCL_IB_HCA", "NCCL_SOCKET_IFNAME"}
    assert made.figures["fraction"] == 1
    assert made.figures["nccl_since"] is None
    crossed = cable(2, [((0, 0), (1, 1)), ((0, 1), (1, 0))])
    # Merged, the first port of one host would talk to the first one of the other.
    assert source(write(crossed).text, "h0")["NCCL_IB_MERGE_NICS"] == "0"
    assert "before 2.30.7" in str(write(crossed, version="2.29").reason)


@pytest.mark.parametrize(
    ("version", "starts"), [("2.29.7", 0), ("2.30.4", 0), ("2.30", 1), ("2.31", 1)]
)
def test_a_ring_needs_the_version_that_knows_subnets(version: str, starts: int) -> None:
    reason = write(preset("spark-ring:3"), version=version).reason
    assert (reason is None) == bool(starts)
    assert starts or "NCCL before 2.30.7 cannot start on this cabling" in str(reason)


def test_cables_between_equal_ports_need_merged_cards() -> None:
    """Users report both: without merging such a ring fails (luxingcom/aicad-nccl-optimization#1),
    and with it one of four starts (tonyd2wild/GLM-5.3-Int4-Int8Mix-TP4-4x-DGX-Spark#2).
    """
    topology = cable(4, ring(range(4), crossed=False))
    assert source(write(topology).text, "h0")["NCCL_IB_MERGE_NICS"] == "1"
    # Ports of two cards are not merged.
    apart = cable(4, ring(range(4), crossed=False), port="enp{}s0")
    reason = str(write(apart).reason)
    assert "pairs ports by their numbers" in reason
    assert "join the first port of each host to the second one of the next" in reason


def test_the_ring_follows_the_cables_whatever_the_numbers_of_hosts() -> None:
    made = write(cable(5, ring([0, 3, 1, 4, 2])))
    assert made.figures["ranks"] in ([0, 3, 1, 4, 2], [0, 2, 4, 1, 3])
    assert [line.split()[0] for line in str(made.beside).splitlines()] == made.figures["order"]


def test_in_a_mesh_of_four_each_host_uses_the_two_ports_of_the_ring() -> None:
    topology = cable(4, MESH_OF_4, port="enp{}s0")
    made = write(topology)
    # Equal ports are joined, so no ring connects with separate cards.
    assert made.reason is not None
    # With the ports of the ring 0-1-2-3 crossed and the diagonals elsewhere, it does.
    crossed = [*ring(range(4)), ((0, 2), (2, 2)), ((1, 2), (3, 2))]
    made = write(cable(4, crossed, port="enp{}s0"))
    assert made.figures["ranks"] == [0, 1, 2, 3]
    assert made.figures["rings_only"]
    assert {own["NCCL_IB_HCA"] for own in made.figures["hosts"].values()} == {"=roce0,roce1"}
    assert "cables that are not in the ring are idle" in made.text
    assert made.figures["fraction"] == pytest.approx(1 / 3)


def test_where_no_order_has_a_cable_between_all_neighbours_nothing_is_written() -> None:
    star = cable(4, [((0, k - 1), (k, 0)) for k in range(1, 4)])
    reason = str(write(star).reason)
    assert "stock NCCL (2.30.7) cannot start on this cabling" in reason
    assert "plans of topoplan relay along the cables" in reason
    without_rdma = str(write(preset("strix-ring:4")).reason)
    assert "cannot start on this cabling without RDMA" in without_rdma


@pytest.mark.parametrize(
    ("topology", "form", "name", "says"),
    [
        ("dgx1", NCCL_ENV, "allreduce", "it has a single host"),
        ("dgx-a100:2", NCCL_ENV, "allreduce", "is a switch between hosts"),
        ("spark-ring:4", NCCL_ENV, "alltoall", "does not go around NCCL's rings"),
        ("mac-mesh:4", NCCL_ENV, "allreduce", "NCCL does not run on Macs; write mlx-hostfile"),
        ("mac-mesh:4", MLX_HOSTFILE, "alltoall", "MLX has no alltoall"),
        ("spark-ring:3", MLX_HOSTFILE, "allreduce", "neither RDMA devices of Macs nor addresses"),
    ],
)
def test_what_cannot_be_written_is_one_line(topology: str, form: str, name: str, says: str) -> None:
    with pytest.raises(InfeasibleError) as caught:
        write(preset(topology), form, name)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_interfaces_without_names_are_left_out() -> None:
    """NCCL finds no interface by an empty list."""
    unnamed = cable(2, [((0, 0), (1, 0))], port="", rdma="")
    assert source(write(unnamed).text + "export NCCL_DEBUG=WARN", "h0") == {"NCCL_DEBUG": "WARN"}


@pytest.mark.long
def test_rings_have_any_number_of_hosts() -> None:
    order = tuple(range(1010))  # more than Python calls functions inside each other
    assert list_rings(read_hosts(cable(len(order), ring(order)))) == [order]


# -- found cables


def find_fabric(rdma: bool = True) -> FabricFacts:
    """Return the facts of three hosts in a ring, with a management network and a free port each."""
    hosts = tuple(
        HostFacts(
            f"box{h}",
            (h,),
            (
                PortFacts("eth0", f"192.168.7.{h + 1}/24"),
                *(
                    PortFacts(
                        f"enp1s0f{k}",
                        f"10.0.{(h - k) % 3}.{k + 1}/24",
                        speed_Mbps=200_000,
                        rdma=f"mlx5_{k}" if rdma else "",
                    )
                    for k in range(2)
                ),
                PortFacts("enp2s0", is_up=False),
            ),
            management="eth0",
        )
        for h in range(3)
    )
    pairs = list_possible_pairs(hosts)
    hellos = tuple(Hello(*q, *p) for p, q in pairs)
    return FabricFacts(hosts, hellos, tuple(PortAnswer(*p, *q, *q) for p, q in pairs))


def test_found_cables_name_their_devices_and_the_management_network() -> None:
    made = write(make_topology(find_fabric()))
    assert source(made.text, "box2") == {
        "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
        "NCCL_IB_MERGE_NICS": "0",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "NCCL_IB_HCA": "=mlx5_0,mlx5_1",
    }
    # Macs without RDMA have MLX's ring over TCP: each rank listens on the cable to the one before.
    file = json.loads(write(make_topology(find_fabric(rdma=False)), MLX_HOSTFILE).text)
    assert file["backend"] == "ring"
    assert [row["ips"] for row in file["hosts"]] == [["10.0.2.2"], ["10.0.0.2"], ["10.0.1.2"]]


# -- MLX


def check_mlx(topology: Topology, file: Mapping[str, Any]) -> None:
    """Check a host file by MLX's own rules: the matrix is a mesh or a ring, and the k-th devices of
    two ends are on one cable.
    """
    hosts = read_hosts(topology)
    number = {name: i for i, name in enumerate(hosts.names)}
    order = [number[row["ssh"]] for row in file["hosts"]]
    count = len(order)
    cells = [
        [[] if x is None else [x] if isinstance(x, str) else x for x in row["rdma"]]
        for row in file["hosts"]
    ]
    assert file["hosts"][0]["ips"]
    for i in range(count):
        for j in range(count):
            near = (i - j) % count in (1, count - 1)
            assert bool(cells[i][j]) == (i != j and (file["backend"] == "jaccl" or near))
            assert len(cells[i][j]) in (0, len(cells[0][1]))
            for mine, theirs in zip(cells[i][j], cells[j][i], strict=True):
                ends = [
                    {x.find_end(order[i]).rdma[0], x.find_end(order[j]).rdma[0]}
                    for x in hosts.between[order[i], order[j]]
                    if x.find_end(order[i]).rdma[0] == mine
                ]
                assert ends == [{mine, theirs}]


def test_a_mesh_of_macs_and_a_ring_of_macs() -> None:
    made = write(preset("mac-mesh:4"), MLX_HOSTFILE)
    file = json.loads(made.text)
    check_mlx(preset("mac-mesh:4"), file)
    assert file["backend"] == "jaccl"
    assert file["hosts"][1]["rdma"] == ["rdma_en2", None, "rdma_en3", "rdma_en4"]
    assert made.figures["algbw_GBps"] == made.figures["bound_one_way"] == 20
    # Two cables between neighbours: MLX's ring uses both, and reaches the bound.
    double = [((a, 2 * x + k), (b, 2 * y + k)) for (a, x), (b, y) in ring(range(4)) for k in (0, 1)]
    topology = cable(4, double, port="en{}", rdma="rdma_en{}", GBps=10)
    made = write(topology, MLX_HOSTFILE)
    file = json.loads(made.text)
    check_mlx(topology, file)
    assert file["backend"] == "jaccl-ring"
    assert file["hosts"][0]["rdma"][1] == ["rdma_en0", "rdma_en1"]
    assert made.figures["fraction"] == 1


@st.composite
def cablings(draw: st.DrawFn, port: str = PORT, rdma: str = RDMA) -> Topology:
    """Draw hosts with cables between arbitrary free ports."""
    hosts = draw(st.integers(2, 5))
    pairs = [(h, draw(st.integers(0, h - 1))) for h in range(1, hosts)]
    pair = st.tuples(st.integers(0, hosts - 1), st.integers(0, hosts - 1))
    pairs += [(a, b) for a, b in draw(st.lists(pair, max_size=8)) if a != b]
    count = [0] * hosts
    numbers = [draw(st.permutations(range(len(pairs)))) for _ in range(hosts)]
    wires = []
    for a, b in pairs:
        wires.append(((a, numbers[a][count[a]]), (b, numbers[b][count[b]])))
        count[a] += 1
        count[b] += 1
    out = draw(st.sampled_from([None, 10, 28, 60]))
    return cable(hosts, wires, out_GBps=out, port=port, rdma=rdma)


@settings(max_examples=count_examples(6))
@given(cablings(), st.sampled_from(["allreduce", "allgather"]))
def test_no_claim_exceeds_the_bound_and_rings_follow_cables(topology: Topology, name: str) -> None:
    made = write(topology, name=name)
    hosts, order = read_hosts(topology), made.figures["ranks"]
    assert sorted(order) == list(range(hosts.count))
    if made.reason is None:
        assert 0 < made.figures["fraction"] <= 1
        assert all(pair in hosts.between for pair in [*pairwise(order), (order[-1], order[0])])
        for own in made.figures["hosts"].values():
            assert own["NCCL_IB_HCA"].startswith("=roce")
    else:
        assert "cannot start on this cabling" in made.reason


@settings(max_examples=count_examples(6))
@given(cablings(port="en{}", rdma="rdma_en{}"), st.sampled_from(["allreduce", "allgather"]))
def test_host_files_of_mlx_join_ends_of_one_cable(topology: Topology, name: str) -> None:
    try:
        made = write(topology, MLX_HOSTFILE, name)
    except InfeasibleError as error:
        assert "neither a cable between every two hosts nor a ring" in str(error)
        return
    check_mlx(topology, json.loads(made.text))
    assert 0 < made.figures["fraction"] <= 1


# -- the next cable


def next_cables(topology: Topology) -> dict[str, Any]:
    bound = find_bounds(on("allreduce", topology), Router(topology), make_effort()).single_path
    found = find_next_cables(topology, on("allreduce", topology), bound, make_effort())
    return {**found.to_json(), "lines": found.list_lines()}


def test_a_chain_of_sparks_is_best_closed_to_a_ring() -> None:
    whole = preset("spark-ring:4")
    chain = replace(
        whole,
        links=tuple(x for x in whole.links if {x.src[:6], x.dst[:6]} != {"spark3", "spark0"}),
    )
    found = next_cables(chain)
    assert found["next"][0] == {
        "hosts": ["spark0", "spark3"],
        "needs_ports": [],
        "alike": 1,
        "bound_one_way": pytest.approx(56 / 3),
        "nccl_GBps": pytest.approx(50 / 3),
    }
    assert found["bound_one_way"] == 14
    assert found["nccl_GBps"] is None
    assert "it does not start now" in found["lines"][0]


def test_a_cable_needs_free_ports() -> None:
    found = next_cables(preset("strix-ring:4"))
    assert found["next"][0]["needs_ports"] == ["strix0", "strix2"]
    assert found["next"][0]["alike"] == 2
    assert found["next"][0]["bound_one_way"] == pytest.approx(25 / 3)
    assert "would need another port" in found["lines"][0]
    assert found["lines"][1].endswith("none helps")
    # With a third port at all hosts the same cable needs none.
    found = next_cables(cable(4, ring(range(4)), rdma="", ports=3, GBps=5))
    assert found["next"][0]["needs_ports"] == []
    assert len(found["lines"]) == 1
    # Two PCIe links limit a Spark, however many cables it has.
    assert "no single one" in next_cables(preset("spark-ring:3"))["lines"][0]


@pytest.mark.parametrize("name", ["spark-ring:4", "strix-ring:5", "mac-mesh:3"])
def test_bounds_with_one_more_cable_are_those_of_the_machine_that_has_it(name: str) -> None:
    topology = preset(name)
    collective = on("allreduce", topology)
    before = find_bounds(collective, Router(topology), make_effort()).single_path
    found = find_next_cables(topology, collective, before, make_effort())
    hosts = read_hosts(topology)
    assert sum(x.alike for x in found.cables) == hosts.count * (hosts.count - 1) // 2
    for x in found.cables:
        numbers = [hosts.names.index(host) for host in x.hosts]
        ends = [next(c.links for c in hosts.cables if c.ends[0].host == n) for n in numbers]
        more = [replace(ends[i][0], dst=ends[1 - i][1].dst) for i in (0, 1)]
        wider = replace(topology, links=(*topology.links, *more))
        after = find_bounds(collective, Router(wider), make_effort()).single_path
        assert x.bound_GBps == after.algbw_GBps


# -- the command


def test_the_command_writes_settings_and_hosts_or_says_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env, old = tmp_path / "nccl.env", tmp_path / "old.env"
    synth = ["allreduce", "spark-ring:3", "--format", "nccl-env", "-o"]
    assert main([*synth, str(env)]) == 0
    assert "its rings reach at most 18.75 GB/s algbw" in capsys.readouterr().out
    assert (tmp_path / "nccl.env.hosts").read_text() == "".join(
        f"spark{h} slots=1\n" for h in range(3)
    )
    assert main([*synth, str(old), "--nccl-version", "2.29", "--json"]) == 0
    out = capsys.readouterr()
    assert json.loads(out.out)["nccl_env"]["written"] is False
    assert out.err.startswith("no settings written: NCCL before 2.30.7 cannot start")
    assert not old.exists()
    assert main([*synth, str(old), "--nccl-version", "2.29", "--no-guard"]) == 0
    assert old.read_text() == env.read_text()


def test_no_cable_is_advised_by_a_bound_that_may_be_too_high() -> None:
    topology = preset("spark-ring:4")
    collective, router = Collective("allreduce", len(topology.ranks)), Router(topology)
    limit = find_bounds(collective, router).single_path
    whole = find_next_cables(topology, collective, limit, Effort())
    assert whole.cables and not whole.left_out
    unknown = find_next_cables(topology, collective, replace(limit, is_cut_short=True), Effort())
    assert not unknown.cables and "not known" in unknown.list_lines()[0]
    left = find_next_cables(topology, collective, limit, Effort(0.0))
    assert left.left_out and "not compared" in left.list_lines()[-1]
    assert left.to_json()["cut_short"] is True
