"""topoplan hops PLAN: over how many links the bytes of a plan's schedules go."""

from topoplan import Plan
from topoplan.cli.shared.common import Parser, run_command

PROG = "topoplan hops"
EXAMPLES = (("topoplan hops plan.json", "how far bytes go, for each range of sizes"),)
ABOUT = "Counts the links between each two ranks, as many times as there are bytes on them."


def build_parser() -> Parser:
    """Return the parser of its arguments."""
    parser = Parser(PROG, EXAMPLES, ABOUT, "PLAN")
    parser.add_argument("plan", metavar="PLAN", help="a file of topo-synth -o")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Print a line for each range of sizes, and return the exit code."""
    return run_command(PROG, lambda: _print(Plan.load(build_parser().parse_args(argv).plan)))


def _print(plan: Plan) -> int:
    for entry in plan.entries:
        schedule = entry.schedule
        links = [(len(x.route) + 1, schedule.chunks[x.chunk].share) for x in schedule.transfers]
        mean = float(sum(hops * share for hops, share in links) / sum(share for _, share in links))
        farthest = max(hops for hops, _ in links)
        print(
            f"from {entry.min_bytes} bytes: {schedule.label}: {mean:.3g} links, at most {farthest}"
        )
    return 0
