"""The formats of topo-synth for hosts that cables join: NCCL's settings, and MLX's host file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...library_format import Export, LibraryFormat, LibraryRequest

if TYPE_CHECKING:
    from ...bounds.single_path import Bounds

# Work of the bound in seconds of an idle core, and its share of the time limit.
_BOUND_WORK_S, _BOUND_CLOCK = 20.0, 0.5


def _find_bounds(request: LibraryRequest) -> Bounds:
    from ...bounds.single_path import find_bounds  # imports solvers

    effort = request.effort.grant(_BOUND_WORK_S, _BOUND_CLOCK)
    return find_bounds(request.collective, request.router, effort)


def _write_nccl_env(request: LibraryRequest) -> Export:
    from ..stock.nccl_version import NEWEST, parse_nccl_version
    from .hosts import read_hosts
    from .nccl_env import advise_nccl

    version = NEWEST if request.version is None else parse_nccl_version(request.version)
    hosts = read_hosts(request.router.topology)
    bounds = _find_bounds(request)
    advice = advise_nccl(hosts, request.collective, bounds, is_subnet_aware=version.is_subnet_aware)
    if not request.guard:
        advice = replace(advice, reason=None)
    return Export(
        "nccl-env",
        advice.write(),
        advice.to_json(),
        tuple(advice.list_lines()),
        bounds,
        advice.reason,
        advice.settings,
        beside=advice.write_hostfile(),
        beside_what="hosts in the order of the ring",
    )


def _write_mlx_hostfile(request: LibraryRequest) -> Export:
    from .hosts import read_hosts
    from .mlx import write_mlx

    hosts = read_hosts(request.router.topology)
    bounds = _find_bounds(request)
    file = write_mlx(hosts, request.collective, bounds)
    return Export("mlx-hostfile", file.write(), file.to_json(), tuple(file.list_lines()), bounds)


NCCL_ENV = LibraryFormat(_write_nccl_env, ".hosts", ("--nccl-version", "--no-guard"))
MLX_HOSTFILE = LibraryFormat(_write_mlx_hostfile)
