"""Describe a graph file: its rates beside stock NCCL's, why it is written or not, its settings.

Stock NCCL or RCCL is the library without a graph file. NCCL's own count is the algbw by the rates
that NCCL's sources assume for links; those between CPUs are often faster, so files are also
compared with stock at two and four times these.
"""

from typing import Any

from ..stock.model import KINDS, NotModelled, list_refused_p2p
from ..stock.nccl import NcclHost
from ..stock.on_paper import StockRate
from .choice import ChosenGraphs
from .graph_check import list_hops
from .guard import BETWEEN_CPUS, WORTH_WRITING, Comparison, pick_stock

# The variables that a file may need.
NVB_VARIABLE, P2P_VARIABLE = "NCCL_NVB_DISABLE", "NCCL_P2P_LEVEL"


def compare_in_words(library: NcclHost, compared: Comparison, size_bytes: int) -> str:
    """Return a line that compares a file with stock, for an allreduce of `size_bytes`.

    `library` is the model of stock, `compared` the comparison with it.
    """
    times = ", ".join(f"{float(compared.ratios[None, f]):.3g}" for f in BETWEEN_CPUS)
    stock = library.model
    rates = ", ".join(f"{name} {float(x):.4g}" for name, x in stock.algbw_GBps.items())
    return (
        f"by NCCL's own count stock has {rates} and takes {stock.pick(size_bytes)}; the file's "
        f"{KINDS[compared.picked]} {float(compared.algbw_GBps):.4g}: {times} times stock with "
        "links between CPUs at 1, 2, 4 times its constants"
    )


def list_comparison_json(
    compared: Comparison,
    stock_model: dict[str, Any],
    *,
    environment: dict[str, str],
    speeds: str,
    pairs: tuple[int, int],
    level_needed: str | None,
) -> dict[str, Any]:
    """Return the comparison of a file with stock as JSON data.

    `stock_model` are stock's figures; `speeds` says whose constants the file's speeds are by.
    `over_stock` are the ratios to stock with links between CPUs 1, 2 and 4 times as fast. `pairs`
    is what `count_pairs` returns, `level_needed` the NCCL_P2P_LEVEL that the file needs.
    `environment` are the variables that must be set.
    """
    return {
        "routes": "nccl",
        "environment": environment,
        "stock_model": stock_model,
        "picked": KINDS[compared.picked],
        "speeds": speeds,
        "over_stock": {str(f): float(compared.ratios[None, f]) for f in BETWEEN_CPUS},
        "p2p": {
            "pairs": pairs[1],
            "pairs_without": pairs[0],
            "level_needed": level_needed,
            "algbw_GBps_without": float(compared.algbw_GBps),
        },
    }


def explain_loss(
    library: NcclHost, compared: Comparison, rings_only: bool, size_bytes: int, why: str
) -> str:
    """Return a line on why no file is written: `why` it may be slower, or too small a gain.

    `compared` is its comparison with stock, of which `library` is the model, for `size_bytes`; with
    `rings_only` the collective runs on rings.
    """
    picked = pick_stock(library, rings_only, size_bytes)
    if compared.gain < WORTH_WRITING:
        why = "stock NCCL is at the bound, or above"
    return (
        f"{why}: by NCCL's own count its {KINDS[picked]} reach "
        f"{float(library.rate_stock(picked)):.4g} GB/s algbw of allreduce, the file's "
        f"{KINDS[compared.picked]} {float(compared.algbw_GBps):.4g}"
    )


def list_choice_json(chosen: ChosenGraphs, size_bytes: int) -> dict[str, Any]:
    """Return JSON data on why a file was chosen, for an allreduce of `size_bytes`."""
    library, compared = chosen.library, chosen.comparison
    if isinstance(library, NotModelled) or compared is None:
        missing = {"stock_model": None, "stock_not_modelled": library.reason or None}
        return {"routes": "hardware", "environment": {}, **missing}
    pairs = count_pairs(chosen)
    return list_comparison_json(
        compared,
        {**library.model.to_json(size_bytes), **_rate_json(chosen)},
        environment=find_environment(chosen),
        speeds="nccl" if chosen.graphs.counted_GBps else "topology",
        pairs=pairs,
        level_needed="SYS" if pairs[0] and not _is_refused(chosen) else None,
    )


def _rate_json(chosen: ChosenGraphs) -> dict[str, Any]:
    rate = find_stock_rate(chosen)
    return {} if rate is None else rate.to_json()


def find_stock_rate(chosen: ChosenGraphs) -> StockRate | None:
    """Return stock's rate for the collective of a `chosen` file, at the topology's rates.

    None if it is unknown.
    """
    if isinstance(chosen.library, NotModelled):
        return None
    rate = chosen.library.reach(chosen.graphs.collective.name)
    return rate if isinstance(rate, StockRate) else None


def find_environment(chosen: ChosenGraphs) -> dict[str, str]:
    """Return the environment variables that must be set with a `chosen` file."""
    return {} if chosen.nvb else {NVB_VARIABLE: "1"}


def count_pairs(chosen: ChosenGraphs) -> tuple[int, int]:
    """Return (pairs without P2P by NCCL's default, all pairs), of ordered pairs in the file."""
    hops = _list_pairs(chosen)
    library = chosen.library
    return 0 if isinstance(library, NotModelled) else library.count_without_p2p(hops), len(hops)


def _is_refused(chosen: ChosenGraphs) -> bool:
    """Return whether the driver has no P2P for some pairs of the file, whatever NCCL is told."""
    return not list_refused_p2p(chosen.graphs.router.topology).isdisjoint(_list_pairs(chosen))


def _list_pairs(chosen: ChosenGraphs) -> set[tuple[int, int]]:
    given = (each for each in (chosen.graphs.rings, chosen.graphs.chains) if each is not None)
    return set[tuple[int, int]]().union(*map(list_hops, given))


def explain_refusal(chosen: ChosenGraphs, size_bytes: int) -> str | None:
    """Return a line on why a `chosen` file is not worth writing; None if it is.

    `size_bytes` is the size of the buffer that it is made for.
    """
    compared, library = chosen.comparison, chosen.library
    if compared is None or isinstance(library, NotModelled) or compared.is_safe:
        return None
    worst = min(BETWEEN_CPUS, key=lambda f: compared.ratios[None, f])
    why = f"with links between CPUs {worst} times as fast stock NCCL may be above"
    rings_only = chosen.graphs.collective.name != "allreduce"
    return f"no file written: {explain_loss(library, compared, rings_only, size_bytes, why)}"


def describe_choice(chosen: ChosenGraphs, size_bytes: int) -> list[str]:
    """Return lines on stock and on what a `chosen` file needs: for its comment, and to print.

    `size_bytes` is the size of the buffer that it is made for.
    """
    if isinstance(chosen.library, NotModelled):
        return [f"stock NCCL is not modelled for comparison: {chosen.library.reason}"]
    assert chosen.comparison is not None
    compared = chosen.comparison
    lines = [compare_in_words(chosen.library, compared, size_bytes)]
    if (rate := find_stock_rate(chosen)) is not None:
        lines.append(
            f"at the rates of the topology stock reaches {float(rate.algbw_GBps):.4g} GB/s algbw: "
            f"{rate.basis}"
        )
    if not chosen.nvb:
        lines.append(
            f"needs {NVB_VARIABLE}=1: its routes pass through no other GPU; without that setting "
            "it may be slower than stock"
        )
    without, pairs = count_pairs(chosen)
    if without:
        remedy = (
            "the driver has none for some of them, so they"
            if _is_refused(chosen)
            else f"set {P2P_VARIABLE}=SYS, if ACS is off and the IOMMU off or in passthrough; "
            "without it they"
        )
        lines.append(
            f"{without} of its {pairs} ordered pairs of GPUs have no P2P by NCCL's default: "
            f"{remedy} use host memory: {float(compared.algbw_GBps):.4g} GB/s by NCCL's count"
        )
    return lines
