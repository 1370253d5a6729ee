"""The options of exact synthesis, and errors for those that contradict it or have no effect.

An instance asks for a schedule with given numbers C of chunks, S of steps and R of rounds; --pareto
searches for the instances that no other beats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....topo.errors import InputError
from ...shared.common import mention
from ...synthesis.added import ADDED_JOBS, JobOptions

if TYPE_CHECKING:
    import argparse

_JOBS = ("pareto", "instance")


def parse_instance(text: str) -> tuple[int, int, int]:
    """Return chunks, steps and rounds of "C,S,R", the value of --instance.

    Raise InputError unless there are a chunk and a step at least, and no fewer rounds than steps.
    """
    try:
        chunks, steps, rounds = (int(x) for x in text.split(","))
    except ValueError:
        raise InputError(
            f"--instance {text}: expected three whole numbers, chunks,steps,rounds, such as 6,3,7"
        ) from None
    if chunks < 1 or steps < 1 or rounds < steps:
        raise InputError(
            f"--instance {text}: expected chunks and steps of at least 1, and no fewer rounds "
            "than steps"
        )
    return chunks, steps, rounds


def _add(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--max-steps",
        type=int,
        metavar="S",
        help="with --pareto: at most this many steps",
    )
    add(
        "-k",
        "--slack",
        dest="slack",
        type=int,
        metavar="K",
        help="with --pareto: only k-synchronous rows, R <= S + K",
    )
    mention(group, "--csv", "with --pareto: the front's rows")
    mention(group, "--plot", "with --pareto: the front")


def _list_given(args: argparse.Namespace) -> list[str]:
    """Return which limits on the front are given."""
    given = {"--max-steps": args.max_steps, "-k": args.slack}
    return [option for option, value in given.items() if value is not None]


def _check(args: argparse.Namespace) -> None:
    for option, value, least in (("--max-steps", args.max_steps, 1), ("-k", args.slack, 0)):
        if value is not None and value < least:
            raise InputError(f"{option} is {value}; expected at least {least}")
    limits = _list_given(args)
    if limits and not args.pareto:
        raise InputError(
            f"{limits[0]} without --pareto: it limits the search for the front; leave it out"
        )
    if args.pareto and args.instance:
        raise InputError(
            "--instance with --pareto: the one decides single rows, the other searches; leave one "
            "of them out"
        )
    if args.pareto or args.instance:
        _check_request(args, "--pareto" if args.pareto else "--instance")


def _check_request(args: argparse.Namespace, exact: str) -> None:
    """Raise InputError for the first option that does not go with exact synthesis."""
    if args.group is not None:
        raise InputError(
            f"--group with {exact}: exact synthesis is for whole machines; leave one of them out"
        )
    if args.reproducible:
        raise InputError(
            f"--reproducible with {exact}: only whole plans have one bracketing; leave one of them "
            "out"
        )
    others = {
        "--epsilon": args.epsilon,
        "--max-trees": args.max_trees,
        "--max-depth": args.max_depth,
        **{f"--{name}": getattr(args, name) for name in ADDED_JOBS.list_all() if name not in _JOBS},
    }
    for option, value in others.items():
        if value not in (None, False):
            raise InputError(
                f"{option} with {exact}: exact synthesis has neither trees nor this explanation; "
                "leave one of them out"
            )
    if args.strategy not in ("auto", "exact"):
        raise InputError(
            f"{exact} is exact synthesis; it does not go with --strategy {args.strategy}"
        )


OPTIONS = JobOptions(
    {"instance": {"action": "append", "metavar": "C,S,R"}}, _add, _list_given, _check
)
