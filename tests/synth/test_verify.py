"""The verifier accepts right schedules, and refuses every mutant that changes the result or
overloads a link.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import count_examples

from topoplan.synth.cost.affine import tighten
from topoplan.synth.ir.collective import Chunk, Collective
from topoplan.synth.ir.schedule import Schedule
from topoplan.synth.ir.transfers import Transfer, Transfers
from topoplan.synth.verify import replay, verify
from topoplan.topo.errors import VerificationError
from topoplan.topo.graph import Topology
from topoplan.topo.presets import preset


def ring_allreduce(n: int) -> Schedule:
    collective = Collective("allreduce", n)
    rows = [
        Transfer(s, r, (r + 1) % n, (r - s) % n, "reduce") for s in range(n - 1) for r in range(n)
    ]
    rows += [
        Transfer(n - 1 + s, r, (r + 1) % n, (r + 1 - s) % n, "copy")
        for s in range(n - 1)
        for r in range(n)
    ]
    return Schedule(collective, "ring", collective.even_chunks(n), Transfers.of(rows), ())


def doubling_allreduce(levels: int) -> Schedule:
    n = 1 << levels
    collective = Collective("allreduce", n)
    rows = [Transfer(k, r, r ^ (1 << k), 0, "reduce") for k in range(levels) for r in range(n)]
    return Schedule(
        collective, "recursive-doubling", collective.even_chunks(1), Transfers.of(rows), ()
    )


def ring_allgather(n: int) -> Schedule:
    collective = Collective("allgather", n)
    rows = [Transfer(s, (c + s) % n, (c + s + 1) % n, c) for s in range(n - 1) for c in range(n)]
    return Schedule(collective, "ring", collective.even_chunks(1), Transfers.of(sorted(rows)), ())


CASES = {
    "ring allreduce": (tighten(ring_allreduce(5), preset("ring:5")), preset("ring:5")),
    "doubling allreduce": (
        tighten(doubling_allreduce(3), preset("hypercube:3")),
        preset("hypercube:3"),
    ),
    "ring allgather": (tighten(ring_allgather(5), preset("ring:5")), preset("ring:5")),
}


def play(schedule: Schedule) -> list[list[Counter[int] | None]] | None:
    """A second, plainer replay with multisets of contributions: what each rank ends with of each
    chunk, or None where a rank sends what it has not got, or two writes of which one is a copy
    meet.
    """
    collective, n = schedule.collective, schedule.collective.ranks
    held: list[list[Counter[int] | None]] = [
        [Counter([r]) if r in set(collective.holders(c)) else None for c in schedule.chunks]
        for r in range(n)
    ]
    for step in range(schedule.steps):
        before = [[None if x is None else Counter(x) for x in row] for row in held]
        written: dict[tuple[int, int], list[str]] = {}
        for t in schedule.transfers:
            if t.step != step:
                continue
            sent, mine = before[t.src][t.chunk], held[t.dst][t.chunk]
            ops = written.setdefault((t.dst, t.chunk), [])
            if (
                sent is None
                or (ops and "copy" in [*ops, t.op])
                or (t.op == "reduce" and mine is None)
            ):
                return None
            ops.append(t.op)
            held[t.dst][t.chunk] = Counter(sent) if t.op == "copy" else mine + sent  # type: ignore[operator]
    return held


def is_right(schedule: Schedule) -> bool:
    held = play(schedule)
    return held is not None and all(
        held[r][c] == Counter(schedule.collective.holders(chunk))
        for c, chunk in enumerate(schedule.chunks)
        for r in schedule.collective.receivers(chunk)
    )


@pytest.mark.parametrize("name", CASES)
def test_right_schedules_are_accepted(name: str) -> None:
    verify(*CASES[name])
    assert is_right(CASES[name][0])


@st.composite
def mutants(draw: st.DrawFn) -> tuple[Schedule, Topology]:
    """One to three transfers of a right schedule dropped, duplicated, moved to another step, or
    retargeted.
    """
    schedule, topology = CASES[draw(st.sampled_from(sorted(CASES)))]
    rows = list(schedule.transfers)
    for _ in range(draw(st.integers(1, 3))):
        i = draw(st.integers(0, len(rows) - 1))
        kind = draw(
            st.sampled_from(["drop", "duplicate", "step", "swap", "src", "dst", "chunk", "op"])
        )
        n, last = schedule.collective.ranks, schedule.steps - 1
        if kind == "drop":
            del rows[i]
        elif kind == "duplicate":
            rows.insert(
                i,
                replace(
                    rows[i], step=draw(st.sampled_from([rows[i].step, draw(st.integers(0, last))]))
                ),
            )
        elif kind == "step":
            rows[i] = replace(rows[i], step=draw(st.integers(0, last)))
        elif kind == "swap":
            j = draw(st.integers(0, len(rows) - 1))
            rows[i], rows[j] = (
                replace(rows[i], step=rows[j].step),
                replace(rows[j], step=rows[i].step),
            )
        elif kind == "src":
            rows[i] = replace(rows[i], src=draw(st.integers(0, n - 1)))
        elif kind == "dst":
            rows[i] = replace(rows[i], dst=draw(st.integers(0, n - 1)))
        elif kind == "chunk":
            rows[i] = replace(rows[i], chunk=draw(st.integers(0, len(schedule.chunks) - 1)))
        else:
            rows[i] = replace(rows[i], op="copy" if rows[i].op == "reduce" else "reduce")
    return replace(schedule, transfers=Transfers.of(sorted(rows, key=lambda t: t.step))), topology


@settings(max_examples=count_examples(80))
@given(mutants())
def test_every_mutant_that_changes_the_result_is_refused(case: tuple[Schedule, Topology]) -> None:
    mutant, topology = case
    if is_right(mutant) and all(t.src != t.dst for t in mutant.transfers):
        replay(mutant)  # the result is the same: the replay must not refuse it
    else:
        with pytest.raises(VerificationError):
            verify(mutant, topology)


def one(
    transfers: list[Transfer], n: int = 3, name: str = "allreduce", topology: str = "mesh:3"
) -> None:
    collective = Collective(name, n)
    schedule = Schedule(
        collective, "by hand", collective.even_chunks(1), Transfers.of(transfers), ()
    )
    verify(tighten(schedule, preset(topology)), preset(topology))


def test_double_counting_is_seen() -> None:
    """Rank 0 would hold the right ranks if flags were ORed; counted, rank 1's contribution is there
    twice.
    """
    up = [
        Transfer(0, 1, 0, 0, "reduce"),
        Transfer(1, 2, 1, 0, "reduce"),
        Transfer(2, 1, 0, 0, "reduce"),
    ]
    down = [Transfer(3, 0, 1, 0), Transfer(4, 1, 2, 0)]
    with pytest.raises(VerificationError, match="rank 1 to chunk 0 more than once"):
        one(up + down)


def test_a_missing_contribution_is_named() -> None:
    with pytest.raises(VerificationError, match="without the contribution of rank 2"):
        one([Transfer(0, 1, 0, 0, "reduce"), Transfer(1, 0, 1, 0), Transfer(2, 1, 2, 0)])


def test_sending_what_one_has_not_got_is_refused() -> None:
    with pytest.raises(VerificationError, match="the sender does not have it at that step"):
        one([Transfer(0, 1, 2, 0)], name="allgather")


def test_overloaded_links_are_refused() -> None:
    schedule, topology = CASES["ring allreduce"]
    tight = replace(
        schedule, step_s_per_GB=tuple(x * Fraction(99, 100) for x in schedule.step_s_per_GB)
    )
    with pytest.raises(VerificationError, match="is overloaded"):
        verify(tight, topology)


def test_a_shared_link_counts_the_sum_of_what_crosses_it() -> None:
    """Two transfers from different GPUs over one socket link take twice as long as either alone."""
    topology = preset("pcie-2socket")
    collective = Collective("allreduce", 8)
    both = tuple(
        Transfer(
            0, src, src + 4, 0, "reduce", (f"plx{src // 2}", "cpu0", "cpu1", f"plx{2 + src // 2}")
        )
        for src in (0, 2)
    )
    schedule = tighten(
        Schedule(collective, "by hand", (Chunk(Fraction(1)),), Transfers.of(both), ()), topology
    )
    assert schedule.step_s_per_GB == (2 / Fraction(96, 5),)


def test_routes_must_exist_and_not_pass_through_gpus() -> None:
    with pytest.raises(VerificationError, match="no link"):
        collective = Collective("allreduce", 3)
        rows = (Transfer(0, 0, 2, 0, "reduce"),)
        verify(
            Schedule(
                collective, "by hand", collective.even_chunks(1), Transfers.of(rows), (Fraction(9),)
            ),
            preset("path:3"),
        )
    with pytest.raises(VerificationError, match="GPUs do not forward"):
        rows = (Transfer(0, 0, 2, 0, "reduce", ("gpu1",)),)
        verify(
            Schedule(
                collective, "by hand", collective.even_chunks(1), Transfers.of(rows), (Fraction(9),)
            ),
            preset("path:3"),
        )


@pytest.mark.parametrize(
    ("chunks", "match"),
    [
        ((Chunk(Fraction(1, 2)),), "make up 1/2"),
        ((Chunk(Fraction(1)), Chunk(Fraction(0))), "share 0"),
        ((Chunk(Fraction(1), source=0),), "has no sources"),
    ],
)
def test_chunks_must_make_up_the_buffer(chunks: tuple[Chunk, ...], match: str) -> None:
    with pytest.raises(VerificationError, match=match):
        verify(
            Schedule(Collective("allreduce", 3), "by hand", chunks, Transfers.of(()), ()),
            preset("ring:3"),
        )
