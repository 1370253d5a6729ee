"""The formats of topo-synth that write files for NCCL and RCCL.

extras.py at the root lists them; topo-synth --format NAME calls `write` of the one of that name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...library_format import LibraryFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...library_format import Export, LibraryRequest


def _write(format: str) -> Callable[[LibraryRequest], Export]:
    def write(request: LibraryRequest) -> Export:
        from ..stock.nccl_version import NEWEST, parse_nccl_version
        from .export import export  # imports solvers

        return export(
            format,
            request.collective,
            request.router,
            request.effort,
            request.progress,
            version=NEWEST if request.version is None else parse_nccl_version(request.version),
            measured=request.measured,
            size_bytes=request.size_bytes,
            guard=request.guard,
            beside_path=request.beside_path,
            hosts=request.hosts,
        )

    return write


NCCL_GRAPH = LibraryFormat(
    _write("nccl-graph"), options=("--nccl-version", "--hosts", "--no-guard"), suffix=".xml"
)
RCCL_ENV = LibraryFormat(_write("rccl-env"), ".xml", ("--no-guard",))
NCCL_TUNER = LibraryFormat(_write("nccl-tuner"), options=("--measured",))
