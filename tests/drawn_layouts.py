"""Random meshes with the placements of a tensor, and its shards as torch cuts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from topoplan.runtime.extras.reshard.placements import read_shards
from topoplan.runtime.extras.reshard.shards import Shards

Laid = tuple[np.ndarray, list[Placement]]


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...], *, partial: bool) -> Laid:
    """A mesh of up to 8 ranks with one or two dimensions, and placements on it."""
    sizes = draw(st.sampled_from([(1,), (3,), (4,), (8,), (2, 2), (2, 3), (4, 2), (1, 5)]))
    ranks = draw(st.permutations(range(8)))[: int(np.prod(sizes))]
    dims = st.integers(0, len(shape) - 1)
    kinds: list[st.SearchStrategy[Placement]] = [
        st.just(Replicate()),
        st.builds(Shard, dims),
        st.builds(lambda dim, factor: _StridedShard(dim, split_factor=factor), dims, st.just(2)),
    ]
    if partial:
        kinds += [st.just(Partial("sum"))]
    return np.array(ranks).reshape(sizes), [draw(st.one_of(kinds)) for _ in sizes]


def cut_by_torch(full: torch.Tensor, laid: Laid, place: tuple[int, ...]) -> torch.Tensor:
    """Return the shard at a place of the mesh, cut as DTensor does."""
    mesh, placements = laid
    for dim, placement in enumerate(placements):
        if not isinstance(placement, (Replicate, Partial)):
            split: Any = placement
            parts, _ = split._split_tensor(full, mesh.shape[dim], with_padding=False)
            full = parts[place[dim]]
    return full


def read(laid: Laid, shape: tuple[int, ...]) -> Shards:
    return read_shards(*laid, shape, "tensor w", 8)


SHAPES = st.lists(st.integers(0, 11), min_size=1, max_size=3).map(tuple)
