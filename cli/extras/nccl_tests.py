"""Options of nccl-tests on topo-run's command line: understood, or answered in one line.

The module is a Dialect (cli/running/added.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...topo.errors import InputError
from ..running.added import name_mode

if TYPE_CHECKING:
    import argparse

    from ..shared.common import Parser

# nccl-tests' long names of options that topo-run has.
_SPELLINGS = {
    "--minbytes": "-b",
    "--maxbytes": "-e",
    "--stepfactor": "-f",
    "--iters": "-n",
    "--warmup_iters": "-w",
    "--datatype": "-d",
    "--ngpus": "-g",
    "--nthreads": "-t",
    "--check": "-c",
}
# What to do instead of options that topo-run lacks.
_ANSWERS = {
    ("-i", "--stepbytes"): "sizes grow by a factor here; write -f FACTOR",
    ("-m", "--agg_iters"): "every iteration is timed by itself here; leave it out",
    ("-z", "--blocking"): "every call is waited for here; leave it out",
    ("-a", "--average"): "times here are medians, each of the slowest rank; leave it out",
    ("-r", "--root"): "the root is the plan's; write topo-synth --root R",
    ("-T",): "write --timeout SECONDS",
    ("-N", "--run_cycles"): "all iterations are in one run here; write -n ITERS",
    ("-G", "--cudagraph"): "calls are not captured in graphs here; leave it out",
    ("-C", "--report_cputime"): "only times of whole calls are reported here; leave it out",
    ("-R", "--local_register"): "buffers are not registered here; leave it out",
    ("-y", "--stream_null"): "torch chooses the stream here; leave it out",
    ("-J", "--output_file"): "write --json or --csv FILE",
}


def add_options(parser: Parser) -> None:
    """Add nccl-tests' own options to topo-run's parser, and answers to those that it lacks."""
    parser.spellings = _SPELLINGS
    parser.answers = {name: answer for names, answer in _ANSWERS.items() for name in names}
    add = parser.add_argument_group("as in nccl-tests").add_argument
    add("-g", dest="gpus", type=int, metavar="N", help="ranks to start, as --nproc")
    add(
        "-t",
        dest="threads",
        type=int,
        metavar="N",
        help="threads with -g GPUs each: every one of these GPUs is a rank",
    )
    add(
        "-c",
        dest="check",
        type=int,
        metavar="N",
        help="results are always checked, outside of the times; 0 and 1 change nothing",
    )


def read_ranks(args: argparse.Namespace) -> tuple[int, str] | None:
    """Return the number of ranks that -g and -t request, and what they are called; None without.

    Raise InputError if --nproc contradicts them, or -c or -o is meant as nccl-tests means it but
    cannot be.
    """
    if args.check not in (None, 0, 1):
        raise InputError(f"-c {args.check}: results are checked once here; write -c 1 or nothing")
    _check_reduction(args)
    given = {f: v for f, v in (("-t", args.threads), ("-g", args.gpus)) if v is not None}
    for flag, value in given.items():
        if value < 1:
            raise InputError(f"{flag} {value}: expected at least 1")
    if not given:
        return None
    ranks = (args.threads or 1) * (args.gpus or 1)
    if args.nproc not in (None, ranks):
        asked = " ".join(f"{flag} {value}" for flag, value in given.items())
        raise InputError(
            f"{asked} and --nproc {args.nproc}: {ranks} and {args.nproc} ranks; leave one out"
        )
    return ranks, "-g and -t"


def list_remarks(args: argparse.Namespace) -> list[str]:
    """Return a remark on options that change nothing."""
    return ["-c 0: results are checked, outside of the times"] if args.check == 0 else []


def _check_reduction(args: argparse.Namespace) -> None:
    """Raise InputError if -o, which names a file here, has a reduction, as in nccl-tests."""
    from ...runtime.measuring.bench_options import OP_NAMES

    if args.output in OP_NAMES and name_mode(args) is None:
        raise InputError(f"-o {args.output}: -o names a file here; write --op {args.output}")
