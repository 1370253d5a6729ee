"""topo-run --trace and topo-synth --trace: when transfers began and ended, and when they would.

A trace is of one schedule at one size of buffer, in Chrome's Trace Event Format. topo-synth draws a
timeline instead if the file's name is that of a picture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...topo.pictures.convert import PICTURE_SUFFIXES
from ..running.added import RunFile
from ..synthesis.added import PlanFile

if TYPE_CHECKING:
    from ...runtime.communicator import Communicator
    from ...runtime.measuring.bench_data import BenchSettings
    from ...synth.plan import Plan

_WRITTEN = "trace written to FILE; open it at ui.perfetto.dev"


def _trace(settings: BenchSettings, communicator: Communicator) -> str | None:
    from ...runtime.extras.traces import trace_largest

    return trace_largest(settings, communicator)


def _predict(plan: Plan, size_bytes: int, suffix: str) -> str:
    from ...synth.extras.traces.chrome_trace import write_plan_trace
    from ...synth.extras.traces.timeline import draw_plan_timeline

    write = draw_plan_timeline if suffix in PICTURE_SUFFIXES else write_plan_trace
    return write(plan, size_bytes)


def _name_predicted(suffix: str) -> str:
    return "timeline drawn in FILE" if suffix in PICTURE_SUFFIXES else _WRITTEN


TRACE = RunFile(_trace, ".json", _WRITTEN)
PREDICTED = PlanFile(_predict, _name_predicted, ".json")
