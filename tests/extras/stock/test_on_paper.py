"""The one figure of stock NCCL on paper: by its model on one host, by its limits on several."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from called import call_command
from needs import long_cases

from topoplan.synth.extras.stock.curve import make_curve
from topoplan.synth.extras.stock.model import NotModelled
from topoplan.synth.extras.stock.on_paper import StockRate, rate_stock
from topoplan.synth.extras.stock.stock_ring import StockRing
from topoplan.synth.ir.collective import Collective
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.loader.resolve import load_for_planning
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

PAPER = "topoplan.synth.extras.judge.paper"


def join_hosts(count: int, gpus: int, nic_GBps: int, gpu_GBps: int = 150) -> Topology:
    """Return hosts of GPUs joined all to all, each GPU with a NIC on one network."""
    devices, links = [Device("net", "switch", family="network")], list[Link]()
    for host in range(count):
        names = [f"h{host}g{gpu}" for gpu in range(gpus)]
        for i, name in enumerate(names):
            nic = f"h{host}n{i}"
            devices += [Device(name, extra={"host": f"h{host}"}), Device(nic, "nic")]
            links += both_directions(Link(name, nic, Fraction(nic_GBps), kind="pcie"))
            links += both_directions(Link(nic, "net", Fraction(nic_GBps), kind="network"))
            links += [
                link
                for other in names[:i]
                for link in both_directions(Link(name, other, Fraction(gpu_GBps), kind="pcie"))
            ]
    return Topology(f"{count} hosts", tuple(devices), tuple(links))


def rate(collective: str, topology: Topology) -> StockRate:
    found = rate_stock(collective, topology)
    assert isinstance(found, StockRate)
    return found


@pytest.mark.parametrize(
    ("hosts", "gpus", "nic_GBps", "measured"),
    [  # figures as published for GH200, B200 and H100 hosts
        *((4, 4, 25, 48.6), (8, 4, 25, 47.36), (10, 2, 50, 51.7), (4, 8, 50, 201.86)),
    ],
)
def test_published_rates_are_just_below_what_flat_rings_carry(
    hosts: int, gpus: int, nic_GBps: int, measured: float
) -> None:
    found, n = rate("allreduce", join_hosts(hosts, gpus, nic_GBps)), hosts * gpus
    assert found.algbw_GBps == Fraction(gpus * nic_GBps * n, 2 * (n - 1))
    assert found.is_limit and found.shape == "rings" and found.hosts == hosts
    assert 0.9 <= measured / float(found.algbw_GBps) <= 1.0


def test_two_hosts_have_trees_that_use_each_nic_once() -> None:
    found = rate("allreduce", join_hosts(2, 4, 25))
    assert found.algbw_GBps == 100 and found.shape == "trees"  # 88.3 was measured
    assert rate("allgather", join_hosts(2, 4, 25)).algbw_GBps == Fraction(100 * 8, 7)


def test_only_switches_that_can_add_count_for_stock() -> None:
    """An A100's NVSwitches cannot, so a tree's GPUs send sums up and results down."""
    for name, algbw, adds in (("dgx-a100:2", 162.5, False), ("dgx-h100:2", 400, True)):
        machine = load_for_planning(name)[0]
        stock = StockRing(Collective("allreduce", 16), Router(machine))
        assert stock.algbw_GBps(1 << 40) == pytest.approx(algbw, rel=1e-3)
        assert stock.needs_adding is adds and ("NVSwitches add (NVLS)" in stock.assumes) is adds
        curve = make_curve(stock, [1 << 30])
        assert curve.dashed is adds and curve.name.endswith("switches that add") is adds


def test_a_narrow_cut_inside_the_hosts_limits_stock_as_well() -> None:
    found = rate("allreduce", join_hosts(3, 2, 100, gpu_GBps=5))
    assert found.algbw_GBps <= Fraction(105 * 6, 10)


def test_what_is_assumed_between_hosts_is_said() -> None:
    paper = pytest.importorskip(PAPER, reason="needs the extra judge")
    model = paper.write_model(join_hosts(4, 4, 25))
    assert model is not None and "picked" not in model
    assert model["stock_GBps"] == pytest.approx(53.33, rel=1e-3)
    assert any("not modelled" in text for text in model["assumes"])


@pytest.mark.parametrize("name", ["spark-ring:3", "gb200-nvl72", "mi300x", "torus:3x3"])
def test_no_figure_is_given_where_none_is_known(name: str) -> None:
    assert isinstance(rate_stock("allreduce", preset(name)), NotModelled)
    assert isinstance(rate_stock("alltoall", preset("dgx1")), NotModelled)


def test_ranks_without_a_gpu_have_none() -> None:
    hosts = join_hosts(3, 1, 25)
    devices = tuple(
        replace(d, extra={**d.extra, "stands_for": "host"}) if d.kind == "gpu" else d
        for d in hosts.devices
    )
    assert isinstance(rate_stock("allreduce", replace(hosts, devices=devices)), NotModelled)


@pytest.mark.parametrize("name", long_cases(["pcie-2socket", "dgx-a100"], "pcie-2socket"))
def test_all_commands_give_one_figure(name: str) -> None:
    paper = pytest.importorskip(PAPER, reason="needs the extra judge")
    topology, router = load_for_planning(name)
    n = len(topology.ranks)
    one = float(rate("allreduce", topology).algbw_GBps)
    judged = paper.find_stock("allreduce", topology, None)
    assert judged is not None and float(judged.algbw_GBps) == one
    ring = StockRing(Collective("allreduce", n), router)
    assert ring.algbw_GBps(1 << 44) == pytest.approx(one, rel=1e-3)
    asked = "allreduce", name, "--format", "nccl-graph", "--no-guard", "--json", "-o", "/dev/null"
    out = json.loads(call_command("synth", *asked, "--force").stdout)
    assert out["nccl_graph"]["stock_model"]["stock_GBps"] == pytest.approx(one)
    assert Router(topology).topology == router.topology
