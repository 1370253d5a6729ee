"""Other people's trainers: what can be said of the scripts, and of what runs them, without the
frameworks.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from launch import run_command, run_ranks
from ranks import trainers

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "scripts" / "trainers.py"
SCRIPTS = sorted((ROOT / "examples" / "trainers").glob("train_*.py"))


@pytest.fixture(scope="module")
def driver() -> Any:
    spec = importlib.util.spec_from_file_location("trainers_driver", DRIVER)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_frameworks_that_are_not_installed_are_left_out() -> None:
    ended = run_command(
        sys.executable,
        "-I",
        "-S",
        str(DRIVER),
        "lightning",
        "accelerate",
        "transformers",
        "deepspeed",
        "ray",
        "pytorch-ignite",
    )
    assert ended.returncode == 0, ended.stderr
    rows = ended.stdout.splitlines()[1:]
    assert len(rows) == 10 and all(row.endswith("not installed: left out") for row in rows), (
        ended.stdout
    )
    ended = run_command(sys.executable, "-I", "-S", str(DRIVER), "horovod")
    assert ended.returncode == 2 and "horovod: expected some of lightning, " in ended.stderr


def test_every_trainer_is_a_script_and_every_script_is_run(driver: Any) -> None:
    assert {trainer.script for trainer in driver.TRAINERS} == {script.name for script in SCRIPTS}
    named = list(
        driver._read_requirements(
            ["lightning", "accelerate", "transformers", "deepspeed", "ray", "pytorch-ignite"]
        )
    )
    assert len(named) == 6


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_trainer_changes_two_lines_at_most_and_the_document_has_them(
    script: Path, driver: Any
) -> None:
    text = script.read_text(encoding="utf-8")
    stock = driver.write_for_gloo(text)
    compile(stock, "for gloo", "exec")
    assert "topoplan" not in stock.split('"""')[2] and '"topo"' not in stock.split('"""')[2]
    assert 1 <= driver.count_changed_lines(text) <= 2
    document = (ROOT / "docs" / "trainers.md").read_text(encoding="utf-8")
    changed = [
        after.strip()
        for line, after in pairwise(text.splitlines())
        if line.lstrip().startswith("# gloo: ")
    ]
    assert changed and [line for line in changed if line not in document] == []


def test_results_are_compared_by_their_values(driver: Any) -> None:
    def ranks(loss: float, parameter: float, planned: list[str] | None = None) -> list[Any]:
        one = {
            "losses": [1.0, loss],
            "parameters": {"w": [0.5, parameter]},
            "planned": ["a"] if planned is None else planned,
        }
        return [one, one]

    stock = ranks(0.5, 0.25, [])
    assert driver.compare_results(stock, ranks(0.5, 0.25)) == (True, "equal, the same bits")
    assert driver.compare_results(stock, ranks(0.5, 0.25 + 1e-7)) == (True, "equal, 2e-07 off")
    assert driver.compare_results(stock, ranks(0.5, 0.26)) == (False, "DIFFERENT, 2e-02 off")
    assert not driver.compare_results(stock, ranks(float("nan"), 0.25))[0]
    assert driver.compare_results(stock, ranks(0.5, 0.25, [])) == (False, "NOTHING WAS PLANNED")
    assert driver.compare_results(stock, [*ranks(0.5, 0.25)[1:], *ranks(0.5, 0.26)[1:]]) == (
        False,
        "RANKS DIFFER",
    )


@pytest.mark.long
def test_fsdp_with_tensor_parallelism_ends_with_gloos_bits(
    folder_of_plans: Callable[..., Path],
) -> None:
    plans = folder_of_plans(
        *[("ring:2", name) for name in ("allreduce", "allgather", "reduce-scatter")]
    )
    run_ranks(trainers.fsdp_with_tensor_parallelism, 4, str(plans))
