"""What the part of one certain rank sends at least: against parts that are drawn and counted
message by message.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from place import build_boxes
from thorough import count_examples

from topoplan.synth.extras.place.job import AROUND, LINE, PAIRS, SPREAD, pattern_of, read_job
from topoplan.synth.extras.place.placing import place
from topoplan.synth.extras.place.proof.check import check_place_bound
from topoplan.synth.extras.place.proof.shapes import list_shapes

SHAPES = (AROUND, LINE, PAIRS, SPREAD)
COLLECTIVE_OF = {
    AROUND: ("ring", "allgather"),
    LINE: ("ring", "sendrecv"),
    PAIRS: ("ring", "alltoall"),
}
Member = tuple[int, int]


def count_sent(part: set[Member], axis: int, size: int, shape: str) -> Fraction:
    """What groups along an axis of a mesh send out of a part: messages, of a plan half of one, with
    all others in one part.
    """
    lines: dict[int, set[int]] = {}
    for member in part:
        lines.setdefault(member[1 - axis], set()).add(member[axis])
    if shape == SPREAD:
        return sum((Fraction(1, 2) for inside in lines.values() if len(inside) < size), Fraction(0))
    sends = pattern_of(*COLLECTIVE_OF[shape], size, 1).sends
    return Fraction(
        sum(i in inside and j not in inside for inside in lines.values() for i, j in sends)
    )


@settings(max_examples=count_examples(20), deadline=None)
@given(st.data())
def test_no_part_sends_less_than_all_shapes(data: st.DataObject) -> None:
    across, along = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 8))
    middle = (data.draw(st.integers(0, across - 1)), (along - 1) // 2)
    members = st.tuples(st.integers(0, across - 1), st.integers(0, along - 1))
    part = {middle, *data.draw(st.sets(members, max_size=across * along))}
    for first, second in product(SHAPES, SHAPES):
        sent = count_sent(part, 0, across, first), count_sent(part, 1, along, second)
        shapes = list_shapes(len(part), across, along, (first,), (second,))
        assert any(a[0] <= sent[0] and b[0] <= sent[1] for a, b in shapes), (
            part,
            first,
            second,
            sent,
            shapes,
        )


def test_shapes_of_rings_and_lines_are_ones_that_parts_have() -> None:
    """Of all parts of 4 in a mesh of 5 x 5 with a member in the middle of a line, those that send
    least are listed exactly.
    """
    mesh = list(product(range(5), range(5)))
    sent = {
        (count_sent(set(part), 0, 5, AROUND), count_sent(set(part), 1, 5, LINE))
        for part in combinations(mesh, 4)
        if (0, 2) in part
    }
    listed = {(a[0], b[0]) for a, b in list_shapes(4, 5, 5, (AROUND,), (LINE,))}
    least = {
        pair
        for pair in sent
        if not any(o != pair and o[0] <= pair[0] and o[1] <= pair[1] for o in sent)
    }
    assert least <= listed


@pytest.mark.long
def test_what_the_middle_of_a_pipeline_sends_proves_an_order_optimal() -> None:
    """Stages and replicas that no leaf divides evenly: means over all ranks alone leave more than a
    tenth.
    """
    machine = build_boxes(64, 1, 8, leaf_GBps=100)
    traffic = "dp=allreduce:256M,pp=sendrecv:256M"
    placed = place(machine, "dp=8,pp=8", traffic)
    # Latencies of eight stages in succession are bounded less tightly.
    assert placed.gap < 0.002
    job = read_job("dp=8,pp=8", traffic, 64)
    check_place_bound(placed.bound, machine, range(64), job, job.list_phases("ring"), "time")
