"""topoplan hops PLAN: over how many links the bytes of a plan's schedules go."""

from topoplan import Plan
from topoplan.cli.shared.common import Parser, run_command

PROG = "topoplan hops"
EXAMPLES = (("topoplan hops plan.json", "how far bytes go, for each range of sizes"),)


def build_parser() -> Parser:
    """Return the parser of its arguments."""
    parser = Parser(PROG, EXAMPLES, "Counts links, weighed by bytes.", "PLAN")
    parser.add_argument("plan", metavar="PLAN", help="a file of topo-synth -o")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Print a line for each range of sizes, and return the exit code."""
    return run_command(PROG, lambda: _print(Plan.load(build_parser().parse_args(argv).plan)))


def _print(plan: Plan) -> int:
    for entry in plan.entries:
        label, chunks = entry.schedule.label, entry.schedule.chunks
        sent = [(len(x.route) + 1, chunks[x.chunk].share) for x in entry.schedule.transfers]
        mean = float(sum(links * share for links, share in sent) / sum(share for _, share in sent))
        print(f"from {entry.min_bytes} bytes: {label}: {mean:.3g} links, at most {max(sent)[0]}")
    return 0
