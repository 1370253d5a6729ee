"""The request to topo-synth, and the parts of a report that all of its modes share.

A plan says how ranks carry out a collective; a bound is the bandwidth (algbw, size by time) that no
schedule can exceed. The single-path bound lets each pair of GPUs use only the route the hardware
takes, the multipath bound every route, the in-network bound also lets switches add. Members are the
GPUs that make the call; helpers pass on data for them.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...synth.describe import limit_text, list_section_lines, print_plan, reach_at
from ...synth.ir.collective import spell_ranks
from ...synth.remark import list_remarks
from ...synth.sizes import parse_size
from ...topo.clock import limit_time
from ...topo.derived.stripes import describe_merged
from ...topo.output_head import output_head
from ...topo.pictures.cables import describe_rates
from ..shared.outputs import rows_csv, write_requested
from ..shared.progress import ProgressReporter, Say
from .added import find_request, list_plan_files
from .options import PROG

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from ...synth.bounds.certificate import Bound
    from ...synth.bounds.group_bounds import SubMachine
    from ...synth.ir.collective import Collective
    from ...synth.plan import Entry, Plan
    from ...topo.graph import Topology
    from ...topo.routes import Router

# Columns of a table in a file or a pipe, unless COLUMNS sets them.
WIDTH = 200
# Seconds that reading a machine may take whatever the time limit, which is meant for searches.
_LEAST_READING_S = 2.0
# A gap below this is rounding, and shown as 0.
NO_GAP = 1e-6
# Prints a part of the result; it is no section of a plan's file (synth/section.py).
PrintedSection = Callable[["Console"], None]


@dataclass
class SynthRun:
    """One run of topo-synth, with the parsed arguments `args`.

    `drawn` is the topology that the argument names, `machine` the one to plan for, with its
    `given_router` and the collective `given` on it; `topology`, `router` and `collective` are those
    of the plan, after --without-link and the like. `size` is the requested size in bytes. `started`
    (time.monotonic) and `cpu_started_s` are when the run began. `helpers` are the ranks that may
    help the members of the collective, if not all GPUs are members. `in_network` is the in-network
    bound; None if the topology states that all switches add that can, or none could. `with_help` is
    the single-path bound if GPUs that were left out helped; None if none were, or if it is unknown.
    `seconds` is the duration until the end of the search. `cut_short` lists the searches that the
    time limit stopped.
    """

    args: argparse.Namespace
    drawn: Topology
    machine: Topology
    topology: Topology
    given_router: Router
    router: Router
    given: Collective
    collective: Collective
    started: float
    cpu_started_s: float
    size: int
    progress: ProgressReporter
    seconds: float = 0.0
    cut_short: list[str] = field(default_factory=list)
    in_network: Bound | None = None
    helpers: tuple[int, ...] = ()
    with_help: Bound | None = None

    @property
    def usable(self) -> SubMachine:
        """The machine of the GPUs that the plan may use (members, helpers), with the collective."""
        from ...synth.bounds.group_bounds import SubMachine

        ranks = (*self.collective.members, *self.helpers)
        return SubMachine.of(self.collective, self.router, ranks)

    @contextmanager
    def search(self) -> Iterator[Say]:
        """Show progress on standard error while the context lasts; set `seconds` at its end.

        The function yielded sets the progress message.
        """
        with self.progress.follow("synthesizing ...", self.args.time_limit) as work:
            yield work.say
        self.seconds = time.monotonic() - self.started

    @contextmanager
    def off_the_clock(self) -> Iterator[None]:
        """Leave the time that the context takes out of the run's reported times."""
        started, cpu_started_s = time.monotonic(), measure_cpu_s()
        yield
        self.started += time.monotonic() - started
        self.cpu_started_s += measure_cpu_s() - cpu_started_s

    def head_json(self) -> dict[str, Any]:
        """Return the request (collective, topology, ranks, root) as JSON data.

        `root` is a rank of the plan, `root_as_given` the same GPU's rank on the given machine.
        """
        collective, topology = self.collective, self.topology
        head: dict[str, Any] = {
            "name": topology.name,
            "fingerprint": topology.fingerprint,
            "ranks": len(topology.ranks),
        }
        if rates := describe_rates(topology):
            head["rates"] = rates
        out = output_head("topoplan-synth")
        out |= {"topology": head, "collective": collective.name, "root": collective.root}
        if self.args.group is not None:
            out |= {"group": list(collective.members), "helpers": []}
        if collective.root is not None:
            out["root_device"] = topology.ranks[collective.root]
            out["root_as_given"] = self.given.root
        return out

    def switches_json(self) -> dict[str, Any]:
        """Return the bound's assumptions about switches as JSON data.

        If more switches could add, the bound with all of them adding is included.
        """
        from ...synth.bounds.in_network import describe_assumption

        more = (
            {"bound_in_network": bound_json(self.in_network, self.topology)}
            if self.in_network
            else {}
        )
        return {"bound_assumes": describe_assumption(self.topology), **more}

    def help_json(
        self, single_path: Bound, alone: Bound | None, with_helpers: Bound | None
    ) -> dict[str, Any]:
        """Return the single-path bounds of a part of the machine, without and with help, as JSON.

        `alone` is null if the members reach each other only through other GPUs. A whole machine has
        neither bound, unless --group names all its ranks. If ranks were left out, the bounds are
        `single_path` and `with_help`.
        """
        if self.collective.has_all_gpus:
            if self.with_help is None and self.args.group is None:
                return {}
            alone, with_helpers = single_path, self.with_help or single_path
        return {
            "bound_alone": alone and bound_json(alone, self.topology),
            "bound_with_helpers": with_helpers and bound_json(with_helpers, self.topology),
        }

    def switch_lines(self) -> list[str]:
        """Return lines on the bound's assumptions about switches, empty if there are none."""
        from ...synth.bounds.in_network import describe_assumption, describe_possible
        from ...synth.cost.loads import computes_in_network

        assumption = describe_assumption(self.topology)
        if self.in_network is not None:
            return [
                f"that bound assumes that {assumption}; {describe_possible(self.topology)}, and "
                f"then the bound is {limit_text(self.in_network)} GB/s algbw"
            ]
        return [f"that bound assumes: {assumption}"] if computes_in_network(self.topology) else []

    def root_lines(self) -> list[str]:
        """Return a line that names the root's GPU, none if the collective has no root.

        The root is numbered as in the plan and, if that differs, also as on the given machine.
        """
        root, given = self.collective.root, self.given.root
        if root is None:
            return []
        of = "" if root == given else f" of the plan, {given} of the machine as given"
        return [f"root: {self.topology.ranks[root]}, rank {root}{of}"]

    def lost_help_lines(self) -> list[str]:
        """Return a line on the help that the ranks which were left out could give, if known."""
        if self.with_help is None:
            return []
        gone = sorted(set(self.args.without_rank))
        left = ",".join(str(r) for r in range(len(self.machine.ranks)) if r not in gone)
        return [
            f"that bound is without help: the links of rank{'s' * (len(gone) > 1)} "
            f"{spell_ranks(gone)} are gone. If they only have no part in the collective, the "
            f"others reach at most {limit_text(self.with_help)} GB/s algbw with their help "
            f"(--group {left})"
        ]

    def times_json(self) -> dict[str, float]:
        """Return `synthesis_s` and `cpu_s`: wall and processor time in seconds since `make_job`."""
        return {
            "synthesis_s": time.monotonic() - self.started,
            "cpu_s": measure_cpu_s() - self.cpu_started_s,
        }

    def cut_lines(self) -> list[str]:
        """Return a line on the searches that the time limit stopped, none if it stopped none."""
        listed = ", ".join(dict.fromkeys(self.cut_short))
        text = f"search cut short by --time-limit; the gap may be loose ({listed})"
        return [text] if listed else []


def make_job(args: argparse.Namespace) -> SynthRun:
    """Load the machine, apply the requested changes, and return the run for the parsed options.

    Raise InputError if the machine, its changes or the collective are invalid, and with
    --bound-only TimeLimitError if reading the machine takes longer than the time limit.
    """
    from ...synth.groups.ranks import group_on, parse_ranks
    from ...synth.ir.collective import collective_on
    from ...topo.derived.degrade import Change, degrade, move_root
    from ...topo.loader.resolve import load_for_planning

    started, cpu_started_s = time.monotonic(), measure_cpu_s()
    size = 0 if args.size is None else parse_size(args.size)
    helpers: tuple[int, ...] | None = None
    progress = ProgressReporter(PROG, args)
    drawn, machine, given_router = _read_machine(args, started, progress)
    change = Change(tuple(args.without_link), tuple(args.without_rank), tuple(args.scale_link))
    # Changes come first: they name devices as drawn, and a switch with a slow link has no equal.
    topology, router = (
        load_for_planning(degrade(drawn, change)) if change else (machine, given_router)
    )
    given: Collective
    collective: Collective
    request = find_request(args)
    if request is not None:
        demands, helpers = request.read(args, topology)
        given = collective = demands
        size = size or demands.size
    elif args.group is not None:
        group = parse_ranks(args.group, "group")
        given = group_on(args.collective, machine, group, args.root)
        collective = group_on(args.collective, topology, group, args.root)
    else:
        # --root is in the numbering of the machine as given, so it is checked there first.
        given = collective_on(args.collective, machine, args.root)
        root = move_root(args.root, machine, topology)
        collective = collective_on(args.collective, topology, root)
    if change and collective.root is not None:
        given = replace(given, root=machine.ranks.index(topology.ranks[collective.root]))
    return SynthRun(
        args,
        drawn,
        machine,
        topology,
        given_router,
        router,
        given,
        collective,
        started,
        cpu_started_s,
        size,
        progress,
        helpers=_choose_helpers(args, collective, topology) if helpers is None else helpers,
    )


def _read_machine(
    args: argparse.Namespace, started: float, progress: ProgressReporter
) -> tuple[Topology, Topology, Router]:
    """Return the machine as drawn, and the one to plan for with its router.

    A bound alone keeps the time limit, of which building a large machine is a part. Raise
    TimeLimitError if that takes longer.
    """
    from ...topo.loader.resolve import load, load_for_planning

    if not args.bound_only:
        drawn = load(args.topology)
        return drawn, *load_for_planning(drawn)
    with (
        progress.follow("reading the machine ...", args.time_limit) as work,
        limit_time(started, args.time_limit, work.say, least_s=_LEAST_READING_S),
    ):
        drawn = load(args.topology)
        return drawn, *load_for_planning(drawn)


def _choose_helpers(
    args: argparse.Namespace, collective: Collective, topology: Topology
) -> tuple[int, ...]:
    """Return the ranks that may help a group; none if all GPUs are members."""
    from ...synth.groups.ranks import choose_helpers, parse_helpers

    helpers = parse_helpers("rest" if args.helpers is None else args.helpers)
    return choose_helpers(helpers, collective, topology, reproducible=args.reproducible)


def measure_cpu_s() -> float:
    """Return the processor time of this process and of its children so far, in seconds."""
    return sum(os.times()[:4])


def bound_json(limit: Bound, topology: Topology) -> dict[str, Any]:
    """Return a bound as JSON data: algbw in GB/s as float and exact text, kind and certificate.

    The certificate is what proves it. `assumes` lists the rates that it depends on and that no
    source states. `cut_short` is there, and true, if the time limit stopped the search for it.
    """
    from ...synth.bounds.assumptions import list_assumptions

    return {
        "algbw_GBps": float(limit.algbw_GBps),
        "algbw_GBps_exact": str(limit.algbw_GBps),
        "kind": limit.kind,
        "certificate": dict(limit.certificate),
        "assumes": [str(assumption) for assumption in list_assumptions(limit, topology)],
        **({"cut_short": True} if limit.is_cut_short else {}),
    }


def _reaches_bound(plan: Plan) -> bool:
    return min(map(plan.gap_of, plan.entries)) <= NO_GAP


def plan_json(job: SynthRun, plan: Plan | None, bound: Bound, single_path: Bound) -> dict[str, Any]:
    """Return the fields of --json that describe a plan; without one, its figures are null.

    `bound` is the multipath bound, `single_path` the single-path bound. `plan` is None if no
    schedule was found.
    """
    from ...synth.cost.host_costs import describe_host

    entry = plan and plan.entry_for(job.size)
    out = {
        **job.head_json(),
        **_chosen_json(job, plan),
        "bound": bound_json(bound, job.topology),
        "bound_one_way": bound_json(single_path, job.topology),
        **job.help_json(
            single_path,
            None if plan is None else plan.bound_alone,
            None if plan is None else plan.bound_with_helpers,
        ),
        **job.switches_json(),
        "gap": plan and entry and float(plan.gap_of(entry)),
        "gap_any_way": plan and entry and float(plan.gap_any_way_of(entry)),
        "verified": plan is not None,
        **job.times_json(),
        # Where a gap stands, the bound may be loose, or a better plan may exist.
        "search_complete": not job.cut_short and (plan is None or _reaches_bound(plan)),
    }
    if job.cut_short:
        out["cut_short"] = job.cut_short
    if plan is None:
        return out
    out["plan_hash"] = plan.hash
    if not plan.collective.has_all_gpus:
        out["helpers"] = plan.used_helpers
    for section in plan.extensions:
        out |= section.list_figures(plan)
    out |= {name: remark.figures for name, remark in list_remarks(plan, job.size).items()}
    out["entries"] = [
        {
            "min_bytes": e.min_bytes,
            "max_bytes": e.max_bytes,
            "strategy": e.schedule.strategy,
            "segments": e.schedule.segments,
            "trees": e.schedule.trees,
            "depth": e.schedule.depth,
            **({} if job.collective.has_all_gpus else {"helpers": list(e.schedule.helpers)}),
            "gap": float(plan.gap_of(e)),
            "gap_any_way": float(plan.gap_any_way_of(e)),
            "at_size": at_size_json(plan, e, job.size),
        }
        for e in plan.entries
    ]
    return out | {"host_costs": describe_host(job.topology)}


def at_size_json(plan: Plan, entry: Entry, size: int) -> dict[str, Any]:
    """Return `size_bytes`, in an entry's range, and the predicted `algbw_GBps` at that size.

    An entry is the plan's schedule for a range of sizes. The size is `size` (in bytes) if it is in
    the range, else the end of the range.
    """
    return dict(zip(("size_bytes", "algbw_GBps"), reach_at(plan, entry, size), strict=True))


def _chosen_json(job: SynthRun, plan: Plan | None) -> dict[str, Any]:
    """Return the figures of the schedule for the requested size; null figures without a plan.

    Chunks are in SCCL's units (per rank, or of the whole buffer) if they divide evenly.
    """
    if plan is None:
        keys = ("chunks", "steps", "rounds", "trees", "depth", "segments", "predicted")
        return {"strategy": None, "size_bytes": job.size, **dict.fromkeys(keys)}
    from ...synth.cost.affine import rounds

    entry = plan.entry_for(job.size)
    schedule, time_s = entry.schedule, plan.time_s(entry, job.size)
    chunks, parts = len(schedule.chunks), len(job.collective.even_chunks(1))
    total = rounds(schedule, plan.router)
    algbw = job.size / time_s / 1e9 if time_s else 0.0
    return {
        "strategy": schedule.strategy,
        "size_bytes": job.size,
        "chunks": chunks if chunks % parts else chunks // parts,
        "steps": schedule.steps,
        "rounds": None if total is None else int(total) if total.denominator == 1 else float(total),
        "trees": schedule.trees,
        "depth": schedule.depth,
        "segments": schedule.segments,
        "predicted": {
            "time_s": time_s,
            "algbw_GBps": algbw,
            "busbw_GBps": algbw * float(job.collective.bus_factor()),
        },
    }


def _write_beside(job: SynthRun, plan: Plan) -> None:
    """Write the files of extras that the arguments ask for."""
    for name, file in list_plan_files(job.args).items():
        suffix = Path(getattr(job.args, name)).suffix.lower()
        text = partial(file.make, plan, job.size, suffix)
        write_requested(job.args, name, job.progress, file.remark(suffix), text)


def print_lines(console: Console, *lines: str, style: str | None = None) -> None:
    """Print lines that may contain names from files: no markup in them is interpreted.

    `style` is rich's name of a colour or the like, None for none. They wrap only on a terminal.
    """
    for line in lines:
        console.print(
            line, style=style, highlight=False, soft_wrap=not console.is_terminal, markup=False
        )


def deliver(
    job: SynthRun,
    plan: Plan | None,
    body: Callable[[], dict[str, Any]],
    rows: Callable[[], list[dict[str, Any]]],
    picture: tuple[str, Callable[[], str]],
    *,
    first: PrintedSection | None = None,
    then: tuple[PrintedSection, ...] = (),
) -> None:
    """Write the requested files, and print the result: `body` with --json, else tables.

    `plan` is None if no schedule was found. `rows` makes those of --csv; `picture` is the message
    and the function that makes the content of --plot; both are called only if requested. The
    section `first` is printed before the plan, those of `then` after it.
    """
    from ...topo.pictures.console import SafeConsole

    args = job.args
    if args.output and plan is not None:
        plan.save(args.output, overwrite=args.force)
    if plan is not None:
        _write_beside(job, plan)
    write_requested(args, "plot", job.progress, *picture)
    if args.json:
        print(json.dumps(body()))
    else:
        columns = shutil.get_terminal_size((WIDTH, 24)).columns
        console = SafeConsole(width=None if sys.stdout.isatty() else columns)
        print_lines(console, *describe_rates(job.topology), *describe_merged(job.topology))
        if first is not None:
            first(console)
        if plan is not None:
            print_plan(console, plan, job.size)
            print_lines(console, *list_section_lines(plan))
        print_lines(console, *job.lost_help_lines(), *job.switch_lines(), *job.root_lines())
        for section in then:
            section(console)
        print_lines(console, *job.cut_lines(), style="yellow")
        console.print(f"synthesized and verified in {job.seconds:.2f} s", highlight=False)
        if plan is not None:
            remarks = list_remarks(plan, job.size).values()
            print_lines(console, *(remark.line for remark in remarks), style="bold")
    if args.output and plan is not None:
        job.progress.tell(f"plan written to {args.output}")
    write_requested(args, "csv", job.progress, "rows written to FILE", lambda: rows_csv(rows()))
