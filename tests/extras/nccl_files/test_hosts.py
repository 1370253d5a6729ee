"""Graph files for several equal hosts: sound by NCCL's rules, and above modelled stock NCCL."""

from __future__ import annotations

import json
import random
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from called import call_command
from needs import long_cases
from unhurried import make_effort
from xml_hosts import pairs

from topoplan.synth.extras.nccl_files.export import NCCL_GRAPH, export
from topoplan.synth.extras.nccl_files.graph_check import check_graph_file
from topoplan.synth.extras.nccl_files.graph_file import (
    RING_ID,
    TREE_ID,
    GraphFile,
    read_graph_file,
)
from topoplan.synth.extras.stock.constants import LOCAL_kBps
from topoplan.synth.extras.stock.nics import NicPaths
from topoplan.synth.extras.stock.paths import find_gpu_paths
from topoplan.synth.extras.stock.system import NET, build_system
from topoplan.synth.ir.collective import Collective
from topoplan.synth.library_format import Export
from topoplan.topo.errors import InfeasibleError
from topoplan.topo.formats import nccl_xml
from topoplan.topo.routes import Router


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
