"""Prints what NVML says, as JSON: run in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence

from topoplan.topo.facts import facts_to_json
from topoplan.topo.probe.nvml.questions import read_nvml


def main(_: Sequence[str]) -> int:
    """Print the facts."""
    print(json.dumps(facts_to_json(read_nvml())))
    return 0
