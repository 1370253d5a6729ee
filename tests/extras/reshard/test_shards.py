"""Shards are cut as torch cuts them, and bundles bring every rank what it needs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from drawn_layouts import SHAPES, Laid, cut_by_torch, layouts, read
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import count_examples
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._ops._math_ops import _NormPartial

from topoplan.runtime.extras.reshard.bundles import find_bundles, list_demands
from topoplan.topo.errors import InputError


@settings(max_examples=count_examples(25))
@given(st.data())
def test_everyone_gets_its_shard(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    full = torch.arange(int(np.prod(shape))).view(shape)
    source, destination = (data.draw(layouts(shape, partial=partial)) for partial in (True, False))
    have, need = read(source, shape), read(destination, shape)
    shards = {rank: cut_by_torch(full, source, place) for rank, place in have.coordinates.items()}
    assert all(have.shape_of(rank) == shards[rank].shape for rank in shards)
    results = {
        rank: torch.zeros(cut_by_torch(full, destination, place).shape, dtype=torch.int64)
        for rank, place in need.coordinates.items()
    }
    bundles = find_bundles([(have, need)])
    for bundle in bundles:
        for holders, receiver in itertools.product(bundle.holders, bundle.receivers):
            values = [
                torch.cat([shards[h][have.find(h, b.box)].reshape(-1) for b in bundle.blocks])
                for h in holders
            ]
            assert all(torch.equal(value, values[0]) for value in values)
            for block, lo, hi in bundle.walk(0, bundle.numel):
                assert (lo, hi) == (0, block.numel)
                part = results[receiver][need.find(receiver, block.box)]
                part += shards[holders[0]][have.find(holders[0], block.box)]
    for rank, place in need.coordinates.items():
        expected = cut_by_torch(full, destination, place) * have.terms
        assert torch.equal(results[rank], expected), (source, destination, rank)
    for piece in list_demands(bundles):
        assert piece.missing == piece.receivers


def test_what_ranks_hold_does_not_move() -> None:
    rows, columns = (read((np.arange(4), [Shard(dim)]), (8, 8)) for dim in (0, 1))
    pieces = list_demands(find_bundles([(rows, columns)]))
    assert sorted((p.holders, p.receivers, p.size) for p in pieces) == [
        ((i,), (j,), 4) for i in range(4) for j in range(4) if i != j
    ]


def test_small_tensors_travel_together() -> None:
    source, destination = (read((np.arange(4) + first, [Replicate()]), (3, 5)) for first in (0, 4))
    (bundle,) = find_bundles([(source, destination)] * 100)
    assert bundle.numel == 1500 and len(bundle.blocks) == 100
    walked = list(bundle.walk(10, 40))
    assert [(block.tensor, lo, hi) for block, lo, hi in walked] == [
        (0, 10, 15),
        (1, 0, 15),
        (2, 0, 10),
    ]


@pytest.mark.parametrize(
    ("laid", "message"),
    [
        (([[0, 1]], [Shard(0)]), "1 placements on a mesh of 2 dimensions"),
        (([0, 1], [Shard(2)]), r"Shard\(2\) of a tensor of 2 dimensions"),
        (([0, 0], [Shard(0)]), "expected ranks, each once"),
        (([0, 9], [Shard(0)]), "mesh with rank 9; 8 ranks are running"),
        (([0, 1], [Partial("max")]), "expected Shard, Replicate"),
        (([0, 1], [_NormPartial(2)]), "expected Shard, Replicate"),
        (("no mesh", [Shard(0)]), "expected a DeviceMesh, or an array of ranks"),
    ],
)
def test_bad_placements_are_one_line(laid: Laid, message: str) -> None:
    with pytest.raises(InputError, match=f"^tensor w: .*{message}"):
        read(laid, (4, 4))


def test_destinations_have_whole_values_of_the_same_shape() -> None:
    ranks = np.arange(2)
    whole, terms = (read((ranks, [laid]), (4,)) for laid in (Replicate(), Partial()))
    with pytest.raises(InputError, match=r"Partial; a destination has whole values"):
        find_bundles([(whole, terms)])
    with pytest.raises(InputError, match=r"shape \(4,\), .*expected the same"):
        find_bundles([(whole, read((ranks, [Replicate()]), (5,)))])
