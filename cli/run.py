"""topo-run: run plans on real processes, and compare them with the stock collectives.

A plan says how ranks carry out a collective; the stock collective is the backend's own (gloo's,
NCCL's, MPI's).
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from ..topo.errors import ExecutionError, InputError, PlanMismatchError, VerificationError
from .running.added import (
    MODES,
    check_run,
    find_others,
    list_dialects,
    list_files,
    name_mode,
    prepare_run,
)
from .running.options import (
    PROG,
    build_parser,
    check_files,
    check_on_fault,
    count_ranks,
    describe_ranks,
    list_collectives,
    load_plans,
    read_options,
)
from .running.plan_sets import load_set
from .shared.common import run_command
from .shared.outputs import rows_csv, write_output, write_requested
from .shared.progress import ProgressReporter, Say, Work

if TYPE_CHECKING:
    import argparse

    from ..runtime.measuring.bench_options import BenchOptions
    from ..runtime.ranks.transport import Transport
    from ..synth.plan import Plan
    from .running.plan_sets import LoadedSet
    from .running.rows import Run

    Job = tuple[BenchOptions, Plan | None]


def main(argv: list[str] | None = None) -> int:
    """Run the command with `argv` (default: sys.argv) and return its exit code.

    The code is 0 if done, 1 if a result was wrong, 130 if interrupted, else that of the error (see
    topo/errors.py).
    """
    arguments = sys.argv[1:] if argv is None else argv
    args = build_parser().parse_args(arguments)
    return run_command(PROG, lambda: _run(args, arguments), quiet=_leaves_errors_to_another_rank())


def _leaves_errors_to_another_rank() -> bool:
    """Return whether another rank of this host reports bad arguments to the same stderr."""
    from ..runtime.ranks.launch import has_own_log
    from ..runtime.ranks.launchers import find_global_rank

    return os.environ.get("LOCAL_RANK", str(find_global_rank())) != "0" and not has_own_log()


def _run(args: argparse.Namespace, arguments: list[str]) -> int:
    from ..runtime.ranks.launch import RENDEZVOUS, is_rank, launch
    from ..runtime.ranks.launchers import join_launch

    options = read_options(args)
    ways = [way for dialect in list_dialects() if (way := dialect.read_ranks(args)) is not None]
    args.nproc, flag = ways[0] if ways else (args.nproc, "--nproc")
    links = join_launch()
    if links is not None and options.backend == "auto":
        import torch

        if not torch.cuda.is_available():
            options = replace(options, backend=links)
    check_files(args, is_writer=not is_rank() or os.environ["RANK"] == "0")
    plan_set = load_set(args)
    plans = [] if plan_set is not None else load_plans(args)
    check_on_fault(args, plans)
    jobs: list[Job] = [(options, plan) for plan in plans] or [
        (replace(options, collective=name), None) for name in list_collectives(args.collective)
    ]
    if plan_set is not None:
        jobs, ranks = [], plan_set.ranks
        described = f"{ranks} ranks"
    else:
        ranks = count_ranks(plans[0]) if plans else args.nproc
        described = describe_ranks(plans[0]) if plans else ""
    if not is_rank():
        if described and args.nproc is not None and args.nproc != ranks:
            raise InputError(
                f"{args.nproc} ranks: the plan is for {described}; leave {flag} "
                f"out, or synthesize for {args.nproc}"
            )
        _check_jobs(jobs, ranks, ranks, is_checked=name_mode(args) is not None)
        for remark in (text for dialect in list_dialects() for text in dialect.list_remarks(args)):
            ProgressReporter(PROG, args).tell(remark)
        if options.resolve_backend(ranks) == "mpi":
            raise InputError(
                f"over MPI ranks have to be started by mpirun: mpirun -n {ranks} topo-run "
                f"{shlex.join(arguments)}"
            )
        package = (__package__ or "topoplan.cli").rpartition(".")[0]
        return launch(
            f"{package}.cli.run",
            arguments,
            ranks,
            [f"{package}.runtime.communicator", f"{package}.runtime.measuring.bench"],
        )
    world = int(os.environ["WORLD_SIZE"])
    if described and world != ranks:
        raise PlanMismatchError(f"the plan is for {described}, {world} were started; start {ranks}")
    # topo-run checked what extras ask for before it started these ranks, if it did.
    local = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    is_checked = RENDEZVOUS in os.environ or name_mode(args) is not None
    _check_jobs(jobs, world, local, is_checked=is_checked)
    if plan_set is not None:
        return _run_set(args, options, plan_set)
    return _run_rank(args, jobs, world)


def _check_jobs(jobs: Sequence[Job], ranks: int, local: int, *, is_checked: bool) -> None:
    """Raise InputError if a job cannot run; `local` is the number of ranks on this host.

    What extras check is left out if that `is_checked`, or of no use to what is measured.
    """
    for options, plan in jobs:
        options.check(plan, ranks)
        if not is_checked:
            on_gpus = options.resolve_backend(ranks) == "nccl"
            check_run(options, options.collective_over(plan, ranks), local, on_gpus=on_gpus)


def _run_rank(args: argparse.Namespace, jobs: Sequence[Job], world: int) -> int:
    """Join the other ranks, measure, print on rank 0, and return the exit code."""
    from datetime import timedelta

    from ..runtime.ranks.transport import Transport

    # Checks without communication come first, so that bad input ends every rank before any of
    # them connects.
    options = jobs[0][0]
    for one, plan in jobs:
        one.settings_for(one.collective_over(plan, world))
    rank, timeout = int(os.environ["RANK"]), timedelta(seconds=options.timeout_s)
    progress = ProgressReporter(PROG, args, speaks=rank == 0)
    with _joined(args, options, world) as over, progress.follow("starting ...") as work:
        measured = [_run_job(args, job, Transport(None, timeout, over), work) for job in jobs]
    runs = [run for run, _ in measured]
    if rank == 0:
        _write_all(args, runs, measured[0][1], progress)
        for why in dict.fromkeys(run.why_messages_alone for run in runs):
            if why is not None:
                progress.tell(f"schedules were played as messages alone: {why}")
    return 1 if any(row.wrong for run in runs for row in run.rows) else 0


def _run_set(args: argparse.Namespace, options: BenchOptions, plan_set: LoadedSet) -> int:
    """Join the other ranks, make all plans' calls at once, print on rank 0; return the code."""
    from datetime import timedelta

    from ..runtime.ranks.transport import Transport

    rank, timeout = int(os.environ["RANK"]), timedelta(seconds=options.timeout_s)
    progress = ProgressReporter(PROG, args, speaks=rank == 0)
    with (
        _joined(args, options, plan_set.ranks) as over,
        progress.follow("starting ...") as work,
    ):
        transport = Transport(None, timeout, over)
        outcome = plan_set.measure(options, transport, lambda text: work.advance(text, 0, 0))
    if rank == 0:
        print(json.dumps(outcome.figures) if args.json else outcome.text)
    return 1 if outcome.is_wrong else 0


@contextmanager
def _joined(args: argparse.Namespace, options: BenchOptions, world: int) -> Iterator[str]:
    """Join the other ranks in a default group for the `with` block, and leave it with them.

    Yields the transport: "mpi", or "auto" for that of the group. On hosts that cables join it is
    mpi only if the user asked for it.
    """
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from ..runtime.ranks.cabled import find_cabling
    from ..runtime.ranks.faults import first_line
    from ..runtime.ranks.launch import barrier_before_exit, init_method, keep_output_clean
    from ..runtime.ranks.links import AUTO, check_transport
    from ..runtime.ranks.rank_locations import init_gloo_by_network

    backend = options.resolve_backend(world)
    over = AUTO
    if backend not in ("gloo", "nccl"):
        over, backend = backend, _choose_beside(backend, world)
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    timeout, rank = timedelta(seconds=options.timeout_s), int(os.environ["RANK"])
    with keep_output_clean():
        try:
            if backend == "gloo":
                init_gloo_by_network(rank, world, timeout)
            else:
                dist.init_process_group(
                    backend, init_method=init_method(), rank=rank, world_size=world, timeout=timeout
                )
        except RuntimeError as error:
            raise ExecutionError(
                f"rank {rank}: the ranks did not find each other: {first_line(error)}; were all "
                f"{world} started, and with the same rendezvous?"
            ) from error
        if find_cabling() is not None and args.backend == check_transport(None) == "auto":
            over = "auto"
        try:
            yield over
            if options.on_fault == "raise":  # else closing the communicator has been a barrier
                dist.barrier()
        except (InputError, VerificationError):
            barrier_before_exit(world)
            raise
        finally:
            dist.destroy_process_group()


def _run_job(
    args: argparse.Namespace, job: Job, transport: Transport, work: Work
) -> tuple[Run, dict[str, str]]:
    """Measure one collective; return its rows, and what options of extras write, by their names.

    Nothing keeps a reference to a group on return: gloo may abort at exit otherwise.
    """
    from ..runtime.communicator import Communicator
    from ..runtime.measuring.bench import list_recoveries, run_benchmark
    from .running.rows import Run

    options, plan = job
    settings = options.settings_for(options.collective_over(plan, transport.size))
    backend, engine = transport.links.name, transport.links.stock_engine
    communicator, name = None, settings.collective.name
    others = None if plan is None else find_others(plan)
    if plan is not None:
        # What goes on or follows needs connections of its own.
        connections = None if options.policy.layers else transport
        communicator = Communicator(plan, connections, policy=options.policy)
        if others is not None and communicator.rank not in plan.collective.members:
            rows = others.await_rows(communicator, transport)
            return Run(options, settings, backend, engine, plan, rows), {}
    work.advance(f"{name} ...", 0, 0)
    mode = name_mode(args)
    if mode is not None and communicator is not None:
        text = MODES.find(mode).measure(communicator, transport, work.say).dumps()
        return Run(options, settings, backend, engine, plan, []), {mode: text}
    if communicator is not None:
        prepare_run(communicator, transport, work.say)
    say = _follow_sizes(work, f"{name}: ", len(settings.options.list_sizes()))
    rows = run_benchmark(settings, communicator, say, transport)
    if communicator is None:
        return Run(options, settings, backend, engine, plan, rows), {}
    files = {name: file.make(settings, communicator) for name, file in list_files(args).items()}
    recoveries = None
    if "replan" in (options.on_fault, options.on_slow):
        recoveries = list_recoveries(communicator)
        communicator.close()
    if others is not None:
        others.hand_out_rows(communicator, transport, rows)
    why_alone = communicator.dispatcher.why_messages_alone
    run = Run(options, settings, backend, engine, plan, rows, recoveries, why_alone)
    return run, {name: text for name, text in files.items() if text is not None}


def _choose_beside(links: str, world: int) -> str:
    """Return the backend over which ranks coordinate if links of a name carry the data.

    The backend selects the device: nccl if the links take GPU memory and each rank of this host has
    a GPU, else gloo.
    """
    import torch

    from ..runtime.ranks.links import find_named

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    needed = int(os.environ.get("LOCAL_WORLD_SIZE", str(world)))
    return "nccl" if gpus >= needed and find_named(links).takes_gpu_memory() else "gloo"


def _follow_sizes(work: Work, what: str, sizes: int) -> Say:
    """Return a function to call at the beginning of each of `sizes` sizes, to update the progress.

    Sizes grow by a factor and, from some size on, times do too: the last ratio of two times
    predicts the rest.
    """
    began: list[float] = []

    def say(message: str) -> None:
        began.append(time.monotonic())
        spent = [b - a for a, b in pairwise(began)]
        growth = max(1.0, spent[-1] / spent[-2]) if len(spent) > 1 and spent[-2] > 0 else 1.0
        left = sum(s * growth**k for s in spent[-1:] for k in range(1, sizes - len(spent) + 1))
        done = began[-1] - began[0]
        work.restart(began[0])
        work.advance(what + message, done, done + left)

    return say


def _write_all(
    args: argparse.Namespace,
    runs: Sequence[Run],
    texts: dict[str, str],
    progress: ProgressReporter,
) -> None:
    """Print the rows and write the requested files, or what was measured in place of the rows.

    `texts` has what options of extras write, by their names.
    """
    from .running.curves import draw_rows
    from .running.rows import list_rows, print_run, write_json

    mode = name_mode(args)
    if mode is not None:
        write_output(args, texts[mode])
        if args.output is not None:
            progress.tell(MODES.find(mode).remark.replace("FILE", args.output))
        return
    if args.json:
        print(json.dumps(write_json(runs)))
    else:
        for run in runs:
            print_run(run)
    name, rows = runs[0].settings.collective.name, runs[0].rows
    write_requested(
        args, "csv", progress, "rows written to FILE", lambda: rows_csv(list_rows(runs))
    )
    write_requested(args, "plot", progress, "curves written to FILE", lambda: draw_rows(name, rows))
    for option, file in list_files(args).items():
        write_requested(args, option, progress, file.remark, partial(texts.__getitem__, option))


if __name__ == "__main__":
    sys.exit(main())
