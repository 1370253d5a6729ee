"""The formats of topo-synth besides plans, each with the rates that it reaches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ...topo.errors import InfeasibleError
from ...topo.routes import Router
from ..bounds.single_path import Bounds, find_bounds
from ..ir.collective import Collective
from ..numeric.effort import Effort
from ..request import Request
from .binary_trees import find_depth
from .choice import ChosenGraphs, choose_graphs
from .gpu_numbers import number_gpus
from .graph_file import NEWEST, NcclVersion
from .guard import USUAL_SIZE_bytes
from .nccl_graph import COLLECTIVES, write_graphs
from .nccl_tuner import write_nccl_tuner
from .rccl_env import find_rccl_env, write_rccl_env
from .verdict import describe_choice, explain_refusal, find_environment, list_choice_json

NCCL_GRAPH, RCCL_ENV, NCCL_TUNER = "nccl-graph", "rccl-env", "nccl-tuner"
# All formats.
FORMATS = (NCCL_GRAPH, RCCL_ENV, NCCL_TUNER)
# Work of the bound in seconds of an idle core, and its share of the time limit.
_BOUND_WORK_S, _BOUND_CLOCK = 20.0, 0.5


@dataclass(frozen=True)
class Export:
    """A text in one of the formats, with `figures` for programs and `lines` for people.

    `reason` is why the text should not be used, since stock is as good; None if it should.
    `bounds` are the collective's, to compare its rates with; None if the format has no rates.
    `environment` has variables that the file needs.
    """

    format: str
    text: str
    figures: dict[str, Any]
    lines: tuple[str, ...]
    bounds: Bounds | None = None
    reason: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

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
    size_bytes: int = USUAL_SIZE_bytes,
    guard: bool = True,
) -> Export:
    """Return the file, in one of FORMATS, that tunes NCCL or RCCL to a topology for a collective.

    `version` is NCCL's, for graph files, which are made for buffers of `size_bytes`; with `guard`
    they have a `reason` where they are not above stock. `measured` are the measurements for the
    tuner, each ALGORITHM/PROTOCOL/CHANNELS=FILE. Raise InfeasibleError or InputError if the format
    cannot express it.
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
    if format == NCCL_GRAPH:
        chosen = choose_graphs(collective, router, effort, progress, version, size_bytes, guard)
        return _export_nccl_graph(chosen, version, size_bytes, guard)
    bounds = find_bounds(collective, router, effort.grant(_BOUND_WORK_S, _BOUND_CLOCK), progress)
    request = Request(
        collective, router.topology, effort, progress, bounds.single_path, router=router
    )
    env = find_rccl_env(request, bounds.single_path)
    rates = {"rings": env.ring_GBps, "trees": env.tree_GBps}
    deep = f"{find_depth(env.trees)} deep, for {env.channels} channels"
    more = [f"{len(env.trees)} trees, {deep}"] if env.trees else []
    return Export(
        format,
        write_rccl_env(env, request),
        _list_figures(rates, bounds, env.fraction, env.channels),
        (_summarise(rates, env.fraction), *more),
        bounds,
    )


def _export_nccl_graph(
    chosen: ChosenGraphs, version: NcclVersion, size_bytes: int, guard: bool
) -> Export:
    graphs, bounds = chosen.graphs, chosen.bounds
    rates = {"rings": graphs.ring_GBps, "chains": graphs.chain_GBps}
    remarks = describe_choice(chosen, size_bytes)
    reason = explain_refusal(chosen, size_bytes) if guard else None
    count = graphs.count
    return Export(
        NCCL_GRAPH,
        write_graphs(graphs, version, remarks),
        {
            **_list_figures(rates, bounds, graphs.fraction, count),
            **list_choice_json(chosen, size_bytes),
            "written": reason is None,
            "reason": reason,
        },
        (
            _summarise(rates, graphs.fraction),
            f"{count} channel{'s' * (count > 1)}; GPUs by {graphs.numbers.source}",
            *remarks,
        ),
        bounds,
        reason,
        find_environment(chosen),
    )


def _list_figures(
    rates: Mapping[str, Fraction], bounds: Bounds, fraction: Fraction, channels: int
) -> dict[str, Any]:
    return {
        "algbw_GBps": {name: float(rate) if rate else None for name, rate in rates.items()},
        "bound_one_way": float(bounds.single_path.algbw_GBps),
        "fraction": float(fraction),
        "channels": channels or None,
    }


def _summarise(rates: Mapping[str, Fraction], fraction: Fraction) -> str:
    listed = ", ".join(
        f"{name} {float(rate):.4g} GB/s algbw" if rate else f"no {name}"
        for name, rate in rates.items()
    )
    return f"{listed}; {float(fraction):.1%} of the single-path bound"
