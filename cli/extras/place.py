"""topo-place: choose the GPU of each rank so that a job's communication takes the least time."""

import argparse
import json
import sys
from dataclasses import replace

from ...topo.printable import printable_lines
from ..shared.common import Example, Parser, print_error, read_number, run_command
from ..shared.formats import choose_format
from ..shared.outputs import OUTPUT, add_force, check_outputs, write_output
from ..shared.selections import add_selections, select

PROG = "topo-place"
EXAMPLES: tuple[Example, ...] = (
    ("topo-place dgx1 --for stock", "the order in which gloo's ring is fastest"),
    (
        "topo-place dgx-a100:4 --job dp=4,tp=8 --traffic dp=allreduce:1G,tp=96x64M",
        "a mesh of dimensions, with what their groups send in a step: 96 calls of 64 MiB",
    ),
    (
        "topo-place two-hosts.json --traffic bytes.csv",
        "the bytes that each rank sends to each other one, as a matrix (.csv or .npy)",
    ),
    ("topo-place two-hosts.json --order 0,2,1,3", "the gain against the order that there is"),
    (
        "topo-place dgx-a100:2 --without-rank 3 --reserve 8 -o order.json",
        "GPUs that failed or stay free",
    ),
    (
        "topo-place topology.conf --box dgx-h100 --format slurm -o order.hosts",
        "hosts where Slurm's file says, each a DGX H100; the order as a SLURM_HOSTFILE",
    ),
    (
        "topo-place topology.conf --box dgx-h100 --nodes 'node[0,2]'",
        'the hosts of a job alone, as --nodes "$SLURM_JOB_NODELIST" names them',
    ),
)
ABOUT = """\
Prints which GPU each rank gets, how long the job's communication takes in that order and in the
given one, and what no order can beat. Traffic is DIMENSION=[CALLSx][COLLECTIVE:]BYTES; collectives
are allreduce, allgather, reduce-scatter, alltoall, and sendrecv (a pipeline's: to the next rank and
to the one before). A dimension that is named dp, fsdp, tp, cp, ep or pp has a default collective
and number of calls, which the output mentions; --traffic tp=1x64M states one call. Ranks count as
in a DeviceMesh: the last dimension changes fastest.
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command with `argv` (default: sys.argv) and return its exit code.

    The code is 0 if done, 2 for bad input, 3 if no order can exist, 130 if interrupted.
    """
    return run_command(PROG, lambda: _place(build_parser().parse_args(argv)))


def build_parser() -> Parser:
    """Return the parser of topo-place's command line."""
    parser = Parser(
        PROG,
        EXAMPLES,
        ABOUT,
        "TOPOLOGY [--job MESH] [--traffic LIST] [--for F] [--format F] [-o FILE] ...",
    )
    add = parser.add_argument
    add(
        "topology",
        metavar="TOPOLOGY",
        help="a file, a preset such as dgx-a100:2, or local, as topo-probe takes it",
    )
    add(
        "--box",
        metavar="BOX",
        help="what each host is, where TOPOLOGY only says where hosts are (Slurm's "
        "topology.conf or topology.yaml, topograph's JSON, kubectl get nodes -o json, "
        "lines of host rack spine): a preset such as dgx-h100, or a file",
    )
    add_selections(parser)
    add(
        "--network",
        metavar="GBps",
        help="rate of each network link that no file gives, in place of assumed ones",
    )
    add(
        "--job",
        metavar="MESH",
        help="the dimensions with their sizes: dp=4,tp=2,pp=2 (default: all ranks are one group)",
    )
    add(
        "--traffic",
        metavar="LIST|FILE",
        help="what a group of each dimension does in a step: dp=allreduce:1G,tp=96x64M (default, "
        "for one group: an allreduce of 1 GiB); or a file with a matrix of bytes from rank to "
        "rank (.csv, .npy)",
    )
    add(
        "--for",
        dest="target",
        choices=("ring", "stock", "plan"),
        default="ring",
        help="rings in the order of ranks (NCCL's between hosts), gloo's own algorithms, or "
        "topoplan's plans, to which the order inside a group is all the same (default: "
        "ring)",
    )
    add(
        "--objective",
        choices=("time", "bottleneck"),
        default="time",
        help="the time of a step's traffics one after the other, or that of the link which is "
        "busy longest (default: time)",
    )
    add(
        "--order",
        type=_numbers,
        metavar="LIST",
        help="the present order: the GPU's number of each rank (default: 0,1,2,...)",
    )
    add(
        "--without-rank",
        type=_numbers,
        metavar="LIST",
        action="extend",
        default=[],
        help="GPUs, by number, that failed",
    )
    add(
        "--reserve",
        type=_numbers,
        metavar="LIST",
        action="extend",
        default=[],
        help="GPUs, by number, that stay free",
    )
    add(
        "--together",
        type=lambda text: [part.strip() for part in text.split(",")],
        metavar="LIST",
        action="extend",
        default=[],
        help="dimensions whose groups must share a host each: tp",
    )
    add(
        "--time-limit",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="stop the search after so many seconds (default: 60)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="one JSON object on standard output (docs/place.md)"
    )
    form.add_argument(
        "--format",
        metavar="F",
        choices=(
            "hostfile",
            "rankfile",
            "slurm",
            "torchrun",
            "cuda-visible-devices",
            "device-mesh",
            "json",
        ),
        help="the order as a launcher or script takes it: hostfile or rankfile (Open MPI), "
        "slurm (a SLURM_HOSTFILE), torchrun (a line a host), cuda-visible-devices (each "
        "host's GPUs), device-mesh (its tensor), json (as --json, with each rank's host "
        "and GPU there)",
    )
    add(
        "-o",
        "--output",
        **OUTPUT,
        help="write to FILE, whole or not at all, instead of printing; as JSON if it ends in .json",
    )
    add_force(parser)
    return parser


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of GPUs; expected numbers such as 0,3,2"
        ) from None


def _seconds(text: str) -> float:
    return read_number(text, 1e6, "a time; expected seconds above 0")


def _place(arguments: argparse.Namespace) -> int:
    given = "json" if arguments.json else arguments.format
    form = choose_format(arguments, {".json": "json"}, "text", given)
    check_outputs(arguments, "output")
    from ...synth.extras.place.placing import place
    from ...topo.derived.stated import NETWORK, parse_rate, state_rates
    from ...topo.loader.resolve import resolve

    machine = select(resolve(arguments.topology, arguments.box), arguments)
    if arguments.network is not None:
        machine = state_rates([machine], {NETWORK: parse_rate(arguments.network)})[0]
    placement = place(
        machine,
        arguments.job,
        arguments.traffic,
        target=arguments.target,
        objective=arguments.objective,
        order=arguments.order,
        without_ranks=arguments.without_rank,
        reserve=arguments.reserve,
        together=arguments.together,
        time_limit_s=arguments.time_limit,
    )
    # Assumed rates of the network affect the answer.
    assumed = (str(note) for note in machine.notes if note.kind == "network-rate-assumed")
    placement = replace(placement, notes=(*placement.notes, *assumed))
    if form != "text" and not arguments.json:
        from ...synth.extras.place.orders import list_hints, write_order

        named = form, machine, placement, arguments.output or "FILE"
        text = write_order(*named)
        for hint in list_hints(*named):
            print_error(f"{PROG}: {hint}")
    elif arguments.json:
        text = json.dumps(placement.to_json()) + "\n"
    else:
        text = printable_lines(placement.describe())
    if form != "text":
        for warning in placement.list_warnings():
            print_error(f"{PROG}: warning: {warning}")
    write_output(arguments, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
