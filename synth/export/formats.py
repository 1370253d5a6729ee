"""The formats of topo-synth besides plans, each with the rates that it reaches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...topo.errors import InfeasibleError
from ...topo.routes import Router
from ..bounds.single_path import Bounds, find_bounds
from ..ir.collective import Collective
from ..numeric.effort import Effort
from ..request import Request
from .binary_trees import find_depth
from .gpu_numbers import number_gpus
from .graph_file import NEWEST, NcclVersion
from .nccl_graph import COLLECTIVES, find_graphs, write_graphs
from .nccl_tuner import write_nccl_tuner
from .rccl_env import find_rccl_env, write_rccl_env

NCCL_GRAPH, RCCL_ENV, NCCL_TUNER = "nccl-graph", "rccl-env", "nccl-tuner"
# All formats.
FORMATS = (NCCL_GRAPH, RCCL_ENV, NCCL_TUNER)
# Work of the bound in seconds of an idle core, and its share of the time limit.
_BOUND_WORK_S, _BOUND_CLOCK = 20.0, 0.5


@dataclass(frozen=True)
class Export:
    """A text in one of the formats, with `figures` for programs and `lines` for people.

    `bounds` are the collective's, to compare its rates with; None if the format has no rates.
    """

    format: str
    text: str
    figures: dict[str, Any]
    lines: tuple[str, ...]
    bounds: Bounds | None = None

    @property
    def key(self) -> str:
        """The key under which topo-synth's JSON has the figures."""
        return self.format.replace("-", "_")


def export(
    format: str,
    collective: Collective,
    router: Router,
    effort: Effort,
    progress: Callable[[str], None] | None = None,
    *,
    version: NcclVersion = NEWEST,
    measured: Sequence[str] = (),
) -> Export:
    """Return the file, in one of FORMATS, that tunes NCCL or RCCL to a topology for a collective.

    `version` is NCCL's, for graph files. `measured` are the measurements for the tuner, each
    ALGORITHM/PROTOCOL/CHANNELS=FILE. Raise InfeasibleError or InputError if the format cannot
    express it.
    """
    if format == NCCL_TUNER:
        text = write_nccl_tuner(collective, router.topology, measured)
        rows = [line for line in text.splitlines() if not line.startswith("#")]
        line = (f"{len(rows)} ranges of sizes, each with its fastest choice",)
        return Export(format, text, {"rows": len(rows)}, line)
    # Refused before any search.
    library = "NCCL's graph files have" if format == NCCL_GRAPH else "RCCL's rings and trees have"
    if collective.name not in COLLECTIVES:
        raise InfeasibleError(
            f"{library} no {collective.name}; they are for {', '.join(COLLECTIVES)}"
        )
    number_gpus(router.topology)
    bounds = find_bounds(collective, router, effort.grant(_BOUND_WORK_S, _BOUND_CLOCK), progress)
    request = Request(
        collective, router.topology, effort, progress, bounds.single_path, router=router
    )
    if format == NCCL_GRAPH:
        graphs = find_graphs(request, bounds.single_path, version)
        text, fraction, channels = write_graphs(graphs, version), graphs.fraction, graphs.count
        rates = {"rings": graphs.ring_GBps, "chains": graphs.chain_GBps}
        more = [f"{channels} channel{'s' * (channels > 1)}; GPUs by {graphs.numbers.source}"]
    else:
        env = find_rccl_env(request, bounds.single_path)
        text, fraction, channels = write_rccl_env(env, request), env.fraction, env.channels
        rates = {"rings": env.ring_GBps, "trees": env.tree_GBps}
        deep = f"{find_depth(env.trees)} deep, for {channels} channels"
        more = [f"{len(env.trees)} trees, {deep}"] if env.trees else []
    figures = {
        "algbw_GBps": {name: float(rate) if rate else None for name, rate in rates.items()},
        "bound_one_way": float(bounds.single_path.algbw_GBps),
        "fraction": float(fraction),
        "channels": channels or None,
    }
    listed = ", ".join(
        f"{name} {float(rate):.4g} GB/s algbw" if rate else f"no {name}"
        for name, rate in rates.items()
    )
    summary = f"{listed}; {float(fraction):.1%} of the single-path bound"
    return Export(format, text, figures, (summary, *more), bounds)
