"""What a graph file for several hosts says beside its rates."""

from itertools import pairwise
from typing import Any

from ..guard import BETWEEN_CPUS, WORTH_WRITING
from ..verdict import P2P_VARIABLE
from .choice import ChosenHostGraphs


def list_host_figures(chosen: ChosenHostGraphs, size_bytes: int) -> dict[str, Any]:
    """Return the figures of a file as JSON data, all at NCCL's own constants.

    `counted_bound_GBps` is what channels of this form reach at most by these constants. It is no
    bound of the machine, whose links may carry more.

    `over_stock` are the ratios to stock with links between CPUs 1, 2 and 4 times as fast.
    """
    compared, network = chosen.comparison, chosen.network
    without, pairs = count_pairs(chosen)
    return {
        "algbw_GBps": {name: float(rate) for name, rate in chosen.algbw_GBps.items()},
        "counted_bound_GBps": chosen.bound_GBps,
        "fraction": chosen.fraction,
        "channels": chosen.graphs.rings.channels,
        "hosts": network.hosts,
        "routes": "nccl",
        "environment": {},
        "stock_model": _model_json(chosen, size_bytes),
        "picked": compared.picked,
        "speeds": "nccl",
        "over_stock": {str(f): float(compared.ratios[None, f]) for f in BETWEEN_CPUS},
        "p2p": {
            "pairs": pairs,
            "pairs_without": without,
            "level_needed": "SYS" if without else None,
            "algbw_GBps_without": float(compared.algbw_GBps),
        },
    }


def _model_json(chosen: ChosenHostGraphs, size_bytes: int) -> dict[str, Any]:
    model = chosen.network.models[None]
    picked = "rings" if chosen.rings_only else model.pick(size_bytes)
    times = 2 if chosen.rings_only else 1  # an allreduce is two of the others
    return {
        **model.to_json(size_bytes),
        "stock_GBps": float(model.algbw_GBps[picked] * times),
        "stock_basis": f"the {picked} that stock NCCL finds (modelled), by NCCL's own count",
        "assumes": list(model.assumes),
    }


def count_pairs(chosen: ChosenHostGraphs) -> tuple[int, int]:
    """Return how many ordered pairs of the file lack P2P by NCCL's default, and how many it has."""
    hops = {hop for order in chosen.graphs.rings.orders for hop in pairwise(order)}
    for order in chosen.graphs.trees.orders:
        hops |= {*pairwise(order), *pairwise(order[::-1])}
    p2p = chosen.network.paths[None][0].p2p
    return sum(hop not in p2p for hop in hops), len(hops)


def explain_host_refusal(chosen: ChosenHostGraphs, size_bytes: int) -> str | None:
    """Return in a line why no file is worth writing; None if one is."""
    compared, network = chosen.comparison, chosen.network
    if compared.is_safe:
        return None
    picked = "rings" if chosen.rings_only else network.models[None].pick(size_bytes)
    if compared.gain < WORTH_WRITING:
        why = "stock NCCL is at the bound, or above"
    else:
        why = "with other links between CPUs or P2P levels stock NCCL may be above"
    return (
        f"no file written for {network.hosts} hosts: {why}: by NCCL's own count its {picked} reach "
        f"{float(network.rate_stock(picked)):.4g} GB/s algbw of allreduce, the file's "
        f"{compared.picked} {float(compared.algbw_GBps):.4g}"
    )


def describe_host_choice(chosen: ChosenHostGraphs, size_bytes: int) -> list[str]:
    """Return lines on stock, and on what the file needs, for its comment and for people."""
    compared, stock = chosen.comparison, chosen.network.models[None]
    times = ", ".join(f"{float(compared.ratios[None, f]):.3g}" for f in BETWEEN_CPUS)
    rates = ", ".join(f"{name} {float(x):.4g}" for name, x in stock.algbw_GBps.items())
    lines = [
        f"by NCCL's own count stock has {rates} and takes {stock.pick(size_bytes)}; the file's "
        f"{compared.picked} {float(compared.algbw_GBps):.4g}: {times} times stock with links "
        "between CPUs at 1, 2, 4 times its constants"
    ]
    lines += [f"assumed: {text}" for text in stock.assumes]
    if stock.has_nvls:
        lines.append(
            "NVSwitches can add (NVLS): what NCCL does then is not in this comparison, so measure "
            "with and without the file"
        )
    without, pairs = count_pairs(chosen)
    if without:
        lines.append(
            f"{without} of its {pairs} ordered pairs of GPUs have no P2P by NCCL's default and use "
            f"host memory; {P2P_VARIABLE}=SYS, if ACS is off and the IOMMU off or in passthrough, "
            "joins them directly"
        )
    return lines
