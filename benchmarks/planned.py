"""Plans for benchmarks and tests, of objects and few options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topoplan.synth.ir.collective import Collective
from topoplan.synth.numeric.effort import USUAL_LIMIT_S, Effort
from topoplan.synth.planner import synthesize as planner
from topoplan.synth.planner.whole import Synthesis
from topoplan.synth.request import Request
from topoplan.topo.graph import Topology


def synthesize(
    collective: Collective,
    topology: Topology,
    strategy: str = "auto",
    time_limit_s: float = USUAL_LIMIT_S,
    *,
    helpers: Sequence[int] = (),
    **options: Any,
) -> Synthesis:
    """Return what the planner finds; `options` are fields of the request."""
    effort = Effort(time_limit_s)
    wanted = Request(
        collective, topology, effort, strategy=strategy, helpers=tuple(helpers), **options
    )
    return planner.synthesize(wanted)
