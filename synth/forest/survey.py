"""Facts about a machine that tree search needs: its pairs, symmetries and boxes, and the columns
and prices found so far.

The bound and the packing share them, so that neither repeats the other's work.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from ...topo.errors import InfeasibleError
from ...topo.exact import fraction_gcd
from ...topo.graph import Topology
from ..effort import Effort
from ..ir.collective import Collective
from ..numeric.matroid_union import spanning_trees
from .balanced import balanced_trees
from .generate import Columns, generate
from .large.level_paths import LevelPaths, explain_too_many
from .large.mended import mend
from .machine.boxes import Boxes, find_boxes
from .machine.pairs import PairGraph, Tree
from .machine.symmetry import mirrors, shifts
from .paths import PathPacking
from .shallower import make_shallower

Say = Callable[[str], None] | None
_WHOLE_WORK = 40_000
_LOWER_WORK_S = 2.0
_MOST_SOURCES, MOST_PAIRS = 512, 10_000
# Paths that take at most this often the time that is enough need not be evened out any further.
_NEAR = 1.001


class Survey:
    """The survey of one topology. It stores columns, and generation goes on from them when more
    work is allowed.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.graph = PairGraph(topology)
        self.ranks = {gpu: r for r, gpu in enumerate(topology.ranks)}
        self._by_class: Columns | None = None
        self._by_link: Columns | None = None
        self._whole: dict[tuple[int, int], list[Tree] | None] = {}
        self._level: LevelPaths | None = None

    @cached_property
    def direct(self) -> bool:
        """Whether all links join two GPUs, with the same bandwidth in both directions."""
        gpus_only = all(
            self.topology.by_id[d].kind == "gpu" for pair in self.graph.pairs for d in pair
        )
        return gpus_only and self.topology.is_symmetric

    @cached_property
    def turns(self) -> list[NDArray[np.int64]]:
        """Shifts of the rank order that are symmetries of the machine; see machine/symmetry.py."""
        return shifts(self.topology)

    @cached_property
    def boxes(self) -> Boxes | None:
        """The equal boxes that the machine is made of (but for links that are slower than others of
        their role), or None.
        """
        return find_boxes(self.mended or self.topology)

    @cached_property
    def mended(self) -> Topology | None:
        """The machine with its slower links as fast as most of their role, or None where none are
        slower.
        """
        return mend(self.topology)

    @cached_property
    def slow_boxes(self) -> list[int]:
        """The numbers of the boxes with a GPU at a link that is slower than others of its role."""
        if self.mended is None or self.boxes is None:
            return []
        usual = self.mended.capacity_GBps
        slow = {
            d for link, c in self.topology.capacity_GBps.items() if c < usual[link] for d in link
        }
        ranks = self.topology.ranks
        return [
            b
            for b, members in enumerate(self.boxes.ranks)
            if any(ranks[r] in slow for r in members)
        ]

    @cached_property
    def classes_are_orbits(self) -> bool:
        """Whether known symmetries move every pair of a class to every other: then prices by class
        lose nothing.
        """
        classes, pairs = int(self.graph.classes.max(initial=-1)) + 1, len(self.graph.pairs)
        if classes == pairs:
            return True
        size = len(self.graph.names)
        key = self.graph.low * size + self.graph.high
        order = np.argsort(key)
        # Pairs that a symmetry takes to each other are connected; the components are the orbits
        # that are known.
        moves = []
        for image in [*(turn[1] for turn in self.turns), *mirrors(self.topology)]:
            a, b = image[self.graph.low], image[self.graph.high]
            image_keys = np.minimum(a, b) * size + np.maximum(a, b)
            moves.append(order[np.searchsorted(key[order], image_keys)])
        if not moves:
            return False
        src, dst = np.tile(np.arange(pairs), len(moves)), np.concatenate(moves)
        orbits, _ = connected_components(
            coo_matrix((np.ones(len(src)), (src, dst)), shape=(pairs, pairs)), directed=False
        )
        return bool(orbits == classes)

    def pack_by_class(self, effort: Effort, say: Say = None) -> Columns:
        """Return columns and prices where all links of a class have one price."""
        if self._by_class is None or not self._by_class.optimal:
            self._by_class = generate(self.graph, self.graph.classes, effort, say, self._by_class)
        return self._by_class

    def pack_by_link(self, effort: Effort, say: Say = None) -> Columns:
        """Return columns and prices where every pair of devices has a price of its own."""
        if self._by_link is None or not self._by_link.optimal:
            start = self._by_link or self.pack_by_class(effort, say)
            rows = np.arange(len(self.graph.pairs))
            self._by_link = generate(self.graph, rows, effort, say, start, most=start.value)
        return self._by_link

    def find_whole_trees(self, count: int, copies: int, effort: Effort) -> list[Tree] | None:
        """Return, on direct links, `count` trees with no link in more of them than `copies` times
        its bandwidth in units.

        None where there are no such trees, or the work that is allowed was too little to tell.
        """
        key = count, copies
        if key not in self._whole:
            graph = self.graph
            times = [int(c / self.unit) * copies for c in graph.exact]
            ends = list(zip(graph.low.tolist(), graph.high.tolist(), strict=True))
            # Only an answer is stored: a search that ran out of work may be repeated with more.
            trees = spanning_trees(len(graph.names), ends, times, count, effort)
            if trees is None and effort.is_over("whole numbers of trees"):
                return None
            if trees is not None:
                trees = make_shallower(
                    len(graph.names), ends, times, trees, effort.grant(_LOWER_WORK_S)
                )
            self._whole[key] = (
                None
                if trees is None
                else [Tree(tuple(graph.pairs[e] for e in sorted(edges))) for edges in trees]
            )
        return self._whole[key]

    @cached_property
    def unit(self) -> Fraction:
        """The greatest bandwidth in GB/s that divides all pairs' bandwidths."""
        return fraction_gcd(sorted(set(self.graph.exact)))

    def is_reached_by_whole_trees(self, rate: Fraction, effort: Effort) -> bool:
        """Return whether a few equal trees on direct links reach this rate in GB/s, an upper bound,
        which is then optimal.
        """
        parts = rate / self.unit
        small = self.direct and parts.numerator * len(self.graph.names) <= _WHOLE_WORK
        return (
            small and self.find_whole_trees(parts.numerator, parts.denominator, effort) is not None
        )

    def paths(self, collective: Collective, effort: Effort, say: Say = None) -> PathPacking:
        """Return packed paths for alltoall (stored for later calls), or for scatter from its root.

        Raises InfeasibleError where there are too many pairs for column generation.
        """
        if collective.name != "alltoall":
            packing = PathPacking(self.topology, [collective.root or 0])
        else:
            packing = self._alltoall_packing
            if len(packing.sources) * collective.ranks > MOST_PAIRS:
                raise InfeasibleError(explain_too_many(collective.ranks))
        packing.run(effort, say)
        return packing

    @cached_property
    def _alltoall_packing(self) -> PathPacking:
        """The packing of paths between all pairs; where shifts allow it, of those from one rank."""
        return PathPacking(self.topology, list(range(len(self.ranks))), self.turns)

    def level_paths(self, enough_s_per_GB: Fraction, effort: Effort) -> LevelPaths | None:
        """Return a path for each pair, evened out, where that serves alltoall better than column
        generation; else None.

        That is where paths of fewest hops on direct links take no longer than `enough_s_per_GB`, or
        where there are more pairs than column generation can serve. Raises InfeasibleError where
        there are too many for either.
        """
        packing, ranks = self._alltoall_packing, len(self.ranks)
        if packing.images is not None:
            return None
        too_many = len(packing.sources) * ranks > MOST_PAIRS
        enough = float(enough_s_per_GB * ranks)
        if self._level is None:
            few = ranks <= _MOST_SOURCES
            low = (
                balanced_trees(self.topology, list(range(ranks)), [], ordered=True) if few else None
            )
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


@lru_cache(maxsize=4)
def survey(topology: Topology) -> Survey:
    """Return the survey of a topology, from a cache of the last few.

    What a search finds depends on the searches before it. Callers whose result must not, begin with
    `survey.cache_clear()`.
    """
    return Survey(topology)
