"""Checks of sound machines that the stock libraries, NCCL and RCCL as installed, use badly.

Their own search finds poor or no rings there, or they refuse. The rules are those of NCCL 2.30.7's
search, run on CPUs (docs/nccl.md has figures). NCCL takes better rings from a graph file
(NCCL_GRAPH_FILE). A check takes a DoctorView (the topology, and the facts that a probe read of the
machine) and yields a Finding for each problem; the doctor makes those in `CHECKS`.
"""

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, pairwise

from ....extras import OFFERS, Names
from ...facts import keys
from ...graph import Device, Link
from ...grouping import group_by_key
from ...matrix import ConnectionFinder
from .view import (
    Check,
    DisjointSets,
    DoctorView,
    Finding,
    format_GBps,
    has_two_gpus,
    join_names,
    parse_whole,
)

# A file that tunes NCCL, by its name in the group `offers`, and its offer in words.
_NCCL_GRAPH = "nccl-graph"
_GRAPH_FILE = f"give NCCL a graph file, which topo-synth writes (format {_NCCL_GRAPH})"
_NO_FILE = "nothing: no graph file for NCCL is known to gain here"
_MIN_RING_GBps = Fraction(18)
# Compute capability, times 10, of the first GPUs with stricter limits in NCCL (Blackwell).
_MIN_SM = 100
# With more GPUs, rings over PCIe are not judged, since that needs the route of each pair.
_MAX_ROUTED = 32


def check_bridged_groups(view: DoctorView) -> Iterator[Finding]:
    """Report NVLinks that connect some GPUs of a machine but not all: a note.

    NCCL's ring search wants every hop at one speed, so the hop over PCIe sets the speed for all,
    and it repeats a ring in one direction instead of turning it round.
    """
    joined = DisjointSets()
    of_nvlink = [x for x in view.topology.links if x.kind == "nvlink"]
    for link in of_nvlink:
        joined.join(link.src, link.dst)
    groups = group_by_key((joined.find_root(gpu.id), gpu.id) for gpu in view.gpus)
    bridged = [members for members in groups.values() if len(members) > 1]
    on_switches = any(
        view.topology.by_id[end].family == "nvswitch" for x in of_nvlink for end in (x.src, x.dst)
    )
    if (
        not bridged
        or len(groups) < 2
        or on_switches
        or not any(x.kind == "pcie" for x in view.topology.links)
    ):
        return
    about = tuple(ident for members in bridged for ident in members)
    yield Finding(
        "note",
        "nccl-bridged-groups",
        about,
        f"NVLink joins {' | '.join(map(join_names, bridged))} only, so stock NCCL's rings run at "
        "the rate of their hop over PCIe everywhere",
        tuple([view.format_link(x) for x in of_nvlink if x.src in about and x.dst in about]),
        _GRAPH_FILE if _is_file_offered(view) else _NO_FILE,
    )


def check_slow_pcie(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs of compute capability 10.0 and more with too little PCIe for NCCL: a warning.

    With less than 18 GB/s between GPUs (Gen4 x8, Gen3 x16), NCCL 2.25.1 and later finds no ring. It
    falls back to one channel at 0.1 GB/s in its model; without a network device it does not start.
    Rates that are only assumed are not judged, nor routes over a network, where NCCL accepts less,
    nor hops with NVLink-C2C beside PCIe.
    """
    gpus = [
        g.id
        for g in view.gpus
        if (_find_sm(view, g) or 0) >= _MIN_SM and view.find_maker(g.id) != "AMD"
    ]
    if not 1 < len(gpus) <= _MAX_ROUTED:
        return
    connections = ConnectionFinder(view.topology)
    pcie_links = {(x.src, x.dst): x for x in view.topology.links if x.kind == "pcie"}
    for link in view.topology.links:
        if link.kind == "c2c":
            pcie_links.pop((link.src, link.dst), None)
    least = _MIN_RING_GBps
    slow: dict[str, Link] = {}
    for a, b in combinations(gpus, 2):
        route = connections.router.find_route(a, b) or ()
        if any(view.topology.by_id[end].kind == "nic" for end in route):
            continue
        over_pcie = [pcie_links[hop] for hop in pairwise(route) if hop in pcie_links]
        if not over_pcie or any(link.is_assumed for link in over_pcie):
            continue
        worst = min(over_pcie, key=lambda link: link.bandwidth_GBps)
        if worst.bandwidth_GBps < _MIN_RING_GBps:
            slow |= {a: worst, b: worst}
            least = min(least, worst.bandwidth_GBps)
    if slow:
        about = tuple(gpu for gpu in gpus if gpu in slow)
        yield Finding(
            "warning",
            "nccl-no-ring",
            about,
            f"{join_names(about)}: {format_GBps(least)} of PCIe between them, less than the "
            f"{format_GBps(_MIN_RING_GBps)} that NCCL 2.25.1 and later asks of such GPUs; it finds "
            "no ring and uses one channel, without a NIC it does not start",
            tuple(dict.fromkeys(view.format_link(slow[gpu]) for gpu in about)),
            f"check slots and BIOS{f'; else {_GRAPH_FILE}' if _is_file_offered(view) else ''}",
        )


def _is_file_offered(view: DoctorView) -> bool:
    """Return whether an extra offers a graph file: it searches, which takes seconds."""
    offers = Names(OFFERS)
    return _NCCL_GRAPH in offers.describe() and offers.find(_NCCL_GRAPH)(view.topology) is None


def _find_sm(view: DoctorView, gpu: Device) -> int | None:
    sm = parse_whole(gpu.extra.get("sm"))
    return view.facts.get_number(view.find_subject(gpu.id), keys.GPU_SM) if sm is None else sm


def check_makers(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs of different makers in one machine: a warning.

    No stock library sums over all of them.
    """
    of_maker = group_by_key(
        (maker, gpu.id) for gpu in view.gpus if (maker := view.find_maker(gpu.id)) is not None
    )
    if len(of_maker) < 2:
        return
    listed = " | ".join(f"{maker}: {join_names(ids)}" for maker, ids in of_maker.items())
    yield Finding(
        "warning",
        "mixed-makers",
        tuple(ident for ids in of_maker.values() for ident in ids),
        f"GPUs of different makers ({listed}): neither NCCL nor RCCL makes one collective of them",
        tuple(f"{ids[0]} maker = {maker} (the topology)" for maker, ids in of_maker.items()),
        "plan for those of one maker; over all of them only gloo works, through host memory",
    )


# The checks of this file.
CHECKS = (
    Check(
        "NCCL's rings on bridged GPUs",
        check_bridged_groups,
        lambda view: any(link.kind == "nvlink" for link in view.topology.links),
        "no NVLink",
    ),
    Check(
        "NCCL's rings over slow PCIe",
        check_slow_pcie,
        lambda view: any(_find_sm(view, gpu) for gpu in view.gpus),
        "no compute capabilities",
    ),
    Check("makers of the GPUs", check_makers, has_two_gpus, "fewer than two GPUs"),
)
