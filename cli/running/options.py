"""The options and plans of topo-run, and errors for requests that cannot be executed.

A plan says how ranks carry out a collective on a topology; the stock collective is the backend's
own (gloo's, NCCL's, MPI's). Members are the ranks that make the call.
"""

from __future__ import annotations

import argparse
import os
import shlex
from typing import TYPE_CHECKING

from ...extras import CODECS, Names
from ...synth.sizes import parse_size
from ...topo.errors import InputError
from ..shared.common import Example, Parser, list_examples
from ..shared.formats import check_pictures, check_suffix, choose_format
from ..shared.outputs import OUTPUT, add_csv, add_force, check_outputs
from .added import FILES, MODES, find_others, list_dialects, list_files, name_mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...runtime.measuring.bench_options import BenchOptions
    from ...synth.plan import Plan

PROG = "topo-run"
EXAMPLES: tuple[Example, ...] = (
    (
        "topo-synth allreduce topo.xml -o plan.json",
        "a plan, here for two GPUs",
    ),
    ("topo-run plan.json", "start its ranks on this host, 1 KiB to 1 MiB"),
    (
        "topo-run plan.json -b 4K -e 64M -f 4 -n 20 -w 5",
        "other sizes, 20 iterations after 5 of warm-up",
    ),
    ("topo-run plan.json --dtype bf16 --op avg --json", "bfloat16; rows as JSON"),
    (
        "topo-run plan.json --place both --csv rows.csv",
        "in place and out of place; rows as CSV in addition to the table",
    ),
    ("topo-run plan.json --plot curves.svg", "a picture of it"),
    (
        "torchrun --nproc-per-node 2 -m topoplan.cli.run plan.json",
        "join ranks that torchrun has started",
    ),
    ("topo-run --stock --nproc 2", "the stock allreduce alone, without a plan"),
    (
        "topo-run --stock --nproc 2 --collective all_reduce,all_gather",
        "several collectives, one after the other; so are several plans",
    ),
    *list_examples(PROG),
)
ABOUT = """\
At each size the plan and the backend's own (stock) collective take turns. Every element of the
results is checked, on random data, against float64. Exit code 1 if any element is wrong. A plan
for some GPUs of a machine (topo-synth --group) runs with a rank for each GPU: members make the
calls, and run the stock collective among themselves; helpers carry bytes; the others wait.
"""


def build_parser() -> Parser:
    """Return the parser of topo-run's command line."""
    parser = Parser(
        PROG, EXAMPLES, ABOUT, "PLAN... [-b MIN] [-e MAX] [-f FACTOR] [-n ITERS] [-w WARMUP] ..."
    )
    add, codecs = parser.add_argument, Names(CODECS).describe()
    modes, files = MODES.describe(), FILES.describe()
    add(
        "plans",
        nargs="*",
        metavar="PLAN",
        help="plans written by topo-synth -o, run one after the other",
    )
    add("--nproc", type=int, metavar="N", help="ranks to start (default: the plan's)")
    add(
        "-b",
        dest="min_bytes",
        default="1K",
        metavar="MIN",
        help="smallest size, such as 64K or 64KiB (binary) or 64kB (64,000 bytes; default 1K)",
    )
    add("-e", dest="max_bytes", default="1M", metavar="MAX", help="largest size (default 1M)")
    add(
        "-f",
        dest="factor",
        type=int,
        default=4,
        metavar="FACTOR",
        help="ratio of each size to the previous one (default 4)",
    )
    add(
        "-n",
        dest="iterations",
        type=int,
        default=10,
        metavar="ITERS",
        help="measured iterations of each size (default 10)",
    )
    add(
        "-w",
        dest="warmup",
        type=int,
        default=2,
        metavar="WARMUP",
        help="warm-up iterations before them (default 2)",
    )
    add(
        "-d",
        "--dtype",
        default="float32",
        help="float32 (default), float64, float16, bfloat16, int8, uint8, int32, int64; fp16, "
        "half, bf16, float and the like too",
    )
    add("--op", default="sum", help="sum (default), avg, prod, max or min")
    add(
        "--backend",
        default="auto",
        choices=("auto", "gloo", "nccl", "mpi"),
        help="auto: mpi under mpirun without GPUs (gloo on hosts that cables join), nccl with one "
        "GPU per rank, else gloo",
    )
    add("--topology", metavar="T", help="fail unless the plan was made for this topology")
    add(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="limit on any single wait (default 300)",
    )
    add(
        "--choose",
        default="race",
        choices=("race", "model", "plan", "same-bits"),
        help="how the schedule for a size is chosen: race (default: time the best candidates "
        "and the stock collective at the first call), model (the fastest predicted), plan "
        "(by the plan's size ranges) or same-bits (race without the stock collective, with "
        "a plan of topo-synth --reproducible)",
    )
    add(
        "--executor",
        choices=("auto", "one-sided", "point-to-point"),
        help="what plays schedules: one-sided programs in memory that the ranks share (on several "
        "hosts: messages within each through its memory), point-to-point messages, or auto "
        "(default): the faster of both",
    )
    add(
        "--on-fault",
        default="raise",
        choices=("raise", "replan"),
        help="when a link is lost over gloo: raise (default) ends by an error that names it, "
        "replan goes on by a plan without the link, and lists these recoveries; the stock "
        "collective is then not timed",
    )
    add(
        "--on-slow",
        default="warn",
        choices=("warn", "replan"),
        help="when a link becomes slow over gloo: warn (default) logs it, replan also plans for "
        "the rates that are left, tries that plan, and lists what it was worth",
    )
    add(
        "--compress",
        metavar="CODEC",
        help=f"compress what is sent: {', '.join(codecs)}; sums are in float32"
        if codecs
        else argparse.SUPPRESS,
    )
    add(
        "--reduction",
        default="hops",
        choices=("hops", "once"),
        help="with --compress: hops (default) rounds partial sums whenever they are sent, once "
        "rounds each contribution once and each complete sum once",
    )
    for name in MODES.list_all():
        add(f"--{name}", action="store_true", help=modes.get(name, argparse.SUPPRESS))
    add(
        "-o",
        dest="output",
        **OUTPUT,
        help=f"with {_spell(modes)}: write the topology to this file (default: standard output)"
        if modes
        else argparse.SUPPRESS,
    )
    for name in FILES.list_all():
        add(f"--{name}", **OUTPUT, help=files.get(name, argparse.SUPPRESS))
    add(
        "--plot",
        **OUTPUT,
        help="write curves of the measured bandwidth against size: .svg, .png or .pdf",
    )
    add_csv(parser, "the rows")
    add_force(parser, *(f"--{name}" for name in files), "--plot", "--csv")
    add(
        "--place",
        choices=("in", "out", "both"),
        metavar="WHERE",
        help="in: results replace the input; out: they go to another tensor (allreduce, "
        "broadcast and reduce: a copy of the input is made first, and timed); both: a row "
        "for each (default: as in torch, allreduce, broadcast and reduce in place, the others "
        "out of place)",
    )
    add(
        "--inject",
        metavar="FAULTS",
        help="an option of topo-emulate, whose links can be cut: topo-emulate MACHINE --inject "
        "FAULTS -- topo-run PLAN",
    )
    add("--stock", action="store_true", help="time stock collectives alone, without a plan")
    add(
        "--collective",
        default="allreduce",
        metavar="LIST",
        help="with --stock: the collectives, or all (default allreduce)",
    )
    add("--json", action="store_true", help="one JSON object on standard output")
    for dialect in list_dialects():
        dialect.add_options(parser)
    return parser


def _spell(names: Iterable[str]) -> str:
    return " or ".join(f"--{name}" for name in names)


def read_options(args: argparse.Namespace) -> BenchOptions:
    """Return the measurement that the parsed options request, with topoplan's names of values.

    Raise InputError for wrong or contradictory options.
    """
    from ...runtime.measuring.bench_options import (
        BenchOptions,
        spell_codec,
        spell_dtype,
        spell_op,
    )

    low, high = parse_size(args.min_bytes), parse_size(args.max_bytes)
    if low > high or low < 1:
        raise InputError(
            f"-b {args.min_bytes} -e {args.max_bytes}: expected a smallest size (-b) from 1 byte "
            "to the largest (-e); change one of them"
        )
    return BenchOptions(
        low,
        high,
        args.factor,
        args.iterations,
        args.warmup,
        spell_dtype(args.dtype),
        spell_op(args.op),
        args.backend,
        args.choose,
        args.compress and spell_codec(args.compress),
        args.reduction,
        args.timeout,
        args.place,
        executor=args.executor,
        on_fault=args.on_fault,
        on_slow=args.on_slow,
    )


def check_files(args: argparse.Namespace, *, is_writer: bool) -> None:
    """Raise InputError if an output file would stay empty or cannot be written.

    Files have to go with the other options, and with the formats that their suffixes name. Whether
    one may be written is checked only if `is_writer`: ranks other than 0 write no files.
    """
    mode, files = name_mode(args), list_files(args)
    if args.output is not None and mode is None:
        raise InputError(
            f"-o without {_spell(MODES.list_all())}: there is no topology to write; the table is "
            "printed to standard output"
        )
    choose_format(args, {".json": "json"}, "json")
    check_pictures(args, "plot")
    for name, file in files.items():
        check_suffix(args, name, file.suffix)
    if is_writer:
        check_outputs(args, "output", *files, "plot", "csv")
    for flag in ("plot", "csv"):
        if getattr(args, flag) is not None and mode is not None:
            raise InputError(
                f"--{flag} with --{mode}, which measures nothing by size; omit one of them"
            )
    if files and (not args.plans or mode is not None):
        raise InputError(
            f"{_spell(files)}: there is no call of a plan to show; give a plan, and omit "
            f"{_spell(MODES.list_all())}"
        )
    for flag in (*_list_added(args), "plot"):
        if len(args.plans) > 1 and getattr(args, flag):
            raise InputError(f"--{flag} with {len(args.plans)} plans: expected a single plan")


def _list_added(args: argparse.Namespace) -> list[str]:
    """Return the options given that measure more of a single plan than the table."""
    return [name for name in (*MODES.list_all(), *FILES.list_all()) if getattr(args, name)]


def check_on_fault(args: argparse.Namespace, plans: Sequence[Plan]) -> None:
    """Raise InputError for --inject, or if the plans cannot follow --on-fault or --on-slow."""
    if args.inject is not None:
        raise InputError(
            "--inject: only emulated links can be cut; topo-emulate MACHINE --inject "
            f"{shlex.quote(args.inject)} -- topo-run ... does that"
        )
    for option in ("on_fault", "on_slow"):
        if getattr(args, option) != "replan":
            continue
        spelled = f"--{option.replace('_', '-')} replan"
        for flag in _list_added(args):
            raise InputError(
                f"--{flag} with {spelled}: the ranks could not change the plan meanwhile; omit "
                "one of them"
            )
        if len(plans) != 1 or not plans[0].collective.has_all_gpus:
            raise InputError(f"{spelled}: expected a single plan for all GPUs")


def load_plans(args: argparse.Namespace) -> list[Plan]:
    """Return the verified plans in the files that the options name; none with --stock alone.

    Raise InputError if a file is no plan, their numbers of ranks differ, or there is nothing to
    run; VerificationError if a plan is wrong or is not for --topology.
    """
    if not args.plans:
        _check_stock_alone(args)
        return []
    plans = list(map(_load_plan, args.plans))
    for plan in plans:
        find_others(plan)  # refuses those whose extra is not here
    for name, plan in zip(args.plans, plans, strict=True):
        if count_ranks(plan) != count_ranks(plans[0]):
            raise InputError(
                f"{name} is for {describe_ranks(plan)}, {args.plans[0]} for "
                f"{describe_ranks(plans[0])}; run them separately"
            )
        for flag in _list_added(args):
            if not plan.collective.has_all_gpus:
                raise InputError(
                    f"--{flag}: {name} is for {describe_ranks(plan)}; expected a plan for all GPUs"
                )
    if args.topology is not None:
        from ...topo.loader.resolve import load

        machine = load(args.topology)
        for plan in plans:
            plan.check_topology(machine)
    return plans


def count_ranks(plan: Plan) -> int:
    """Return the number of ranks that run a plan: one for each GPU of its topology."""
    return len(plan.topology.ranks)


def describe_ranks(plan: Plan) -> str:
    """Describe the ranks that run a plan ("8 ranks"), the members first if others help."""
    gpus, collective = count_ranks(plan), plan.collective
    if collective.has_all_gpus:
        return f"{gpus} ranks"
    return f"{collective.spelled_ranks} of {gpus} (one for each GPU: the others help, or wait)"


def _load_plan(name: str) -> Plan:
    """Return the plan in a file. Raise InputError with what to do if it is a topology instead."""
    from ...synth.plan import Plan

    try:
        return Plan.load(name)
    except InputError:
        if not _names_topology(name):
            raise
    given = shlex.quote(name)
    raise InputError(
        f"{name}: a topology, not a plan; make a plan for it first: topo-synth allreduce {given} "
        "-o plan.json && topo-run plan.json"
    )


def _names_topology(name: str) -> bool:
    from ...topo.loader.resolve import load

    try:
        return bool(load(name).devices)
    except InputError:
        return False


def _check_stock_alone(args: argparse.Namespace) -> None:
    mode = name_mode(args)
    for is_wrong, why in (
        (
            args.compress,
            f"--compress {args.compress} without a plan: the stock collective does not compress; "
            "give a plan",
        ),
        (
            mode,
            f"--{mode} without a plan; give a file written by topo-synth -o, whose schedules it "
            "can run",
        ),
        (
            not args.stock,
            "no plan given; give a file written by topo-synth -o, or --stock --nproc N",
        ),
        (
            args.nproc is None and "WORLD_SIZE" not in os.environ,
            "--stock without a plan needs the number of ranks to start; give --nproc N",
        ),
        (
            args.nproc is not None and args.nproc < 1,
            f"--nproc {args.nproc}: expected at least 1",
        ),
    ):
        if is_wrong:
            raise InputError(why)


def list_collectives(text: str) -> list[str]:
    """Return topoplan's names of the collectives in a comma-separated text; "all" means every one.

    Each is listed once; a name that is unknown stays as it is. Raise InputError if the text has
    none.
    """
    from ...synth.ir.collective import COLLECTIVES, spell_collective

    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise InputError(
            f"--collective {text!r}: no collective given; expected some of "
            f"{', '.join(COLLECTIVES)}, or all"
        )
    return list(dict.fromkeys(COLLECTIVES if names == ["all"] else map(spell_collective, names)))
