"""Files of demands, and matrices of traffic: what is read, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from topoplan.synth.extras.demands.reading import from_matrix, read_demands
from topoplan.synth.ir.demands import Demand, Demands
from topoplan.topo.errors import InputError

SHOWN = {
    "format": "topoplan-demands",
    "version": 1,
    "ranks": 4,
    "pieces": [{"size": 12, "have": [0, 1], "need": [2, 3]}, {"size": 5, "have": [1], "need": [0]}],
}


def write(folder: Path, **changes: object) -> Path:
    path = folder / "demands.json"
    path.write_text(json.dumps({**SHOWN, **changes}))
    return path


def test_a_file_of_demands_is_read(tmp_path: Path) -> None:
    demands, helpers = read_demands(write(tmp_path, helpers=[3]), 4)
    assert demands == Demands.of([Demand(12, (0, 1), (2, 3)), Demand(5, (1,), (0,))], 4)
    assert helpers == [3]
    assert (demands.name, demands.size, demands.has_all_gpus) == ("reshard", 17, True)
    assert read_demands(write(tmp_path), 4)[1] == "rest"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pieces": [{"size": -1, "have": [0], "need": [1]}]}, "piece 0 has size -1; expected a"),
        ({"pieces": [{"size": 1, "have": [], "need": [1]}]}, "piece 0: no rank has it; expected"),
        ({"pieces": [{"size": 1, "have": [0], "need": []}]}, "piece 0: no rank needs it; expect"),
        ({"pieces": [{"size": 1, "have": [0], "need": [4]}]}, "rank 4 needs it; ranks are 0 to 3"),
        ({"pieces": [{"size": 1, "have": [-1], "need": [2]}]}, "rank -1 has it; ranks are 0 to 3"),
        ({"pieces": [{"size": 1, "have": [0, 0], "need": [2]}]}, "ranks 0, 0, of which each has"),
        ({"pieces": [{"size": 1, "have": [2], "need": [2]}]}, "nothing is to move"),
        ({"pieces": [{"size": 1 << 53, "have": [0], "need": [2]}]}, "bytes in all"),
        ({"pieces": []}, "nothing is to move"),
        ({"ranks": 5}, "for 5 ranks; the topology has 4 GPUs"),
        ({"peices": []}, "unknown field 'peices' (did you mean 'pieces'?)"),
    ],
)
def test_each_mistake_is_one_line(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_demands(write(tmp_path, **changes), 4)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}")
    assert "\n" not in str(caught.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for text in ("", "[", "{}", '{"format": "topoplan-plan"}'):
        path = tmp_path / "other.json"
        path.write_text(text)
        with pytest.raises(InputError):
            read_demands(path, 4)
    with pytest.raises(InputError, match="No such file"):
        read_demands(tmp_path / "missing.json", 4)


def test_a_matrix_is_an_alltoallv() -> None:
    demands = from_matrix(np.array([[9, 3, 0], [2, 9, 5], [0, 0, 9]]), 3)
    assert [(p.size, p.holders, p.receivers) for p in demands.pieces] == [
        (3, (0,), (1,)),
        (2, (1,), (0,)),
        (5, (1,), (2,)),
    ]
    assert str(demands) == "alltoallv over 3 ranks"
    part = from_matrix(np.array([[0, 1], [0, 0]]), 5, (1, 3))
    assert list(part.members) == [1, 3]
    assert part.among((1, 2, 3)).pieces == (Demand(1, (0,), (2,)),)
    for wrong in ([[0, -1], [0, 0]], [[0, 0], [0, 0]], [[0, 1]], [[0, 0.5], [0, 0]]):
        with pytest.raises(InputError):
            from_matrix(np.array(wrong), 2)


@pytest.mark.parametrize("name", ["traffic.csv", "traffic.npy", "demands.json"])
def test_a_named_pipe_is_refused_at_once(name: str, tmp_path: Path) -> None:
    """Opening it would wait for a writer."""
    pipe = tmp_path / name
    os.mkfifo(pipe)
    read = read_demands if pipe.suffix == ".json" else from_matrix
    with pytest.raises(InputError, match=f"{name}.*: a named pipe, not a file .*copy its content"):
        read(str(pipe), 2)
