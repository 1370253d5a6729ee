"""Facts about a machine that tree search needs: pairs, symmetries, boxes, columns and prices.

The bound and the packing (trees or paths that share the links, by a linear program) use one survey,
so that neither repeats the other's work. A box is a group of GPUs joined to others by slower links.
A machine with slow links also has a mended form, in which every link is as fast as most links of
its role: no schedule is faster than on the mended machine, and a plan for it mostly needs few
changes.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np

from ...topo.errors import InfeasibleError
from ...topo.exact import fraction_gcd
from ...topo.graph import Link, Topology
from ..ir.collective import Collective
from ..machine.boxes import Boxes, find_boxes
from ..machine.links import Ints, find_orbits
from ..machine.pairs import PairGraph, Tree
from ..machine.symmetry import mirrors, shifts
from ..numeric.effort import Effort  # an allowance of work and time for searches
from ..numeric.spanning_trees import make_shallower, spanning_trees
from .balanced import balanced_trees
from .generate import TreePacking
from .level_paths import LevelPaths, explain_too_many
from .paths import PathPacking

Say = Callable[[str], None] | None
# Maximum of trees times devices for proving a bound by matroid union: bounds must be quick.
_WHOLE_WORK = 40_000
# Seconds of an idle core to make trees from matroid union shallower.
_LOWER_WORK_S = 2.0
# Maximum number of sources for trying paths of fewest hops, and of pairs for column generation.
_MAX_SOURCES, MAX_PAIRS = 512, 10_000
# With at least this many classes of links, column generation takes long (22 s for the 1,982 of a
# mesh of 32x32 with two dead links): it may use this work, in seconds of an idle core.
_MANY_CLASSES, _MANY_WORK_S = 400, 2.0
# Paths that take at most this many times the required time are not evened out further.
_NEAR = 1.001


class Survey:
    """What is known of one topology for the search of trees, computed when it is first asked for.

    It caches packings; generation continues from them if a later call allows more work.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.graph = PairGraph(topology)
        self.ranks = {gpu: r for r, gpu in enumerate(topology.ranks)}
        self._by_class: TreePacking | None = None
        self._by_link: TreePacking | None = None
        self._whole: dict[tuple[int, int], list[Tree] | None] = {}
        self._level: LevelPaths | None = None

    @cached_property
    def direct(self) -> bool:
        """Whether all links connect two GPUs, with the same bandwidth in both directions."""
        by_id, links = self.topology.by_id, self.graph.links
        gpus_only = all(by_id[d].kind == "gpu" for pair in links for d in pair)
        return gpus_only and self.topology.is_symmetric

    @cached_property
    def turns(self) -> list[Ints]:
        """Symmetries of the machine that shift the rank order, as arrays of devices' images.

        Row k of an item holds the number of each device's image after k shifts.
        """
        return shifts(self.topology)

    @cached_property
    def boxes(self) -> Boxes | None:
        """The equal groups of GPUs joined by slower links (such as hosts), None if there are none.

        Links that are slower than others of their role do not count as a difference.
        """
        return find_boxes(self.mended or self.topology)

    @cached_property
    def mended(self) -> Topology | None:
        """The machine with its slow links as fast as most of their role; None if none is slow."""
        return mend(self.topology)

    @cached_property
    def slow_boxes(self) -> list[int]:
        """The boxes, by index, with a GPU on a link that is slower than others of its role."""
        if self.mended is None or self.boxes is None:
            return []
        usual, gpus = self.mended.capacity_GBps, self.topology.ranks
        capacity = self.topology.capacity_GBps
        slow = {d for link, c in capacity.items() if c < usual[link] for d in link}
        boxes = enumerate(self.boxes.ranks)
        return [b for b, members in boxes if any(gpus[r] in slow for r in members)]

    @cached_property
    def classes_are_orbits(self) -> bool:
        """Whether known symmetries map every pair of devices to every other one of its class.

        A class (`PairGraph.classes`) has pairs of the same role. If this is true, one price for all
        links of a class gives as good a bound as a price for each link.
        """
        graph = self.graph
        classes = int(graph.classes.max(initial=-1)) + 1
        if classes == len(graph.links):
            return True
        images = (*(turn[1] for turn in self.turns), *mirrors(self.topology))
        orbits = find_orbits(len(graph.links), [graph.move_links(image) for image in images])
        return len(set(orbits.tolist())) == classes

    @property
    def has_many_classes(self) -> bool:
        """Whether links are too different from each other for column generation by class."""
        return int(self.graph.classes.max(initial=-1)) >= _MANY_CLASSES

    def pack_by_class(self, effort: Effort, say: Say = None) -> TreePacking:
        """Return the packing of undirected trees with one price for all links of a class.

        A class (`PairGraph.classes`) has pairs of the same role. Generation continues from the last
        call.
        """
        if self._by_class is None:
            self._by_class = TreePacking(self.graph, self.graph.classes)
        elif self.has_many_classes:
            return self._by_class
        granted = effort.grant(_MANY_WORK_S) if self.has_many_classes else effort
        return self._by_class.run(granted, say)

    def pack_by_link(self, effort: Effort, say: Say = None) -> TreePacking:
        """Return the packing of undirected trees with a separate price for every pair of devices.

        It starts from `pack_by_class`; generation continues from the last call.
        """
        if self._by_link is None:
            start, rows = self.pack_by_class(effort, say), np.arange(len(self.graph.links))
            self._by_link = TreePacking(self.graph, rows, start)
        return self._by_link.run(effort, say)

    def find_whole_trees(self, count: int, copies: int, effort: Effort) -> list[Tree] | None:
        """Return `count` trees of equal share on direct links, packed by matroid union.

        No link is in more trees than `copies` times its bandwidth in multiples of `unit`. None if
        there are no such trees, or if the effort was too small to decide.
        """
        key = count, copies
        if key not in self._whole:
            graph = self.graph
            times = [int(c / self.unit) * copies for c in graph.exact]
            ends = list(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
            # Only a decided search is cached: one that ran out of effort may be repeated with more.
            trees = spanning_trees(graph.size, ends, times, count, effort)
            if trees is None and effort.is_over("whole numbers of trees"):
                return None
            self._whole[key] = None
            if trees is not None:
                trees = make_shallower(graph.size, ends, times, trees, effort.grant(_LOWER_WORK_S))
                self._whole[key] = [Tree(tuple(graph.links[e] for e in sorted(t))) for t in trees]
        return self._whole[key]

    @cached_property
    def unit(self) -> Fraction:
        """The greatest bandwidth in GB/s of which every pair's bandwidth is an integer multiple."""
        return fraction_gcd(sorted(set(self.graph.exact)))

    def is_reached_by_whole_trees(self, rate: Fraction, effort: Effort) -> bool:
        """Return whether a few trees of equal share on direct links reach `rate` in GB/s.

        If so, `rate`, an upper bound, is optimal. False if the search would take too long.
        """
        parts = rate / self.unit
        if not self.direct or parts.numerator * self.graph.size > _WHOLE_WORK:
            return False
        return self.find_whole_trees(parts.numerator, parts.denominator, effort) is not None

    def paths(self, collective: Collective, effort: Effort, say: Say = None) -> PathPacking:
        """Return paths for alltoall or scatter, which column generation divides data among.

        Those for alltoall are cached: a later call continues. Raise InfeasibleError if there are
        too many pairs of ranks for column generation; then use `level_paths`.
        """
        if collective.name != "alltoall":
            packing = PathPacking(self.topology, [collective.root or 0])
        else:
            packing = self._alltoall_packing
            if len(packing.sources) * collective.ranks > MAX_PAIRS:
                raise InfeasibleError(explain_too_many(collective.ranks))
        packing.run(effort, say)
        return packing

    @cached_property
    def _alltoall_packing(self) -> PathPacking:
        """The packing of paths between all pairs, or from one rank if shifts give the others."""
        return PathPacking(self.topology, list(range(len(self.ranks))), self.turns)

    def level_paths(self, enough_s_per_GB: Fraction, effort: Effort) -> LevelPaths | None:
        """Return one path per pair for alltoall, with loads evened out; None: use `paths` instead.

        Return None if shifts of the ranks are symmetries, since `paths` then solves for one source
        alone. Otherwise return paths if those of fewest hops take at most `enough_s_per_GB` seconds
        for each GB that a rank sends, or if there are too many pairs for column generation, else
        None. Raise InfeasibleError if there are too many pairs for either method.
        """
        packing, ranks = self._alltoall_packing, len(self.ranks)
        if packing.images is not None:
            return None
        too_many = len(packing.sources) * ranks > MAX_PAIRS
        enough = float(enough_s_per_GB * ranks)
        if self._level is None:
            low = None
            if ranks <= _MAX_SOURCES:
                low = balanced_trees(self.topology, list(range(ranks)), [], ordered=True)
            rivals = [] if low is None else [LevelPaths(self.topology, list(low.trees))]
            if too_many and not (rivals and rivals[0].reached <= enough * _NEAR):
                rivals.append(LevelPaths(self.topology))
                for paths in rivals:
                    paths.even_out(enough, effort)
            best = min(rivals, key=lambda paths: paths.reached, default=None)
            if too_many or (best is not None and best.reached <= enough * (1 + 1e-9)):
                self._level = best
        elif self._level.reached > enough * _NEAR:
            self._level.even_out(enough, effort)
        return self._level


def mend(topology: Topology) -> Topology | None:
    """Return the machine with every slow link at the usual bandwidth of its role.

    A link is slow if it is slower than most links of its role; None if there are no slow links.
    Links of one role connect devices of the same kinds and have the same medium and the same number
    of parallel links.
    """

    def name_role(link: Link) -> tuple[object, ...]:
        ends = (topology.by_id[link.src], topology.by_id[link.dst])
        kinds = ((d.kind, d.family, d.can_reduce, d.can_copy) for d in ends)
        return (link.kind, link.count, *kinds)

    rates: dict[tuple[object, ...], Counter[Fraction]] = defaultdict(Counter)
    for link in topology.links:
        rates[name_role(link)][link.bandwidth_GBps] += 1
    most = {role: (*seen.most_common(1)[0], seen.total()) for role, seen in rates.items()}
    usual = {role: rate for role, (rate, times, total) in most.items() if 2 * times > total}
    links = [
        replace(
            link, bandwidth_GBps=max(link.bandwidth_GBps, usual.get(name_role(link), Fraction(0)))
        )
        for link in topology.links
    ]
    if links == [*topology.links]:
        return None
    return replace(topology, name=f"{topology.name}, mended", links=tuple(links))


@lru_cache(maxsize=4)
def survey(topology: Topology) -> Survey:
    """Return the Survey of a topology, from a cache of the last few.

    The result of a search depends on earlier searches. Callers that need an independent result must
    begin with `survey.cache_clear()`.
    """
    return Survey(topology)
