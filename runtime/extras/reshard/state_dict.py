"""Move the tensors of a state dict into one on other ranks or meshes: `reshard_state_dict`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from ....synth.groups.ranks import REST, Helpers
from ....topo.errors import InputError
from ...policy import DEFAULT_TIMEOUT
from .placements import read_shards
from .shards import Shards
from .transfer import Machine, Reshard, agree, find_transfers

# The plans of the last calls that are cached: a job moves one or two models again and again.
_MAX_PLANS = 8
# Meshes; of each tensor's source and destination, what ranks must agree on and the mesh's number.
Key = tuple[list[Any], dict[str, list[tuple[str, int]]]]


def reshard_state_dict(
    source: Mapping[str, Any],
    destination: Mapping[str, Any],
    topology: Machine = None,
    *,
    helpers: Helpers = REST,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> None:
    """Copy the DTensors of one state dict into those of another, whatever their meshes.

    Collective over all ranks of the default process group. Both map the same names to DTensors of
    the same global shapes and dtypes; the local shards of `destination` are filled in place. Meshes
    may be disjoint, overlap or be equal; a rank outside a mesh gives the DTensor with an empty
    local shard that torch makes there. If ranks have a tensor on several meshes that share no rank,
    as FSDP makes where tensor parallelism splits others, each mesh has a copy. Placements,
    `topology` (the machine) and `helpers` (ranks that may relay) are as for `topoplan.reshard`.

    All tensors of a dtype move together: what the same ranks hold and need travels in the same
    messages. Scratch memory is at most twice the largest shard of a tensor, or 1 MiB. Plans are
    cached, so later calls with the same names, meshes and placements only move the values.

    Raise InputError, on every rank, if keys, shapes or dtypes differ, a placement does not fit,
    source and destination share memory, or ranks pass different arguments; ExecutionError if a rank
    fails or `timeout`, the deadline of the call, passes.
    """
    shared = find_transfers(timeout)
    transport, cached = shared.transport, shared.reshards
    is_cached = isinstance(topology, str | None)
    with transport.faults.stock("comparing the state dicts to move"):
        names, mine = agree(transport, lambda: _check(source, destination))
        # Ranks with other keys would not agree on whether the plan is cached.
        machine = topology if is_cached else type(topology).__name__
        mine[1].update(topology=[(repr(machine), -1)], helpers=[(repr(helpers), -1)])
        key = tuple(transport.control.exchange(hashlib.sha256(repr(mine).encode()).digest()))
        moves = cached.pop(key, None) if is_cached else None
        keys = [mine] if moves or len(set(key)) == 1 else transport.control.exchange(mine)
        joined = {} if moves else _join_meshes(keys)
    if moves is None:
        moves = {
            dtype: Reshard(
                partial(_read, source, destination, listed, joined, dtype, transport.size),
                transport,
                topology,
                helpers,
                timeout=timeout,
            )
            for dtype, listed in names.items()
        }
    if is_cached:
        cached[key] = moves
        while len(cached) > _MAX_PLANS:
            cached.popitem(last=False)
    for dtype, move in moves.items():
        listed, move.timeout = names[dtype], timeout
        move.run([source[name] for name in listed], [destination[name] for name in listed])


def _check(
    source: Mapping[str, Any], destination: Mapping[str, Any]
) -> tuple[dict[torch.dtype, list[str]], Key]:
    """Return the names by dtype, and what all ranks must agree on about each tensor.

    Raise InputError if the dicts do not fit together.
    """
    for what, mapping in (("source", source), ("destination", destination)):
        if not isinstance(mapping, Mapping):
            raise InputError(
                f"{what}: {type(mapping).__name__}; expected a dict of DTensors, such as "
                "Module.state_dict() returns"
            )
        for name, value in mapping.items():
            if not isinstance(value, DTensor):
                raise InputError(
                    f"{what}[{name!r}]: {type(value).__name__}; expected a DTensor (leave it out, "
                    "or DTensor.from_local makes one of copies: with [Replicate()])"
                )
    alone = sorted({*source} ^ {*destination}, key=repr)
    if alone:
        raise InputError(
            f"{alone[0]!r} is only in the {'source' if alone[0] in source else 'destination'}, one "
            f"of {len(alone)}; expected equal keys"
        )
    names: dict[torch.dtype, list[str]] = {}
    numbers: dict[DeviceMesh, int] = {}
    described: dict[str, list[tuple[str, int]]] = {}
    for name in sorted(source, key=repr):
        ends = source[name], destination[name]
        dtypes, shapes = ([getattr(end, what) for end in ends] for what in ("dtype", "shape"))
        if dtypes[0] != dtypes[1] or shapes[0] != shapes[1]:
            raise InputError(
                f"{name!r}: {dtypes[0]} of shape {tuple(shapes[0])} in the source, "
                f"{dtypes[1]} of shape {tuple(shapes[1])} in the destination; expected the same"
            )
        names.setdefault(dtypes[0], []).append(name)
        described[repr(name)] = [
            (
                f"{end.dtype} {tuple(end.shape)} {end.placements}",
                numbers.setdefault(end.device_mesh, len(numbers)),
            )
            for end in ends
        ]
    meshes = [*(mesh.mesh.tolist() for mesh in numbers), []]  # the last one for what has none
    return dict(sorted(names.items(), key=lambda item: str(item[0]))), (meshes, described)


def _join_meshes(keys: Sequence[Key]) -> dict[str, list[Any]]:
    """Return the meshes of each tensor's source and destination, by its repr, from all ranks' keys.

    FSDP lays what tensor parallelism does not split over one mesh per tensor-parallel rank: each
    mesh has a copy. Such meshes become one, with one more dimension in front. Raise InputError if
    anything else differs.
    """

    @cache  # most tensors have the same meshes
    def join(numbers: tuple[int, ...]) -> list[Any] | None:
        own: list[list[Any]] = [
            meshes[number] for (meshes, _), number in zip(keys, numbers, strict=True)
        ]
        distinct = [*{str(mesh): mesh for mesh in own}.values()]
        if len(distinct) == 1:
            return distinct[0]
        are_alike = len({np.shape(mesh) for mesh in distinct}) == 1
        # Each rank is on the mesh that it names, and on no other one.
        are_apart = all(own[rank] == mesh for mesh in distinct for rank in np.ravel(mesh))
        return distinct if are_alike and are_apart else None

    out: dict[str, list[Any]] = {}
    for name in sorted({name for _, described in keys for name in described}):
        rows = [described.get(name, [("missing", -1)] * 2) for _, described in keys]
        texts = [[text for text, _ in row] for row in rows]
        out[name] = [join(tuple(number for _, number in end)) for end in zip(*rows, strict=False)]
        if None in out[name] or texts.count(texts[0]) < len(texts):
            spelled = [
                " to ".join(
                    dict.fromkeys(f"{text} on {meshes[i]}" if i >= 0 else text for text, i in row)
                )
                for (meshes, _), row in zip(keys, rows, strict=True)
            ]
            rank = next(number for number, text in enumerate(spelled) if text != spelled[0])
            raise InputError(
                f"{name} is {spelled[0]} on rank 0, {spelled[rank]} on rank {rank}; expected the "
                "same on all ranks"
            )
    return out


def _read(
    source: Mapping[str, Any],
    destination: Mapping[str, Any],
    names: list[str],
    meshes: Mapping[str, list[Any]],
    dtype: torch.dtype,
    world: int,
) -> tuple[list[tuple[Shards, Shards]], torch.dtype]:
    """Return how the named tensors are laid out before and after."""

    def read(tensor: DTensor, name: str, end: int) -> Shards:
        mesh = np.array(meshes[repr(name)][end])
        copies = [Replicate()] * (mesh.ndim - len(tensor.placements))
        where = f"{('source', 'destination')[end]}[{name!r}]"
        placements = [*copies, *tensor.placements]
        return read_shards(mesh, placements, tensor.shape, where, world, of_device_mesh=True)

    return [
        (read(source[name], name, 0), read(destination[name], name, 1)) for name in names
    ], dtype
