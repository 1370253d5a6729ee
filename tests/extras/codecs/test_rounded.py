"""Compression inside programs: what ranks end with, and what error feedback is told, against a
replay made separately.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played import PARTED, Array, PlayedRank, SentMessage
from sample_schedules import ALLREDUCES, OTHERS, SCHEDULES
from thorough import count_examples

from topoplan.runtime.extras.codecs.messages import MessageEncoder
from topoplan.runtime.program.instructions import Decode, Encode, Program, Span
from topoplan.runtime.program.layout import Layout
from topoplan.runtime.program.lowering import lower
from topoplan.runtime.program.messages import Reads, Writes
from topoplan.synth.ir.addition_order import rounded
from topoplan.synth.ir.schedule import Schedule

BLOCK = 4


class Toy:
    """A codec on float64: four values share a power of two, three bits and a sign each. A value is
    a "byte" on the wire.
    """

    def padded(self, numel: int) -> int:
        return -(-numel // BLOCK) * BLOCK

    def nbytes(self, padded: int) -> int:
        return padded + padded // BLOCK

    def room(self, padded: int) -> int:
        return self.nbytes(padded) + 3

    def make_message_encoder(
        self, layout: Layout, rank: int, reads: Reads, writes: Writes
    ) -> MessageEncoder:
        return MessageEncoder(self, layout, rank, reads, writes)


def rounding(values: Array) -> Array:
    """To whole multiples of a power of two, at most 7 of them, in blocks."""
    blocks = np.concatenate([values, np.zeros(-len(values) % BLOCK)]).reshape(-1, BLOCK)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    scale = np.exp2(np.ceil(np.log2(np.where(largest > 0, largest, 1) / 7)))
    return (np.round(blocks / scale) * scale).reshape(-1)[: len(values)]


class Player(PlayedRank):
    """A rank whose messages are encoded."""

    def __init__(self, program: Program, ranks: int, work: Array, *others: Any) -> None:
        super().__init__(program, ranks, work, *others)
        self.wire = np.full(program.wire_bytes, -1e9)
        self.errors = np.zeros(len(work))

    def view(self, span: Span) -> Array:
        if span.buffer != "wire":
            return super().view(span)
        assert span.start >= 0 and span.start + span.length <= len(self.wire)
        return self.wire[span.start : span.start + span.length]

    def run(self) -> Iterator[None]:
        whole = self.program
        for x in whole.instructions:
            if isinstance(x, Encode):
                values = np.zeros(x.padded)
                for span, at in x.parts:
                    values[at : at + span.length] = self.view(span)
                after = rounding(values)
                message = self.view(x.into)
                message[: x.padded], message[x.padded :] = after, 0
                for span, at in x.errors:
                    self.errors[span.start : span.start + span.length] += (values - after)[
                        at : at + span.length
                    ]
                for span, at in x.keeps:
                    self.view(span)[:] = after[at : at + span.length]
            elif isinstance(x, Decode):
                self.view(x.into)[:] = self.view(x.message)[: x.into.length]
                self.view(x.message)[:] = -1e9
            else:
                self.program = replace(whole, instructions=(x,))
                finishing, self.open = self.open, []
                self.open = finishing
                yield from self.run_one()
        self.program = whole

    def run_one(self) -> Iterator[None]:
        """One instruction; messages under way may stay so."""
        try:
            yield from super().run()
        except AssertionError as error:
            if "never awaited" not in str(error):
                raise


def played(
    schedule: Schedule, numel: int, rounds: bool, inputs: list[Array], seed: int
) -> tuple[list[Array], list[Array]]:
    """What ranks end with, and their errors, by their programs."""
    n, late = schedule.collective.ranks, random.Random(seed)
    wires: dict[tuple[int, int, int], SentMessage] = {}
    programs = [lower(schedule, rank, numel, batched=rounds, codec=Toy()) for rank in range(n)]
    players = []
    for program, x in zip(programs, inputs, strict=True):
        work = (
            x.copy()
            if schedule.collective.name not in PARTED
            else np.full(program.work_numel, -1e9)
        )
        for f in program.fills:
            work[f.to : f.to + f.hi - f.lo] = x[f.lo : f.hi]
        players.append(Player(program, len(programs), work, wires, late))
    going = {rank: player.run() for rank, player in enumerate(players)}
    for _ in range(10**6):
        if not going:
            break
        rank = late.choice(list(going))
        if next(going[rank], "done") == "done":
            del going[rank]
    assert not going, "deadlock"
    assert all(not player.open for player in players), "a message is never awaited"
    return [player.work for player in players], [player.errors for player in players]


def replayed(schedule: Schedule, numel: int, inputs: list[Array]) -> list[Array]:
    """The same by the two rules of synth/ir/addition_order.py, piece by piece; for collectives that
    work in span.
    """
    layout, out = Layout(schedule, numel), [x.copy() for x in inputs]
    copied = {t.chunk for t in schedule.transfers if t.op == "copy"}
    for c, chunk in enumerate(schedule.chunks):
        for part in range(schedule.segments):
            lo, hi = layout.segment(0, c, part)
            held = [x[lo:hi].copy() for x in inputs]
            for rows in schedule.by_step:
                here = [t for t in rows if t.chunk == c]
                for rank in {t.src for t in here}:
                    held[rank] = rounding(held[rank])
                before, adding = [x.copy() for x in held], defaultdict(list)
                for t in here:
                    if t.op == "copy":
                        held[t.dst] = before[t.src]
                    else:
                        adding[t.dst].append(t.src)
                for rank, sources in adding.items():
                    terms = [before[r] for r in sorted([*sources, rank])]
                    held[rank] = sum(terms[1:], terms[0])
            for rank in range(len(inputs)):
                last = (
                    rounding(held[rank])
                    if c in copied and rank in schedule.collective.receivers(chunk)
                    else held[rank]
                )
                out[rank][lo:hi] = last
    return out


@pytest.mark.parametrize("name", list(ALLREDUCES))
@settings(max_examples=count_examples(4))
@given(
    cut=st.sampled_from(["whole", "x3", "/3"]),
    rounds=st.booleans(),
    numel=st.one_of(st.sampled_from([1, 2, 7]), st.integers(8, 900)),
    seed=st.integers(0, 10**6),
)
def test_ranks_end_with_what_the_rules_say_and_nothing_is_lost(
    name: str, cut: str, rounds: bool, numel: int, seed: int
) -> None:
    schedule = replace(SCHEDULES[name], segments=1 if cut == "whole" else 3, stepwise=cut == "/3")
    data = np.random.default_rng(seed)
    inputs = [data.integers(-1000, 1000, numel) / 8.0 for _ in range(schedule.collective.ranks)]
    got, errors = played(schedule, numel, rounds, inputs, seed)
    for mine, wanted in zip(got, replayed(schedule, numel, inputs), strict=True):
        np.testing.assert_array_equal(mine, wanted)
    if rounded(SCHEDULES[name].uncut).uniform:
        for other in got[1:]:
            np.testing.assert_array_equal(other, got[0])
        np.testing.assert_array_equal(
            got[0] + sum(errors), sum(inputs)
        )  # all in multiples of 1/64: exact


# Each collective once; those of exact synthesis take longer to find than to play.
HANDED_ON = [name for name in OTHERS if name.startswith("packed")]


@pytest.mark.parametrize("name", HANDED_ON)
@settings(max_examples=count_examples(2))
@given(part=st.integers(1, 60), seed=st.integers(0, 10**6))
def test_what_is_only_handed_on_is_rounded_once(name: str, part: int, seed: int) -> None:
    """Copies of copies are bit for bit the rounded original, at every receiver; sums are near."""
    schedule = SCHEDULES[name]
    n, numel = schedule.collective.ranks, part * schedule.collective.ranks
    brings = part if schedule.collective.name in ("allgather", "gather") else numel
    data = np.random.default_rng(seed)
    inputs = [data.integers(-1000, 1000, brings).astype(float) for _ in range(n)]
    works, _ = played(schedule, numel, False, inputs, seed)
    layout = Layout(schedule, numel)
    for c, chunk in enumerate(schedule.chunks):
        receivers = schedule.collective.receivers(chunk)
        pieces = [works[rank][slice(*layout.chunk(rank, c))] for rank in receivers]
        for piece in pieces[1:]:
            np.testing.assert_array_equal(piece, pieces[0])
        sources = list(schedule.collective.holders(chunk))
        if len(sources) == 1 and list(receivers) != sources:
            np.testing.assert_array_equal(rounding(pieces[0]), pieces[0])


def test_the_toy_rounds_for_good() -> None:
    values = np.random.default_rng(1).normal(size=1001) * 100
    np.testing.assert_array_equal(rounding(rounding(values)), rounding(values))
    assert not np.array_equal(rounding(values), values)


def test_roundings_are_counted() -> None:
    """Direct: a contribution, then the sum. A ring of four: a partial sum a hop, then the sum."""
    direct, ring, doubling = (
        rounded(SCHEDULES[name].uncut) for name in ("direct", "ring", "doubling, 6 ranks")
    )
    assert (direct.most, direct.once, direct.uniform) == (2, True, True)
    assert (ring.most, ring.once, ring.uniform) == (4, False, True)
    assert not doubling.once
    assert rounded(SCHEDULES["one-shot"].uncut).most == 1


def test_ranks_that_round_the_same_sum_have_one_recorder() -> None:
    """Halving-doubling sends no sum twice; recursive doubling holds each partial sum at several
    ranks.
    """
    assert not any(
        step >= 0 for _, _, step in rounded(SCHEDULES["halving-doubling"].uncut).echoes if step < 3
    )
    echoes = rounded(SCHEDULES["doubling, 6 ranks"].uncut).echoes
    assert {rank for rank, _, _ in echoes} and 0 not in {
        rank for rank, _, step in echoes if step == 2
    }
