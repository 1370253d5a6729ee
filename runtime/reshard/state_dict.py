"""Move the tensors of one state dict to those of another on other ranks: `reshard_state_dict`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ...synth.groups.ranks import REST, Helpers
from ...topo.errors import InputError
from ..communicator import DEFAULT_TIMEOUT
from .placements import read_shards
from .shards import Shards
from .transfer import Machine, Reshard, agree, find_transfers

# The plans of the last calls that are cached: a job moves one or two models again and again.
_MAX_PLANS = 8


def reshard_state_dict(
    source: Mapping[str, Any],
    destination: Mapping[str, Any],
    topology: Machine = None,
    *,
    helpers: Helpers = REST,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> None:
    """Copy the DTensors of one state dict to those of another, whatever their meshes.

    Collective over all ranks of the default process group. Both map the same names to DTensors of
    the same global shapes and dtypes; the local shards of `destination` are filled in place. Meshes
    may be disjoint, overlap or be equal; a rank outside a mesh gives the DTensor with an empty
    local shard that torch makes there. Placements and `topology` are as for `topoplan.reshard`.

    All tensors of a dtype move together: what the same ranks hold and need travels in the same
    messages. Scratch memory is at most twice the largest shard of a tensor, or 1 MiB. Plans are
    cached, so later calls with the same names, meshes and placements only move the values.

    Raise InputError, on every rank, if keys, shapes or dtypes differ, a placement does not fit, or
    ranks pass different arguments; ExecutionError if a rank fails or the deadline passes.
    """
    shared = find_transfers(timeout)
    transport, cached = shared.transport, shared.plans
    is_cached = isinstance(topology, str | None)
    with transport.faults.stock("comparing the state dicts to move"):
        names, key = agree(transport, lambda: _check(source, destination))
        # Ranks with other keys would not agree on whether the plan is cached.
        machine = topology if is_cached else type(topology).__name__
        key += [("topology", repr(machine)), ("helpers", repr(helpers))]
        whole = repr(key)
        digests = transport.exchange(hashlib.sha256(whole.encode()).digest())
        if any(digest != digests[0] for digest in digests):
            raise InputError(_describe_difference(transport.exchange(key)))
    moves = cached.pop(whole, None) if is_cached else None
    if moves is None:
        moves = {
            dtype: Reshard(
                partial(_read, source, destination, listed, dtype, transport.size),
                transport,
                topology,
                helpers,
                timeout=timeout,
            )
            for dtype, listed in names.items()
        }
    if is_cached:
        cached[whole] = moves
        while len(cached) > _MAX_PLANS:
            cached.popitem(last=False)
    for dtype, move in moves.items():
        listed, move.timeout = names[dtype], timeout
        move.run([source[name] for name in listed], [destination[name] for name in listed])


def _check(
    source: Mapping[str, Any], destination: Mapping[str, Any]
) -> tuple[dict[torch.dtype, list[str]], list[tuple[str, str]]]:
    """Return the names by dtype, and a description of each tensor that all ranks must share.

    Raise InputError if the dicts do not fit together.
    """
    for what, mapping in (("source", source), ("destination", destination)):
        for name, value in mapping.items():
            if not isinstance(value, DTensor):
                raise InputError(
                    f"{what}[{name!r}]: {type(value).__name__}; expected a DTensor "
                    "(distribute_tensor makes one of a tensor)"
                )
    for one, other, where in (
        (source, destination, "source"),
        (destination, source, "destination"),
    ):
        alone = sorted(set(one).difference(other))
        if alone:
            raise InputError(
                f"{alone[0]!r} is only in the {where}, one of {len(alone)}; expected equal keys"
            )
    names: dict[torch.dtype, list[str]] = {}
    described = []
    for name in sorted(source):
        before, after = source[name], destination[name]
        if before.shape != after.shape or before.dtype != after.dtype:
            raise InputError(
                f"{name!r}: {before.dtype} of shape {tuple(before.shape)} in the source, "
                f"{after.dtype} of shape {tuple(after.shape)} in the destination; expected the same"
            )
        names.setdefault(before.dtype, []).append(name)
        described.append((repr(name), _describe(before) + " to " + _describe(after)))
    return dict(sorted(names.items(), key=lambda item: str(item[0]))), described


def _describe(tensor: DTensor) -> str:
    return (
        f"{tensor.dtype} {tuple(tensor.shape)} {tensor.device_mesh.mesh.tolist()} "
        f"{tensor.placements}"
    )


def _describe_difference(keys: list[list[tuple[str, str]]]) -> str:
    """Return what differs between the arguments of the ranks."""
    rank = next(number for number, key in enumerate(keys) if key != keys[0])
    first, other = (dict(keys[number]) for number in (0, rank))
    name = min(name for name in {**first, **other} if first.get(name) != other.get(name))
    return (
        f"{name} is {first.get(name, 'missing')} on rank 0, {other.get(name, 'missing')} on rank "
        f"{rank}; expected the same on all ranks"
    )


def _read(
    source: Mapping[str, Any],
    destination: Mapping[str, Any],
    names: list[str],
    dtype: torch.dtype,
    world: int,
) -> tuple[list[tuple[Shards, Shards]], torch.dtype]:
    """Return how the named tensors are laid out before and after."""

    def read(tensor: DTensor, where: str) -> Shards:
        return read_shards(tensor.device_mesh, tensor.placements, tensor.shape, where, world)

    return [
        (
            read(source[name], f"source[{name!r}]"),
            read(destination[name], f"destination[{name!r}]"),
        )
        for name in names
    ], dtype
