"""Checks of links: equal directions, GPUs that reach each other, equal links for equal GPUs.

A check takes a DoctorView (the topology, and the facts that a probe read of the machine) and yields
a Finding for each problem; the doctor makes those in `CHECKS`. Like GPUs are those of one model.
The topology's notes are lines of the probe, or of a file's reader, on what is unknown or unusual;
as a severity, a note is the mildest.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ...facts import keys
from ...facts.keys import gpu_subject
from ...facts.view import WIRES
from ...graph import Device
from ...hardware import LOCAL_GBps
from ...names import name_opposite
from ...notes import NoteKind
from .view import Check, DoctorView, Finding, Severity, format_GBps, has_two_gpus, join_names

_DUPLEX = (*WIRES, "pcie", "c2c", "smp")
# Severity, problem and advice for each kind of note about NVLinks that the reader did not see.
_WITHOUT_NVLINKS: Mapping[NoteKind | None, tuple[Severity, str, str]] = {
    "nvlinks-left-out": (
        "warning",
        "NVLinks are left out of the text, so all is judged and planned without them",
        "give the output of nvidia-smi topo -m",
    ),
    "no-nvlink-elements": (
        "note",
        "no NVLink in the file, though boards of this model have it",
        "if the machine has NVLink, dump the file there (NCCL_TOPO_DUMP_FILE) so that it is "
        "counted",
    ),
}
# Minimum number of GPUs to compare: if two differ, neither is the odd one.
MIN_PEERS = 3


def check_missing_directions(view: DoctorView) -> Iterator[Finding]:
    """Report links with one direction only.

    NVLink, xGMI, PCIe, C2C and links between sockets are full duplex, so for them it is an error.
    Other kinds may have one direction on purpose, so it is a warning.
    """
    for kind, about, evidence in view.group(
        (link.kind, (link.src, link.dst), (view.format_link(link),))
        for link in view.topology.links
        if (name_opposite(link.dst), name_opposite(link.src)) not in view.topology.capacity_GBps
    ):
        yield Finding(
            "error" if kind in _DUPLEX else "warning",
            "one-way-link",
            about,
            f"{_join_pairs(evidence)}: declared in one direction only, so nothing can come back "
            "over it",
            evidence,
            "check the link's state on the device that does not list it; correct the file if "
            "it is an oversight",
        )


def check_directions(view: DoctorView) -> Iterator[Finding]:
    """Report pairs whose directions differ in bandwidth, or in number of NVLink or xGMI links.

    Each pair is reported once. Rates that mean "no limit" are not compared.
    """
    capacity = view.topology.capacity_GBps
    for (fast, slow), about, evidence in view.group(
        (
            (forth, back),
            (a, b),
            [
                f"{x} -> {y} = {format_GBps(rate)} (the topology)"
                for x, y, rate in ((a, b, forth), (b, a, back))
            ],
        )
        for (a, b), forth in capacity.items()
        # A difference in links is reported below, as the cause.
        if (back := capacity.get((b, a), forth)) < forth < LOCAL_GBps
        and view.links_between.get((a, b), 0) == view.links_between.get((b, a), 0)
    ):
        yield Finding(
            "warning",
            "asymmetric-link",
            about,
            f"{_join_pairs(evidence[::2])}: {format_GBps(fast)} in this direction but "
            f"{format_GBps(slow)} back",
            evidence,
            "measure both directions; a healthy cable carries the same in each",
        )
    counts = {pair: (n, "the topology") for pair, n in view.links_between.items()}
    counts |= _count_links_in_facts(view)
    for (many, few), about, evidence in view.group(
        (
            (count, back),
            (a, b),
            [
                f"{a} -> {b} = {count} links ({source})",
                f"{b} -> {a} = {back} links ({source_back})",
            ],
        )
        for (a, b), (count, source) in counts.items()
        for back, source_back in (counts.get((b, a), (count, source)),)
        if count > back
    ):
        yield Finding(
            "warning",
            "link-count-mismatch",
            about,
            f"{_join_pairs(evidence[::2])}: one end counts {many} links, the other {few}",
            evidence,
            "check each link's state on both devices (nvidia-smi nvlink -s); reseat the bridge "
            "or reset the GPU",
        )


def _join_pairs(evidence: Sequence[str]) -> str:
    # Each line of evidence begins with its pair: "gpu0 -> gpu1 ...".
    return join_names([" ".join(line.split(" ")[:3]) for line in evidence])


def _count_links_in_facts(view: DoctorView) -> dict[tuple[str, str], tuple[int, str]]:
    """Return the number of active NVLinks from each GPU to another, and its source.

    Keys are pairs of GPUs that both have facts on their NVLinks. Each count is that of the first
    GPU's facts.
    """
    at = {view.facts.get_text(gpu_subject(i), keys.GPU_BUS_ID): i for i in view.index_of.values()}
    counts = Counter(
        (index, peer)
        for index in view.index_of.values()
        for subject in view.list_nvlinks(view.gpu_of[index], "active")
        for peer in [at.get(view.facts.get_text(subject, keys.NVLINK_REMOTE_BUS_ID) or "")]
        if peer in view.nvlink_subjects and peer is not None and peer != index
    )
    # Both directions: one without an active link has to be compared, too.
    return {
        (view.gpu_of[x], view.gpu_of[y]): (counts[x, y], f"active links of gpu/{x}")
        for a, b in counts
        for x, y in ((a, b), (b, a))
    }


def check_connection(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs that cannot reach the first one (rank 0), or be reached from it: an error.

    Routes that other GPUs forward count as well.
    """
    start, near = view.gpus[0].id, view.topology.out_neighbours
    reached = _find_reachable(near, start) & _find_reachable(
        view.topology.reversed().out_neighbours, start
    )
    apart = tuple(gpu.id for gpu in view.gpus if gpu.id not in reached)
    if apart:
        yield Finding(
            "error",
            "not-connected",
            apart,
            f"{join_names(apart)}: no path to and from {start} over any link, so they cannot work "
            "together",
            tuple(
                f"{ident} links = {join_names(near[ident]) or 'none'} (the topology)"
                for ident in apart
            ),
            "plan for the connected part alone, or add the links that are missing in the file",
        )


def _find_reachable(near: Mapping[str, Sequence[str]], start: str) -> set[str]:
    # The doctor always runs this check: networkx, slow to import, would cost more than it saves.
    seen, todo = {start}, [start]
    while todo:
        fresh = {*near[todo.pop()]} - seen
        seen |= fresh
        todo += fresh
    return seen


def check_forwarding(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs that are linked to other GPUs only: a note.

    They are reported if they are fewer than half of the GPUs, on a machine with CPUs or PCIe
    switches. A mesh without these is not reported, since it does not claim another path.
    """
    if not any(d.kind == "cpu" or d.family == "pcie" for d in view.topology.devices):
        return
    near = view.topology.out_neighbours
    bare = tuple(
        gpu.id
        for gpu in view.gpus
        if near[gpu.id] and all(view.topology.by_id[x].kind == "gpu" for x in near[gpu.id])
    )
    if bare and 2 * len(bare) < len(view.gpus):
        yield Finding(
            "note",
            "no-way-but-gpus",
            bare,
            f"{join_names(bare)}: linked to other GPUs only, so the rest of the machine is reached "
            "by forwarding",
            tuple(f"{ident} links = {join_names(near[ident])} (the topology)" for ident in bare),
            "check that the file lists the PCIe link too",
        )


# -- NVLink and xGMI


def check_bridges(view: DoctorView) -> Iterator[Finding]:
    """Report missing NVLink bridges, if GPUs of one model are bridged in equal closed groups.

    In a closed group (pairs, fours), each GPU is linked to all others of the group and to no other
    GPU. All groups have the same size. The check reports GPUs without links that would fill a
    group, and groups whose members all have fewer links than those of other groups: one of several
    bridges is missing.
    """
    for like in () if view.hides_peers else view.like_gpus:
        group = [gpu for gpu in like if not view.has_other_cause(gpu.id)]
        yield from _find_thin_bridges(view, group)
        size, bare = _find_bridge_size(view, group)
        if size and len(bare) >= size:
            bridged = [gpu.id for gpu in group if view.wired[gpu.id]]
            yield Finding(
                "warning",
                "missing-bridge",
                bare,
                f"{join_names(bare)}: not joined by a bridge, where {join_names(bridged)} are "
                f"bridged {'in pairs' if size == 2 else f'by {size}'}",
                (
                    *(f"{ident} NVLink or xGMI links = none (the topology)" for ident in bare),
                    *(
                        view.format_link(x)
                        for ident in bridged
                        for x in view.links_from.get(ident, ())
                        if x.kind in WIRES
                    ),
                ),
                "fit the missing bridge, or check that it is seated (nvidia-smi nvlink -s)",
            )


def _find_thin_bridges(view: DoctorView, group: Sequence[Device]) -> Iterator[Finding]:
    by_count = _group_by_links(view, group)
    most = max(by_count, default=0)
    for have, about in by_count.items():
        if have < most:
            yield Finding(
                "warning",
                "missing-bridge",
                about,
                f"{join_names(about)}: bridged by {have} links, where {join_names(by_count[most])} "
                f"are by {most}",
                (
                    *(f"{ident} NVLink or xGMI links = {have} (the topology)" for ident in about),
                    *(line for ident in about for line in _list_inactive(view, ident)),
                ),
                "fit the missing bridge, or check that it is seated (nvidia-smi nvlink -s)",
            )


def _group_by_links(view: DoctorView, group: Sequence[Device]) -> dict[int, tuple[str, ...]]:
    """Return the ids of the GPUs with links, keyed by their number of links.

    Return an empty dict if the GPUs are not bridged in several closed groups of one size, or if the
    members of a group differ in their number of links.
    """
    size, _ = _find_bridge_size(view, group)
    links = {gpu.id: sum(view.wired[gpu.id].values()) for gpu in group if view.wired[gpu.id]}
    if (
        not size
        or len(links) <= size
        or any(links.get(b, have) != have for a, have in links.items() for b in view.wired[a])
    ):
        return {}
    return {
        have: tuple(ident for ident in links if links[ident] == have)
        for have in dict.fromkeys(links.values())
    }


def _find_bridge_size(view: DoctorView, group: Sequence[Device]) -> tuple[int, tuple[str, ...]]:
    """Return the size of the closed groups that bridges form, and the GPUs without links.

    Only the GPUs in `group` are considered. Return (0, ()) if they form no such groups, or groups
    of several sizes.
    """
    closed = Counter(
        frozenset({gpu.id, *view.wired[gpu.id]}) for gpu in group if view.wired[gpu.id]
    )
    sizes = {len(members) for members in closed}
    if len(sizes) != 1 or any(count != len(members) for members, count in closed.items()):
        return 0, ()
    return sizes.pop(), tuple(gpu.id for gpu in group if not view.wired[gpu.id])


def check_link_counts(view: DoctorView) -> Iterator[Finding]:
    """Report GPUs with fewer NVLink or xGMI links than others of the model.

    A GPU without any link is an error, one with fewer a warning. GPUs are judged if there are at
    least three of a model, and most have the same number of links (or half, if three quarters of
    all pairs are linked: a mesh that lost a link). If GPUs are bridged in groups, `check_bridges`
    judges those in no group and groups that have fewer links as a whole. GPUs that lack links for
    a reason of their own (MIG, a fabric that is not ready) are not judged.
    """
    for like in () if view.hides_peers else view.like_gpus:
        group = [gpu for gpu in like if not view.has_other_cause(gpu.id)]
        size, _ = _find_bridge_size(view, group)
        if size and len(_group_by_links(view, group)) > 1:
            continue  # reported as `missing-bridge`
        links = {
            gpu.id: sum(view.wired[gpu.id].values())
            for gpu in group
            if not (size and not view.wired[gpu.id])
        }
        most = _find_expected(view, links)
        agreed = sum(have == most for have in links.values())
        for have, about, evidence in view.group(
            (
                have,
                (ident,),
                (
                    f"{ident} NVLink or xGMI links = {have} (the topology)",
                    *_list_inactive(view, ident),
                ),
            )
            for ident, have in links.items()
            if have < most
        ):
            yield Finding(
                "warning" if have else "error",
                "fewer-links",
                about,
                f"{join_names(about)}: {have or 'none'} of the {most} links that {agreed} like "
                "GPUs have",
                evidence,
                "look for inactive links and link errors (nvidia-smi nvlink -s, -e); reset or "
                "replace the GPU",
            )


def _find_expected(view: DoctorView, links: Mapping[str, int]) -> int:
    """Return the number of links that a GPU should have, or 0 if the others do not agree."""
    most = max(links.values(), default=0)
    agreed = Counter(links.values())[most]
    if len(links) < MIN_PEERS or 2 * agreed < len(links):
        return 0
    joined = sum(len(view.wired[a].keys() & links.keys()) for a in links)  # each pair twice
    return most if 2 * agreed > len(links) or 4 * joined >= 3 * len(links) * (len(links) - 1) else 0


def _list_inactive(view: DoctorView, ident: str) -> list[str]:
    return [view.format_fact(s, keys.NVLINK_STATE) for s in view.list_nvlinks(ident, "inactive")]


def check_link_peers(view: DoctorView) -> Iterator[Finding]:
    """Report NVLinks and xGMI links that the topology lacks, by the topology's notes.

    It is a warning if a link leads to no known GPU (its target is the GPU itself, or one that is
    not listed), or if a text leaves NVLinks out. It is a note if a file has no NVLinks for GPUs
    whose boards have them.
    """
    for detail, about, evidence in view.group(
        (
            note.detail,
            [ident for ident in note.about if ident in view.topology.by_id],
            (f"{note} (the topology's notes)",),
        )
        for note in view.list_notes("link-without-peer")
    ):
        yield Finding(
            "warning",
            "link-without-peer",
            about,
            f"{join_names(about)}: {detail} leads to no GPU that is known, so it is missing in the "
            "topology",
            evidence,
            "dump the file on the machine itself, or write the peers in by hand (nvidia-smi topo "
            "-m)",
        )
    reported = {ident for note in view.list_notes("link-without-peer") for ident in note.about}
    for note in view.list_notes("nvlinks-left-out", "no-nvlink-elements"):
        if note.about and reported.issuperset(note.about):
            continue
        severity, problem, advice = _WITHOUT_NVLINKS[note.kind]
        yield Finding(
            severity,
            "no-nvlink-told",
            view.topology.ranks,
            f"{join_names(view.topology.ranks)}: {problem}",
            (f"{note} (the topology's notes)",),
            advice,
        )


CHECKS = (
    Check(
        "links in both directions",
        check_missing_directions,
        lambda view: view.topology.links,
        "no links",
    ),
    Check("equal directions", check_directions, lambda view: view.topology.links, "no links"),
    Check("connection", check_connection, has_two_gpus, "fewer than two GPUs"),
    Check("links besides those to GPUs", check_forwarding, has_two_gpus, "fewer than two GPUs"),
    Check("bridges", check_bridges, lambda view: view.links_between, "no NVLink or xGMI"),
    Check(
        "links of like GPUs",
        check_link_counts,
        lambda view: view.links_between,
        "no NVLink or xGMI",
    ),
    Check(
        "links without a peer",
        check_link_peers,
        lambda view: view.topology.notes or view.links_between,
        "no NVLink or xGMI",
    ),
)
