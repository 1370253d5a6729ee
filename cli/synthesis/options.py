"""The options of topo-synth, and errors for those that contradict each other or have no effect.

Some are those of extras, the optional parts of topoplan: modes, jobs, files of what to plan for,
and promises, which all schedules of a plan keep (added.py).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ...synth.ir.collective import COLLECTIVES, DemandName, spell_collective
from ...synth.strategy_names import STRATEGY_NAMES, check_name
from ...topo.errors import InputError, suggest
from ..shared.common import Example, Parser, list_examples, shown_name
from ..shared.formats import check_pictures, choose_format
from ..shared.outputs import OUTPUT, add_csv, add_force, check_outputs
from .added import (
    ADDED_CONSTRAINTS,
    ADDED_JOBS,
    ADDED_MODES,
    ADDED_REQUESTS,
    PLAN,
    PLAN_BESIDE,
    FileRequest,
    Formats,
    add_options,
    find_request,
    is_of_schedules,
    list_job_options,
    list_plan_files,
    list_suffixes,
    list_taking,
    takes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ...synth.request import Promise, TreeLimits

PROG = "topo-synth"
DEFAULT_SIZE = "1G"
# Enough for every preset; larger machines may need more.
DEFAULT_TIME_LIMIT_S = 60.0
_STRATEGIES_WITH_TREES = ("auto", "packing", "hierarchical", "parameter-server")
# The help begins with so many examples, which `--help core` has too.
_FIRST_EXAMPLES = 4
EXAMPLES: tuple[Example, ...] = (
    ("topo-synth allreduce dgx1", "the fastest schedule for each size, and its gap"),
    ("topo-synth allreduce topo.xml -o plan.json", "the plan, for topo-run and DDP"),
    ("topo-synth allreduce mesh:8x8 --bound-only", "how fast can a schedule be?"),
    ("topo-synth allreduce dgx1 --without-link 0:3", "a plan without that link"),
    ("topo-synth allreduce dgx-a100:2 --max-trees 16", "at most 16 trees"),
    (
        "topo-synth allreduce mi300x --group 0,1",
        "a plan for two of the GPUs; the idle ones help",
    ),
    *list_examples(PROG),
    ("topo-synth allreduce dgx1 --csv ranges.csv", "the table as rows"),
)
ABOUT = """\
Reads a topology (a preset, a file of topoplan, NCCL, RCCL, hwloc or nvidia-smi, or `local`: this
machine), builds schedules for a collective, verifies each by an independent replay, and keeps the
fastest for every range of sizes.
"""


def build_parser() -> Parser:
    """Return the parser of topo-synth's command line.

    Its help begins with what most people need; options of extras follow under the extras' names.
    """
    parser = Parser(
        PROG,
        EXAMPLES,
        ABOUT,
        "COLLECTIVE TOPOLOGY [--strategy S] [--size BYTES] [-o FILE] ...",
        first=_FIRST_EXAMPLES,
    )
    _add_usual(parser)
    _add_more(parser)
    add_options(parser)
    return parser


def _add_usual(parser: Parser) -> None:
    """Add what most people need."""
    add = parser.add_argument
    add(
        "first",
        nargs="?",
        metavar="COLLECTIVE",
        help="allreduce, allgather, reduce-scatter, broadcast, reduce, gather, scatter, "
        "alltoall; torch's and nccl-tests' spellings too",
    )
    add(
        "second",
        nargs="?",
        metavar="TOPOLOGY",
        help="a preset (dgx1, mesh:4x4, ...), a file, or local",
    )
    add(
        "--strategy",
        default="auto",
        metavar="S",
        help=f"auto (default), {', '.join(STRATEGY_NAMES[:-1])} or {STRATEGY_NAMES[-1]}; or one "
        "that a package adds (docs/api.md)",
    )
    add(
        "--size",
        metavar="BYTES",
        help="buffer size to report on, such as 64M or 64MiB (binary) or 64MB (10^6 bytes each; "
        f"default {DEFAULT_SIZE})",
    )
    add("-o", "--output", **OUTPUT, help="write the plan, or what --format names, to this file")
    add(
        "--format",
        metavar="FORMAT",
        choices=Formats(),
        help="plan (default), or for other programs, by what extras and packages add",
    )
    add(
        "--group",
        metavar="LIST",
        help="plan for these ranks alone: 0,1 or 0-3; all options number the ranks of the whole "
        "machine",
    )
    add(
        "--without-link",
        action="append",
        default=[],
        metavar="A:B",
        help="plan for the machine without this link (device ids or rank numbers), and compare "
        "with the whole machine; may be repeated, as --without-rank and --scale-link",
    )
    add("--bound-only", action="store_true", help="print only the bound and its certificate")
    add(
        "--time-limit",
        type=float,
        default=DEFAULT_TIME_LIMIT_S,
        metavar="SECONDS",
        help=f"limit on the whole synthesis (default {DEFAULT_TIME_LIMIT_S:g}); with more, "
        "searches go further in proportion",
    )
    add("--json", action="store_true", help="one JSON object on standard output")
    add_csv(parser, "the table's rows")
    add(
        "--plot",
        **OUTPUT,
        help="write curves of bandwidth against size as .svg, .png or .pdf: the plan and the bound",
    )


def _add_more(parser: Parser) -> None:
    """Add the core's other options."""
    group = parser.add_argument_group("more options")
    add = group.add_argument
    add("--collective", metavar="C", help="COLLECTIVE, as an option")
    add("--topology", metavar="T", help="TOPOLOGY, as an option")
    add(
        "--root",
        type=int,
        metavar="R",
        help="root of broadcast, reduce, gather and scatter, in the numbering of the machine as "
        "given, before --without-rank (default: the first rank that stays)",
    )
    add(
        "--helpers",
        metavar="LIST",
        help=f"with {', '.join(['--group', *(f'--{name}' for name in ADDED_MODES.describe())])} "
        "or a file of what to plan for: the other ranks that may relay, copy and add for a group: "
        "rest (default), none, or a list",
    )
    add(
        "--without-rank",
        action="append",
        default=[],
        type=int,
        metavar="R",
        help="plan for the machine without this GPU and its links (--group: GPUs that only have no "
        "part in the collective); the ranks above it move up, and all options number the GPUs of "
        "the machine as given",
    )
    add(
        "--scale-link",
        action="append",
        default=[],
        metavar="A:B=F",
        help="plan for the machine with this link at F times its bandwidth",
    )
    _add_tree_limits(group)
    add_force(group, *(f"--{name}" for name in PLAN_BESIDE.describe()), "--plot", "--csv")


def _add_tree_limits(group: argparse._ArgumentGroup) -> None:
    """Add what limits trees."""
    add = group.add_argument
    add(
        "--epsilon",
        metavar="E",
        help="packing: the fewest trees whose gap to the bound is at most this (0.05: 5 %%)",
    )
    add("--max-trees", type=int, metavar="N", help="packing: at most this many trees")
    add(
        "--max-depth",
        type=int,
        metavar="N",
        help="packing: at most this many hops from any rank to the root of a tree",
    )


def check_options(args: argparse.Namespace) -> None:
    """Raise InputError for the first wrong option, before any work is done.

    `args.collective` and `args.topology` are set from the arguments without an option.
    """
    _settle_request(args)
    args.format = choose_format(args, list_suffixes(), PLAN, args.format)
    beside = list_plan_files(args)
    for name, file in beside.items():
        if Path(getattr(args, name)).suffix.lower() != file.suffix:
            check_pictures(args, name)
    check_pictures(args, "plot")
    check_name(args.strategy)
    if not args.time_limit > 0:
        raise InputError(f"--time-limit is {args.time_limit:g}; expected seconds above 0")
    for flag, value, least in (
        ("--max-trees", args.max_trees, 1),
        ("--max-depth", args.max_depth, 1),
        ("--hosts", args.hosts, 1),
    ):
        if value is not None and value < least:
            raise InputError(f"{flag} is {value}; expected at least {least}")
    _check_combinations(args)
    # In formats of schedules -o may be the beginning of several names.
    outputs = () if is_of_schedules(args.format) else ("output",)
    check_outputs(args, *outputs, *beside, "plot", "csv")


def _settle_request(args: argparse.Namespace) -> None:
    """Set `collective` and `topology` from the arguments without an option, in either order."""
    words = [word for word in (args.first, args.second) if word is not None]
    for option, word in zip(("collective", "topology"), _sort_words(words, args), strict=True):
        given = getattr(args, option)
        if word is None:
            continue
        if given is not None and spell_collective(word) != spell_collective(given):
            raise InputError(f"{word} and --{option} {given}: expected one {option}; leave one out")
        setattr(args, option, word)
    request = find_request(args)
    if request is not None and not request.is_named and args.collective is None:
        args.collective = request.collective
    if args.size is None and request is None:
        args.size = DEFAULT_SIZE
    needed = ("topology",) if find_mode(args) else ("collective", "topology")
    missing = [option for option in needed if getattr(args, option) is None]
    if missing:
        lacking = f"no {' and no '.join(missing)} given"
        if "collective" not in needed:
            raise InputError(f"{lacking}; expected one, such as dgx1 or a file")
        raise InputError(
            f"{lacking}; expected both, as in: {shown_name(PROG)} "
            f"{args.collective or 'allreduce'} {args.topology or 'dgx1'}"
        )


def find_mode(args: argparse.Namespace) -> str | None:
    """Return the extra's option that is given and replaces planning, such as "joint"; or None."""
    return next((name for name in ADDED_MODES.list_all() if getattr(args, name)), None)


def find_job(args: argparse.Namespace) -> str | None:
    """Return the extra's option that is given and says what to do with the plan; or None."""
    return next((name for name in ADDED_JOBS.list_all() if getattr(args, name)), None)


def _sort_words(words: list[str], args: argparse.Namespace) -> tuple[str | None, str | None]:
    """Return which of at most two words is the collective and which the topology."""
    names = (*COLLECTIVES, *get_args(DemandName))
    known = [spell_collective(word) in names for word in words]
    near = [k or bool(suggest(word, names)) for k, word in zip(known, words, strict=True)]
    if len(words) == 2:
        is_reversed = not known[0] and (known[1] or (near[1] and not near[0]))
        return (words[1], words[0]) if is_reversed else (words[0], words[1])
    if not words:
        return None, None
    takes_any = args.collective is None and args.topology is not None
    takes_near = near[0] and args.collective is None
    return (words[0], None) if known[0] or takes_near or takes_any else (None, words[0])


def _check_combinations(args: argparse.Namespace) -> None:
    """Raise InputError for the first option that has no effect or contradicts another one."""
    trees = {
        "--epsilon": args.epsilon,
        "--max-trees": args.max_trees,
        "--max-depth": args.max_depth,
    }
    job_options = list_job_options()
    jobs = [
        *(option for options in job_options for option in options.list_given(args)),
        *_given({f"--{name}": getattr(args, name) for name in ADDED_JOBS.list_all()}),
    ]
    files = {
        **{f"--{name}": getattr(args, name) for name in PLAN_BESIDE.list_all()},
        "--plot": args.plot,
        "--csv": args.csv,
    }
    limits = [*_given(trees), *jobs]
    constraints = {f"--{name}": getattr(args, name) for name in ADDED_CONSTRAINTS.list_all()}
    others = {
        "--strategy": args.strategy != "auto",
        "--bound-only": args.bound_only,
        "--reproducible": args.reproducible,
        **constraints,
    }
    groups = {"--group": args.group, "--helpers": args.helpers}
    mode = find_mode(args)
    modes = {f"--{name}": getattr(args, name) for name in ADDED_MODES.list_all()}
    changes = {
        "--without-link": args.without_link,
        "--without-rank": args.without_rank,
        "--scale-link": args.scale_link,
    }
    rest = {
        "--group": args.group,
        "--root": args.root,
        **files,
    }
    request = find_request(args)
    # Each row: options that clash, the condition, and the reason; {} is the first of the options.
    for clashes, holds, why in (
        *_list_wrong_requests(args),
        (
            limits
            + _given(
                {
                    "--reproducible": args.reproducible,
                    **constraints,
                    **modes,
                    "--root": args.root is not None,
                    "--without-rank": args.without_rank,
                    "--format": args.format != PLAN,
                }
            ),
            request is not None,
            "{} with demands: their plans have no such option; leave it out",
        ),
        (
            limits + _given({**others, **changes, **rest, "--format": args.format != PLAN}),
            mode is not None,
            f"{{}} with --{mode}: its plans have no such option; leave it out",
        ),
        (
            [*jobs, *_given({"--bound-only": args.bound_only, **files})],
            is_of_schedules(args.format),
            f"{{}} with --format {args.format}: that is one schedule; leave one of them out",
        ),
        (
            limits + _given({**others, **files}),
            args.format != PLAN and not is_of_schedules(args.format),
            f"{{}} with --format {args.format}: it is for plans; leave one of them out",
        ),
        (
            [
                *_given(
                    {
                        "--format": args.format != PLAN,
                        "--bound-only": args.bound_only,
                        **groups,
                        **modes,
                    }
                ),
                *jobs,
            ],
            args.spare is not None,
            f"{{}} with --spare {args.spare}: spares are for plans of whole machines; leave one of "
            "them out",
        ),
        (
            ["--without-rank"],
            args.without_rank and args.group is not None,
            "--group with {}: ranks that are neither in --group nor in --helpers use no links; "
            "leave it out",
        ),
        (
            ["--helpers"],
            args.helpers is not None
            and args.group is None
            and mode is None
            and (request is None or request.is_named),
            "--helpers without --group: it has no effect then; name the ranks that take part",
        ),
        (
            _given(groups),
            args.format != PLAN,
            f"{{}} with --format {args.format}: that format is for whole machines; leave one of "
            "them out",
        ),
        *(
            (
                _given({option: value}),
                not takes(args.format, option),
                f"{{}} without --format {' or '.join(list_taking(option))}: it has no effect "
                "then; leave it out",
            )
            for option, value in (
                ("--hosts", args.hosts),
                ("--nccl-version", args.nccl_version),
                ("--no-guard", args.no_guard),
                ("--measured", args.measured),
            )
        ),
        (
            _given({"-o": args.output, **files}),
            args.bound_only,
            "{}: --bound-only produces neither a plan nor a schedule; leave one of them out",
        ),
        (
            limits,
            args.bound_only,
            "--bound-only with {}: the bound holds for every schedule; leave one of them out",
        ),
        (
            _given({"--bound-only": args.bound_only, **trees}),
            args.reproducible,
            "--reproducible with {}: only whole plans have one bracketing; leave one of them out",
        ),
        (
            _given(constraints),
            args.bound_only
            or bool(jobs)
            or args.reproducible
            or args.spare is not None
            or args.format != PLAN,
            "{} is for whole plans alone: leave out "
            f"{', '.join(['--bound-only', *jobs, '--reproducible', '--spare', '--format'])}, "
            "or this",
        ),
        (
            _given(trees),
            args.strategy not in _STRATEGIES_WITH_TREES,
            f"{{}} with --strategy {args.strategy}: only {', '.join(_STRATEGIES_WITH_TREES[1:])} "
            "make trees; leave it out, or name one of these",
        ),
    ):
        if clashes and holds:
            raise InputError(why.format(clashes[0]))
    for options in job_options:
        options.check(args)


def _list_wrong_requests(args: argparse.Namespace) -> Iterator[tuple[list[str], bool, str]]:
    """Yield rows as `_check_combinations` has them, on files of what to plan for."""
    name = spell_collective(args.collective or "")
    for option in ADDED_REQUESTS.describe():
        request: FileRequest = ADDED_REQUESTS.find(option)
        is_given = getattr(args, option) is not None
        yield (
            [f"--{option}"],
            (name == request.collective) != is_given,
            f"{{0}} is for {request.collective}, which needs it: expected {request.collective} "
            "TOPOLOGY {0} FILE"
            if request.is_named
            else "{0} stands in place of a collective: expected TOPOLOGY {0} FILE",
        )
        yield (
            ["--group"],
            is_given and not request.is_named and args.group is not None,
            f"{{}} with --{option}: the file names the ranks; leave it out",
        )


def _given(values: Mapping[str, object]) -> list[str]:
    """Return the options that have a value."""
    return [flag for flag, value in values.items() if value not in (None, False, [])]


def parse_limits(args: argparse.Namespace) -> TreeLimits:
    """Return the limits on a forest of trees that --epsilon, --max-trees and --max-depth set.

    Raise InputError if --epsilon is not a share from 0 to below 1.
    """
    from ...synth.request import TreeLimits
    from ...topo.exact import parse_fraction

    epsilon = None
    if args.epsilon is not None:
        try:
            epsilon = parse_fraction(args.epsilon)
        except ValueError:
            raise InputError(
                f"--epsilon {args.epsilon}: expected a share of the bound, such as 0.05"
            ) from None
        if not 0 <= epsilon < 1:
            raise InputError(f"--epsilon {args.epsilon}: expected at least 0 and less than 1")
    return TreeLimits(epsilon, args.max_trees, args.max_depth)


def list_promises(args: argparse.Namespace) -> tuple[Promise, ...]:
    """Return the promises that options of extras ask for: what all schedules of a plan keep.

    Raise InputError if the value of an option is wrong, or if its extra is not installed.
    """
    asked = {name: getattr(args, name) for name in ADDED_CONSTRAINTS.list_all()}
    return tuple(ADDED_CONSTRAINTS.find(name)(value) for name, value in asked.items() if value)
