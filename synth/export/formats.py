"""The formats of topo-synth besides plans, each with the rates that it reaches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...topo.errors import InfeasibleError
from ...topo.routes import Router
from ..bounds.single_path import Bounds, find_bounds
from ..ir.collective import Collective
from ..numeric.effort import Effort
from ..request import Request
from .gpu_numbers import number_gpus
from .nccl_graph import COLLECTIVES, NcclGraphs, find_graphs, write_graphs
from .nccl_tuner import write_nccl_tuner
from .nccl_version import NEWEST, NcclVersion
from .rccl_env import find_rccl_env, write_rccl_env

NCCL_GRAPH, RCCL_ENV, NCCL_TUNER = "nccl-graph", "rccl-env", "nccl-tuner"
# All formats.
FORMATS = (NCCL_GRAPH, RCCL_ENV, NCCL_TUNER)
# Work of the bound in seconds of an idle core, and its share of the time limit.
_BOUND_WORK_S, _BOUND_CLOCK = 20.0, 0.5


@dataclass(frozen=True)
class Export:
    """A text in one of the formats, with `figures` for programs and `lines` for people.

    `bounds` are those of its rates, None if the format has no rates.
    """

    format: str
    text: str
    figures: dict[str, Any]
    lines: tuple[str, ...]
    bounds: Bounds | None = None

    @property
    def key(self) -> str:
        """The name of the figures in JSON."""
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
    """Return a collective on a topology in one of FORMATS.

    Raise InfeasibleError or InputError if the format cannot express it.
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
        return _describe_graphs(graphs, write_graphs(graphs, version), bounds)
    env = find_rccl_env(request, bounds.single_path)
    rates = {"rings": env.ring_GBps, "trees": env.tree_GBps}
    figures = _list_figures(rates, bounds, env.fraction) | {"channels": env.channels or None}
    lines: tuple[str, ...] = (_describe_rates(rates, env.fraction),)
    if env.trees is not None:
        count, depth = len(env.trees.trees), env.trees.depth
        lines += (f"{count} trees, {depth} deep, for {env.channels} channels",)
    return Export(format, write_rccl_env(env, request), figures, lines, bounds)


def _describe_graphs(graphs: NcclGraphs, text: str, bounds: Bounds) -> Export:
    rates = {"rings": graphs.ring_GBps, "chains": graphs.chain_GBps}
    figures = _list_figures(rates, bounds, graphs.fraction) | {"channels": graphs.count}
    count = f"{graphs.count} channel{'s' * (graphs.count > 1)}; GPUs by {graphs.numbers.source}"
    return Export(
        NCCL_GRAPH, text, figures, (_describe_rates(rates, graphs.fraction), count), bounds
    )


def _list_figures(rates: dict[str, Fraction], bounds: Bounds, fraction: Fraction) -> dict[str, Any]:
    return {
        "algbw_GBps": {name: float(rate) if rate else None for name, rate in rates.items()},
        "bound_one_way": float(bounds.single_path.algbw_GBps),
        "fraction": float(fraction),
    }


def _describe_rates(rates: dict[str, Fraction], fraction: Fraction) -> str:
    listed = ", ".join(
        f"{name} {float(rate):.4g} GB/s algbw" if rate else f"no {name}"
        for name, rate in rates.items()
    )
    return f"{listed}; {float(fraction):.1%} of the single-path bound"
