"""Two tiers of tests: what depends on the machine's speed is marked; CI skips nothing."""

from __future__ import annotations

import ast
from pathlib import Path

from needs import list_unexpected_skips

TESTS = Path(__file__).resolve().parents[1]
# What builds emulated machines, starts ranks by mpirun, or opens a browser.
NEEDS_A_QUIET_MACHINE = {
    "emulate",
    "run_emulated",
    "EmulatedRank",
    "mpirun",
    "run_mpi_ranks",
    "browse",
}


def list_unmarked(tree: ast.Module) -> list[str]:
    """Return the tests of a module that use such a thing, by helpers and fixtures too, unmarked."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    imported = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    using = imported & NEEDS_A_QUIET_MACHINE
    grown: set[str] = set()
    while grown != using:
        grown = set(using)
        for name, function in functions.items():
            # Names of arguments, which may be fixtures, are names too.
            words = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
            words |= {argument.arg for argument in function.args.args}
            if words & using:
                using.add(name)
    marked = [
        ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    return [
        name
        for name, function in functions.items()
        if name.startswith("test_")
        and name in using
        and "mark.network" not in " ".join([*marked, *map(ast.unparse, function.decorator_list)])
    ]


def test_what_needs_a_quiet_machine_is_in_the_network_tier() -> None:
    unmarked = {
        str(path.relative_to(TESTS)): names
        for path in TESTS.rglob("test_*.py")
        if any(word in (text := path.read_text(encoding="utf-8")) for word in NEEDS_A_QUIET_MACHINE)
        and (names := list_unmarked(ast.parse(text)))
    }
    assert unmarked == {}


def test_a_helper_or_a_fixture_puts_its_tests_into_the_tier() -> None:
    source = """
from topoplan.runtime.extras.emulate import emulate
def make(): return emulate(1, 2)
@pytest.fixture
def star(): return make()
def test_one(star): pass
@pytest.mark.network("namespaces")
def test_two(star): pass
def test_three(): pass
"""
    assert list_unmarked(ast.parse(source)) == ["test_one"]


def test_ci_may_skip_for_gpus_and_versions_of_torch_alone() -> None:
    reasons = [
        "Skipped: no CUDA GPU",
        "Skipped: torch 2.13 has no such option",
        "Skipped: recorded machine smi/a.txt is not here (/shared)",
        "Skipped: mpirun: there is no mpirun (Debian: apt-get install openmpi-bin)",
        "Skipped: mpirun: there is no mpirun (Debian: apt-get install openmpi-bin)",
    ]
    assert list_unexpected_skips(reasons, has_recordings=False) == reasons[-1:]
    assert list_unexpected_skips(reasons, has_recordings=True) == [reasons[-1], reasons[2]]
