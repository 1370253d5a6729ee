"""What readers of extras refuse as those of the core do (tests/topo/test_input_limits.py)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from topoplan.synth.extras.judge.readers.detect import read_file as read_log
from topoplan.synth.extras.judge.readers.json_results import read_json
from topoplan.synth.extras.msccl.read import read_algorithm
from topoplan.synth.extras.nccl_files.nccl_tuner import read_measured
from topoplan.synth.ir.collective import Collective
from topoplan.topo.errors import InputError

READERS: dict[str, Callable[[str], object]] = {
    "msccl.xml": lambda path: read_algorithm(path, Collective("allreduce", 2)),
    "log": read_log,
    "times.json": lambda path: read_measured(f"Ring/LL/1={path}", Collective("allreduce", 2)),
}


@pytest.mark.parametrize("name", READERS)
def test_a_named_pipe_is_refused_at_once(name: str, tmp_path: Path) -> None:
    """Opening it would wait for a writer."""
    pipe = tmp_path / name
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="pipe"):
        READERS[name](str(pipe))


def test_deep_json_of_measurements_is_one_line() -> None:
    deep = "[" * 65 + "]" * 65
    with pytest.raises(InputError, match=r"deep.json: .*nested deeper than 64"):
        read_json(f'{{"items": {deep}}}', "deep.json")
