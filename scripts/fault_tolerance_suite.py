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

import ast
import sys
import types
from pathlib import Path
from typing import Any

import both_backends

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


def main(argv: list[str] | None = None) -> int:
    """Run the tests, print what differs, and return the exit code."""
    parser = both_backends.make_parser(__doc__)
    parser.add_argument("file", type=Path, help="torch's test_c10d_fault_tolerance.py")
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
    with both_backends.prepare_torch():
        outcomes = both_backends.run(load(tree, args.file), args.name)
    return both_backends.report(outcomes, as_json=args.json)


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


def load(tree: ast.Module, file: Path) -> dict[str, list[Any]]:
    """Return the class of tests for each backend."""
    module: Any = types.ModuleType("test_c10d_fault_tolerance")
    sys.modules[module.__name__] = module
    exec(compile(tree, str(file), "exec"), module.__dict__)  # torch's own tests, named by the user
    return {
        backend: [getattr(module, f"{backend.capitalize()}FaultToleranceTest")]
        for backend in both_backends.BACKENDS
    }


if __name__ == "__main__":
    sys.exit(main())
