"""topo-emulate: run a command once per rank, on a machine emulated with network namespaces."""

from __future__ import annotations

import argparse
import shlex
import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ...topo.errors import InputError
from ..shared.common import Example, Parser, list_examples, run_command
from ..shared.progress import ProgressReporter

if TYPE_CHECKING:
    from ...runtime.extras.emulate.network import Network

PROG = "topo-emulate"
# Options that are followed by a value.
_WITH_VALUES = ("--slowest", "--order", "--inject", "--collapse")
EXAMPLES: tuple[Example, ...] = (
    (
        "topo-synth allreduce two-hosts.json -o plan.json",
        "a plan to try",
    ),
    (
        "topo-emulate two-hosts.json -- topo-run plan.json -b 1M -e 32M -f 8",
        "on its machine, with all links slowed down alike until this host can emulate them",
    ),
    (
        "topo-emulate two-hosts.json --slowest 100Mbit -- topo-run --stock -b 8M -e 8M",
        "the stock allreduce, at a rate of your choice",
    ),
    (
        "topo-emulate two-hosts.json --order 0,2,1,3 -- topo-run --stock -b 8M -e 8M",
        "the same, with ranks that alternate between the hosts",
    ),
    (
        "topo-emulate two-hosts.json -- topo-run plan.json --calibrate -o costs.json",
        "host costs on emulated links",
    ),
    (
        "topo-emulate two-hosts.json -- python train_ddp.py --plan plan.json",
        "any program that torchrun could start: here examples/train_ddp.py",
    ),
    (
        "topo-emulate two-hosts.json --mpi -- python mpi_allreduce.py 8M",
        "any program that mpirun could start: here examples/mpi_allreduce.py",
    ),
    (
        "topo-emulate two-hosts.json --inject 'kill rank 2 at 3s' -- topo-run plan.json",
        "rehearse a fault; with topo-run --on-fault replan calls go on after a cut link, and with "
        "--on-slow replan the plan follows a slow one",
    ),
    (
        "topo-emulate two-hosts.json --collapse switch-a=0.05 -- topo-run plan.json",
        "a switch through which two flows at once are slower than one after the other",
    ),
    *list_examples(PROG),
)
ABOUT = """\
Every device becomes a network namespace and every link a rate-limited virtual cable. Each pair of
ranks uses the same route as on the machine. The command is started once per rank, with RANK,
WORLD_SIZE, MASTER_ADDR and GLOO_SOCKET_IFNAME set as by torchrun; with --mpi, Open MPI starts it,
rank i as MPI's rank i. With --inject, links fail and ranks are killed meanwhile; a rank killed so
does not end the others. With --cables, each GPU (or all that the field host of the file puts
together) is a host of its own, which reaches only what its cables lead to, and the variables are
those of torchrun alone, or of mpirun with --mpi. Everything is removed at the end, even after an
error. Needs Linux, root, iproute2 and util-linux, and Open MPI with --mpi. The exit code is the
command's.
"""


def main(argv: list[str] | None = None) -> int:
    """Start the command after -- once per rank, and return 0 or the first failed rank's exit code.

    The code is 130 if interrupted, or that of an error of topo-emulate itself (see topo/errors.py).
    """
    arguments = [*(sys.argv[1:] if argv is None else argv), "--"]
    at = arguments.index("--")
    command = arguments[at + 1 : -1]
    parser = build_parser()
    if not command:
        _check_separator(parser, arguments[:at])
    args = parser.parse_args(arguments[:at])
    if not command:
        parser.error(f"no command given; put it after --: {PROG} dgx1 -- topo-run plan.json")
    return run_command(PROG, lambda: _run(args, command))


def _check_separator(parser: Parser, arguments: list[str]) -> None:
    """Exit with the right command line if a command follows the topology without --."""
    values = {i + 1 for i, word in enumerate(arguments) if word in _WITH_VALUES}
    words = [i for i, word in enumerate(arguments) if word[:1] != "-" and i not in values]
    if len(words) > 1:
        at = words[1]
        right = shlex.join([*arguments[:at], "--", *arguments[at:]])
        parser.error(f"put -- before the command: {parser.prog} {right}")


def build_parser() -> Parser:
    """Return the parser of topo-emulate's own arguments; the command after -- is not parsed."""
    parser = Parser(
        PROG,
        EXAMPLES,
        ABOUT,
        "TOPOLOGY [--slowest RATE] [--order LIST] [--mpi] [--cables] [--inject FAULTS] "
        "[--collapse DEVICE=F] -- COMMAND ...",
    )
    add = parser.add_argument
    add("topology", metavar="TOPOLOGY", help="a preset, a file, or local (see topo-probe)")
    add(
        "--slowest",
        metavar="RATE",
        help="scale all links so that the slowest has this rate (default: the fastest that this "
        "host can emulate)",
    )
    add(
        "--order",
        metavar="LIST",
        help="put rank i on the i-th GPU listed: 0,3,2,1 (default: the topology's order)",
    )
    add(
        "--cables",
        action="store_true",
        help="hosts that cables join instead of routes between all GPUs: a subnet for each cable, "
        "no forwarding, and a management network that carries the rendezvous only",
    )
    add(
        "--mpi",
        action="store_true",
        help="start the ranks with Open MPI's mpirun, over the emulated links alone; OMPI_MCA_... "
        "variables are passed to Open MPI. With --cables, the management network joins the hosts, "
        "as mpirun needs it",
    )
    add(
        "--inject",
        metavar="FAULTS",
        help="faults to cause, counted from when all ranks are ready for calls: 'cut gpu0-gpu3 at "
        "2s, mend gpu0-gpu3 at 4s, slow gpu1-gpu2 x0.25 at 5s, kill rank 2 at 8s', or by an "
        "optimizer's steps or topo-run's timed iterations: 'cut gpu0-gpu3 after step 20'; a "
        "device stands for all its links: 'slow nic0 x0.5 at 2s'",
    )
    add(
        "--collapse",
        action="append",
        default=[],
        metavar="DEVICE=F",
        help="a switch or root that collapses: while data of two or more flows runs through it, "
        "its links have F times their rates, such as plx0=0.05; may be repeated",
    )
    return parser


def _run(args: argparse.Namespace, command: list[str]) -> int:
    from ...runtime.extras.emulate.blueprint import (
        blueprint,
        load_machine,
        parse_order,
        parse_rate,
        put_in_order,
    )
    from ...runtime.extras.emulate.cabled_network import emulate_cabling
    from ...runtime.extras.emulate.cabling import plan_cabling
    from ...runtime.extras.emulate.collapse import collapsing, parse_collapses
    from ...runtime.extras.emulate.mpi import find_open_mpi, run_mpi_ranks
    from ...runtime.extras.emulate.network import emulate_blueprint
    from ...runtime.extras.emulate.ranks import run_ranks
    from ...runtime.extras.emulate.rehearsal import Rehearsal, parse_faults
    from ...runtime.ranks.launch import end_on_signals

    topology = load_machine(args.topology)
    rate = None if args.slowest is None else parse_rate(args.slowest)
    listed = None if args.order is None else parse_order(args.order, len(topology.ranks))
    if not topology.links:
        raise InputError(f"topology {topology.name!r} has no links; there is nothing to emulate")
    mpi, progress = find_open_mpi() if args.mpi else None, ProgressReporter(PROG, args)
    emulated: AbstractContextManager[Network]
    if args.cables:
        cabling = plan_cabling(put_in_order(topology, listed), rate)
        built = cabling.as_blueprint()
        emulated = emulate_cabling(cabling, opens_management=args.mpi)
    else:
        built = blueprint(topology, rate, listed)
        emulated = emulate_blueprint(built)
    collapses = parse_collapses(args.collapse, built)
    rehearsal = None
    if args.inject is not None:
        faults = parse_faults(args.inject, built)
        rehearsal = Rehearsal(faults, lambda text: progress.tell(f"{PROG}: {text}"))
    with end_on_signals(), emulated as network:
        rates = [rate for c in built.cables for rate in (c.rate_ab, c.rate_ba) if rate is not None]
        hosts = len(set(built.home))
        progress.tell(
            f"{PROG}: {built.topology.name}: {len(built.home)} ranks, "
            f"{f'{hosts} hosts, ' if args.cables else ''}"
            f"{len(built.devices) - hosts} other devices, {len(built.cables)} "
            f"{'cables' if args.cables else 'links'} "
            f"of {min(rates) / 1e6:.4g} to {max(rates) / 1e6:.4g} Mbit/s"
        )
        with collapsing(network, collapses, lambda text: progress.tell(f"{PROG}: {text}")):
            if mpi is None:
                return run_ranks(network, command, rehearsal)
            return run_mpi_ranks(network, mpi, command, rehearsal)


if __name__ == "__main__":
    sys.exit(main())
