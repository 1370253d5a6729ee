"""What the doctor asks of links: that both ends tell the same, that GPUs reach each other, and that like GPUs have alike."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from ..graph import Device
from .case import WIRES, Case, Check, Finding, Grouped, gbps, names

_DUPLEX = (*WIRES, "pcie", "c2c", "smp")
_LEAST_FOR_PEERS = 3
_UNTOLD = re.compile(
    r"(.{1,200}): (?:its|\d+ active) (nvlink|xgmi|NVLinks?) (?:has the GPU itself as target|leads to|to).*"
    r"(?:left out|a GPU that is not listed here)"
)
_NO_NVLINK = "the file has no nvlink elements"


def one_way_links(case: Case) -> Iterator[Finding]:
    """A link that only one side tells. NVLink, xGMI, PCIe, C2C and sockets are full duplex, so that is an error there;
    other kinds may be drawn one way on purpose: a warning.
    """
    found = Grouped(case)
    capacity = case.topology.capacity_GBps
    for link in case.topology.links:
        if (link.dst, link.src) not in capacity:
            found.add(link.kind, (link.src, link.dst), (case.link(link),))
    for kind, about, evidence in found:
        yield Finding(
            "error" if kind in _DUPLEX else "warning",
            "one-way-link",
            about,
            f"{_pairs(evidence)}: told by one side only, so nothing can come back over it",
            evidence,
            "look at the link's state on the device that does not tell of it; correct the file if it is an oversight",
        )


def unlike_directions(case: Case) -> Iterator[Finding]:
    """A -> B has another bandwidth than B -> A, or (NVLink, xGMI) another number of lanes; each pair is told once."""
    rates, counts = Grouped(case), Grouped(case)
    capacity = case.topology.capacity_GBps
    for (a, b), there in capacity.items():
        back = capacity.get((b, a))
        if back is not None and there > back and case.lanes.get((a, b), 0) == case.lanes.get((b, a), 0):
            lines = [f"{x} -> {y} = {gbps(rate)} (the topology)" for x, y, rate in ((a, b, there), (b, a, back))]
            rates.add((there, back), (a, b), lines)
    lanes = {pair: (n, "the topology") for pair, n in case.lanes.items()} | _lanes_in_facts(case)
    for (a, b), (many, source) in lanes.items():
        few, source_back = lanes.get((b, a), (many, source))
        if many > few:
            lines = [f"{a} -> {b} = {many} links ({source})", f"{b} -> {a} = {few} links ({source_back})"]
            counts.add((many, few), (a, b), lines)
    for (fast, slow), about, evidence in rates:
        message = f"{_pairs(evidence[::2])}: {gbps(fast)} this way but {gbps(slow)} back"
        advice = "measure both directions; a healthy cable carries the same in each"
        yield Finding("warning", "asymmetric-link", about, message, evidence, advice)
    for (many, few), about, evidence in counts:
        message = f"{_pairs(evidence[::2])}: one end counts {many} links, the other {few}"
        advice = "look at each link's state on both devices (nvidia-smi nvlink -s); reseat the bridge or reset the GPU"
        yield Finding("warning", "link-count-mismatch", about, message, evidence, advice)


def _pairs(evidence: Sequence[str]) -> str:
    """The links that lines of evidence are about: "gpu0 -> gpu1, gpu2 -> gpu3"."""
    return names([" ".join(line.split(" ")[:3]) for line in evidence])


def _lanes_in_facts(case: Case) -> dict[tuple[str, str], tuple[int, str]]:
    """Active NVLinks from a GPU to another by the facts of the first, for pairs of GPUs that both tell of theirs."""
    at = {case.facts.text(f"gpu/{i}", "bus_id"): i for i in case.number_of.values()}
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for index in case.number_of.values():
        for subject in case.wire_facts.get(index, ()):
            if case.facts.text(subject, "state") == "active":
                peer = at.get(case.facts.text(subject, "remote_bus_id") or "")
                if peer in case.wire_facts and peer is not None and peer != index:
                    counts[index, peer] += 1
    out = {}
    for a, b in counts:
        for x, y in ((a, b), (b, a)):
            out[case.gpu_of[x], case.gpu_of[y]] = counts.get((x, y), 0), f"active links of gpu/{x}"
    return out


def unconnected(case: Case) -> Iterator[Finding]:
    """GPUs that cannot reach the first one, or be reached from it, over any links, other GPUs forwarding."""
    if len(case.gpus) < 2:
        return
    near = {id_: set(out) for id_, out in case.topology.out_neighbours.items()}
    back: dict[str, set[str]] = {id_: set() for id_ in near}
    for src, dsts in near.items():
        for dst in dsts:
            back[dst].add(src)
    start = case.gpus[0].id
    reached = _reached(near, start) & _reached(back, start)
    apart = tuple(gpu.id for gpu in case.gpus if gpu.id not in reached)
    if apart:
        yield Finding(
            "error",
            "not-connected",
            apart,
            f"{names(apart)}: no way to and from {start} over any link, so they cannot work together",
            tuple(
                f"{ident} links = {names(case.topology.out_neighbours[ident]) or 'none'} (the topology)"
                for ident in apart
            ),
            "plan for the connected part alone, or add the links that are missing in the file",
        )


def _reached(near: Mapping[str, set[str]], start: str) -> set[str]:
    seen, todo = {start}, [start]
    while todo:
        fresh = near[todo.pop()] - seen
        seen |= fresh
        todo += fresh
    return seen


def only_through_gpus(case: Case) -> Iterator[Finding]:
    """On a machine with CPUs or PCIe switches: GPUs that hang on none while most do, so that only other GPUs could
    forward for them. A mesh drawn without its CPUs raises nothing: nobody claimed that there is another way.
    """
    if not any(d.kind == "cpu" or d.family == "pcie" for d in case.topology.devices):
        return
    near = case.topology.out_neighbours
    hung = {gpu.id: any(case.topology.by_id[there].kind != "gpu" for there in near[gpu.id]) for gpu in case.gpus}
    bare = tuple(ident for ident, is_hung in hung.items() if not is_hung and near[ident])
    if bare and 2 * len(bare) < len(hung):
        evidence = tuple(f"{ident} links = {names(near[ident])} (the topology)" for ident in bare)
        message = f"{names(bare)}: linked to other GPUs only, so the rest of the machine is reached by forwarding"
        yield Finding("note", "no-way-but-gpus", bare, message, evidence, "check that the file lists the PCIe link too")


# -- NVLink and xGMI ----------------------------------------------------------------------------------------------------


def missing_bridges(case: Case) -> Iterator[Finding]:
    """Where GPUs are bridged in closed groups of one size (pairs, fours: all joined to all, to nothing else), like GPUs
    of the machine that have no link at all and are enough for a group of their own; and groups joined by fewer links than
    others, all of their members alike, as where one of several bridges is missing.
    """
    for group in case.like_gpus:
        yield from _thin_bridges(case, group)
        size, bare = _bridging(case, group)
        if size and len(bare) >= size:
            bridged = [gpu.id for gpu in group if case.wired[gpu.id]]
            evidence = [f"{ident} NVLink or xGMI links = none (the topology)" for ident in bare]
            evidence += [case.link(x) for ident in bridged for x in case.links_from.get(ident, ()) if x.kind in WIRES]
            word = "in pairs" if size == 2 else f"by {size}"
            message = f"{names(bare)}: not joined by a bridge, where {names(bridged)} are bridged {word}"
            advice = "fit the missing bridge, or look whether it is seated (nvidia-smi nvlink -s)"
            yield Finding("warning", "missing-bridge", bare, message, tuple(evidence), advice)


def _thin_bridges(case: Case, group: Sequence[Device]) -> Iterator[Finding]:
    by_lanes = _bridged_by(case, group)
    most = max(by_lanes, default=0)
    for have, about in by_lanes.items():
        if have < most:
            evidence = [f"{ident} NVLink or xGMI lanes = {have} (the topology)" for ident in about]
            evidence += [told for ident in about for told in _inactive(case, ident)]
            message = f"{names(about)}: bridged by {have} links, where {names(by_lanes[most])} are by {most}"
            advice = "fit the missing bridge, or look whether it is seated (nvidia-smi nvlink -s)"
            yield Finding("warning", "missing-bridge", about, message, tuple(evidence), advice)


def _bridged_by(case: Case, group: Sequence[Device]) -> dict[int, tuple[str, ...]]:
    """GPUs by their number of lanes, where they are bridged in several closed groups and the members of each are alike."""
    size, _ = _bridging(case, group)
    lanes = {gpu.id: sum(case.wired[gpu.id].values()) for gpu in group if case.wired[gpu.id]}
    alike = all(lanes[there] == have for ident, have in lanes.items() for there in case.wired[ident] if there in lanes)
    if not size or not alike or len(lanes) <= size:
        return {}
    return {have: tuple(ident for ident in lanes if lanes[ident] == have) for have in dict.fromkeys(lanes.values())}


def _bridging(case: Case, group: Sequence[Device]) -> tuple[int, tuple[str, ...]]:
    """The size of the closed groups that some of these GPUs are bridged in (0: they are not), and the others."""
    closed = Counter(frozenset({gpu.id, *case.wired[gpu.id]}) for gpu in group if case.wired[gpu.id])
    sizes = {len(members) for members in closed}
    if len(sizes) != 1 or any(count != len(members) for members, count in closed.items()):
        return 0, ()
    return sizes.pop(), tuple(gpu.id for gpu in group if not case.wired[gpu.id])


def fewer_links(case: Case) -> Iterator[Finding]:
    """A GPU with fewer NVLink or xGMI lanes than its like have. Judged only among three or more of which most have the
    same number (or half, where three quarters of all pairs are joined: a mesh that lost a link), and not where
    GPUs are bridged in groups and it is in none, or in one that is thinner as a whole. None of its links left is an
    error, fewer a warning.
    """
    for group in case.like_gpus:
        size, _ = _bridging(case, group)
        if size and len(_bridged_by(case, group)) > 1:
            continue  # `missing-bridge` tells of that
        lanes = {gpu.id: sum(case.wired[gpu.id].values()) for gpu in group if not (size and not case.wired[gpu.id])}
        most = _usual(case, lanes)
        found = Grouped(case)
        for ident, have in lanes.items():
            if have < most:
                found.add(
                    have, (ident,), (f"{ident} NVLink or xGMI lanes = {have} (the topology)", *_inactive(case, ident))
                )
        agreed = sum(have == most for have in lanes.values())
        for have, about, evidence in found:
            message = f"{names(about)}: {have or 'none'} of the {most} links that {agreed} like GPUs have"
            advice = "look for inactive links and link errors (nvidia-smi nvlink -s, -e); reset or replace the GPU"
            yield Finding("warning" if have else "error", "fewer-links", about, message, evidence, advice)


def _usual(case: Case, lanes: Mapping[str, int]) -> int:
    """How many lanes a GPU ought to have, 0 where there is no telling."""
    if len(lanes) < _LEAST_FOR_PEERS:
        return 0
    most = max(lanes.values())
    share = Fraction(Counter(lanes.values())[most], len(lanes))
    if share > Fraction(1, 2):
        return most
    if share < Fraction(1, 2):
        return 0
    joined = sum(len(case.wired[a].keys() & lanes.keys()) for a in lanes)  # each pair twice
    return most if 4 * joined >= 3 * len(lanes) * (len(lanes) - 1) else 0


def _inactive(case: Case, ident: str) -> list[str]:
    """Evidence of the links of a GPU that are there and not active."""
    subjects = case.wire_facts.get(case.number_of.get(ident, ""), ())
    return [case.fact(s, "state") for s in subjects if case.facts.text(s, "state") == "inactive"]


def inactive_links(case: Case) -> Iterator[Finding]:
    """A GPU's inactive NVLink where more than half of three or more like GPUs have theirs of that number active,
    unless the GPU's lanes are short in the topology too (`fewer-links` tells of that).
    """
    short = {ident for finding in fewer_links(case) for ident in finding.about}
    for group in case.like_gpus:
        told = [gpu.id for gpu in group if case.number_of.get(gpu.id) in case.wire_facts]
        if len(told) < _LEAST_FOR_PEERS:
            continue
        active = Counter(name for ident in told for name, state in _states(case, ident) if state == "active")
        found = Grouped(case)
        for ident in told:
            dead = [n for n, state in _states(case, ident) if state == "inactive" and 2 * active[n] > len(told)]
            if dead and ident not in short:
                subject = f"gpu/{case.number_of[ident]}/nvlink"
                found.add(len(dead), (ident,), [case.fact(f"{subject}/{n}", "state") for n in dead])
        for dead_links, about, evidence in found:
            message = f"{names(about)}: {dead_links} inactive NVLink{'s' * (dead_links > 1)}, active on most like GPUs"
            advice = (
                "look for link errors (nvidia-smi nvlink -e) and in the kernel log; reset the GPU or reseat its bridge"
            )
            yield Finding("warning", "inactive-links", about, message, evidence, advice)


def _states(case: Case, ident: str) -> Iterator[tuple[str, str | None]]:
    for subject in case.wire_facts.get(case.number_of.get(ident, ""), ()):
        yield subject.rpartition("/")[2], case.facts.text(subject, "state")


def untold_peers(case: Case) -> Iterator[Finding]:
    """NVLinks or xGMI links that lead to no GPU that is known, by the notes of the reader: the target is the GPU itself, or a
    GPU that is not there; a warning, since the topology lacks them. A file of GPUs whose models have NVLink as boards, with no
    such links: a note.
    """
    for note in case.notes:
        match = _UNTOLD.fullmatch(note)
        if match:
            about = _noted(case, match[1])
            message = f"{names(about)}: {match[2]} leads to no GPU that is known, so it is missing in the topology"
            advice = "dump the file on the machine itself, or write the peers in by hand (nvidia-smi topo -m)"
            yield Finding("warning", "link-without-peer", about, message, (f"{note} (the topology's notes)",), advice)
        elif _NO_NVLINK in note:
            about = case.topology.ranks
            message = f"{names(about)}: no NVLink in the file, though boards of this model have it"
            advice = "if the machine has NVLink, dump the file there (NCCL_TOPO_DUMP_FILE) so that it is counted"
            yield Finding("note", "no-nvlink-told", about, message, (f"{note} (the topology's notes)",), advice)


def _noted(case: Case, listed: str) -> tuple[str, ...]:
    """The GPUs that a note names; where it ends in "and 2 more", all GPUs without links if these are as many."""
    head, _, more = listed.partition(" and ")
    named = tuple(ident for ident in head.split(", ") if ident in case.topology.by_id)
    bare = tuple(ident for ident in case.topology.ranks if not case.wired[ident])
    count = re.fullmatch(r"([0-9]{1,9}) more", more)
    return bare if count and set(named) <= set(bare) and len(bare) == len(named) + int(count[1]) else named


def _wants_links(case: Case) -> str | None:
    return None if case.topology.links else "no links"


def _wants_two_gpus(case: Case) -> str | None:
    return None if len(case.gpus) > 1 else "fewer than two GPUs"


def _wants_wires(case: Case) -> str | None:
    return None if case.lanes else "no NVLink or xGMI"


CHECKS = (
    Check("links told by one side", one_way_links, _wants_links),
    Check("unlike directions", unlike_directions, _wants_links),
    Check("connection", unconnected, _wants_two_gpus),
    Check("ways past GPUs", only_through_gpus, _wants_two_gpus),
    Check("bridges", missing_bridges, _wants_wires),
    Check("links of like GPUs", fewer_links, _wants_wires),
    Check("links without a peer", untold_peers, lambda case: None if case.notes or case.lanes else "no NVLink or xGMI"),
    Check("inactive links", inactive_links, lambda case: None if case.wire_facts else "no states of NVLinks"),
)
"""The checks of this file."""
