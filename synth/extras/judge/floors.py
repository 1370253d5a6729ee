"""Floors for health checks: the least that a healthy machine reaches, by collective and size.

A floor is a share of the certified bound, or of what the stock library (NCCL or RCCL by itself)
reaches on paper, with every link at its rate, where that is lower: PCIe boxes whose stock rings are
far below the bound are healthy. It rests on stated rates alone: where a bound or the model of stock
depends on a rate that nothing states, there is no floor, and the reason says what to state. Below
the size at which links surely decide, NCCL's own tuner says what share of the rate latency leaves;
where that is little, or it says nothing, such sizes have no floor: a tuner's latencies are too
rough for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ....topo.errors import TopoplanError
from ....topo.graph import Topology
from ....topo.grouping import group_by_key
from ....topo.output_head import output_head
from ....topo.routes import Router
from ...ir.collective import Collective
from ..stock.library import reach
from ..stock.model import NotModelled
from ..stock.on_paper import USUAL_SIZE_bytes
from .advice import size_text
from .machine import count_hosts
from .options import Limits, find_limits
from .paper import find_model, find_stock

# Collectives with a floor unless one is named, and the programs of nccl-tests that measure them.
TESTS = {
    "allreduce": "all_reduce_perf",
    "allgather": "all_gather_perf",
    "reduce-scatter": "reduce_scatter_perf",
    "broadcast": "broadcast_perf",
    "reduce": "reduce_perf",
    "alltoall": "alltoall_perf",
    "gather": "gather_perf",
    "scatter": "scatter_perf",
}
USUAL = ("allreduce", "allgather", "reduce-scatter", "alltoall")
# Sizes in bytes with a floor unless others are given: up to those of acceptance tests.
SIZES_bytes = (1 << 24, 1 << 28, 1 << 30, 1 << 33)
# Share of a bound, or of stock on paper, that healthy machines reach over PCIe and networks, and on
# several hosts: published results are at .76 to .98, and at .65 to .98 (benchmarks/published.py).
# Those over NVLinks of one host are above the judge's share.
_SHARE, _SHARE_OF_HOSTS = 0.72, 0.65
# Share of the rate that latency must leave for a floor, by NCCL's tuner, chosen: at less its
# latencies, which are constants for all machines of a generation, would decide.
_LEFT = 0.9


@dataclass(frozen=True)
class Floor:
    """The least algbw in GB/s that a healthy machine reaches for a collective at a size.

    `busbw_GBps` is the same rate as busbw, as nccl-tests define that. `basis` says in words what
    the floor is a share of; `bound_GBps` is the bound of the collective. If there is no floor, both
    rates are None and `why_not` is the reason.
    """

    collective: str
    size_bytes: int
    algbw_GBps: float | None = None
    busbw_GBps: float | None = None
    bound_GBps: float | None = None
    basis: str = ""
    why_not: str = ""


@dataclass(frozen=True)
class Floors:
    """The floors of a machine; `at_least` is the share of the bound asked for, None if none is."""

    topology: Topology
    at_least: float | None
    floors: tuple[Floor, ...]


def find_floors(
    topology: Topology,
    collectives: Sequence[str],
    sizes_bytes: Sequence[int],
    at_least: float | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> Floors:
    """Return the floors of a machine for each collective at each size.

    They are the share `at_least` of the bound. If that is None, they are the share that healthy
    machines reach of the bound, or of what stock reaches on paper if that is less. `say` receives
    progress messages.
    """
    router = Router(topology)
    floors: list[Floor] = []
    for name in collectives:
        say(f"bound of {name} on {topology.name} ...")
        floors += _find_of(name, router, sizes_bytes, at_least)
    return Floors(topology, at_least, tuple(floors))


@dataclass(frozen=True)
class _Rate:
    """A floor at large sizes: algbw in GB/s, what it is a share of, and whether NVSwitches add."""

    algbw_GBps: float
    basis: str
    by_nvls: bool


def _find_of(
    name: str, router: Router, sizes_bytes: Sequence[int], at_least: float | None
) -> Iterator[Floor]:
    topology = router.topology
    collective = Collective.with_default_root(name, len(topology.ranks))
    try:
        limits = find_limits(collective, router)
        rate = _find_rate(name, topology, limits, at_least)
    except TopoplanError as error:
        yield from (Floor(name, size, why_not=str(error)) for size in sizes_bytes)
        return
    held = float(_get_held(limits, topology))
    for size in sizes_bytes:
        share, why = (1.0, "") if isinstance(rate, _Rate) else (0.0, rate)
        if isinstance(rate, _Rate) and size < USUAL_SIZE_bytes:
            share, why = _find_share(name, topology, size, rate)
        if not share or not isinstance(rate, _Rate):
            yield Floor(name, size, bound_GBps=held, why_not=why)
            continue
        algbw = rate.algbw_GBps * share
        busbw = algbw * float(collective.bus_factor())
        yield Floor(name, size, algbw, busbw, held, f"{rate.basis}{why}")


def _counts_nvls(limits: Limits, topology: Topology) -> bool:
    """Return whether the floor is that of NVLS.

    Between hosts it is not: published results there are at .44 to .75 of that bound.
    """
    return limits.counts_nvls and count_hosts(topology) == 1


def _get_share(topology: Topology) -> float:
    return _SHARE if count_hosts(topology) == 1 else _SHARE_OF_HOSTS


def _get_held(limits: Limits, topology: Topology) -> float:
    """Return the bound in GB/s that a floor is a share of."""
    by_nvls = limits.nvls_GBps if _counts_nvls(limits, topology) else None
    return float(max(limits.one_way_GBps, by_nvls or 0))


def _find_rate(
    name: str, topology: Topology, limits: Limits, at_least: float | None
) -> _Rate | str:
    """Return the floor at large sizes, else why there is none."""
    if limits.assumes:
        return (
            "the bound rests on rates that nothing states: "
            f"{'; '.join(map(str, limits.assumes))}; state them (rate), or measure them"
        )
    held, by_nvls = _get_held(limits, topology), _counts_nvls(limits, topology)
    what = f"the bound of {held:.4g} GB/s{' with NVLS' if by_nvls else ''} ({limits.rates})"
    share = at_least
    if share is None:
        share = limits.nvls_near if by_nvls else min(limits.near, _get_share(topology))
    by_bound = _Rate(share * held, f"{share:.3g} x {what}", by_nvls)
    if by_nvls or at_least is not None:
        return by_bound
    return _compare_with_stock(name, topology, by_bound)


def _compare_with_stock(name: str, topology: Topology, by_bound: _Rate) -> _Rate | str:
    """Return a floor by the bound, or that by what stock reaches on paper if it is lower."""
    rate = reach(name, topology)
    if isinstance(rate, NotModelled):
        unknown = f"; what stock reaches is not modelled: {rate.reason}"
        return _Rate(by_bound.algbw_GBps, by_bound.basis + unknown, by_bound.by_nvls)
    model = find_model(topology)
    if model is not None and model.rings.is_fallback:
        return "stock NCCL finds no ring here, and nothing says what it reaches without"
    stock, share = find_stock(name, topology, None), _get_share(topology)
    if stock is None or share * float(stock.algbw_GBps) >= by_bound.algbw_GBps:
        return by_bound
    if stock.least_GBps != stock.algbw_GBps:
        return (
            "stock may be below the bound's share, and what it reaches on paper rests on rates "
            f"that nothing states: {float(stock.least_GBps):.4g} to {float(stock.most_GBps):.4g} "
            "GB/s"
        )
    basis = f"{share:g} x {float(stock.algbw_GBps):.4g} GB/s, {rate.basis}"
    assumes = f" (it assumes: {'; '.join(rate.assumes)})" if rate.assumes else ""
    return _Rate(share * float(stock.algbw_GBps), f"{basis}{assumes}", by_bound.by_nvls)


def _find_share(name: str, topology: Topology, size_bytes: int, rate: _Rate) -> tuple[float, str]:
    """Return the share of the rate that latency leaves at a size, and in words by what.

    The share is 0 if it is too little for a floor or nothing says it, with the reason.
    """
    missing = "latency decides at this size, and"
    if name != "allreduce":
        return 0.0, f"{missing} NCCL's tuner is modelled for allreduce alone"
    if rate.by_nvls:
        return 0.0, f"{missing} that of NVLS is not modelled"
    model = find_model(topology) if count_hosts(topology) == 1 else None
    if model is None:
        return 0.0, f"{missing} stock is not modelled on this machine"
    rates = [size / model.expect(size, 0.0)[1] for size in (size_bytes, USUAL_SIZE_bytes)]
    share = min(1.0, rates[0] / rates[1])
    if share < _LEFT:
        return 0.0, f"latency decides at this size: {share:.2g} of the rate is left by NCCL's tuner"
    return share, f", x {share:.2g} for the latency that NCCL's tuner counts"


# -- as JSON and as shell


def write_json(floors: Floors) -> dict[str, Any]:
    """Return the floors as one JSON object (docs/judge.md)."""
    topology = floors.topology
    return {
        **output_head("topoplan-judge-thresholds"),
        "topology": {
            "name": topology.name,
            "fingerprint": topology.fingerprint,
            "ranks": len(topology.ranks),
            "hosts": count_hosts(topology),
        },
        "at_least": floors.at_least,
        "floors": [
            {
                "collective": floor.collective,
                "test": TESTS[floor.collective],
                "size_bytes": floor.size_bytes,
                "algbw_GBps": floor.algbw_GBps,
                "busbw_GBps": floor.busbw_GBps,
                "bound_GBps": floor.bound_GBps,
                "basis": floor.basis or None,
                "why_not": floor.why_not or None,
            }
            for floor in floors.floors
        ],
    }


# Functions that compare tables of nccl-tests with the floors, for any POSIX shell. A size has two
# results, out of place and in place; the better counts, as topo-judge has it.
_CHECK = r"""
# topo_check_floors TEST < TABLE: read what nccl-tests' program TEST printed, say what is below its
# floor, and end with 1 then, or with 2 if the table has no size that has one.
topo_check_floors() {
    {
        topo_floors
        echo END
        cat
    } | awk -v test="$1" '
        !ended && $1 == "END" { ended = 1; next }
        !ended { if ($1 == test) floor[$2] = $3; next }
        $1 ~ /^[0-9]+$/ && ($1 in floor) && NF >= 8 {
            best = $8 + 0
            if (NF >= 12 && $12 + 0 > best) best = $12 + 0
            compared++
            if (best < floor[$1]) {
                printf "%s: %s GB/s busbw at %s bytes, and the floor is %s\n", \
                    test, best, $1, floor[$1]
                below++
            }
        }
        END {
            if (!compared) print test ": the table has no size with a floor"
            exit !compared ? 2 : below > 0
        }'
}

# check_topo_floors TEST TABLE-FILE: the same as a check of NHC, in a file of /etc/nhc/scripts.
check_topo_floors() {
    if topo_why=$(topo_check_floors "$1" < "$2"); then
        return 0
    fi
    if command -v die > /dev/null 2>&1; then
        die 1 "check_topo_floors: $topo_why"
    else
        echo "check_topo_floors: $topo_why" >&2
    fi
    return 1
}
"""


def write_shell(floors: Floors) -> str:
    """Return the floors as functions of a POSIX shell, with their bases as comments."""
    topology = floors.topology
    lines = [
        f"# Floors of {topology.name}, {len(topology.ranks)} GPUs, by topo-judge --thresholds.",
        "# Source this file: topo_check_floors for gates, check_topo_floors for NHC.",
        "#",
    ]
    alike = group_by_key(
        ((floor.collective, floor.basis or f"no floor: {floor.why_not}"), floor.size_bytes)
        for floor in floors.floors
    )
    lines += [
        f"# {TESTS[name]} at {', '.join(map(size_text, sizes))}: {why}"
        for (name, why), sizes in alike.items()
    ]
    lines += ["", "# Program of nccl-tests, bytes, GB/s busbw."]
    lines += ["topo_floors() {", "    cat << 'END'"]
    lines += [
        f"{TESTS[floor.collective]} {floor.size_bytes} {floor.busbw_GBps:.4g}"
        for floor in floors.floors
        if floor.busbw_GBps is not None
    ]
    return "\n".join([*lines, "END", "}"]) + "\n" + _CHECK
