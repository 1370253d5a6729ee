"""Rounds move everything, whatever their number and however a schedule cuts pieces."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise

import numpy as np
import torch
from drawn_layouts import SHAPES, cut_by_torch, layouts, read
from hypothesis import given, settings
from hypothesis import strategies as st
from played import play
from thorough import count_examples

from topoplan.runtime.extras.reshard.bundles import find_bundles, list_demands
from topoplan.runtime.extras.reshard.copying import Ends, walk_rows
from topoplan.runtime.extras.reshard.rounds import RoundBuffers, list_rounds
from topoplan.runtime.program.layout import Move, ends_numel
from topoplan.runtime.program.lowering import lower
from topoplan.synth.ir.collective import Chunk
from topoplan.synth.ir.demands import Demands
from topoplan.synth.ir.schedule import Schedule, find_helpers
from topoplan.synth.ir.transfers import Transfer, Transfers

WORLD = 8


def draw_schedule(demands: Demands, drawing: random.Random) -> Schedule:
    """Return a schedule in which random holders send shares of pieces, directly or by a relay."""
    chunks, transfers = list[Chunk](), list[Transfer]()
    for number, piece in enumerate(demands.pieces):
        shares = drawing.choice([(Fraction(1),), (Fraction(1, 3), Fraction(2, 3))])
        for share in shares:
            holder = drawing.choice(piece.holders)
            for receiver in piece.missing:
                others = set(range(WORLD)).difference(piece.holders, piece.missing)
                relay = drawing.choice([None, *sorted(others)]) if len(piece.missing) == 1 else None
                hops = pairwise([holder, *([] if relay is None else [relay]), receiver])
                transfers += [Transfer(step, *hop, len(chunks)) for step, hop in enumerate(hops)]
            chunks.append(Chunk(share * demands.share_of(number), piece=number))
    moved = Transfers.of(sorted(transfers, key=lambda t: t.step))
    return Schedule(
        demands, "drawn", tuple(chunks), moved, (), helpers=find_helpers(demands, moved)
    )


def cut_moves(numel: int, drawing: random.Random, edges: list[int]) -> list[Move]:
    """Return moves of [0, numel) in parts, none of which crosses one of the `edges`."""
    at = sorted({0, numel, *edges, *(drawing.randint(0, numel) for _ in range(3))})
    return [Move(lo, hi, lo) for lo, hi in pairwise(at)]


@settings(max_examples=count_examples(15))
@given(st.data())
def test_everything_arrives(data: st.DataObject) -> None:
    shapes = data.draw(st.lists(SHAPES, min_size=1, max_size=3))
    drawing = random.Random(data.draw(st.integers(0, 1 << 20)))
    sources, destinations = (
        [data.draw(layouts(shape, partial=partial)) for shape in shapes]
        for partial in (True, False)
    )
    tensors = [
        (read(a, shape), read(b, shape))
        for a, b, shape in zip(sources, destinations, shapes, strict=True)
    ]
    values = [torch.rand(shape, dtype=torch.float64) for shape in shapes]
    ends = []
    for rank in range(WORLD):
        held, needed = list[torch.Tensor | None](), list[torch.Tensor | None]()
        for full, before, after, (have, need) in zip(
            values, sources, destinations, tensors, strict=True
        ):
            own = have.coordinates.get(rank)
            held.append(
                None if own is None else cut_by_torch(full, before, own) * (1 + have.term_of(rank))
            )
            own = need.coordinates.get(rank)
            # Not contiguous, as views of larger tensors are.
            needed.append(
                None if own is None
                else torch.zeros_like(cut_by_torch(full, after, own)).unsqueeze(-1).repeat(
                    *[1] * full.ndim, 2
                )[..., 0]
            )  # fmt: skip
        ends.append(Ends(rank, tensors, held, needed))
    bundles = find_bundles(tensors)
    pieces = list_demands(bundles)
    if pieces:
        schedule = draw_schedule(Demands.of(pieces, WORLD), drawing)
        for part in list_rounds(schedule, bundles, data.draw(st.integers(1, 5))):
            demands, like = part.schedule.collective, torch.empty(0)
            buffers = [
                RoundBuffers(part.numel, like, like, ends=e, bundles=bundles, ranges=part.ranges)
                for e in ends
            ]
            inputs = []
            for rank, buffer in enumerate(buffers):
                numel = ends_numel(demands, rank, part.numel)[0]
                inputs.append(np.full(numel, np.nan))
                edges = [start for start, *_ in buffer._held]
                buffer.fill(torch.from_numpy(inputs[-1]), cut_moves(numel, drawing, edges))
            numels = [ends_numel(demands, rank, part.numel)[1] for rank in range(WORLD)]
            programs = [lower(part.schedule, rank, part.numel) for rank in range(WORLD)]
            outputs = play(programs, inputs, False, max(numels), drawing.randrange(1 << 20))
            for buffer, numel, output in zip(buffers, numels, outputs, strict=True):
                edges = [start for start, *_ in buffer._needed]
                buffer.drain(torch.from_numpy(output), cut_moves(numel, drawing, edges))
    for bundle in bundles:
        for rank in bundle.receivers:
            if len(bundle.holders) == 1 and rank in bundle.holders[0]:
                ends[rank].copy(bundle, 0, bundle.numel, adds=False)
    for number, (full, laid, (have, need)) in enumerate(
        zip(values, destinations, tensors, strict=True)
    ):
        total = torch.zeros_like(full)
        for term in range(have.terms):
            total = total + full * (1 + term)
        for rank, place in need.coordinates.items():
            got = ends[rank]._destinations[number]
            assert got is not None
            assert torch.equal(got, cut_by_torch(total, laid, place))  # bit for bit


@settings(max_examples=count_examples(30))
@given(st.data())
def test_rows_are_a_range(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    view = torch.arange(int(np.prod(shape))).view(shape)
    lo = data.draw(st.integers(0, view.numel() - 1))
    hi = data.draw(st.integers(lo + 1, view.numel()))
    parts = list(walk_rows(view, lo, hi))
    assert torch.cat([part.reshape(-1) for part in parts]).tolist() == list(range(lo, hi))
    assert len(parts) <= 2 * len(shape) - 1
