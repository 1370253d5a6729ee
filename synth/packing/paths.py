"""Paths for alltoall, scatter and gather, in which each piece has one source and one target.

A piece is the data that one rank holds for one other at the start; GPUs on a path relay it. This is
the concurrent multicommodity flow problem (Shahrokhi, Matula 1990), solved by column generation:
shortest paths under the links' prices, weighed so that the busiest link takes the least time. The
dual prices are the certificate of kind "prices", the proof of a bound.

A column of the linear program is a path, a row is a link, or links that symmetries map to each
other; an image is what a symmetry maps a path to.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from ...topo.errors import InfeasibleError, TimeLimitError
from ...topo.graph import Topology
from ..cost.affine import tighten
from ..ir.collective import Chunk, Collective
from ..ir.schedule import Schedule, find_helpers
from ..ir.transfers import COPY, Transfers
from ..machine.links import HOP_SHARE, Ints, LinkArrays
from ..machine.routes import OwnRoutes
from ..machine.symmetry import find_transitive_group
from ..numeric.effort import Effort  # an allowance of work and time for searches
from .level_paths import LevelPaths
from .packing import SharePacking

# Devices from the source GPU to the target GPU, relaying GPUs included.
Path = tuple[str, ...]
# Seconds of an idle core per pair's cheapest path, and per device that a search from a source
# visits.
_PATH_S, _DEVICE_S = 1e-5, 1e-6


class PathPacking(SharePacking[Path]):
    """Column generation of paths for the pairs from `sources` to all other ranks, or to `targets`.

    A column is a path, the ids of the devices on it.
    """

    def __init__(
        self,
        topology: Topology,
        sources: Sequence[int],
        turns: list[Ints] | None = None,
        routes: OwnRoutes | None = None,
        targets: Sequence[int] | None = None,
    ) -> None:
        """Set up the packing of paths.

        `turns` are symmetries that shift the rank order (see machine/symmetry.py). If `routes` is
        given, ranks send to each other only on these, and the turns must preserve them. `targets`
        are the ranks that paths lead to, None for all.
        """
        self._targets = targets
        self.routes = routes
        # If the shifts map rank 0 to every rank exactly once, one source represents all, and the
        # links of an orbit form one row.
        gpus = LinkArrays(topology).gpus
        images = find_transitive_group(turns, gpus) if len(sources) == len(gpus) else None
        super().__init__(topology, images)
        self.sources = list(sources) if images is None else [0]
        self.times = 1 if images is None else len(gpus)
        self.pricing_s = len(self.sources) * (_PATH_S * len(gpus) + _DEVICE_S * self.size)

    def group_of(self, column: Path) -> Hashable:
        """Return the pair (first GPU, last GPU) of a path, by id."""
        return column[0], column[-1]

    def count_uses(self, column: Path) -> Counter[int]:
        """Return how often a path and all its images together use each row, by row number."""
        return self.count_rows([column], self.times)

    def run(self, effort: Effort, say: Callable[[str], None] | None = None) -> None:
        """Generate paths until they are optimal or the effort is spent.

        A later call continues from the end of an earlier one. Raise TimeLimitError if the linear
        program was not solved.
        """
        solved = self.finished or not self.columns or self.solve((), effort)
        if not (solved and self.generate(effort, "packing paths", say)):
            raise TimeLimitError("the linear program of paths was not solved")

    def price_columns(self) -> list[Path]:
        """Return new paths that cost less than the dual of their pair of ranks.

        Also store the prices if they prove a better bound. Raise InfeasibleError if some pair has
        no path.
        """
        # Among paths of equal price, the one with fewest links is taken: a small charge per link
        # breaks ties.
        by_link = self.prices[self.row]
        weight = by_link + HOP_SHARE * float(by_link.mean())
        if self.routes is None:
            matrix, nodes_of_ranks = self.make_matrix(weight), self.gpus
        else:
            # Search over ranks instead of devices. SciPy takes 0 for no edge, but every hop has a
            # price above 0.
            distance = self.routes.distances(weight)
            matrix = csr_matrix(np.where(np.isfinite(distance), distance, 0.0))
            nodes_of_ranks = np.arange(len(self.gpus))
        starts = nodes_of_ranks[self.sources]
        length, before = dijkstra(matrix, indices=starts, return_predecessors=True)
        ends = nodes_of_ranks if self._targets is None else nodes_of_ranks[list(self._targets)]
        if not np.isfinite(length[:, ends]).all():
            raise InfeasibleError(
                f"packing: the system's routes on {self.topology.name!r} do not join all GPUs"
            )
        # The bound counts every pair at its cheapest path, whether or not that is new.
        total, fresh = 0.0, []
        for row, source in enumerate(starts.tolist()):
            for target in ends.tolist():
                if target == source:
                    continue
                nodes = [target]
                while nodes[-1] != source:
                    nodes.append(int(before[row, nodes[-1]]))
                path = self._name_path(nodes[::-1])
                price = sum(by_link[self.number[link]] for link in pairwise(path))
                total += price
                if self.improves(path):
                    fresh.append(path)
        self.raise_bound(total * self.times)
        return fresh

    def _name_path(self, nodes: Sequence[int]) -> Path:
        """Return a path, given by node numbers, as device names.

        With `routes`, nodes are ranks, and the devices on the route from each rank to the next are
        filled in.
        """
        if self.routes is None:
            return tuple(self.names[i] for i in nodes)
        hops = [self.routes.route(u, v) for u, v in pairwise(nodes)]
        return (hops[0][0], *(device for hop in hops for device in hop[1:]))


def path_schedule(packing: PathPacking, collective: Collective) -> Schedule:
    """Return the schedule of alltoall or scatter along the paths that a packing generated.

    Each path carries a piece of the data of its pair of ranks, one hop per step.
    """
    # All images of a path are laid out at once: one path may represent thousands of pairs.
    images = np.arange(packing.size)[None] if packing.images is None else packing.images
    layout = _Layout(packing.topology, collective)
    for path, share in zip(packing.columns, packing.round(), strict=True):
        if share:
            layout.add(images[:, packing.find_devices(path)], share)
    return layout.finish()


def level_schedule(paths: LevelPaths, collective: Collective) -> Schedule:
    """Return the schedule of alltoall along the levelled `paths`, one per pair of ranks.

    Levelled means that pairs were moved off the busiest links (level_paths.py). Every pair's part
    moves one hop, from GPU to GPU, along the pair's path in each step.
    """
    layout = _Layout(paths.topology, collective)
    lengths = (paths.stops >= 0).sum(axis=1)
    for length in sorted(set(lengths.tolist()) - {1}):
        # A row of `stops` has a path's devices, its target first, then -1.
        devices = paths.stops[lengths == length, :length][:, ::-1].astype(np.int64)
        # Paths that pass GPUs at the same places have the same hops.
        is_gpu = layout.rank_of[devices] >= 0
        if is_gpu.all():
            layout.add(devices, Fraction(1))
            continue
        places, which = np.unique(is_gpu, axis=0, return_inverse=True)
        for number in range(len(places)):
            layout.add(devices[which.reshape(-1) == number], Fraction(1))
    return layout.finish()


class _Layout:
    def __init__(self, topology: Topology, collective: Collective) -> None:
        self.links, self.collective = LinkArrays(topology), collective
        self.rank_of = self.links.rank_of
        self.chunks: list[Chunk] = []
        self.parts: list[Transfers] = []

    def add(self, devices: Ints, share: Fraction) -> None:
        """Add chunks that travel along paths, one path per row of `devices`.

        Each chunk is `share` of the part that the row's first device holds for its last. All rows
        must have GPUs in the same columns.
        """
        n, first = self.collective.ranks, len(self.chunks)
        # GPUs on the path relay the piece, so it is sent in hops from GPU to GPU.
        stops = np.flatnonzero(self.rank_of[devices[0]] >= 0).tolist()
        ranks = self.rank_of[devices[:, stops]]
        number = np.arange(first, first + len(devices))
        for hop, (a, b) in enumerate(pairwise(stops)):
            # Each route is stored once, and transfers refer to it by number.
            routes, which = [()], np.zeros(len(devices), dtype=np.int64)
            if b > a + 1:
                between, which = np.unique(devices[:, a + 1 : b], axis=0, return_inverse=True)
                routes = [tuple(self.links.names[d] for d in row) for row in between.tolist()]
            step, op = np.full(len(devices), hop), np.full(len(devices), COPY)
            src, dst = ranks[:, hop], ranks[:, hop + 1]
            self.parts.append(Transfers(step, src, dst, number, op, which.reshape(-1), routes))
        each = self.collective.name == "alltoall"
        ends = zip(ranks[:, 0].tolist(), ranks[:, -1].tolist(), strict=True)
        share /= n
        self.chunks += [Chunk(share, a if each else None, b) for a, b in ends]

    def finish(self) -> Schedule:
        """Return the schedule of all added chunks."""
        n = self.collective.ranks
        # A rank's data for itself is never sent, but is part of the buffer.
        for rank in self.collective.members:
            source = rank if self.collective.name == "alltoall" else None
            if source is not None or rank == self.collective.root:
                self.chunks.append(Chunk(Fraction(1, n), source, rank))
        transfers = Transfers.joined(self.parts).sorted()
        helpers = find_helpers(self.collective, transfers)
        bare = Schedule(
            self.collective, "packing", tuple(self.chunks), transfers, (), helpers=helpers
        )
        return tighten(bare, self.links.topology)
