"""Bounds name the rates that they depend on and that nothing states."""

from fractions import Fraction

import pytest

from topoplan.synth.bounds.assumptions import (
    Assumption,
    join_assumptions,
    list_assumptions,
    scale_guesses,
)
from topoplan.synth.bounds.single_path import find_bounds
from topoplan.synth.ir.collective import Collective
from topoplan.topo.graph import Device, Link, Topology, both_directions
from topoplan.topo.notes import BOARD, assumed, read_source
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router

GUESS = "assumed: nobody knows"
DATASHEET = "assumed: Gen5 x16, by the GPUs: NVIDIA GeForce RTX 5090"


def two_sockets(between_GBps: int, pcie_source: str = DATASHEET) -> Topology:
    devices = [Device(f"gpu{i}") for i in range(4)] + [Device(f"cpu{i}", "cpu") for i in range(2)]
    links = [
        both_directions(
            Link(f"gpu{i}", f"cpu{i // 2}", Fraction(48), kind="pcie", source=pcie_source)
        )
        for i in range(4)
    ]
    links.append(
        both_directions(Link("cpu0", "cpu1", Fraction(between_GBps), kind="smp", source=GUESS))
    )
    return Topology("two", tuple(devices), tuple(link for pair in links for link in pair))


def assume(topology: Topology) -> dict[str, bool]:
    bound = find_bounds(Collective("allreduce", 4), Router(topology)).single_path
    return {each.what: each.is_guess for each in list_assumptions(bound, topology)}


def test_only_rates_that_a_bound_depends_on_are_named() -> None:
    assert assume(two_sockets(16)) == {"the link between CPUs has 16 GB/s": True}
    assert assume(two_sockets(200)) == {"PCIe links have 48 GB/s": False}
    assert assume(two_sockets(200, "as measured")) == {}


def test_a_bound_by_the_most_that_was_seen_on_a_link_says_so() -> None:
    believed_by = pytest.importorskip(
        "topoplan.topo.extras.measured.believe", reason="needs the extra measured"
    )
    flows = pytest.importorskip("topoplan.topo.extras.measured.flows")
    topology = two_sockets(200)
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    slow = tuple(flows.Experiment("alone", {pair: Fraction(10)}) for pair in pairs)
    believed = believed_by.believe(topology, flows.Measurements(slow, medium="a test"))
    assert assume(believed) == {"PCIe links have 10 GB/s": False}
    bound = find_bounds(Collective("allreduce", 4), Router(believed)).single_path
    (assumption,) = list_assumptions(bound, believed)
    assert assumption.why == "at least about that was measured over a test"
    proved = flows.Experiment("alone", {(0, 1): Fraction(10)})
    pair = preset("path:2@24")
    of_pair = believed_by.believe(
        pair, flows.Measurements((proved, flows.Experiment("alone", {(1, 0): Fraction(10)})))
    )
    bound = find_bounds(Collective("allreduce", 2), Router(of_pair)).multipath
    assert of_pair.links[0].bandwidth_GBps == 10 and not list_assumptions(bound, of_pair)


def test_the_datasheet_of_a_named_board_is_a_limit_and_no_guess() -> None:
    assert read_source(DATASHEET).by == BOARD and assumed("by the GPU: L4").by == BOARD
    assert assumed("as H100 has (18 NVLinks)").by == ""
    link = Link("a", "b", Fraction(48), source=DATASHEET)
    assert link.is_assumed and not link.is_guess and link.counted_by == ""


def test_a_bonded_link_is_named_by_the_rate_of_one() -> None:
    devices = (Device("gpu0"), Device("gpu1"))
    link = Link("gpu0", "gpu1", Fraction(100), kind="nvlink", count=4, source=GUESS)
    topology = Topology("pair", devices, both_directions(link))
    bound = find_bounds(Collective("allreduce", 2), Router(topology)).multipath
    (assumption,) = list_assumptions(bound, topology)
    assert str(assumption) == "each NVLink has 25 GB/s (nobody knows)"
    assert join_assumptions([assumption] * 2) == " if each NVLink has 25 GB/s"


def test_guesses_are_scaled_and_nothing_else() -> None:
    scaled = scale_guesses(two_sockets(16), Fraction(4))
    assert scaled is not None
    assert {(x.kind, float(x.bandwidth_GBps)) for x in scaled.links} == {("pcie", 48), ("smp", 64)}
    assert scale_guesses(Topology("none", (Device("gpu0"),), ()), Fraction(4)) is None


def test_many_assumptions_are_cut() -> None:
    listed = [Assumption(f"link {i} has 1 GB/s", "", True) for i in range(5)]
    assert join_assumptions(listed).endswith("link 2 has 1 GB/s and so on")
