"""Runs torch's own tests of what every backend of c10d does through gloo and through the backend
"topo", and prints what differs.

    python scripts/conformance_suite.py test_c10d_collectives.py test_c10d_p2p.py
    python scripts/conformance_suite.py FILE... -k all_reduce      tests whose name contains this
    python scripts/conformance_suite.py FILE... --json > out.json  outcomes as JSON

A FILE is one of test_c10d_collectives.py, test_c10d_p2p.py and test_c10d_process_group.py in
torch's test/distributed, which no wheel has; c10d_backend_common.py has to lie beside it. "topo"
joins its list C10D_BACKENDS, as able as gloo; the tests are unchanged (2 ranks, on the CPU). Files
older than the installed torch may use names that it lacks. Exit code 1 where a test that passes on
gloo does not pass on topo, 2 where a FILE does not serve.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import both_backends

_COMMON = "c10d_backend_common"
_EXPECTED = "expected torch's test/distributed/test_c10d_collectives.py or another of its kind"


def main(argv: list[str] | None = None) -> int:
    """Run the tests, print what differs, and return the exit code."""
    parser = both_backends.make_parser(__doc__)
    parser.add_argument("files", type=Path, nargs="+", help="torch's test_c10d_collectives.py, ...")
    args = parser.parse_args(argv)
    for file in args.files:
        for needed in (file, file.with_name(f"{_COMMON}.py")):
            if not needed.is_file():
                print(f"{needed}: no such file; {_EXPECTED}, beside {_COMMON}.py", file=sys.stderr)
                return 2
    with both_backends.prepare_torch():
        try:
            classes = load(args.files)
        except (AttributeError, ImportError, StopIteration, SyntaxError) as error:
            print(f"{args.files[0]}: not for this torch: {error!r}; {_EXPECTED}", file=sys.stderr)
            return 2
        outcomes = both_backends.run(classes, args.name)
    return both_backends.report(outcomes, as_json=args.json)


def load(files: Sequence[Path]) -> dict[str, list[Any]]:
    """Return the classes of tests in torch's files for each backend."""
    sys.path.insert(0, str(files[0].resolve().parent))
    common: Any = importlib.import_module(_COMMON)
    gloo = next(entry for entry in common.C10D_BACKENDS if entry.name == "gloo")
    common.C10D_BACKENDS = (gloo, dataclasses.replace(gloo, name="topo"))
    classes: dict[str, list[Any]] = {backend: [] for backend in both_backends.BACKENDS}
    for file in files:
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None and spec.loader is not None
        module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)  # torch's own tests, named by the user
        for backend, of_backend in classes.items():
            prefix = backend.capitalize()
            of_backend += [
                value
                for name, value in vars(module).items()
                if name.startswith(prefix) and name.endswith("Test")
            ]
    return classes


if __name__ == "__main__":
    sys.exit(main())
