"""What a graph file says beside its rates: stock NCCL, the reason for writing it, and settings."""

from typing import Any

from ..stock.model import NotModelled, list_refused_p2p
from ..stock.on_paper import StockRate, rate_stock
from .choice import ChosenGraphs
from .graph_check import list_hops
from .guard import BETWEEN_CPUS, PICKS, WORTH_WRITING

# The variables that a file may need.
NVB_VARIABLE, P2P_VARIABLE = "NCCL_NVB_DISABLE", "NCCL_P2P_LEVEL"


def list_choice_json(chosen: ChosenGraphs, size_bytes: int) -> dict[str, Any]:
    """Return what the choice of a file rests on as JSON data.

    `over_stock` are the ratios to stock with links between CPUs 1, 2 and 4 times as fast.
    """
    stock, compared = chosen.stock, chosen.comparison
    if isinstance(stock, NotModelled) or compared is None:
        missing = {"stock_model": None, "stock_not_modelled": getattr(stock, "reason", None)}
        return {"routes": "hardware", "environment": {}, **missing}
    without, pairs = count_pairs(chosen)
    return {
        "routes": "nccl",
        "environment": find_environment(chosen),
        "stock_model": {**stock.to_json(size_bytes), **_rate_json(chosen)},
        "picked": compared.picked,
        "speeds": "nccl" if chosen.graphs.counted_GBps else "topology",
        "over_stock": {str(f): float(compared.ratios[None, f]) for f in BETWEEN_CPUS},
        "p2p": {
            "pairs": pairs,
            "pairs_without": without,
            "level_needed": "SYS" if without and not _is_refused(chosen) else None,
            "algbw_GBps_without": float(compared.algbw_GBps),
        },
    }


def _rate_json(chosen: ChosenGraphs) -> dict[str, Any]:
    rate = find_stock_rate(chosen)
    return {} if rate is None else rate.to_json()


def find_stock_rate(chosen: ChosenGraphs) -> StockRate | None:
    """Return what stock reaches for the file's collective at the topology's rates, if known."""
    rate = rate_stock(chosen.graphs.collective.name, chosen.graphs.router.topology)
    return rate if isinstance(rate, StockRate) else None


def find_environment(chosen: ChosenGraphs) -> dict[str, str]:
    """Return the variables that must be set with the file."""
    return {} if chosen.nvb else {NVB_VARIABLE: "1"}


def count_pairs(chosen: ChosenGraphs) -> tuple[int, int]:
    """Return how many ordered pairs of the file lack P2P by NCCL's default, and how many it has."""
    hops = _list_pairs(chosen)
    return chosen.host.count_pairs_without_p2p(hops) if chosen.host else 0, len(hops)


def _is_refused(chosen: ChosenGraphs) -> bool:
    """Return whether the driver has no P2P for some pairs of the file, whatever NCCL is told."""
    return not list_refused_p2p(chosen.graphs.router.topology).isdisjoint(_list_pairs(chosen))


def _list_pairs(chosen: ChosenGraphs) -> set[tuple[int, int]]:
    given = (each for each in (chosen.graphs.rings, chosen.graphs.chains) if each is not None)
    return set[tuple[int, int]]().union(*map(list_hops, given))


def explain_refusal(chosen: ChosenGraphs, size_bytes: int) -> str | None:
    """Return in a line why no file is worth writing; None if one is."""
    compared, host = chosen.comparison, chosen.host
    if compared is None or host is None or compared.is_safe:
        return None
    rings_only = chosen.graphs.collective.name != "allreduce"
    stock = host.rate_picked_stock(rings_only, size_bytes)
    picked = PICKS["ring"] if rings_only else host.models[None].pick(size_bytes)
    if compared.gain < WORTH_WRITING:
        why = "stock NCCL is at the bound, or above"
    else:
        worst = min(BETWEEN_CPUS, key=lambda f: compared.ratios[None, f])
        why = f"with links between CPUs {worst} times as fast stock NCCL may be above"
    return (
        f"no file written: {why}: by NCCL's own count its {picked} reach {float(stock):.4g} GB/s "
        f"algbw of allreduce, the file's {compared.picked} {float(compared.algbw_GBps):.4g}"
    )


def describe_choice(chosen: ChosenGraphs, size_bytes: int) -> list[str]:
    """Return lines on stock, and on what the file needs, for its comment and for people."""
    if isinstance(chosen.stock, NotModelled):
        return [f"stock NCCL is not modelled for comparison: {chosen.stock.reason}"]
    assert chosen.host is not None and chosen.comparison is not None
    compared = chosen.comparison
    times = ", ".join(f"{float(compared.ratios[None, f]):.3g}" for f in BETWEEN_CPUS)
    rates = ", ".join(f"{name} {float(x):.4g}" for name, x in chosen.stock.algbw_GBps.items())
    lines = [
        f"by NCCL's own count stock has {rates} and takes {chosen.stock.pick(size_bytes)}; the "
        f"file's {compared.picked} {float(compared.algbw_GBps):.4g}: {times} times stock with "
        f"links between CPUs at 1, 2, 4 times its constants"
    ]
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
