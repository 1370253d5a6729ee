"""Make the files for NCCL and RCCL, each with the rates that it reaches.

Stock is the library without such a file. A graph file lists the rings and chains (NCCL's trees)
that it uses; the other formats are RCCL's environment variables and the table of a tuner plugin.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from ....topo.errors import InfeasibleError
from ....topo.extras.nccl_topology import is_amd
from ....topo.graph import Topology
from ....topo.routes import Router
from ...bounds.single_path import Bounds
from ...ir.collective import Collective
from ...library_format import Export
from ...numeric.effort import Effort
from ..stock.constants import OVER_RINGS
from ..stock.nccl_version import NEWEST, NcclVersion
from ..stock.on_paper import USUAL_SIZE_bytes
from .binary_trees import find_depth
from .choice import ChosenGraphs, choose_graphs
from .gpu_numbers import number_gpus
from .hosts.choice import ChosenHostGraphs, choose_host_graphs
from .hosts.graph import write_host_graphs
from .hosts.verdict import describe_host_choice, explain_host_refusal, list_host_figures
from .nccl_graph import write_graphs
from .nccl_tuner import write_nccl_tuner
from .rccl_choice import (
    choose_rccl_graphs,
    describe_rccl_choice,
    explain_rccl_refusal,
    list_rccl_json,
)
from .rccl_env import write_rccl_env
from .rccl_env_choice import choose_rccl_env
from .verdict import describe_choice, explain_refusal, find_environment, list_choice_json

NCCL_GRAPH, RCCL_ENV, NCCL_TUNER = "nccl-graph", "rccl-env", "nccl-tuner"


def export(  # noqa: PLR0913 (options of all formats)
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
    beside_path: str | None = None,
    hosts: int = 1,
) -> Export:
    """Return the file, in one of the formats, that tunes NCCL or RCCL for a collective.

    `format` is NCCL_GRAPH, RCCL_ENV or NCCL_TUNER. `version` is NCCL's, for its graph files, which
    are made for buffers of `size_bytes` in jobs of `hosts` hosts like the topology. With `guard`
    the result has a `reason` not to use it if it is not faster than stock by the model of stock;
    without a model, NCCL's graph files have none. `beside_path` is where a second file will be
    (`Export.beside`). `measured` are the measurements for the tuner, each
    ALGORITHM/PROTOCOL/CHANNELS=FILE. `effort` limits the search, `progress` is given lines about
    it. Raise InfeasibleError or InputError if the format cannot express it.
    """
    if format == NCCL_TUNER:
        text = write_nccl_tuner(collective, router.topology, measured)
        rows = [line for line in text.splitlines() if not line.startswith("#")]
        line = (f"{len(rows)} ranges of sizes, each with its fastest choice",)
        return Export(format, text, {"rows": len(rows)}, line)
    # Refused before any search.
    library = "NCCL's graph files have" if format == NCCL_GRAPH else "RCCL's rings and trees have"
    if collective.name not in OVER_RINGS:
        raise InfeasibleError(
            f"{library} no {collective.name}; they are for {', '.join(OVER_RINGS)}"
        )
    number_gpus(router.topology)
    if format == RCCL_ENV:
        return _export_rccl_env(collective, router, effort, progress, guard, beside_path)
    if hosts > 1:
        return _export_host_graphs(
            choose_host_graphs(
                router.topology, hosts, effort, version, size_bytes, collective.name != "allreduce"
            ),
            router.topology,
            version,
            size_bytes,
            guard,
        )
    if is_amd(router.topology):
        return _export_rccl_graph(collective, router, effort, progress, guard)
    chosen = choose_graphs(collective, router, effort, progress, version, size_bytes, guard)
    return _export_nccl_graph(chosen, version, size_bytes, guard)


def _export_rccl_graph(
    collective: Collective,
    router: Router,
    effort: Effort,
    progress: Callable[[str], None] | None,
    guard: bool,
) -> Export:
    chosen = choose_rccl_graphs(collective, router, effort, progress, guard)
    graphs, bounds, remarks = chosen.graphs, chosen.bounds, describe_rccl_choice(chosen)
    rates = {"rings": graphs.ring_GBps, "chains": graphs.chain_GBps}
    reason = explain_rccl_refusal(chosen) if guard else None
    count = graphs.count
    return Export(
        NCCL_GRAPH,
        write_graphs(graphs, chosen.version, remarks),
        {
            **_list_figures(rates, bounds, graphs.fraction, count),
            **list_rccl_json(chosen),
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
    )


def _export_rccl_env(
    collective: Collective,
    router: Router,
    effort: Effort,
    progress: Callable[[str], None] | None,
    guard: bool,
    beside_path: str | None,
) -> Export:
    chosen = choose_rccl_env(collective, router, effort, progress)
    env, rings, bounds = chosen.env, chosen.rings, chosen.graphs.bounds
    reason = chosen.reason if guard else None
    rates = {"rings": env.ring_GBps, "trees": env.tree_GBps}
    deep = f"{find_depth(env.trees)} deep, for {env.channels} channels"
    trees = [f"{len(env.trees)} trees, {deep}"] if env.trees else []
    remarks = list(chosen.lines)
    if rings is not None and beside_path is None:
        remarks.append("with -o FILE that file is written beside FILE")
    fraction = max(rates.values()) / bounds.single_path.algbw_GBps
    return Export(
        RCCL_ENV,
        write_rccl_env(env, chosen.request, remarks, beside_path if rings else None),
        {
            **_list_figures(rates, bounds, fraction, env.channels),
            **list_rccl_json(chosen.graphs),
            "rings_beside": {"channels": rings.count, "file": beside_path} if rings else None,
            "written": reason is None,
            "reason": reason,
        },
        (_summarise(rates, fraction), *trees, *remarks),
        bounds,
        reason,
        beside=write_graphs(rings, chosen.graphs.version, chosen.lines) if rings else None,
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


def _export_host_graphs(
    chosen: ChosenHostGraphs, topology: Topology, version: NcclVersion, size_bytes: int, guard: bool
) -> Export:
    numbers, network = number_gpus(topology), chosen.network
    remarks = describe_host_choice(chosen, size_bytes)
    reason = explain_host_refusal(chosen, size_bytes) if guard else None
    figures = list_host_figures(chosen, size_bytes) | {"written": reason is None, "reason": reason}
    rates = ", ".join(f"{name} {float(x):.4g}" for name, x in chosen.algbw_GBps.items())
    lines = (
        f"on {network.hosts} hosts, by NCCL's own count: {rates} GB/s algbw; {chosen.fraction:.1%} "
        f"of the {chosen.bound_GBps:.4g} that such channels reach at most by that count",
        f"{chosen.graphs.rings.channels} channels over {len(network.nets)} NICs of each host; GPUs "
        f"by {numbers.source}",
        *remarks,
    )
    text = write_host_graphs(chosen, topology, numbers, version, remarks)
    return Export(NCCL_GRAPH, text, figures, lines, reason=reason)


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
