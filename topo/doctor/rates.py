"""What the doctor asks of figures: whether a link can carry what is said, carries what it should, and whether addresses
are each GPU's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from ..exact import parse_fraction
from ..graph import Link
from ..hardware import (
    NVLINK_LINKS_PER_GPU,
    LOCAL_GBps,
    NVLINK_DATASHEET_GBps,
    PCIE_GTps,
    nvlink_counted_GBps,
    xgmi_counted_GBps,
)
from .case import WIRES, Case, Check, Finding, Grouped, Union, gbps, names, whole

SLOW, BROKEN, FAST = Fraction(7, 10), Fraction(4, 10), Fraction(115, 100)
"""Measured over declared: below SLOW a warning, below BROKEN an error, above FAST the declaration is doubtful."""

_XGMI_FASTEST_GBps = Fraction(384, 5)
"""GB/s of one MI350 Infinity Fabric link in one direction (datasheet: 153.6 GB/s a link, both directions)."""

_XGMI_LINKS_PER_GPU = 8
_PCIE_MOST_GBps = max(PCIE_GTps.values()) * 16 / 8
"""GB/s of Gen6 x16 in one direction, without any coding or headers."""

_NVLINK_FASTEST_GBps = max(NVLINK_DATASHEET_GBps.values())
_NVLINK_MOST_LANES = max(NVLINK_LINKS_PER_GPU.values())
_PLAUSIBLE = Fraction(6, 10)


def measured_rates(case: Case) -> Iterator[Finding]:
    """Links whose measured bandwidth is below 0.4 of the declared one (error), below 0.7 (warning), or above 1.15 of it
    (note: the declaration is doubtful). A link that declares nothing apart is taken at its word, `bandwidth_GBps`. What was
    measured as a lower bound only, or on a medium that is not the link's, so that the declared value is believed, is
    never too slow.
    """
    slow, fast = Grouped(case), Grouped(case)
    for link in case.topology.links:
        measured, declared = _rate(link, "measured"), _rate(link, "declared")
        if measured is None:
            continue
        wanted = declared[0] if declared else link.bandwidth_GBps
        lines = [f"{link.src} -> {link.dst} measured = {gbps(measured[0])} ({measured[1]})"]
        if declared:
            lines.append(f"{link.src} -> {link.dst} declared = {gbps(wanted)} ({declared[1]})")
        else:
            lines.append(case.link(link))
        if measured[0] < SLOW * wanted and not _is_doubted(link):
            slow.add(measured[0] < BROKEN * wanted, (link.src, link.dst), lines)
        if measured[0] > FAST * wanted:
            fast.add("", (link.src, link.dst), lines)
    for broken, about, evidence in slow:
        share = "two fifths" if broken else "seven tenths"
        message = f"{names(about)}: measured below {share} of what is declared for their links"
        advice = (
            "measure again with the machine idle; then look at link errors, lanes at work and the route that is taken"
        )
        yield Finding("error" if broken else "warning", "slow-link", about, message, evidence, advice)
    for _, about, evidence in fast:
        message = (
            f"{names(about)}: measured well above what is declared for their links, so the declaration is doubtful"
        )
        yield Finding("note", "fast-link", about, message, evidence, "plan with the measured value")


def _is_doubted(link: Link) -> bool:
    told, believed = link.extra.get("measured"), link.extra.get("believed")
    return believed == "declared" or (
        isinstance(told, Mapping) and told.get("limit") is False and believed != "measured"
    )


def _rate(link: Link, key: str) -> tuple[Fraction, str] | None:
    """The rate in GB/s that a link's `extra` holds under `key`, with its source; None where there is none above 0."""
    told = link.extra.get(key)
    if not isinstance(told, Mapping):
        return None
    try:
        rate = parse_fraction(told.get("GBps"))
    except ValueError:
        return None
    return (rate, str(told.get("source") or link.source or "the topology")[:60]) if rate > 0 else None


def impossible_rates(case: Case) -> Iterator[Finding]:
    """A bandwidth above what the medium can do: PCIe above Gen6 x16, NVLink and xGMI above their lanes times the fastest
    generation (a link that states one lane may stand for all of a GPU's; between switches any number is possible). An error.
    The 5000 GB/s that NCCL counts for what limits nothing are a placeholder, told by `unlimited-rate`.
    """
    found = Grouped(case)
    for link in case.topology.links:
        most = _most(case, link)
        if most is not None and link.bandwidth_GBps > most and not _is_unlimited(link):
            found.add((link.kind, most), (link.src, link.dst), (case.link(link),))
    for (kind, most), about, evidence in found:
        message = f"{names(about)}: more than a {kind} link of this size can carry ({gbps(most)})"
        advice = "correct the bandwidth, or its unit: GB/s are 1e9 bytes a second in one direction, not bits"
        yield Finding("error", "impossible-rate", about, message, evidence, advice)


def _most(case: Case, link: Link) -> Fraction | None:
    """The most that a link may carry, None where there is no saying."""
    if link.kind == "pcie":
        return _PCIE_MOST_GBps * link.count
    if link.kind not in WIRES or "gpu" not in {case.topology.by_id[end].kind for end in (link.src, link.dst)}:
        return None
    if link.kind == "nvlink":
        return _NVLINK_FASTEST_GBps * (link.count if link.count > 1 else _NVLINK_MOST_LANES)
    return _XGMI_FASTEST_GBps * (link.count if link.count > 1 else _XGMI_LINKS_PER_GPU)


def _is_unlimited(link: Link) -> bool:
    return link.kind in ("pcie", "smp") and link.bandwidth_GBps == LOCAL_GBps


def unlimited_rates(case: Case) -> Iterator[Finding]:
    """Links of 5000 GB/s, which NCCL counts where it knows no rate: a note, they hide where data really queues."""
    found = Grouped(case)
    for link in case.topology.links:
        if _is_unlimited(link):
            found.add(link.kind, (link.src, link.dst), (case.link(link),))
    for kind, about, evidence in found:
        message = f"{names(about)}: {kind} links of {gbps(LOCAL_GBps)}, NCCL's placeholder for what it does not know"
        yield Finding("note", "unlimited-rate", about, message, evidence, "write a measured bandwidth into the file")


def mislabelled_links(case: Case) -> Iterator[Finding]:
    """Two GPUs joined directly by a link of kind pcie, which goes through a switch or a CPU in truth; or an NVLink or xGMI
    link with less than 0.6 of the rate that a lane of its GPU has (by sm or gcn; measured links are judged elsewhere): xGMI
    that an older library took for PCIe. A warning.
    """
    direct, slow = Grouped(case), Grouped(case)
    by_id = case.topology.by_id
    for link in case.topology.links:
        if link.kind == "pcie" and {by_id[link.src].kind, by_id[link.dst].kind} == {"gpu"}:
            direct.add("", (link.src, link.dst), (case.link(link),))
        lane = _lane(case, link)
        if lane is not None and "measured" not in link.extra and link.bandwidth_GBps < _PLAUSIBLE * lane * link.count:
            slow.add((link.kind, lane), (link.src, link.dst), (case.link(link),))
    for _, about, evidence in direct:
        message = (
            f"{names(about)}: direct links between GPUs that are called PCIe, which needs a switch or a CPU between"
        )
        advice = "if these are NVLink or xGMI, correct kind and bandwidth; else draw the switch that they share"
        yield Finding("warning", "pcie-between-gpus", about, message, evidence, advice)
    for (kind, lane), about, evidence in slow:
        message = (
            f"{names(about)}: {kind} links far below the {gbps(lane)} that a lane of these GPUs has, rather like PCIe"
        )
        yield Finding(
            "warning", "pcie-like-rate", about, message, evidence, "correct the bandwidth, or measure the links"
        )


def _lane(case: Case, link: Link) -> Fraction | None:
    """GB/s that NCCL or RCCL counts for a lane of the slower GPU at a link's ends; None where neither says what it is."""
    ends = [case.topology.by_id[end] for end in (link.src, link.dst)]
    rates = []
    for extra in (d.extra for d in ends if d.kind == "gpu"):
        sm, gcn = whole(extra.get("sm")), extra.get("gcn")
        if link.kind == "xgmi" and isinstance(gcn, (str, int)) and not isinstance(gcn, bool):
            rates.append(xgmi_counted_GBps(str(gcn)))
        elif link.kind == "nvlink" and sm is not None and 60 <= sm < 1000:
            rates.append(nvlink_counted_GBps(sm))
    return min(rates, default=None)


def shared_addresses(case: Case) -> Iterator[Finding]:
    """GPUs of one machine at one PCI address: an error, NCCL refuses two ranks on what it takes for one GPU. Machines are told
    apart by `box`, by the part of the id before a slash, and by what hangs together without networks, NVLink and xGMI.
    """
    whole_machine = Union()
    for link in case.topology.links:
        if link.kind not in (*WIRES, "network") and "network" not in (_family(case, link.src), _family(case, link.dst)):
            whole_machine.join(link.src, link.dst)
    found: dict[tuple[Any, ...], list[str]] = {}
    for gpu in case.gpus:
        if gpu.bus_id:
            root = whole_machine.root(gpu.id)
            machine = (str(gpu.extra.get("box")), gpu.id.rpartition("/")[0], "" if root == gpu.id else root)
            found.setdefault((gpu.bus_id, *machine), []).append(gpu.id)
    for (bus_id, *_), about in found.items():
        if len(about) > 1:
            evidence = tuple(case.said(case.topology.by_id[ident], "bus_id", bus_id) for ident in about)
            message = f"{names(about)}: all at PCI address {bus_id}; NCCL takes them for one GPU and refuses"
            advice = "correct the addresses; of a partitioned GPU give NCCL one rank, or undo the partition"
            yield Finding("error", "shared-bus-id", tuple(about), message, evidence, advice)


def _family(case: Case, ident: str) -> str | None:
    return case.topology.by_id[ident].family


def _wants_measured(case: Case) -> str | None:
    return None if any("measured" in link.extra for link in case.topology.links) else "no measured bandwidths"


def _wants_links(case: Case) -> str | None:
    return None if case.topology.links else "no links"


CHECKS = (
    Check("measured against declared", measured_rates, _wants_measured),
    Check("possible bandwidths", impossible_rates, _wants_links),
    Check("unlimited bandwidths", unlimited_rates, _wants_links),
    Check("kinds of links", mislabelled_links, _wants_links),
    Check(
        "PCI addresses", shared_addresses, lambda case: None if any(g.bus_id for g in case.gpus) else "no PCI addresses"
    ),
)
"""The checks of this file."""
