"""Runs torch's own tests of fault tolerance (other memberships of a process group) through gloo and
through the backend "topo", and prints what differs.

    python scripts/fault_tolerance_suite.py test_c10d_fault_tolerance.py
    python scripts/fault_tolerance_suite.py FILE -k shrink         tests whose name contains this
    python scripts/fault_tolerance_suite.py FILE --json > out.json  outcomes as JSON

FILE is test/distributed/test_c10d_fault_tolerance.py of the installed torch's version, which no
wheel has. "topo" joins its list FAULT_TOLERANCE_BACKENDS; the tests are unchanged (3 ranks, on the
CPU). torch has the contract that they test from 2.14 on; before, `topoplan.reconfigure` does the
same. Exit code 1 where a test that passes on gloo does not pass on topo, 2 where FILE or torch do
not serve.
"""

from __future__ import annotations

import argparse
import ast
import json
import logging
import os
import sys
import tempfile
import time
import types
import unittest
from pathlib import Path
from typing import Any

# The version from which on torch has the contract.
NEEDED = (2, 14)
_LIST = "FAULT_TOLERANCE_BACKENDS"
# Backends on CPUs alone: an entry is a tuple (name, device), or later an object with both.
_JOIN = f"""
import dataclasses as _dataclasses
{_LIST} = [
    joined
    for entry in {_LIST}
    if (entry[0] if isinstance(entry, tuple) else entry.name) == "gloo"
    for joined in (
        entry,
        ("topo", entry[1])
        if isinstance(entry, tuple)
        else _dataclasses.replace(entry, name="topo"),
    )
]
"""
# A test that takes longer than this hangs.
_MAX_TEST_S = 120


def main(argv: list[str] | None = None) -> int:
    """Run the tests, print what differs, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="torch's test_c10d_fault_tolerance.py")
    parser.add_argument("-k", dest="name", default="", metavar="TEXT", help="only these tests")
    parser.add_argument("--json", action="store_true", help="outcomes of every test as JSON")
    args = parser.parse_args(argv)
    tree = read_tests(args.file)

    import torch

    from topoplan.runtime.ranks.groups import is_torch_at_least

    if not is_torch_at_least(*NEEDED):
        needed = ".".join(map(str, NEEDED))
        for name in sorted(list_names(tree, args.name)):
            print(f"{name}: needs torch {needed} (enable_reconfigure), this is {torch.__version__}")
        print(f"use torch {needed} or newer: scripts/torch_versions.py makes an environment of it")
        return 2
    outcomes = run(tree, args.file, args.name)
    if args.json:
        print(json.dumps(outcomes))
    return report(outcomes, quiet=args.json)


def read_tests(file: Path) -> ast.Module:
    """Return torch's tests with "topo" in the list of backends, gloo aside the only one."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise SystemExit(f"{file}: cannot be read as Python: {error}") from None
    for place, node in enumerate(tree.body):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == _LIST:
            tree.body[place + 1 : place + 1] = ast.parse(_JOIN).body
            return tree
    raise SystemExit(
        f"{file}: no list {_LIST}; expected torch's test/distributed/test_c10d_fault_tolerance.py"
    )


def list_names(tree: ast.Module, text: str) -> list[str]:
    """Return the names of the tests in a file that contain a text."""
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and text in node.name
    ]


def run(tree: ast.Module, file: Path, text: str) -> dict[str, dict[str, str]]:
    """Return each test's outcome by backend: passed, skipped, or the last line of what went wrong.

    Ranks are forked: importing torch takes longer than most of the tests.
    """
    import torch
    import torch.testing._internal.common_distributed as common

    import topoplan.runtime.register

    assert topoplan.runtime.register.NAME
    folder = tempfile.TemporaryDirectory(prefix="fault-tolerance-")
    os.environ |= {
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "TOPOPLAN_CACHE": folder.name,
    }
    logging.disable(logging.ERROR)
    common.TIMEOUT_DEFAULT = _MAX_TEST_S  # type: ignore[attr-defined]
    module: Any = types.ModuleType("test_c10d_fault_tolerance")
    sys.modules[module.__name__] = module
    exec(compile(tree, str(file), "exec"), module.__dict__)  # torch's own tests, named by the user
    outcomes: dict[str, dict[str, str]] = {}
    for backend in ("gloo", "topo"):
        tests: Any = getattr(module, f"{backend.capitalize()}FaultToleranceTest")
        fork = torch.multiprocessing.get_context("fork").Process
        tests._spawn_processes = lambda case, fork=fork: case._start_processes(fork)
        outcomes[backend] = {}
        for case in unittest.defaultTestLoader.loadTestsFromTestCase(tests):
            name = case._testMethodName  # type: ignore[union-attr]
            if text in name:
                started = time.monotonic()
                outcomes[backend][name] = outcome = run_one(case)
                seconds = time.monotonic() - started
                print(f"{backend} {name}: {outcome} ({seconds:.1f} s)", file=sys.stderr, flush=True)
    return outcomes


def run_one(case: Any) -> str:
    """Return the outcome of one test."""
    result = unittest.TestResult()
    case.run(result)
    if result.skipped:
        return "skipped"
    faults = [text for _, text in (*result.failures, *result.errors)]
    if not faults:
        return "passed"
    lines = [line.strip() for line in faults[0].strip().splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line and not line.startswith(("raise", "File"))]
    return (errors or lines)[-1][:300]


def report(outcomes: dict[str, dict[str, str]], *, quiet: bool) -> int:
    """Print the tests that pass on gloo and not on topo; return 1 if there are some."""
    differ = [
        name
        for name, outcome in outcomes["topo"].items()
        if outcome != "passed" and outcomes["gloo"].get(name) == "passed"
    ]
    if not quiet:
        for backend, found in outcomes.items():
            passed = sum(outcome == "passed" for outcome in found.values())
            skipped = sum(outcome == "skipped" for outcome in found.values())
            print(f"{backend}: {passed} passed, {skipped} skipped of {len(found)}")
        for name in differ:
            print(f"  {name}: {outcomes['topo'][name]}")
    return 1 if differ or not outcomes["topo"] else 0


if __name__ == "__main__":
    sys.exit(main())
