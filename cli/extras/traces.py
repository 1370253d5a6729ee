"""topo-run --trace: when the transfers of a call of the largest size began and ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..running.added import RunFile

if TYPE_CHECKING:
    from ...runtime.communicator import Communicator
    from ...runtime.measuring.bench_data import BenchSettings


def _trace(settings: BenchSettings, communicator: Communicator) -> str | None:
    from ...runtime.extras.traces import trace_largest

    return trace_largest(settings, communicator)


TRACE = RunFile(_trace, ".json", "trace written to FILE; open it at ui.perfetto.dev")
