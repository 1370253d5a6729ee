"""Judging of files: their measurements and channels compared with the bounds of their machine.

Channels are the rings and trees of a communicator; options are alternatives that the machine could
run, such as a graph file for NCCL or a plan.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import pairwise

from ....topo.errors import InputError, TopoplanError
from ....topo.extras.gpudirect.nccl_paths import Paths
from ....topo.grouping import group_by_key
from ....topo.loader.resolve import LOCAL
from ....topo.routes import Router
from ...ir.collective import Collective
from ..stock.constants import OF_CHAIN, OVER_RINGS, RING, TREES
from .advice import Spell, advise, gbps, name_command, size_text
from .answers import find_answers
from .file_contents import (
    FileContents,
    FileFinding,
    Location,
    Measurement,
    ObservedCommunicator,
    Parents,
)
from .machine import Machines, RankMap, count_hosts, describe_other_gpus, map_group, map_ranks
from .options import (
    Limits,
    Options,
    find_helped_options,
    find_limits,
    find_options,
    find_part_limits,
)
from .ranking import rank_findings
from .rates import rate_rings, rate_trees
from .readers.table_ranks import TOLERANCE
from .verdict import (
    OFF,
    ON,
    UNKNOWN,
    ChannelVerdict,
    FileVerdict,
    MeasuredRow,
    MeasuredVerdict,
)

# Most communicators to judge per file: a job with several dimensions of parallelism has a handful
# of kinds, and each costs bounds and searches.
_MAX_COMMUNICATORS = 8
# Most runs whose rates a note lists.
_MAX_RUNS = 8
# How far rates of runs that are alike lie apart: runs of healthy machines vary as much.
_ALIKE = 1.05
# How topo-run names the measurements of the stock collective.
STOCK = "stock"


class Judge:
    """A judge of files, which computes bounds and options once per collective and machine.

    It judges measurements of `collective` only, if given. `machines` finds the machine of each
    file, `spell` turns a command into text for advice, and `say` reports progress. Bounds and
    options are searched for (options.py), which may take a minute.
    """

    def __init__(
        self,
        machines: Machines,
        collective: str | None = None,
        say: Callable[[str], None] = lambda message: None,
        spell: Spell = name_command,
    ) -> None:
        self.machines, self.collective, self.say, self.spell = machines, collective, say, spell
        self._limits, self._options = cache(self._find_limits), cache(self._find_options)
        self._part_limits = cache(self._find_part_limits)
        self._router = cache(Router)

    def judge(self, contents: FileContents) -> FileVerdict:
        """Return the verdict on the contents of one file.

        Parts that cannot be judged have a reason in it. Raise InputError if a graph file was
        written for another machine than the named one, or a topology cannot be read.
        """
        verdict = FileVerdict(
            contents,
            self.machines.find(contents),
            findings=list(contents.findings),
            notes=list(contents.notes),
        )
        topology = verdict.machine.topology
        if topology is not None and (other := describe_other_gpus(topology, contents.locations)):
            verdict.findings.append(
                FileFinding("other-gpus", other, "if it is another machine, give its topology")
            )
        groups = group_by_key(
            ((m.collective, m.ranks, m.run), m)
            for m in contents.measurements
            if self.collective in (None, m.collective)
        )
        self._raise_assumed(verdict, groups)
        for (name, ranks, _), measurements in groups.items():
            verdict.measured.append(self._compare(verdict, name, ranks, measurements))
            self._share(verdict.measured[-1])
        verdict.notes += _compare_runs(verdict.measured)
        left_out = Counter[str]()
        for communicator in contents.communicators[:_MAX_COMMUNICATORS]:
            # One communicator without channels is enough to say that they are missing.
            if communicator.rings or communicator.trees or not verdict.communicators:
                verdict.communicators.append(self._judge_channels(verdict, communicator))
            else:
                left_out.update(communicator.transports)
        if left_out:
            listed = ", ".join(f"{count} via {name}" for name, count in left_out.most_common())
            what = "connections of communicators without whole rings or trees"
            verdict.notes.append(f"{what} are not judged: {listed}")
        left = len(contents.communicators) - _MAX_COMMUNICATORS
        if left > 0:
            verdict.notes.append(f"{left} more communicators are not judged")
        verdict.findings = rank_findings([*verdict.findings, *advise(verdict, self.spell)])
        verdict.answers = find_answers(verdict)
        return verdict

    def _raise_assumed(
        self, verdict: FileVerdict, groups: Mapping[tuple[str, int, int], list[Measurement]]
    ) -> None:
        """Replace the assumed PCIe rate of a file's machine if a measurement rules it out.

        The next generation whose bound nothing exceeds is assumed then. If all are too slow, PCIe
        is not at fault, and the machine is unchanged.
        """
        given = raised = verdict.machine
        for (name, ranks, _), measurements in groups.items():
            while self._compare(verdict, name, ranks, measurements).is_ruled_out:
                faster = raised.raise_pcie()
                if faster is None:
                    verdict.machine = given
                    return
                raised = verdict.machine = faster
        if raised is not given and raised.pcie is not None:
            link = raised.pcie
            verdict.findings.append(
                FileFinding(
                    "rate-withdrawn",
                    "a measurement exceeds the bound at the PCIe rate that was assumed, which is "
                    f"withdrawn: Gen{link.generation} x{link.width} "
                    f"({float(link.bandwidth_GBps):g} GB/s) is assumed instead, the slowest that "
                    "allows it",
                    "give PCIe's rate in GB/s if you know it, or a topology with it (topo-probe's "
                    "JSON, NCCL_TOPO_DUMP_FILE)",
                )
            )

    def _compare(
        self, verdict: FileVerdict, name: str, ranks: int, measurements: list[Measurement]
    ) -> MeasuredVerdict:
        """Return measurements with their bounds, without shares and options yet."""
        measured = MeasuredVerdict(
            name,
            ranks or self._count_ranks(verdict, name, measurements),
            [MeasuredRow(m, None) for m in measurements],
            run=measurements[0].run,
            seen_nvls=_find_nvls(verdict.contents),
        )
        if " or " in name:
            measured.why_not = (
                f"the columns do not tell {name.replace(' or ', ' from ')}; name the one it is"
            )
            return measured
        try:
            contents = verdict.contents
            locations = measurements[0].locations or contents.locations
            measured.rank_map = self._map_ranks(verdict, measured.ranks, locations)
            collective = Collective.with_default_root(name, measured.ranks)
            measured.limits = self._find_any_limits(
                collective, measured.rank_map, contents.helpers if contents.group else ()
            )
        except TopoplanError as error:
            measured.why_not = str(error)
        return measured

    def _share(self, measured: MeasuredVerdict) -> None:
        """Add the shares of the bound and the options; none if assumed rates are ruled out."""
        if measured.limits is None or measured.rank_map is None:
            return
        bound = float(measured.held_GBps)
        if measured.is_ruled_out:
            measured.why_not = (
                f"the bound of {bound:.4g} GB/s is withdrawn: it rests on assumed rates "
                f"({measured.limits.rates}), which the measurement exceeds"
            )
            return
        collective = Collective.with_default_root(measured.collective, measured.ranks)
        rank_map, limits = measured.rank_map, measured.limits
        if limits.helpers:
            whole = self._router(rank_map.whole)
            measured.options = find_helped_options(
                collective, whole, rank_map.in_use, limits.helpers
            )
        else:
            measured.options = self._options(collective, self._router(rank_map.topology))
        # With helpers, the stock collective has none.
        alone = float(limits.alone_GBps) if limits.helpers and limits.alone_GBps else bound
        measured.rows = [
            MeasuredRow(
                m,
                m.algbw_GBps / (alone if m.how == STOCK else bound),
                _predict(measured.options, m.size_bytes),
            )
            for m in (row.measured for row in measured.rows)
        ]

    def _find_any_limits(
        self, collective: Collective, rank_map: RankMap, helpers: tuple[int, ...] = ()
    ) -> Limits:
        """Return the bounds of the GPUs in use, which may be a part of the machine."""
        if len(rank_map.in_use) == len(rank_map.whole.ranks):
            return self._limits(collective, self._router(rank_map.topology))
        whole = self._router(rank_map.whole)
        return self._part_limits(collective, whole, rank_map.in_use, helpers)

    def _count_ranks(self, verdict: FileVerdict, name: str, measurements: list[Measurement]) -> int:
        """Return the number of ranks of a table that does not state it; 0 if it stays unknown.

        It is that of the communicators in the log around the table if they agree, else that of all
        GPUs of the machine if busbw / algbw is not that of another number.
        """
        sizes = {c.ranks for c in verdict.contents.communicators}
        if len(sizes) == 1:
            return sizes.pop()
        topology = verdict.machine.topology
        if topology is None or len(topology.ranks) < 2:
            return 0
        peak = max(measurements, key=lambda m: m.algbw_GBps)
        # Collectives that the columns do not tell apart have the same factor.
        like = name.split(" or ")[0]
        factor = Collective.with_default_root(like, len(topology.ranks)).bus_factor()
        if abs(peak.busbw_GBps - peak.algbw_GBps * float(factor)) > TOLERANCE * peak.algbw_GBps:
            return 0
        note = (
            f"the file does not say how many ranks there were; assumed {len(topology.ranks)}, "
            "all GPUs"
        )
        if note not in verdict.notes:
            verdict.notes.append(note)
        return len(topology.ranks)

    def _map_ranks(
        self, verdict: FileVerdict, ranks: int, locations: Mapping[int, Location]
    ) -> RankMap:
        """Return the GPU of each rank.

        Raise InputError if the machine is unknown or does not match.
        """
        if verdict.machine.topology is None:
            raise InputError(verdict.machine.source)
        if ranks < 2:
            raise InputError(
                f"{ranks} rank: nothing is sent"
                if ranks
                else "the number of ranks is not known: the file does not say it, and busbw / "
                "algbw is not that of all GPUs of the machine"
            )
        if verdict.contents.group:
            group = (*verdict.contents.group, *verdict.contents.helpers)
            map_group(verdict.machine.topology, group, verdict.contents.where)
            return map_group(
                verdict.machine.topology, verdict.contents.group, verdict.contents.where
            )
        # A file may have several tables, and the list of devices is that of the largest.
        listed = locations if max(locations, default=0) < ranks else {}
        found = map_ranks(verdict.machine.topology, ranks, listed, verdict.contents.where)
        nodes = {c.nodes or 1 for c in verdict.contents.communicators if c.ranks == ranks}
        if len(listed) < ranks and nodes and min(nodes) > count_hosts(found.topology):
            raise InputError(
                f"{verdict.contents.where}: ranks on {min(nodes)} nodes, and nothing says which "
                f"GPUs of {found.whole.name} these are; give the log of all ranks"
            )
        return found

    def _refuse_other_nodes(self, verdict: FileVerdict, communicator: ObservedCommunicator) -> None:
        """Raise InputError if a log states several nodes, and the machine is one host."""
        topology, nodes = verdict.machine.topology, communicator.nodes or 1
        if topology is not None and nodes > 1 and count_hosts(topology) == 1:
            raise InputError(
                f"{verdict.contents.where}: ranks on {nodes} nodes, and {topology.name} is one "
                "host: another machine; give the topology of all hosts",
                parameter="topology",
            )

    def _judge_channels(
        self, verdict: FileVerdict, communicator: ObservedCommunicator
    ) -> ChannelVerdict:
        channels = ChannelVerdict(communicator, taken=_find_taken(verdict.contents, communicator))
        if not communicator.rings and not communicator.trees:
            channels.why_not = (
                "the file lists neither whole rings nor whole trees; give the log of all ranks, "
                "run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING"
            )
            return channels
        try:
            self._refuse_other_nodes(verdict, communicator)
            listed = _list_locations(verdict.contents, communicator)
            rank_map = self._map_ranks(verdict, communicator.ranks, listed)
        except InputError as error:
            # A graph file is for one machine; a log may be read far from the machine that wrote it.
            if verdict.contents.is_graph_file and verdict.machine.argument != LOCAL:
                raise
            channels.why_not = str(error)
            return channels
        channels.rank_map = rank_map
        if verdict.contents.is_graph_file:
            _check_types(verdict, communicator, rank_map)
        router = self._router(rank_map.topology)
        rings = [tuple(rank_map.gpu_of[rank] for rank in order) for order in communicator.rings]
        trees = [_renumber(tree, rank_map.gpu_of) for tree in communicator.trees]
        try:
            for name in (self.collective,) if self.collective in OVER_RINGS else OVER_RINGS:
                rates = [rate_rings(name, rings, router)] if rings else []
                rates += [rate_trees(trees, router)] if trees and name == "allreduce" else []
                if rates:
                    collective = Collective(name, communicator.ranks)
                    channels.limits[name] = self._find_any_limits(collective, rank_map)
                    channels.options[name] = self._options(collective, router)
                    channels.rates[name] = rates
        except TopoplanError as error:
            channels.why_not = str(error)
        return channels

    def _find_limits(self, collective: Collective, router: Router) -> Limits:
        self.say(f"bounds of {collective.name} on {router.topology.name} ...")
        return find_limits(collective, router)

    def _find_part_limits(
        self,
        collective: Collective,
        router: Router,
        members: tuple[int, ...],
        helpers: tuple[int, ...],
    ) -> Limits:
        self.say(f"bounds of {collective.name} on a part of {router.topology.name} ...")
        return find_part_limits(collective, router, members, helpers)

    def _find_options(self, collective: Collective, router: Router) -> Options:
        self.say(f"other options of {router.topology.name} for {collective.name} ...")
        return find_options(collective, router)


def _list_locations(
    contents: FileContents, communicator: ObservedCommunicator
) -> Mapping[int, Location]:
    """Return the locations of a communicator's ranks: its own, else those of a table of as many."""
    own, listed = communicator.locations, contents.locations
    is_whole = len(own) == communicator.ranks or set(listed) != set(range(communicator.ranks))
    agrees = all(place.host in (None, listed[r].host) for r, place in own.items() if r in listed)
    return own if is_whole or not agrees else listed


def _compare_runs(measured: Sequence[MeasuredVerdict]) -> list[str]:
    """Return a note for each collective with several runs: their rates at the same largest size."""
    notes = []
    groups = group_by_key(((m.collective, m.ranks), m) for m in measured if m.run)
    for (name, _), runs in groups.items():
        rates = [
            {(row.measured.size_bytes, row.measured.how): row.measured.algbw_GBps for row in m.rows}
            for m in runs
        ]
        shared = set(rates[0]).intersection(*rates[1:])
        if len(runs) > 1 and shared:
            largest = max(size for size, _ in shared)
            best = [max(of[key] for key in shared if key[0] == largest) for of in rates]
            if not min(best):
                continue
            listed = ", ".join(map(gbps, best[:_MAX_RUNS])) + ", ..." * (len(best) > _MAX_RUNS)
            times, fastest = max(best) / min(best), runs[best.index(max(best))].run
            result = "they hardly differ"
            if times > _ALIKE:
                result = f"run {fastest} is {times:.2f} times as fast as the slowest"
            notes.append(f"runs of {name} at {size_text(largest)}: {listed} GB/s; {result}")
    return notes


def _check_types(
    verdict: FileVerdict, communicator: ObservedCommunicator, rank_map: RankMap
) -> None:
    """Add a note if a graph file and the machine disagree on whether all hops are NVLinks.

    Raise InputError if, in addition, the file is for fewer GPUs: then it is from another machine.
    """
    ring = next((p for p in communicator.patterns if p.number == RING), None)
    if ring is None or not communicator.rings or ring.type_intra == "LOC":
        return
    paths, gpus = Paths(rank_map.topology), rank_map.topology.ranks
    hops = {hop for order in communicator.rings for hop in pairwise((*order, order[0]))}
    kinds = {paths.find_kind(*(gpus[rank_map.gpu_of[rank]] for rank in hop)) for hop in hops}
    if "???" in kinds or (kinds <= {"NVL"}) == (ring.type_intra == "NVL"):
        return
    text = (
        f"the file says that its worst hop is {ring.type_intra}, and on {rank_map.topology.name} "
        f"its hops are {', '.join(sorted(kinds))}"
    )
    machine = verdict.machine.topology
    if machine is not None and len(gpus) < len(machine.ranks):
        raise InputError(
            f"{verdict.contents.where}: {text}: of another machine; give the topology of that one",
            parameter="topology",
        )
    verdict.notes.append(f"{text}: is it of another machine, or of another state of this one?")


def _predict(options: Options, size_bytes: int) -> float | None:
    """Return the plan's predicted algbw in GB/s at a size; None without a plan."""
    if options.plan is None:
        return None
    seconds = options.plan.time_s(options.plan.entry_for(size_bytes), size_bytes)
    return size_bytes / seconds * 1e-9 if seconds else None


def _renumber(parents: Parents, gpu_of: tuple[int, ...]) -> Parents:
    parent_of = {gpu_of[rank]: gpu_of[p] if p != -1 else -1 for rank, p in enumerate(parents)}
    return tuple(parent_of[gpu] for gpu in range(len(parents)))


def _find_nvls(contents: FileContents) -> str:
    """Return whether NVSwitches added for large allreduces: "on", "off" or "unknown"."""
    picks = [p for p in contents.picks if p.collective in (None, "allreduce")]
    if picks:
        largest = max(picks, key=lambda p: p.size_bytes)
        return ON if largest.algorithm.startswith("NVLS") else OFF
    for finding in contents.findings:
        names_others = (
            finding.name == "variable-nccl_algo" and "NVLS" not in finding.message.upper()
        )
        if names_others or finding.name == "variable-nccl_nvls_enable":
            return OFF
    return ON if any(c.uses_nvls for c in contents.communicators) else UNKNOWN


def _find_taken(contents: FileContents, communicator: ObservedCommunicator) -> str:
    """Return the algorithm that NCCL uses for large allreduces; empty if unknown.

    It is the tuner's pick, else the faster algorithm by the rates of NCCL's search.
    """
    picks = [p for p in contents.picks if p.collective in (None, "allreduce")]
    if picks:
        return max(picks, key=lambda p: p.size_bytes).algorithm
    if communicator.uses_nvls:
        return "NVLS"
    n, patterns = communicator.ranks, {p.number: p for p in communicator.patterns}
    ring = patterns.get(RING)
    tree = next((patterns[number] for number in TREES if number in patterns), None)
    # Between nodes the tuner also counts latencies and NICs, which the log does not contain.
    if ring is None or tree is None or n < 2 or (communicator.nodes or 1) > 1:
        return ""
    by_ring = Fraction(ring.channels) * Fraction(ring.intra_GBps) * n / (2 * (n - 1))
    by_tree = Fraction(tree.channels) * Fraction(tree.intra_GBps) * OF_CHAIN / 2
    return "RING" if by_ring >= by_tree else "TREE"
