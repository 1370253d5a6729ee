"""Hold what files say against the bounds of their machine."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from ...topo.errors import InputError, TopoplanError
from ...topo.graph import Topology
from ...topo.resolve import LOCAL
from ...topo.routes import Router
from ..ir.collective import Collective
from .advice import advise
from .found import Communicator, Measurement, Reading
from .limits import Limits, find_limits
from .machine import Machines
from .options import Options, find_options
from .places import Placed, place_ranks
from .rates import rate_rings, rate_trees
from .verdict import Channelled, Measured, Row, Verdict

OVER_RINGS = ("allreduce", "allgather", "reduce-scatter")
_MOST_COMMUNICATORS = 8


class Judge:
    """Judges files; bounds and options of a collective on a machine are found once."""

    def __init__(
        self,
        machines: Machines,
        collective: str | None = None,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.machines, self.collective, self.say = machines, collective, say
        self._routers: dict[Topology, Router] = {}
        self._limits: dict[tuple[Collective, Topology], Limits] = {}
        self._options: dict[tuple[Collective, Topology], Options] = {}

    def judge(self, reading: Reading) -> Verdict:
        """Return the verdict on a file. Raises InputError where a graph file is of another machine
        than was named.
        """
        machine = self.machines.find(reading)
        verdict = Verdict(
            reading, machine, findings=list(reading.findings), notes=list(reading.notes)
        )
        if reading.measurements:
            self._judge_measurements(verdict)
        for communicator in reading.communicators[:_MOST_COMMUNICATORS]:
            if communicator.rings or communicator.trees or not verdict.channelled:
                self._judge_channels(verdict, communicator)
        if len(reading.communicators) > _MOST_COMMUNICATORS:
            left = len(reading.communicators) - _MOST_COMMUNICATORS
            verdict.notes.append(f"{left} more communicators are not judged")
        verdict.findings += advise(verdict)
        return verdict

    def _judge_measurements(self, verdict: Verdict) -> None:
        """Hold each collective's measurements against its bound."""
        groups: dict[tuple[str, int], list[Measurement]] = {}
        for m in verdict.reading.measurements:
            if self.collective in (None, m.collective):
                groups.setdefault((m.collective, m.ranks), []).append(m)
        for (name, ranks), measurements in groups.items():
            rows = [Row(m, None) for m in measurements]
            measured = Measured(name, self._count_ranks(ranks, verdict), rows)
            verdict.measured.append(measured)
            measured.placed, measured.why_not = self._place(
                verdict, measured.ranks, verdict.reading.places
            )
            if measured.placed is None:
                continue
            collective = Collective.with_default_root(name, measured.ranks)
            try:
                measured.limits = self._find_limits(collective, measured.placed.topology)
            except TopoplanError as error:
                measured.why_not = str(error)
                continue
            measured.options = self._find_options(collective, measured.placed.topology)
            bound = float(measured.limits.one_way_GBps)
            measured.rows = [
                Row(m, m.algbw_GBps / bound, _predict(measured.options, m.size_bytes))
                for m in measurements
            ]

    def _count_ranks(self, ranks: int, verdict: Verdict) -> int:
        """Return the ranks of a table: what it says, what a log in it says, or the GPUs of the
        machine.
        """
        if ranks:
            return ranks
        sizes = {c.ranks for c in verdict.reading.communicators}
        if len(sizes) == 1:
            return sizes.pop()
        topology = verdict.machine.topology
        if topology is None:
            return 0
        verdict.notes.append(
            f"the file does not say how many ranks there were; taken as {len(topology.ranks)}, "
            "all GPUs"
        )
        return len(topology.ranks)

    def _place(self, verdict: Verdict, ranks: int, places: object) -> tuple[Placed | None, str]:
        """Return where ranks run; None, and why, where no machine is known or the machine at hand
        is not theirs.
        """
        topology = verdict.machine.topology
        if topology is None:
            return None, verdict.machine.source
        if ranks < 2:
            return (
                None,
                f"{ranks} rank: nothing is sent" if ranks else "the number of ranks is not known",
            )
        assert isinstance(places, dict)
        try:
            return place_ranks(topology, ranks, places, verdict.reading.where), ""
        except InputError as error:
            if verdict.reading.is_graph_file and verdict.machine.argument != LOCAL:
                raise
            return None, str(error)

    def _judge_channels(self, verdict: Verdict, communicator: Communicator) -> None:
        """Find what a communicator's channels reach."""
        channelled = Channelled(communicator, taken=_find_taken(verdict.reading, communicator))
        verdict.channelled.append(channelled)
        if not communicator.rings and not communicator.trees:
            channelled.why_not = "the file lists neither whole rings nor whole trees"
            return
        placed, channelled.why_not = self._place(
            verdict, communicator.ranks, dict(communicator.places)
        )
        if placed is None:
            return
        channelled.placed = placed
        if verdict.reading.is_graph_file:
            _check_types(verdict, communicator, placed)
        router = self._find_router(placed.topology)
        rings = [tuple(placed.gpu_of[rank] for rank in order) for order in communicator.rings]
        trees = [_move_tree(tree, placed.gpu_of) for tree in communicator.trees]
        names = (self.collective,) if self.collective in OVER_RINGS else OVER_RINGS
        for name in names:
            rates = []
            try:
                if rings:
                    rates.append(rate_rings(name, rings, placed.topology, router))
                if trees and name == "allreduce":
                    rates.append(rate_trees(trees, placed.topology, router))
            except TopoplanError as error:
                channelled.why_not = str(error)
                return
            if not rates:
                continue
            collective = Collective(name, communicator.ranks)
            try:
                channelled.limits[name] = self._find_limits(collective, placed.topology)
            except TopoplanError as error:
                channelled.why_not = str(error)
                return
            channelled.options[name] = self._find_options(collective, placed.topology)
            channelled.rates[name] = rates

    def _find_router(self, topology: Topology) -> Router:
        """Return the router of a topology, which caches its searches."""
        if topology not in self._routers:
            self._routers[topology] = Router(topology)
        return self._routers[topology]

    def _find_limits(self, collective: Collective, topology: Topology) -> Limits:
        key = collective, topology
        if key not in self._limits:
            self.say(f"bounds of {collective.name} on {topology.name} ...")
            self._limits[key] = find_limits(collective, self._find_router(topology))
        return self._limits[key]

    def _find_options(self, collective: Collective, topology: Topology) -> Options:
        key = collective, topology
        if key not in self._options:
            self.say(f"what else {topology.name} could do for {collective.name} ...")
            self._options[key] = find_options(collective, self._find_router(topology))
        return self._options[key]


def _check_types(verdict: Verdict, communicator: Communicator, placed: Placed) -> None:
    """Note it where a graph file says that all hops are NVLinks and on the machine they are not, or
    the other way round.

    Raises InputError where it is for fewer GPUs besides: it is another machine's.
    """
    from ...topo.gpudirect.nccl_paths import Paths

    ring = next((p for p in communicator.patterns if p.number == 4), None)
    if ring is None or not communicator.rings or ring.type_intra == "LOC":
        return
    paths, gpus = Paths(placed.topology), placed.topology.ranks
    hops = {
        hop
        for order in communicator.rings
        for hop in zip(order, order[1:] + order[:1], strict=True)
    }
    kinds = {paths.find_kind(gpus[placed.gpu_of[a]], gpus[placed.gpu_of[b]]) for a, b in hops}
    if "???" in kinds or (kinds <= {"NVL"}) == (ring.type_intra == "NVL"):
        return
    other = ", ".join(sorted(kinds))
    text = f"its worst hop is {ring.type_intra} by what it says, and on {placed.topology.name} its hops are {other}"
    if len(gpus) < len(verdict.machine.topology.ranks if verdict.machine.topology else ()):
        raise InputError(
            f"{verdict.reading.where}: {text}: of another machine; give that one's topology"
        )
    verdict.notes.append(f"{text}: is it of another machine, or of another state of this one?")


def _predict(options: Options, size_bytes: int) -> float | None:
    """Return the algbw that a plan is predicted to reach at a size, None without a plan."""
    if options.plan is None:
        return None
    seconds = options.plan.time_s(options.plan.entry_for(size_bytes), size_bytes)
    return size_bytes / seconds * 1e-9 if seconds else None


def _move_tree(parents: tuple[int, ...], gpu_of: tuple[int, ...]) -> tuple[int, ...]:
    """Return a tree of ranks as one of GPUs."""
    moved = [-1] * len(parents)
    for rank, parent in enumerate(parents):
        moved[gpu_of[rank]] = -1 if parent == -1 else gpu_of[parent]
    return tuple(moved)


def _find_taken(reading: Reading, communicator: Communicator) -> str:
    """Return what NCCL takes for large allreduces: as its tuner said, else as it would by the rates
    of its search.
    """
    picks = [p for p in reading.picks if p.collective in (None, "allreduce")]
    if picks:
        return max(picks, key=lambda p: p.size_bytes).algorithm
    if communicator.uses_nvls:
        return "NVLS"
    if (communicator.nodes or 1) > 1:
        return ""
    by_number = {p.number: p for p in communicator.patterns}
    ring = by_number.get(4)
    tree = next((by_number[n] for n in (1, 2, 3) if n in by_number), None)
    if ring is None or tree is None or communicator.ranks < 2:
        return ""
    n = communicator.ranks
    by_ring = Fraction(ring.channels) * Fraction(ring.intra_GBps) * n / (2 * (n - 1))
    by_tree = Fraction(tree.channels) * Fraction(tree.intra_GBps) * Fraction(92, 200)
    return "RING" if by_ring >= by_tree else "TREE"
