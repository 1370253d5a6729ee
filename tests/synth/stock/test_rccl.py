"""The model of stock RCCL: what its search finds, and where its table of machines may decide."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import count_examples

from topoplan.synth.channels.channels import CHAIN, RING
from topoplan.synth.stock.model import NotModelled
from topoplan.synth.stock.rccl import TABLE, RcclHost, model_rccl, pick
from topoplan.topo.derived.degrade import Change, degrade
from topoplan.topo.formats import nccl_xml
from topoplan.topo.graph import Topology
from topoplan.topo.loader.resolve import resolve
from topoplan.topo.presets import preset

Pairs = set[tuple[int, int]]


def machine(gpus: int, wires: Pairs, gcn: str = "908", vendor: str = "AuthenticAMD") -> Topology:
    """GPUs on one socket of Naples or Skylake, with an xGMI link between each pair in `wires`."""

    def slot(gpu: int) -> str:
        peers = [b if a == gpu else a for a, b in sorted(wires) if gpu in (a, b)]
        links = "".join(
            f'<xgmi target="0000:{p + 1:02x}:00.0" count="1" tclass="0x038000"/>' for p in peers
        )
        return (
            f'<pci busid="0000:{gpu + 1:02x}:00.0" class="0x038000" link_speed="16.0 GT/s PCIe" '
            f'link_width="16"><gpu dev="{gpu}" rank="{gpu}" sm="120" gcn="{gcn}" arch="1" gdr="1">'
            f"{links}</gpu></pci>"
        )

    slots = "".join(map(slot, range(gpus)))
    return nccl_xml.read(
        f'<system version="2"><cpu numaid="0" arch="x86_64" vendor="{vendor}" familyid="143" '
        f'modelid="1">{slots}</cpu></system>',
        "machine",
    )


def model(topology: Topology) -> RcclHost:
    host = model_rccl(topology)
    assert isinstance(host, RcclHost)
    return host


def rates(topology: Topology) -> tuple[float, float]:
    host = model(topology)
    return float(host.rate_stock(RING, 1)), float(host.rate_stock(CHAIN, 1))


def mesh(gpus: int, *missing: tuple[int, int]) -> Pairs:
    return set(combinations(range(gpus), 2)) - set(missing)


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
    assert not near.paths.p2p and len(model(machine(3, set())).paths.p2p) == 6


def test_a_single_gpu_or_several_hosts_are_not_modelled() -> None:
    assert isinstance(model_rccl(preset("mi250:2")), NotModelled)


def test_the_tuner_expects_less_of_chains() -> None:
    assert (
        pick(Fraction(100), Fraction(120)) == RING and pick(Fraction(100), Fraction(125)) == CHAIN
    )


@given(st.integers(3, 7), st.data())
@settings(max_examples=count_examples(10), deadline=None)
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
