"""Scripts that end while calls are in progress: with their own exit code and error, as by gloo."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launch import patient_ranks, run_command
from needs import long_cases
from ranks import exits

ENDS = {
    "gloo": ["raise", "exit", "drop"],  # which waits for a rank that makes no call
    "topo": ["raise", "alone", "exit", "drop"],
    "search": ["raise", "alone", "exit", "drop"],
    "file": ["raise", "alone", "exit", "drop"],
    "hook": ["raise", "alone", "exit"],
    "stuck": ["alone"],
}


@pytest.mark.parametrize("way", long_cases(ENDS, "gloo", "file", "stuck", "hook"))
def test_the_exit_code_and_the_error_are_the_scripts_own(
    way: str, plans: Callable[[str], str], tmp_path: Path
) -> None:
    script = run_command(
        sys.executable, exits.__file__, way, plans("ring:2"), str(tmp_path), *ENDS[way],
        env={**patient_ranks(), "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    ranks = json.loads(script.stdout)
    assert list(ranks) == ENDS[way]
    for end, ended in ranks.items():
        assert [code for code, _ in ended] == [exits.CODES[end]] * exits.WORLD, ranks
        for rank, (_, printed) in enumerate(ended):
            assert "terminate" not in printed and "plan:" not in printed, printed
            assert "estimate" not in printed, printed
            raises = end == "raise" or (end, rank) == ("alone", 0)
            assert ("OwnError" in printed) == raises, printed
            # Dropped calls ended on all ranks, or on none.
            if end == "drop" and way != "gloo":
                assert "sum 8192" in printed, printed
