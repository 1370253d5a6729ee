"""A command that measures the ranks that it is started as, and prints the topology.

measure_command.py BUDGET_S [DECLARED] [--dying RANK]
"""

from __future__ import annotations

import argparse
import os

import patience

from topoplan.cli.shared.common import run_command
from topoplan.runtime.extras.measuring.measure_links import measure_topology
from topoplan.runtime.extras.measuring.rates import Endpoint
from topoplan.topo.graph import Topology


def main(arguments: list[str] | None = None) -> int:
    """Measure; the rank that dies does so when it is about to receive."""
    parser = argparse.ArgumentParser()
    parser.add_argument("budget_s", type=float)
    parser.add_argument("declared", nargs="?")
    parser.add_argument("--dying")
    options = parser.parse_args(arguments)
    if options.dying == os.environ.get("RANK", "none"):
        Endpoint.answer_measurement = lambda *_: os._exit(9)  # type: ignore[method-assign]

    def measure() -> int:
        declared = None if options.declared is None else Topology.load(options.declared)
        print(measure_topology(declared, patience.seconds(40), options.budget_s).dumps())
        return 0

    return run_command("measure", measure)


if __name__ == "__main__":
    raise SystemExit(main())
