"""Checks of figures: possible and measured rates, kinds of links, and unique PCI addresses.

A check takes a DoctorView (the topology, and the facts that a probe read of the machine) and yields
a Finding for each problem; the doctor makes those in `CHECKS`.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction

from ...boards import MAX_NVLINKS, MAX_XGMI_LINKS, FASTEST_NVLINK_GBps, FASTEST_XGMI_GBps
from ...exact import parse_positive
from ...facts.view import WIRES
from ...graph import Device, Link
from ...hardware import LOCAL_GBps, PCIE_GTps, nvlink_counted_GBps, xgmi_counted_GBps
from .view import (
    Case,
    Check,
    DisjointSets,
    DoctorView,
    Finding,
    format_GBps,
    join_names,
    parse_whole,
)

# Ratios of measured to declared rate: below SLOW is a warning, below BROKEN an error; above FAST
# the declaration is doubtful.
SLOW, BROKEN, FAST = Fraction(7, 10), Fraction(4, 10), Fraction(115, 100)

# GB/s of Gen6 x16 in one direction, without any coding or headers.
_PCIE_MAX_GBps = max(PCIE_GTps.values()) * 16 / 8

# Share of a link's usual rate below which a declared NVLink or xGMI link is probably PCIe.
_PLAUSIBLE = Fraction(6, 10)


def check_measured_rates(view: DoctorView) -> Iterator[Finding]:
    """Report links whose measured bandwidth is far from the declared one.

    They are `GBps` in the link's `extra["measured"]` and `extra["declared"]`.
    Below 0.4 of it is an error, below 0.7 a warning; above 1.15 is a note, since the declaration is
    doubtful. Without a declared value, the link's `bandwidth_GBps` takes its place. A link is never
    reported as too slow if the measurement is only a lower bound, or was made on another medium.
    """
    slow: list[Case] = []
    fast: list[Case] = []
    for link in view.topology.links:
        measured, declared = _read_rate(link, "measured"), _read_rate(link, "declared")
        if measured is None:
            continue
        wanted = declared[0] if declared else link.bandwidth_GBps
        lines = [
            f"{link.src} -> {link.dst} measured = {format_GBps(measured[0])} ({measured[1]})",
            f"{link.src} -> {link.dst} declared = {format_GBps(wanted)} ({declared[1]})"
            if declared
            else view.format_link(link),
        ]
        if measured[0] < SLOW * wanted and not _is_doubted(link):
            slow.append((measured[0] < BROKEN * wanted, (link.src, link.dst), lines))
        if measured[0] > FAST * wanted:
            fast.append(("", (link.src, link.dst), lines))
    for broken, about, evidence in view.group(slow):
        yield Finding(
            "error" if broken else "warning",
            "slow-link",
            about,
            f"{join_names(about)}: measured below {'two fifths' if broken else 'seven tenths'} of "
            "what is declared for their links",
            evidence,
            "measure again with the machine idle; then look at link errors, PCIe lanes at work and "
            "the route that is taken",
        )
    for _, about, evidence in view.group(fast):
        yield Finding(
            "note",
            "fast-link",
            about,
            f"{join_names(about)}: measured well above what is declared for their links, so the "
            "declaration is doubtful",
            evidence,
            "plan with the measured value",
        )


def _is_doubted(link: Link) -> bool:
    measured, believed = link.extra.get("measured"), link.extra.get("believed")
    return believed == "declared" or (
        isinstance(measured, Mapping) and measured.get("limit") is False and believed != "measured"
    )


def _read_rate(link: Link, key: str) -> tuple[Fraction, str] | None:
    """Return the rate in GB/s under `key` in a link's `extra`, with its source.

    Return None if there is no rate above 0.
    """
    entry = link.extra.get(key)
    if not isinstance(entry, Mapping):
        return None
    rate = parse_positive(entry.get("GBps"))
    source = str(entry.get("source") or link.source or "the topology")[:60]
    return None if rate is None else (rate, source)


def check_possible_rates(view: DoctorView) -> Iterator[Finding]:
    """Report bandwidths above the limit of the medium: an error.

    The limits are Gen6 x16 for PCIe, and the fastest generation times the number of links for
    NVLink and xGMI. A link of count 1 may represent all links of a GPU, and between switches any
    number is possible. The 5000 GB/s that NCCL assumes for connections that limit nothing are
    reported as `unlimited-rate`.
    """
    for (kind, most), about, evidence in view.group(
        ((link.kind, most), (link.src, link.dst), (view.format_link(link),))
        for link in view.topology.links
        if (most := _find_limit(view, link)) is not None
        and link.bandwidth_GBps > most
        and not _is_unlimited(link)
    ):
        yield Finding(
            "error",
            "impossible-rate",
            about,
            f"{join_names(about)}: more than a {kind} link of this size can carry "
            f"({format_GBps(most)})",
            evidence,
            "correct the bandwidth, or its unit: GB/s are 1e9 bytes a second in one direction, not "
            "bits",
        )


def _find_limit(view: DoctorView, link: Link) -> Fraction | None:
    if link.kind == "pcie":
        return _PCIE_MAX_GBps * link.count
    if link.kind not in WIRES or "gpu" not in {
        view.topology.by_id[end].kind for end in (link.src, link.dst)
    }:
        return None
    # A link of count 1 may stand for all links of a GPU.
    if link.kind == "nvlink":
        return FASTEST_NVLINK_GBps * (link.count if link.count > 1 else MAX_NVLINKS)
    return FASTEST_XGMI_GBps * (link.count if link.count > 1 else MAX_XGMI_LINKS)


def _is_unlimited(link: Link) -> bool:
    return link.kind in ("pcie", "smp") and link.bandwidth_GBps == LOCAL_GBps


def check_unlimited_rates(view: DoctorView) -> Iterator[Finding]:
    """Report links of 5000 GB/s, which NCCL assumes for unknown rates: a note.

    They hide the bottleneck.
    """
    for kind, about, evidence in view.group(
        (link.kind, (link.src, link.dst), (view.format_link(link),))
        for link in view.topology.links
        if _is_unlimited(link)
    ):
        yield Finding(
            "note",
            "unlimited-rate",
            about,
            f"{join_names(about)}: {kind} links of {format_GBps(LOCAL_GBps)}, NCCL's placeholder "
            "for what it does not know",
            evidence,
            "write a measured bandwidth into the file",
        )


def check_link_kinds(view: DoctorView) -> Iterator[Finding]:
    """Report links whose kind is doubtful: a warning.

    These are direct links of kind pcie between two GPUs, since PCIe needs a switch or a CPU; and
    NVLink or xGMI with less than 0.6 of the rate of its GPU's links (by sm or gcn), such as xGMI
    that an older library took for PCIe. Measured links are left to `check_measured_rates`.
    """
    by_id = view.topology.by_id
    for _, about, evidence in view.group(
        ("", (link.src, link.dst), (view.format_link(link),))
        for link in view.topology.links
        if link.kind == "pcie" and {by_id[link.src].kind, by_id[link.dst].kind} == {"gpu"}
    ):
        yield Finding(
            "warning",
            "pcie-between-gpus",
            about,
            f"{join_names(about)}: direct links between GPUs that are called PCIe, which needs a "
            "switch or a CPU between",
            evidence,
            "if these are NVLink or xGMI, correct kind and bandwidth; else draw the switch that "
            "they share",
        )
    for (kind, usual), about, evidence in view.group(
        ((link.kind, usual), (link.src, link.dst), (view.format_link(link),))
        for link in view.topology.links
        if (usual := _find_usual_GBps(view, link)) is not None
        and "measured" not in link.extra
        and link.bandwidth_GBps < _PLAUSIBLE * usual * link.count
    ):
        yield Finding(
            "warning",
            "pcie-like-rate",
            about,
            f"{join_names(about)}: {kind} links far below the {format_GBps(usual)} that a link of "
            "these GPUs has, rather like PCIe",
            evidence,
            "correct the bandwidth, or measure the links",
        )


def _find_usual_GBps(view: DoctorView, link: Link) -> Fraction | None:
    """Return the GB/s in one direction that NCCL or RCCL assumes for a link of the slower GPU.

    The GPUs are those at the link's ends. Return None if neither is known.
    """
    rates = []
    ends = (view.topology.by_id[end] for end in (link.src, link.dst))
    for extra in (device.extra for device in ends if device.kind == "gpu"):
        sm, gcn = parse_whole(extra.get("sm")), extra.get("gcn")
        if link.kind == "xgmi" and isinstance(gcn, (str, int)) and not isinstance(gcn, bool):
            rates.append(xgmi_counted_GBps(str(gcn)))
        elif link.kind == "nvlink" and sm is not None and 60 <= sm < 1000:
            rates.append(nvlink_counted_GBps(sm))
    return min(rates, default=None)


def check_addresses(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs of one machine with the same PCI address: an error.

    NCCL refuses two ranks that seem to share one GPU. Devices are of one machine if they agree in
    `extra["box"]` (their chassis) and in the part of the id before a slash, and are connected
    without networks, NVLink and xGMI. Parts of one GPU that NCCL distinguishes (`extra["mlopart"]`)
    are a note.
    """
    by_id = view.topology.by_id
    machines = DisjointSets()
    for link in view.topology.links:
        if link.kind not in (*WIRES, "network") and "network" not in (
            by_id[link.src].family,
            by_id[link.dst].family,
        ):
            machines.join(link.src, link.dst)
    ids_at: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for gpu in view.gpus:
        if gpu.bus_id:
            # A GPU without links is its own root, and may be in the same machine.
            root = machines.find_root(gpu.id)
            machine = (
                str(gpu.extra.get("box")),
                gpu.id.rpartition("/")[0],
                root if root != gpu.id else "",
            )
            ids_at[gpu.bus_id, machine].append(gpu.id)
    for (bus_id, _), about in ids_at.items():
        evidence = tuple(view.format_attribute(by_id[i], "bus_id", bus_id) for i in about)
        if len(about) > 1 and all(_is_locality_part(by_id[ident]) for ident in about):
            yield Finding(
                "note",
                "mlopart",
                tuple(about),
                f"{join_names(about)}: parts of one GPU (MLOPart) at PCI address {bus_id}, with "
                "its links between them",
                evidence,
                "use NCCL 2.29 or later, which takes them for several GPUs; count the links of the "
                "GPU once",
            )
        elif len(about) > 1:
            yield Finding(
                "error",
                "shared-bus-id",
                tuple(about),
                f"{join_names(about)}: all at PCI address {bus_id}; NCCL takes them for one GPU "
                "and refuses",
                evidence,
                "correct the addresses; of a partitioned GPU give NCCL one rank, or undo the "
                "partition",
            )


def _is_locality_part(gpu: Device) -> bool:
    # MPS divides a GPU by its memory into parts (MLOPart), as the file or the name shows.
    return str(gpu.extra.get("mlopart", -1)) != "-1" or "MLOPart" in str(gpu.extra.get("name"))


# The checks of this file.
CHECKS = (
    Check(
        "measured against declared",
        check_measured_rates,
        lambda view: any("measured" in link.extra for link in view.topology.links),
        "no measured bandwidths",
    ),
    Check(
        "possible bandwidths", check_possible_rates, lambda view: view.topology.links, "no links"
    ),
    Check(
        "unlimited bandwidths", check_unlimited_rates, lambda view: view.topology.links, "no links"
    ),
    Check("kinds of links", check_link_kinds, lambda view: view.topology.links, "no links"),
    Check(
        "PCI addresses",
        check_addresses,
        lambda view: any(gpu.bus_id for gpu in view.gpus),
        "no PCI addresses",
    ),
)
