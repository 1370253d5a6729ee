"""The one entry of the benchmarks: python -m benchmarks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from launch import run_command

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
NAMES = sorted(
    file.stem
    for file in FOLDER.glob("[!_]*.py")
    if "\nif __name__ ==" in file.read_text(encoding="utf-8")
)
# What has no table: they run a command, list files, or print JSON alone.
WITHOUT_TABLE = {"awake", "call_path", "kernels_on_gpu"}


def test_the_list_says_what_each_benchmark_does_and_where_its_figures_are() -> None:
    done = run_command(sys.executable, "-m", "benchmarks", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(\w+)  +\S", done.stdout, re.MULTILINE) == NAMES
    assert "[docs/place.md]" in re.sub(r"\s+", " ", done.stdout)
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_a_benchmark_is_run_with_its_options() -> None:
    done = run_command(
        sys.executable, "-m", "benchmarks", "awake", sys.executable, "-c", "exit(3)", cwd=ROOT
    )
    assert done.returncode == 3, done.stderr


def test_a_name_that_is_not_known_is_refused_with_the_nearest() -> None:
    done = run_command(sys.executable, "-m", "benchmarks", "same_bit", cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr == (
        "no benchmark same_bit (did you mean same_bits?): python -m benchmarks lists them\n"
    )


@pytest.mark.parametrize("name", sorted(set(NAMES) - WITHOUT_TABLE))
def test_a_benchmark_gives_its_table_as_json(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert "make_parser(__doc__)" in text and "args.json" in text.replace(
        "options.json", "args.json"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_is_named_where_its_figures_are_or_by_a_program(name: str) -> None:
    """One that nothing names is history's."""
    folders = ("docs", "tests", "scripts", "benchmarks")
    files = [*ROOT.glob("*.md"), *(x for folder in folders for x in (ROOT / folder).rglob("*.*"))]
    named = re.compile(rf"benchmarks[/ ]{name}\b|\b{name}\.py\b|\b(from|import) {name}\b")
    own = (FOLDER / f"{name}.py", Path(__file__))
    assert any(
        named.search(file.read_text(encoding="utf-8"))
        for file in files
        if file.suffix in (".md", ".py", ".sh") and file not in own
    )
