"""Communicators joined from what their ranks write in a log, without incomplete channels."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from itertools import chain

from ..file_contents import Location, ObservedCommunicator, Order, Parents, SearchResult
from .log_lines import read_bus_id

# NCCL's number of the pattern that is a ring.
RING_PATTERN = 4
# The next rank, or the parent, of each rank in each channel.
_RankOf = dict[int, dict[int, int]]


@dataclass
class Draft:
    """The facts that one thread logs while it makes one communicator.

    For each channel, `hops` and `connections` map ranks to the next rank of a ring, from lines of
    rings and of connections, and `parents` ranks to their parent in a tree (-1 for the root).
    `found_rings` are those of NCCL's search by channel, with GPUs as it names them ("0-b000", or
    the rank), and `pattern` is the number of its last pattern. `rings` is by channel, `locations`
    by rank, and `patterns` by NCCL's number. `id` is that of the communicator, if the library
    prints one. `promised` is the announced number of channels; `cut_lines` is True if NCCL itself
    cut its lines of rings. `started` and `complete` say whether the lines that begin and end the
    initialization were read, `rings_connected` whether the one that follows the connections of
    rings was, and `nvls` whether it uses NVSwitches that add. `ends` are the ranks at the ends of
    connections. `process` writes the lines, as the ranks `own`, from `first_line` to `last_line`.
    """

    ranks: int | None = None
    nodes: int | None = None
    id: str | None = None
    locations: dict[int, Location] = field(default_factory=dict)
    rings: dict[int, Order] = field(default_factory=dict)
    found_rings: dict[int, tuple[str, ...]] = field(default_factory=dict)
    pattern: int | None = None
    promised: int | None = None
    hops: _RankOf = field(default_factory=dict)
    parents: _RankOf = field(default_factory=dict)
    connections: _RankOf = field(default_factory=dict)
    transports: Counter[str] = field(default_factory=Counter)
    patterns: dict[int, SearchResult] = field(default_factory=dict)
    complete: bool = False
    started: bool = False
    rings_connected: bool = False
    cut_lines: bool = False
    nvls: bool = False
    process: str | None = None
    own: set[int] = field(default_factory=set)
    ends: set[int] = field(default_factory=set)
    first_line: int = 0
    last_line: int = 0


def part_runs(drafts: list[Draft], notes: list[str]) -> list[list[Draft]]:
    """Return the drafts of each run: a rank is one process, so another one is of a later run.

    Append to `notes` what is parted, and what cannot be as the lines of runs are mixed: these are
    returned as one run.
    """
    runs: list[list[Draft]] = []
    for draft in sorted(drafts, key=lambda draft: draft.first_line):
        if not runs or any(_is_of_another_run(draft, other) for other in runs[-1]):
            runs.append([])
        runs[-1].append(draft)
    if len(runs) < 2:
        return [drafts]
    ends = [max(draft.last_line for draft in run) for run in runs]
    starts = [run[0].first_line for run in runs]
    rank = min(runs[-1][0].own & runs[0][0].own, default=min(runs[-1][0].own))
    what = f"{len(runs)} runs or communicators: several processes write as rank {rank}"
    if all(end < start for end, start in zip(ends, starts[1:], strict=False)):
        notes.append(f"the log is of {what}; each is judged apart")
        return runs
    notes.append(
        f"the log is of {what} and their lines are mixed; they are judged together, as nothing "
        "tells them apart"
    )
    return [drafts]


def _is_of_another_run(draft: Draft, other: Draft) -> bool:
    """Return whether two drafts of different processes are of the same rank."""
    is_same = None in (draft.process, other.process) or draft.process == other.process
    is_known = draft.id is not None and draft.id == other.id
    return not is_same and not is_known and not draft.own.isdisjoint(other.own)


def finish(drafts: list[Draft], notes: list[str]) -> ObservedCommunicator:
    """Join the drafts of one communicator's ranks; its channels are the complete ones only.

    Channels are rings and trees. Append to `notes` if channels are incomplete.
    """
    joined = Draft()
    for draft in drafts:
        # The first rank to list a ring or a pattern counts: all list the same.
        joined.rings = draft.rings | joined.rings
        joined.patterns = draft.patterns | joined.patterns
        joined.found_rings = draft.found_rings | joined.found_rings
        for name in ("hops", "connections", "parents"):
            for channel, rank_of in getattr(draft, name).items():
                getattr(joined, name).setdefault(channel, {}).update(rank_of)
        for rank, location in draft.locations.items():
            joined.locations[rank] = _join_locations(joined.locations.get(rank), location)
        joined.transports.update(draft.transports)
    by_channel = chain(*(of.values() for of in (joined.hops, joined.parents, joined.connections)))
    # A log of one host names the ranks of others as ends of its connections.
    named = chain(
        joined.locations,
        *(draft.ends for draft in drafts),
        *(chain(of, of.values()) for of in by_channel),
        *joined.rings.values(),
    )
    stated = max((d.ranks or 0 for d in drafts), default=0)
    ranks = stated or max(named, default=-1) + 1
    rings = {c: order for c, order in joined.rings.items() if _is_order(order, ranks)}
    # Connections also belong to trees, so they only count if no rank printed a ring.
    for source in (joined.hops, {} if rings else joined.connections):
        for channel, after in source.items():
            ring = _follow(after, ranks)
            if channel not in rings and ring is not None:
                rings[channel] = ring
    if not rings and not joined.rings and joined.found_rings:
        ranks = ranks or len(next(iter(joined.found_rings.values())))
        _locate_by_address(joined, ranks, notes)
        rings = _number_found_rings(joined, ranks)
    trees = {c: tree for c, of in joined.parents.items() if (tree := _make_tree(of, ranks))}
    promised = max((d.promised or 0 for d in drafts), default=0)
    if any(d.cut_lines for d in drafts) and not rings:
        notes.append(
            f"NCCL itself cuts its lines of rings of {ranks} ranks; with NCCL_DEBUG_SUBSYS=GRAPH "
            "it prints 'Ring' lines"
        )
    for what, complete, listed, expected in (
        ("rings", len(rings), len(joined.rings | joined.hops), promised if rings else 0),
        ("trees", len(trees), len(joined.parents), 0),
    ):
        if complete < max(listed, expected):
            total = max(listed, promised)
            notes.append(
                f"{what} of {ranks} ranks: {complete} of {total} channels are whole in the log; "
                "these are judged"
                if complete
                else f"{what} of {ranks} ranks: none of {total} is whole in the log, which lacks "
                "the lines of some ranks"
            )
    hosts = {location.host for location in joined.locations.values()}
    is_located = len(joined.locations) == ranks and None not in hosts
    return ObservedCommunicator(
        ranks=ranks,
        nodes=next((d.nodes for d in drafts if d.nodes), len(hosts) if is_located else None),
        locations=dict(sorted(joined.locations.items())),
        rings=tuple(rings[c] for c in sorted(rings)),
        trees=tuple(trees[c] for c in sorted(trees)),
        promised=promised or None,
        patterns=tuple(joined.patterns[n] for n in sorted(joined.patterns)),
        transports=dict(joined.transports),
        uses_nvls=any(d.nvls for d in drafts),
        has_more=not (stated or rings or trees),
    )


def _locate_by_address(draft: Draft, ranks: int, notes: list[str]) -> None:
    """Number the GPUs of the rings that were found by PCI address if the log tells no rank."""
    names = {name for ring in draft.found_rings.values() for name in ring}
    buses = {name: read_bus_id(name.partition("-")[2]) for name in names}
    if draft.locations or len(names) != ranks or None in buses.values():
        return
    ordered = sorted(names, key=lambda name: [int(part, 16) for part in name.split("-")])
    draft.locations = {rank: Location(bus=buses[name]) for rank, name in enumerate(ordered)}
    notes.append(
        "the log does not say which rank each GPU has; they are numbered in the order of their PCI "
        "addresses"
    )


def _number_found_rings(draft: Draft, ranks: int) -> dict[int, Order]:
    """Return the rings of NCCL's search by ranks; none if GPUs of several hosts look the same."""
    rank_of = {location.bus: rank for rank, location in draft.locations.items()}
    if len(rank_of) < len(draft.locations):
        return {}
    rings = {}
    for channel, names in draft.found_rings.items():
        # Until 2.19 the log had ranks in place of addresses.
        ends = [
            rank_of.get(read_bus_id(name.partition("-")[2]))
            if "-" in name
            else int(name)
            if name.isdecimal()
            else None
            for name in names
        ]
        order = tuple(-1 if rank is None else rank for rank in ends)
        if _is_order(order, ranks):
            rings[channel] = order
    return rings


def _join_locations(first: Location | None, second: Location) -> Location:
    """Return the location of a rank from two lines.

    NVML's GPU number takes precedence over CUDA's.
    """
    if first is None:
        return second
    is_better = first.dev is None or (second.physical and not first.physical)
    better = second if second.dev is not None and is_better else first
    return replace(better, host=first.host or second.host, bus=first.bus or second.bus)


def _is_order(order: Order, ranks: int) -> bool:
    return len(order) == ranks and set(order) == set(range(ranks))


def _follow(after: dict[int, int], ranks: int) -> Order | None:
    """Return the ring from rank 0 on with the given successors; None if it is incomplete."""
    order = [0]
    while len(order) < ranks <= len(after) and order[-1] in after:
        order.append(after[order[-1]])
    is_closed = ranks > 1 and _is_order(tuple(order), ranks) and after.get(order[-1]) == 0
    return tuple(order) if is_closed else None


def _make_tree(parent_of: dict[int, int], ranks: int) -> Parents | None:
    """Return the tree with the given parents; None if it is incomplete or has a cycle."""
    # A damaged line may announce any number of ranks, so count before building their set.
    if ranks < 2 or len(parent_of) != ranks or set(parent_of) != set(range(ranks)):
        return None
    parents = tuple(parent_of[rank] for rank in range(ranks))
    if parents.count(-1) != 1 or not all(-1 <= p < ranks for p in parents):
        return None
    try:
        TopologicalSorter({rank: [parent] for rank, parent in enumerate(parents)}).prepare()
    except CycleError:
        return None
    return parents


def count_alike(communicators: list[ObservedCommunicator]) -> list[ObservedCommunicator]:
    """Return each distinct communicator once, with the number of its repetitions in `alike`.

    Communicators with the same ranks, locations, channels and kinds of transports are repetitions
    of each other.
    """
    alike: dict[object, list[ObservedCommunicator]] = defaultdict(list)
    for c in communicators:
        locations = tuple((r, x.host, x.dev, x.bus) for r, x in c.locations.items())
        alike[c.ranks, c.rings, c.trees, locations, frozenset(c.transports)].append(c)
    return [replace(same[0], alike=len(same)) for same in alike.values()]
