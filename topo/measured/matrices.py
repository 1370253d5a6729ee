"""Measurements for `believe` from matrices of other tools: nvbandwidth, p2pBandwidthLatencyTest,
nvloom.

Their pairs are measured one at a time. A pair's rate is the highest of all matrices that measured
it one way and directly: copy engines and kernels, reads and writes differ, and the links carried
that.
"""

from __future__ import annotations

from fractions import Fraction

from ..errors import InputError
from ..exact import fraction_to_json
from ..formats.pair_rates import PairRates, find_pair_rates
from ..graph import Topology
from .flows import Experiment, Measurements, Pair

# How many pairs are named that a matrix leaves out.
_MAX_NAMED = 4


def read_measurements(text: str, where: str, topology: Topology) -> Measurements:
    """Return what the matrices of a text measured between the GPUs of a topology, in its order.

    `where` names the text in errors. Raise InputError if it has no matrix of rates between pairs of
    GPUs, one way and by peer-to-peer, or if the matrices are of another number of GPUs.
    """
    found = find_pair_rates(text)
    direct = [x for x in found if x.is_of_pairs and x.is_one_way and not x.is_through_memory]
    if not direct:
        has = f"it has {found[0].tool}'s {found[0].test}" if found else "it has none"
        raise InputError(
            f"{where}: expected rates between pairs of GPUs, one way and by peer-to-peer, as "
            f"nvbandwidth, p2pBandwidthLatencyTest or nvloom print them; {has}"
        )
    count = len(topology.ranks)
    for rates in direct:
        if rates.count != count:
            raise InputError(
                f"{where}: {rates.tool}'s {rates.test} is of {rates.count} GPUs, and topology "
                f"{topology.name!r} has {count}; give the file of these GPUs"
            )
    best: dict[Pair, Fraction] = {}
    for rates in direct:
        for pair, rate in _list_flows(rates):
            best[pair] = max(rate, best.get(pair, rate))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    missing = [pair for pair in pairs if pair not in best]
    notes = [f"{where}: rows and columns are taken to be the GPUs in the topology's order"]
    if missing:
        named = ", ".join(f"{a} -> {b}" for a, b in missing[:_MAX_NAMED])
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        notes.append(f"{where}: no rate of {named}{more}")
    return Measurements(
        tuple(Experiment("alone", {pair: rate}) for pair, rate in best.items()),
        medium=", ".join(dict.fromkeys(rates.tool for rates in direct)),
        pairs={pair: {"GBps": fraction_to_json(rate)} for pair, rate in best.items()},
        notes=tuple(notes),
        noise=Fraction(0),  # these tools print bytes over the time that they took
    )


def _list_flows(rates: PairRates) -> list[tuple[Pair, Fraction]]:
    """Return each pair, the sending GPU first, and its rate in GB/s."""
    return [
        ((j, i) if rates.is_read else (i, j), Fraction(str(rate)))
        for i, row in enumerate(rates.rows)
        for j, rate in enumerate(row)
        if rate and i != j
    ]
