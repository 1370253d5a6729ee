"""The model of stock RCCL: what its search finds, and where its table of machines may decide."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rccl_machines import machine, mesh
from thorough import count_examples

from topoplan.synth.channels.channels import CHAIN, RING
from topoplan.synth.extras.stock.model import NotModelled
from topoplan.synth.extras.stock.rccl import TABLE, RcclHost, model_rccl
from topoplan.topo.derived.degrade import Change, degrade
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import resolve
from topoplan.topo.presets import preset


def model(topology: Topology) -> RcclHost:
    host = model_rccl(topology)
    assert isinstance(host, RcclHost)
    return host


def rates(topology: Topology) -> tuple[float, float]:
    host = model(topology)
    return float(host.rate_stock(RING, 1)), float(host.rate_stock(CHAIN, 1))


def test_eight_gpus_in_a_full_mesh_use_every_link() -> None:
    assert rates(machine(8, mesh(8), "gfx942")) == (192, 192)
    assert rates(machine(8, mesh(8, (0, 7), (1, 6), (2, 5), (3, 4)))) == (576 / 7, 72)


def test_a_mesh_without_a_link_falls_to_two_rings() -> None:
    rings, chains = rates(machine(8, mesh(8, (0, 1)), "gfx942"))
    assert (rings, chains) == (2 * 48 * 8 / 14, 96)


def test_small_meshes_are_searched() -> None:
    assert rates(machine(4, mesh(4), "gfx942")) == (96, 72)
    assert rates(machine(4, {(0, 1), (1, 2), (2, 3), (0, 3)})) == (32, 24)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("topo_8p_940.xml", (192, 192)),
        ("topo_8p6l.xml", (576 / 7, 72)),
        ("topo_3p_pcie.xml", (12, 12)),
        ("topo_4p3l.xml", (48, 36)),
    ],
)
def test_recorded_machines(
    recorded: Callable[[str], Path], file: str, expected: tuple[float, float]
) -> None:
    assert rates(resolve(str(recorded(f"nccl_xml/rccl/{file}")))) == expected


def test_where_the_table_may_decide_stock_is_not_known(recorded: Callable[[str], Path]) -> None:
    host = model(resolve(str(recorded("nccl_xml/rccl/topo_8p_rome.xml"))))
    assert (host.stock, host.reason, host.may_branch) == (None, TABLE, False)
    assert model(preset("mi250")).reason == TABLE
    # Damage makes the GPUs unlike those of the table.
    damaged = degrade(preset("mi250"), Change(without_ranks=tuple(range(4, 16))))
    assert model(damaged).stock is not None


def test_without_p2p_data_goes_through_the_cpu() -> None:
    near = model(machine(3, set(), vendor="GenuineIntel"))
    assert not near.gpu_paths.p2p and len(model(machine(3, set())).gpu_paths.p2p) == 6


def test_a_single_gpu_or_several_hosts_are_not_modelled() -> None:
    assert isinstance(model_rccl(preset("mi250:2")), NotModelled)


def test_the_tuner_expects_less_of_chains_and_none_on_mi300() -> None:
    older, mi300 = model(machine(4, mesh(4))), model(machine(4, mesh(4), "gfx942"))
    assert older.pick_large({RING: Fraction(100), CHAIN: Fraction(120)}) == RING
    assert older.pick_large({RING: Fraction(100), CHAIN: Fraction(125)}) == CHAIN
    assert mi300.pick_large({RING: Fraction(100), CHAIN: Fraction(200)}) == RING


@given(st.integers(3, 7), st.data())
@settings(max_examples=count_examples(5), deadline=None)
def test_stock_channels_keep_within_the_links(gpus: int, data: st.DataObject) -> None:
    wires = data.draw(st.sets(st.sampled_from(sorted(mesh(gpus)))))
    host = model(machine(gpus, wires))
    assert host.stock is not None and host.stock.rings is not None
    assert host.stock.chains is not None
    for shape, graph in ((RING, host.stock.rings), (CHAIN, host.stock.chains)):
        for order in graph.orders:
            assert sorted(order) == list(range(gpus))
        n = Fraction(gpus, 2 * (gpus - 1)) if shape == RING else Fraction(1, 2)
        promised = Fraction(graph.channels * graph.speed_MBps, 1000) * n
        assert host.rate_stock(shape, 1) >= promised
