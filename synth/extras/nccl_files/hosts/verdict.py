"""Describe a graph file for several hosts: its rates beside stock's, and what it needs.

Stock is NCCL without a graph file. Rates are by NCCL's own constants, the rates that its sources
assume for links.
"""

from itertools import pairwise
from typing import Any

from ...stock.model import KINDS
from ..guard import pick_stock
from ..verdict import P2P_VARIABLE, compare_in_words, explain_loss, list_comparison_json
from .choice import ChosenHostGraphs


def list_host_figures(chosen: ChosenHostGraphs, size_bytes: int) -> dict[str, Any]:
    """Return the figures of a file as JSON data, all at NCCL's own constants.

    `counted_bound_GBps` is what channels of this form reach at most by these constants. It is no
    bound of the machine, whose links may carry more.
    """
    network, pairs = chosen.network, count_pairs(chosen)
    return {
        "algbw_GBps": {name: float(rate) for name, rate in chosen.algbw_GBps.items()},
        "counted_bound_GBps": chosen.bound_GBps,
        "fraction": chosen.fraction,
        "channels": chosen.graphs.rings.channels,
        "hosts": network.hosts,
        **list_comparison_json(
            chosen.comparison,
            _model_json(chosen, size_bytes),
            environment={},
            speeds="nccl",
            pairs=pairs,
            level_needed="SYS" if pairs[0] else None,
        ),
    }


def _model_json(chosen: ChosenHostGraphs, size_bytes: int) -> dict[str, Any]:
    library = chosen.network.library
    model, picked = library.model, KINDS[pick_stock(library, chosen.rings_only, size_bytes)]
    times = 2 if chosen.rings_only else 1  # an allreduce is two of the others
    return {
        **model.to_json(size_bytes),
        "stock_GBps": float(model.algbw_GBps[picked] * times),
        "stock_basis": f"the {picked} that stock NCCL finds (modelled), by NCCL's own count",
        "assumes": list(model.assumes),
    }


def count_pairs(chosen: ChosenHostGraphs) -> tuple[int, int]:
    """Return (pairs without P2P by NCCL's default, all pairs), of ordered pairs in the file."""
    hops = {hop for order in chosen.graphs.rings.orders for hop in pairwise(order)}
    for order in chosen.graphs.trees.orders:
        hops |= {*pairwise(order), *pairwise(order[::-1])}
    p2p = chosen.network.library.gpu_paths.p2p
    return sum(hop not in p2p for hop in hops), len(hops)


def explain_host_refusal(chosen: ChosenHostGraphs, size_bytes: int) -> str | None:
    """Return a line on why a `chosen` file is not worth writing; None if it is.

    `size_bytes` is the size of the buffer that it is made for.
    """
    network = chosen.network
    if chosen.comparison.is_safe:
        return None
    why = "with other links between CPUs or P2P levels stock NCCL may be above"
    loss = explain_loss(network.library, chosen.comparison, chosen.rings_only, size_bytes, why)
    return f"no file written for {network.hosts} hosts: {loss}"


def describe_host_choice(chosen: ChosenHostGraphs, size_bytes: int) -> list[str]:
    """Return lines on stock and on what a `chosen` file needs: for its comment, and to print.

    `size_bytes` is the size of the buffer that it is made for.
    """
    library, stock = chosen.network.library, chosen.network.library.model
    lines = [compare_in_words(library, chosen.comparison, size_bytes)]
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
