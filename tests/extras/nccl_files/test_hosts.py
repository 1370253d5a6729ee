"""Graph files for several equal hosts: sound by NCCL's rules, and above modelled stock NCCL."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from called import call_command
from needs import long_cases
from unhurried import make_effort

import topoplan
from topoplan.synth.extras.nccl_files.export import NCCL_GRAPH, export
from topoplan.synth.extras.nccl_files.graph_check import check_graph_file
from topoplan.synth.extras.nccl_files.graph_file import (
    RING_ID,
    TREE_ID,
    GraphFile,
    read_graph_file,
)
from topoplan.synth.extras.stock.nics import NicPaths
from topoplan.synth.extras.stock.paths import find_gpu_paths
from topoplan.synth.extras.stock.system import NET, LOCAL_kBps, build_system
from topoplan.synth.ir.collective import Collective
from topoplan.synth.library_format import Export
from topoplan.topo.errors import InfeasibleError
from topoplan.topo.formats import nccl_xml
from topoplan.topo.routes import Router


def gpu(number: int, partner: int | None, sm: int = 80) -> str:
    bridge = (
        ""
        if partner is None
        else f'<nvlink target="0000:{partner + 1:02x}:00.0" count="12" tclass="0x030200"/>'
    )
    return (
        f'<pci busid="0000:{number + 1:02x}:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" '
        f'link_width="16"><gpu dev="{number}" rank="{number}" sm="{sm}" gdr="1">{bridge}</gpu>'
        "</pci>"
    )


def nic(number: int, mbps: int | str = 200_000) -> str:
    return (
        f'<pci busid="0000:{number + 0x81:02x}:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" '
        f'link_width="16"><nic><net name="mlx5_{number}" dev="{number + 3}" speed="{mbps}" '
        f'port="1" guid="0x{number + 1}" gdr="1"/></nic></pci>'
    )


def host(*sockets: str) -> str:
    cpus = "".join(
        f'<cpu numaid="{i}" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">{below}'
        "</cpu>"
        for i, below in enumerate(sockets)
    )
    return f'<system version="1">{cpus}</system>'


def switch(number: int, below: str) -> str:
    return (
        f'<pci busid="0000:{number + 0x40:02x}:00.0" class="0x060400" '
        f'link_speed="16.0 GT/s PCIe" link_width="16">{below}</pci>'
    )


def pairs(count: int, nics: Mapping[int, int | str]) -> str:
    """Return a host of bridged pairs, each on a PCIe switch, some with a NIC of a speed."""
    slots = [
        switch(
            k,
            gpu(2 * k, 2 * k + 1) + gpu(2 * k + 1, 2 * k) + (nic(k, nics[k]) if k in nics else ""),
        )
        for k in range(count)
    ]
    return host("".join(slots[: count // 2]), "".join(slots[count // 2 :]))


def write(text: str, hosts: int, name: str = "allreduce", guard: bool = True) -> Export:
    topology = nccl_xml.read(text, "machine")
    collective = Collective(name, len(topology.ranks))
    return export(NCCL_GRAPH, collective, Router(topology), make_effort(), guard=guard, hosts=hosts)


def rate_GBps(file: GraphFile, number: int, text: str, hosts: int) -> Fraction:
    """Return the algbw of an allreduce by the loads on links, as NCCL connects the channels."""
    system = build_system(nccl_xml.read(text, "machine"))
    gpu_paths = find_gpu_paths(system, None, True)
    nics = NicPaths(system, gpu_paths, True)
    net_at = {net.element.get_integer("dev", 0): net.index for net in system.nodes[NET]}
    graph = file.find(number)
    assert graph is not None
    gpus = len(graph.channels[0])
    loads: Counter[object] = Counter()
    capacity: dict[object, int] = {}
    for order, (first, last) in zip(graph.channels, graph.nets, strict=True):
        ends = [(nics.back[order[0], net_at[first]], 1)]
        hops = list(pairwise(order))
        if number == RING_ID:
            ends.append((nics.out[order[-1], net_at[last]], 1))
        else:
            hops += [(b, a) for a, b in hops]
            ends.append((nics.out[order[0], net_at[first]], 1))
            # Each host of a double tree has two neighbours on average, of two hosts one.
            ends *= 1 if hosts == 2 else 2
        for path in [*(gpu_paths.paths[hop] for hop in hops), *(path for path, _ in ends)]:
            for link in path.links:
                loads[link] += 1
                capacity[link] = link.rate_kBps
    busiest = max(
        Fraction(load, capacity[link])
        for link, load in loads.items()
        if capacity[link] < LOCAL_kBps
    )
    ranks = gpus * hosts
    passes = Fraction(2 * (ranks - 1), ranks) if number == RING_ID else Fraction(1)
    return graph.nchannels / busiest / passes / 10**6


def check_sound(text: str, made: Export, hosts: int, gpus: int) -> GraphFile:
    """Check a file by NCCL's rules, and its figures and speeds by the loads of its channels."""
    file = read_graph_file(made.text, "the file")
    check_graph_file(file, range(gpus))
    assert "rank=" not in made.text and f"for jobs of {hosts} hosts" in made.text.splitlines()[1]
    for number, name in ((RING_ID, "rings"), (TREE_ID, "chains")):
        graph = file.find(number)
        assert graph is not None and all(len(nets) == 2 for nets in graph.nets)
        rate = rate_GBps(file, number, text, hosts)
        assert made.figures["algbw_GBps"][name] == pytest.approx(float(rate))
        ranks = gpus * hosts
        share = Fraction(ranks, 2 * (ranks - 1)) if number == RING_ID else Fraction(1, 2)
        counted = graph.nchannels * graph.speedinter * share
        assert graph.speedintra == graph.speedinter
        assert float(counted) == pytest.approx(float(rate), rel=1e-3)
    return file


@pytest.mark.long
def test_pairs_with_two_nics_gain_as_by_hand(tmp_path: Path) -> None:
    """Trees of 16 GB/s where stock takes rings of 8.5, as a file written by hand had."""
    text = pairs(4, {0: 200_000, 2: 200_000})
    machine, path = tmp_path / "host.xml", tmp_path / "graph.xml"
    machine.write_text(text)
    args = ["--collective", "allreduce", "--topology", str(machine), "--format", "nccl-graph"]
    done = call_command("synth", *args, "--hosts", "2", "--json", "-o", str(path))
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["nccl_graph"]
    assert figures["written"] and figures["hosts"] == 2 and figures["fraction"] == 1
    assert figures["algbw_GBps"]["chains"] == 16 and figures["picked"] == "chains"
    assert figures["counted_bound_GBps"] == 16 and "bound_one_way" not in figures
    assert figures["stock_model"]["stock_GBps"] == figures["stock_model"]["algbw_GBps"]["rings"]
    assert figures["stock_model"]["picked"] == "rings" and figures["over_stock"]["1"] > 1.8
    assert all(ratio >= 1 for ratio in figures["over_stock"].values())
    trees = read_graph_file(path.read_text(), "file").find(TREE_ID)
    # One tree begins at each NIC, at a GPU on the NIC's own switch.
    assert trees is not None and trees.typeinter == "PIX"
    assert {net for nets in trees.nets for net in nets} == {3, 5}


@pytest.mark.parametrize("seed", long_cases(range(6), 0, 2, 3, 4, 5))
def test_files_for_random_hosts_are_sound(seed: int) -> None:
    chance = random.Random(seed)
    count, hosts = chance.choice([1, 2, 2]), chance.choice([2, 3, 4])
    speeds = {
        k: chance.choice([50_000, 100_000, 200_000]) for k in range(count) if chance.random() < 0.7
    }
    text = pairs(count, speeds or {0: 100_000})
    name = chance.choice(["allreduce", "allgather"])
    guarded = write(text, hosts, name)
    if guarded.reason is None:
        assert all(ratio >= 1 for ratio in guarded.figures["over_stock"].values())
    made = write(text, hosts, name, guard=False)
    if name == "allreduce":
        check_sound(text, made, hosts, 2 * count)
    assert made.reason is None and 0 < made.figures["fraction"] <= 1 + 1e-9


def test_hosts_that_would_be_guesses_are_refused() -> None:
    for text, words in (
        (pairs(2, {}), "no NICs"),
        (pairs(2, {0: 100_000, 1: ""}), "speed of mlx5_1 is unknown"),
    ):
        with pytest.raises(InfeasibleError, match=words):
            write(text, 2)


@pytest.mark.long
def test_the_variable_is_set_in_jobs_of_several_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCL_GRAPH_FILE", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    machine = tmp_path / "host.xml"
    machine.write_text(pairs(1, {0: 100_000}))
    with topoplan.nccl_graph(str(machine), guard=False) as path:
        assert path is not None and os.environ["NCCL_GRAPH_FILE"] == str(path)
        assert "for jobs of 2 hosts" in path.read_text()
    assert "NCCL_GRAPH_FILE" not in os.environ
