"""Graph files are never below modelled stock NCCL, and are written where something is gained."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from needs import long_cases
from random_graphs import on
from random_hosts import make_host

from topoplan.cli import synth
from topoplan.synth.extras.nccl_files.export import NCCL_GRAPH, export
from topoplan.synth.extras.nccl_files.gpu_numbers import number_gpus
from topoplan.synth.extras.nccl_files.graph_check import list_channels
from topoplan.synth.extras.nccl_files.graph_file import RING_ID, TREE_ID, read_graph_file
from topoplan.synth.extras.stock.model import StockModel, model_stock, rate_orders
from topoplan.synth.extras.stock.paths import find_gpu_paths
from topoplan.synth.extras.stock.routes import NcclRouter
from topoplan.synth.extras.stock.system import GPU, build_system
from topoplan.synth.library_format import Export
from topoplan.synth.numeric.effort import Effort
from topoplan.topo.formats import nccl_xml
from topoplan.topo.graph import Topology
from topoplan.topo.routes import Router

SIZE_bytes = 1 << 30
COMMAND = ("--collective", "allreduce", "--format", "nccl-graph")


def make_file(topology: Topology, collective: str = "allreduce") -> Export:
    return export(NCCL_GRAPH, on(collective, topology), Router(topology), Effort())


@pytest.mark.parametrize(
    "seed", long_cases([1, 3, 5, 12, 19, 24, 39, 40, 48], 1, 3, 5, 19, 24, 39, 40, 48)
)
def test_no_written_file_is_below_stock(seed: int) -> None:
    """Rated again from the file's text alone, with links between CPUs 1, 2 and 4 times as fast."""
    topology = make_host(seed)
    stock, made = model_stock(topology), make_file(topology)
    assert isinstance(stock, StockModel)
    assert made.figures["written"] == (made.reason is None)
    if made.reason is not None:
        return
    system = build_system(topology)
    index = {gpu.rank: gpu.index for gpu in system.nodes[GPU]}
    own, default = (
        find_gpu_paths(system, None, nvb)
        for nvb in ("NCCL_NVB_DISABLE" not in made.environment, True)
    )
    file = read_graph_file(made.text, "graph.xml")
    for factor in (1, 2, 4):
        rates = {}
        for number, name, channels in (
            (RING_ID, "rings", stock.rings),
            (TREE_ID, "chains", stock.chains),
        ):
            graph = file.find(number)
            assert graph is not None
            ours = list_channels(graph, number_gpus(topology).rank_of, "graph.xml").orders
            rates[name] = [
                rate_orders(
                    name == "rings", [tuple(index[r] for r in o) for o in orders], paths, factor
                )
                for orders, paths in ((ours, own), (channels.orders[: stock.channels], default))
            ]
        gain = rates[made.figures["picked"]][0] / rates[stock.pick(SIZE_bytes)][1]
        assert gain >= (Fraction(101, 100) if factor == 1 else 1)
        assert float(gain) == pytest.approx(made.figures["over_stock"][str(factor)])
        assert rates["rings"][0] >= rates["rings"][1]


# The ratio to stock of each machine's file; None where stock is as good, or may be.
LONG = (
    "a40x8_nps4_pair_per_numa",
    "rtx4090x8_2s_icx",
    "redstone_pair_dead",
    "oci_b300",
    "redstone_a100x4",
    "dgx1v",
    "rtx5090x4_2socket_srp_gen5",
    "hgx_a100x8_gpu3_6links",
    "pcie7_4plus3_amd",
    "h200nvl8_2x4mesh_2s",
    "pairs2_2socket_srp",
)
GAINS = {
    "a100pcie8_4pairs_2s_amd": 1.75,
    "a40x8_nps4_pair_per_numa": 3.5,
    "dgx1v": None,
    "h100nvl4_2s_srp": None,
    "h200nvl8_2x4mesh_2s": 1.75,
    "hgx_a100x8_gpu3_6links": 4 / 3,
    "oci_b300": None,
    "pairs2_1socket_amd": None,
    "pairs2_2socket_srp": 1.5,
    "pcie7_4plus3_amd": 1.5,
    "redstone_a100x4": None,
    "redstone_pair_dead": 1.25,
    "rtx4090x8_2s_icx": 1.75,
    "rtx5090x4_2socket_srp_gen5": 1.5,
}


@pytest.mark.parametrize("name", long_cases(GAINS, *LONG))
def test_files_are_written_where_stock_loses(
    name: str, more_inputs: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    machine = str(more_inputs(f"nccl_stock/{name}.xml"))
    assert synth.main([*COMMAND, "--topology", machine, "--json"]) == 0
    printed = capsys.readouterr()
    body = json.loads(printed.out)["nccl_graph"]
    assert body["routes"] == "nccl"
    assert body["environment"] == {}
    if GAINS[name] is None:
        assert not body["written"]
        assert printed.err.splitlines()[-1].startswith(body["reason"])
        assert "stock NCCL is at the bound, or above" in body["reason"]
    else:
        assert body["written"]
        assert body["over_stock"]["1"] == pytest.approx(GAINS[name])
        assert min(body["over_stock"].values()) >= 1
        assert body["fraction"] >= 0.97


def test_nothing_is_written_where_stock_is_as_good(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    more_inputs: Callable[[str], Path],
) -> None:
    monkeypatch.delenv("NCCL_GRAPH_FILE", raising=False)
    path = tmp_path / "graph.xml"
    machine = str(more_inputs("nccl_stock/h100nvl4_2s_srp.xml"))
    options = [*COMMAND, "--topology", machine, "-o", str(path)]
    assert synth.main(options) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("no file written: stock NCCL is at the bound")
    assert printed.err.count("\n") == 1
    assert not path.exists()
    assert synth.main([*options, "--no-guard"]) == 0
    assert "by NCCL's own count stock has rings 14.67" in capsys.readouterr().out
    assert read_graph_file(path.read_text(), "graph.xml").graphs


@pytest.mark.long
def test_routes_pass_through_the_gpu_between(more_inputs: Callable[[str], Path]) -> None:
    topology = nccl_xml.read(more_inputs("nccl_stock/redstone_pair_dead.xml").read_text(), "pair")
    router = NcclRouter(Router(topology))
    assert len(router.relays) == 2
    for (a, c), b in router.relays.items():
        assert router.find_route(a, c) == (a, b, c)
        assert router.reversed().find_route(c, a) == (c, b, a)
        assert router.before_each(a)[c] == b
    made = make_file(topology)
    assert 'typeintra="NVB"' in made.text or made.figures["p2p"]["pairs_without"] == 0
    assert made.figures["bound_one_way"] == pytest.approx(400 / 3)


def test_pairs_without_p2p_are_named(more_inputs: Callable[[str], Path]) -> None:
    topology = nccl_xml.read(
        more_inputs("nccl_stock/rtx5090x4_2socket_srp_gen5.xml").read_text(), "rtx"
    )
    made = make_file(topology)
    assert made.figures["p2p"]["level_needed"] == "SYS"
    assert made.figures["p2p"]["pairs_without"] == made.figures["p2p"]["pairs"] > 0
    for text in (made.text, "\n".join(made.lines)):
        assert "NCCL_P2P_LEVEL=SYS" in text
        assert "ACS is off and the IOMMU off or in passthrough" in text


def test_no_level_is_named_where_the_driver_has_no_p2p(
    more_inputs: Callable[[str], Path],
) -> None:
    text = more_inputs("nccl_stock/rtx5090x4_2socket_srp_gen5.xml").read_text()
    made = make_file(nccl_xml.read(text.replace('device="0x2235"', 'device="0x2b85"'), "rtx"))
    assert made.figures["p2p"]["level_needed"] is None
    assert "NCCL_P2P_LEVEL" not in made.text and "the driver has none" in made.text


def test_files_for_allgather_beat_stocks_rings(more_inputs: Callable[[str], Path]) -> None:
    machine = more_inputs("nccl_graphs/ncv4-bridged.topology.xml")
    made = make_file(nccl_xml.read(machine.read_text(), "ncv4"), "allgather")
    assert made.reason is None
    assert made.figures["picked"] == "rings"
    assert made.figures["over_stock"]["1"] == pytest.approx(2)
