"""Read measurements from matrices of other tools: nvbandwidth, p2pBandwidthLatencyTest, nvloom.

Their pairs are measured one at a time. A pair's rate is the highest of all matrices that measured
it one way and directly: copy engines and kernels, reads and writes differ, and the links carried
that. Rates with peer-to-peer disabled go through the host's memory instead; they show where
peer-to-peer is slower than that. `believe` (believe.py) corrects a topology by the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from ...errors import InputError
from ...exact import fraction_to_json
from ...graph import Topology
from ..machine_details.p2p_or_memory import DIRECT, THROUGH_MEMORY, is_slower
from .flows import Experiment, Measurements, Pair
from .pair_rates import PairRates, find_pair_rates, find_refused

# How many pairs are named that a matrix leaves out.
_MAX_NAMED = 4


def read_measurements(text: str, where: str, topology: Topology) -> Measurements:
    """Return what the matrices in a text measured between the GPUs of a topology, for `believe`.

    The matrices' GPUs are in the topology's order. `where` names the text in errors. Raise
    InputError if it has no matrix of rates between pairs of GPUs, one way and by peer-to-peer, or
    if the matrices are of another number of GPUs.
    """
    found = find_pair_rates(text)
    usable = [x for x in found if x.is_of_pairs and x.is_one_way]
    direct = [x for x in usable if not x.is_through_memory]
    if not direct:
        has = f"it has {_list_tests(found)}" if found else "it has none"
        raise InputError(
            f"{where}: expected rates between pairs of GPUs, one way and by peer-to-peer, as "
            f"nvbandwidth, p2pBandwidthLatencyTest or nvloom print them; {has}"
        )
    count = len(topology.ranks)
    for rates in usable:
        if rates.count != count:
            raise InputError(
                f"{where}: {rates.tool}'s {rates.test} is of {rates.count} GPUs, and topology "
                f"{topology.name!r} has {count}; give the file of these GPUs"
            )
    best = _find_best(direct)
    other = _find_best([x for x in usable if x.is_through_memory])
    slower = [pair for pair in best if pair in other and is_slower(best[pair], other[pair])]
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    missing = [pair for pair in pairs if pair not in best]
    notes = [f"{where}: rows and columns are taken to be the GPUs in the topology's order"]
    if refused := sorted(pair for pair in find_refused(text) if pair in missing):
        named = ", ".join(f"{a} -> {b}" for a, b in refused[:_MAX_NAMED])
        more = f" and {len(refused) - _MAX_NAMED} more" if len(refused) > _MAX_NAMED else ""
        notes.append(
            f"{where}: GPUs {named}{more} do not reach each other (P2P), so what was measured "
            "there went through host memory and is left out"
        )
        missing = [pair for pair in missing if pair not in refused]
    if missing:
        named = ", ".join(f"{a} -> {b}" for a, b in missing[:_MAX_NAMED])
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        notes.append(f"{where}: no rate of {named}{more}")
    if slower:
        notes.append(
            f"{where}: P2P carries {_format_span(best[pair] for pair in slower)} where copies "
            f"through host memory carry {_format_span(other[pair] for pair in slower)}: ACS or an "
            "IOMMU may redirect it; switch them off, or let NCCL go through host memory "
            "(NCCL_P2P_DISABLE=1); rates of links, and bounds from them, are by P2P only"
        )
    way = ", by P2P, which was slower than through host memory" if slower else ""
    return Measurements(
        tuple(Experiment("alone", {pair: rate}) for pair, rate in best.items()),
        medium=", ".join(dict.fromkeys(rates.tool for rates in direct)) + way,
        pairs={
            pair: {
                DIRECT: fraction_to_json(rate),
                **({THROUGH_MEMORY: fraction_to_json(other[pair])} if pair in other else {}),
            }
            for pair, rate in best.items()
        },
        notes=tuple(notes),
        noise=Fraction(0),  # these tools print bytes over the time that they took
    )


def _find_best(matrices: Sequence[PairRates]) -> dict[Pair, Fraction]:
    """Return the highest rate of each pair, in GB/s."""
    best: dict[Pair, Fraction] = {}
    for rates in matrices:
        for pair, rate in _list_flows(rates):
            best[pair] = max(rate, best.get(pair, rate))
    return best


def _format_span(rates: Iterable[Fraction]) -> str:
    """Return the lowest and the highest rate as "9.6 to 10.5 GB/s"."""
    ordered = sorted(rates)
    low, high = (f"{float(rate):.3g}" for rate in (ordered[0], ordered[-1]))
    return f"{low} GB/s" if low == high else f"{low} to {high} GB/s"


def _list_tests(matrices: Sequence[PairRates]) -> str:
    """Name the tests of matrices, each once, and say where rates are of both directions at once."""
    return ", ".join(
        dict.fromkeys(
            f"{x.tool}'s {x.test}{'' if x.is_one_way else ', both ways together'}" for x in matrices
        )
    )


def _list_flows(rates: PairRates) -> list[tuple[Pair, Fraction]]:
    """Return each pair, the sending GPU first, and its rate in GB/s."""
    return [
        ((j, i) if rates.is_read else (i, j), Fraction(str(rate)))
        for i, row in enumerate(rates.rows)
        for j, rate in enumerate(row)
        if rate and i != j
    ]
