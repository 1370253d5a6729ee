"""Tests wait in one way, by `patience`: never for seconds, nor for files that somebody may not have
written yet; and what is waited for in vain is shown with every process's stacks.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import patience
import pytest
from reports import Reports
from stacks import VARIABLES

TESTS = Path(__file__).parents[1]
HELPER = TESTS / "patience.py"
# What waits for the end of something, with a limit that must come from `patience`.
LIMITED = {"call", "check_call", "check_output", "communicate", "join", "run", "wait"}
READS_FILES = {"exists", "is_file", "open", "read_bytes", "read_text", "stat"}
# Python and shell in strings.
SLEEPS = re.compile(r"\btime\.sleep\(|\bdo sleep\b")


def name_of(call: ast.Call) -> str:
    """Return the last word of the name of what is called."""
    function = call.func
    return str(getattr(function, "attr", "") or getattr(function, "id", ""))


def list_names(node: ast.AST) -> set[str]:
    """Return the names of all that is called in a piece of source."""
    return {name_of(one) for one in ast.walk(node) if isinstance(one, ast.Call)}


def is_number(node: ast.AST) -> bool:
    """Return whether an expression is made of numbers alone."""
    kinds = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    return all(isinstance(one, kinds) for one in ast.walk(node)) and not any(
        isinstance(one, ast.Constant) and not isinstance(one.value, int | float)
        for one in ast.walk(node)
    )


def only_waits(loop: ast.While) -> bool:
    """Return whether nothing happens in a loop."""
    return all(
        isinstance(one, ast.Pass | ast.Assert)
        or (isinstance(one, ast.Expr) and list_names(one) & {"sleep", "be_late"})
        for one in loop.body
    )


def waits_for_a_file(call: ast.Call) -> bool:
    """Return whether a condition looks at a file, other than for its end."""
    ends = [x.operand for x in ast.walk(call) if isinstance(x, ast.UnaryOp)]
    looks = {x for x in ast.walk(call) if isinstance(x, ast.Call) and name_of(x) in READS_FILES}
    return bool(looks - {x for x in ends if isinstance(x, ast.Call) and name_of(x) == "exists"})


def find_old_forms(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that wait in another way, and what is wrong with them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if SLEEPS.search(node.value):
                yield node.lineno, "a program that sleeps"
        elif isinstance(node, ast.While):
            if only_waits(node) or list_names(node) & {"monotonic", "perf_counter"}:
                yield node.lineno, "a loop that waits"
        elif isinstance(node, ast.Call):
            name = name_of(node)
            limits = [word.value for word in node.keywords if word.arg == "timeout"]
            is_method = isinstance(node.func, ast.Attribute)
            limits += node.args[:1] if is_method and name in ("join", "wait") else []
            if name == "sleep":
                yield node.lineno, "a sleep"
            elif name in LIMITED and any(map(is_number, limits)):
                yield node.lineno, "a fixed limit"
            elif name == "wait_until" and waits_for_a_file(node):
                yield node.lineno, "a file that is polled"


def test_all_tests_wait_by_patience() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}: {what}"
        for path in sorted(TESTS.rglob("*.py"))
        if path != HELPER
        for line, what in find_old_forms(path.read_text(encoding="utf-8"))
    ]
    assert not found, "see Time in tests/README.md:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "time." + "sleep(1)",
        "from time import sleep\nsleep(1)",
        "while not done(): pass",
        "while not done():\n    patience.be_late(1, '')",
        "while not done():\n    assert time.monotonic() < ends\n    look()",
        "process.wait(30)",
        "thread.join(timeout=2 * 60)",
        "subprocess.run(command, timeout=30.0)",
        "process.communicate(timeout=5)",
        "wait_until(path.exists(), '')",
        "patience.wait_until(lambda: path.read_text() == 'x', '')",
        "run('while true; do " + "sleep 1; done')",
    ],
)
def test_old_forms_are_found(source: str) -> None:
    assert len(list(find_old_forms(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "process.wait()",
        "process.wait(patience.seconds(3))",
        "', '.join(words)",
        "join(2, pairs)",
        "patience.wait_until(lambda: not folder.exists(), '')",
        "while not done():\n    make_call()",
    ],
)
def test_the_usual_forms_are_right(source: str) -> None:
    assert not list(find_old_forms(source))


HANGS = """
import os, signal, sys

def hang_here():
    print("printed before", flush=True)
    with open(sys.argv[1], "w") as pipe:
        pipe.write("started\\n")
    signal.pause()

if len(sys.argv) == 2:
    os.spawnl(os.P_WAIT, sys.executable, sys.executable, __file__, sys.argv[1], "child")
else:
    hang_here()
"""


def test_what_is_waited_for_in_vain_is_shown_with_stacks(tmp_path: Path) -> None:
    """Those of a process that the one that is waited for started, too."""
    program, printed = tmp_path / "program.py", tmp_path / "printed"
    program.write_text(HANGS)
    with Reports(tmp_path / "pipe") as reports, printed.open("wb") as file:
        command = [sys.executable, str(program), str(reports.path)]
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env={**os.environ, **VARIABLES}
        )
        try:
            assert reports.read(1, "its start", [process]) == ["started"]
            with pytest.raises(AssertionError, match="in vain for nothing") as error:
                patience.wait_until(lambda: False, "nothing", [process], quiet=0)
        finally:
            process.kill()
            process.wait()
    assert "printed before" in str(error.value)
    assert "in hang_here" in str(error.value)
    assert "in spawnl" in str(error.value)


def test_an_end_before_its_time_is_not_waited_on() -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    with pytest.raises(AssertionError, match=f"process {process.pid} ended with 7"):
        patience.wait_until(lambda: False, "more", [process])
