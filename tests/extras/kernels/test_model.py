"""Predicted shapes of calls by fabric: steps, pull or push."""

from __future__ import annotations

from fractions import Fraction

import pytest

from topoplan.runtime.extras.kernels.model import list_shapes, predict_us, rank_shapes
from topoplan.runtime.extras.one_sided.flat import build_flat, stage
from topoplan.synth.ir.collective import Collective
from topoplan.synth.verify import verify
from topoplan.topo.graph import Device, Link, Topology


def star(kind: str, gpus: int = 4) -> Topology:
    """Return GPUs on one switch, at 10 GB/s each."""
    devices = [Device(f"gpu{n}", "gpu") for n in range(gpus)]
    links = [
        Link(src, dst, Fraction(10), kind=kind)
        for n in range(gpus)
        for src, dst in ((f"gpu{n}", "switch0"), ("switch0", f"gpu{n}"))
    ]
    return Topology("star", (*devices, Device("switch0", "switch")), tuple(links))


@pytest.mark.parametrize("kind", ["nvlink", "pcie"])
def test_small_calls_take_one_step_and_large_ones_two(kind: str) -> None:
    flat, topology = build_flat(Collective("allreduce", 4)), star(kind)
    shapes = list_shapes(flat, topology)
    small, large = (rank_shapes(shapes, topology, size)[0][0] for size in (1 << 10, 64 << 20))
    assert small.steps == 1
    assert large.steps == 2
    # All of the vector to and from three ranks against twice three quarters of it.
    small_us, large_us = (predict_us(x, topology, 64 << 20) for x in (small, large))
    assert 1.9 < small_us / large_us < 2.1


def test_pushes_are_staged_on_pcie_alone() -> None:
    one_shot = build_flat(Collective("allreduce", 4))[1]
    nvlink, pcie = star("nvlink"), star("pcie")
    assert predict_us(one_shot, nvlink, 4096, "push") == predict_us(one_shot, nvlink, 4096, "pull")
    pull, push = (predict_us(one_shot, pcie, 4096, mode, 2.0) for mode in ("pull", "push"))
    # Three streams, one after the other, in place of one round of three hops.
    assert push - pull == pytest.approx(2 * 3 * 2.0)


@pytest.mark.parametrize("name", ["allreduce", "allgather", "reduce-scatter", "alltoall"])
def test_staged_steps_have_one_stream_out_of_and_into_a_rank(name: str) -> None:
    topology = star("pcie", 5)
    direct = build_flat(Collective(name, 5), topology)[0]
    staged = stage(direct, topology)
    assert staged is not None
    verify(staged, topology)
    assert len(staged.transfers) == len(direct.transfers)
    for step in range(staged.steps):
        pairs = {(x.src, x.dst) for x in staged.by_step[step]}
        assert len({src for src, _ in pairs}) == len({dst for _, dst in pairs}) == len(pairs)


def test_pushes_that_cannot_be_staged_are_left_out_on_pcie_alone() -> None:
    """Whoever adds to a chunk must not send it in a later stage."""
    one_shot = build_flat(Collective("allreduce", 4))[1:]
    for kind, modes in ("nvlink", ["pull", "push"]), ("pcie", ["pull"]):
        shapes = list_shapes(one_shot, star(kind))
        assert [mode for _, mode in shapes] == modes
    direct = list_shapes(build_flat(Collective("allreduce", 4))[:1], star("pcie"))
    assert [(mode, shape.steps) for shape, mode in direct] == [("pull", 2), ("push", 6)]
