"""Runs torch's own tests of torch.distributed through gloo and through the backend "topo", and
prints what differs.

    python scripts/torch_suite.py                             all tests, 4 ranks, gloo, then topo by
                                                              race and by plan
    python scripts/torch_suite.py -k all_reduce -k DDP        tests whose name contains one of these
    python scripts/torch_suite.py --ways gloo,plan --ranks 2  gloo, and topo with every call through
                                                              its plan
    python scripts/torch_suite.py --json > suite.json         outcomes as JSON

The tests are those of the installed torch
(torch/testing/_internal/distributed/distributed_test.py), unchanged: they ask for gloo, and get the
backend "topo" instead. Those for GPUs run on the CPU, where they do not need one (cpu_as_gpus.py).

Ways: gloo; race (topo as it is by default); plan (every collective of any size that has a plan goes
through it). Exit code 1 where a test that passes on gloo does not pass on topo, the known ones
aside.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cpu_as_gpus
from both_backends import MAX_TEST_S, run_one

# Tests that pass on gloo alone, and why.
KNOWN = {
    "test_monitored_barrier_gloo": "torch asks for gloo by name",
    "test_monitored_barrier_gloo_subgroup": "torch asks for gloo by name",
    "test_ddp_logging_data_cpu": "compares the backend's name",
    "test_get_backend": "compares the backend's name",
    "test_ddp_profiling_torch_profiler": "wants ranges that end with the call: torch 2.13 crashes "
    "where a profile ends first",
}
WAYS = ("gloo", "race", "plan")


def main(argv: list[str] | None = None) -> int:
    """Run the tests each way, print what differs, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "-k",
        dest="names",
        action="append",
        metavar="TEXT",
        help="only tests whose name contains TEXT",
    )
    parser.add_argument("--ranks", type=int, default=4, help="processes a test (default 4)")
    parser.add_argument("--ways", default=",".join(WAYS), help="gloo, race, plan (default all)")
    parser.add_argument("--json", action="store_true", help="outcomes of every test as JSON")
    args = parser.parse_args(argv)
    ways = args.ways.split(",")
    if not set(ways) <= set(WAYS):
        parser.error(f"--ways {args.ways}: expected some of {', '.join(WAYS)}")
    suite = Suite(args.ranks, args.names or [""])
    outcomes = {way: suite.run(way) for way in ways}
    if args.json:
        print(json.dumps(outcomes))
    return _report(outcomes, quiet=args.json)


def _report(outcomes: dict[str, dict[str, str]], *, quiet: bool) -> int:
    """Print tests that pass on gloo and not on topo; return 1 where one of them is not known."""
    by_gloo = outcomes.get("gloo", {})
    unknown = 0
    for way, found in outcomes.items():
        passed = sum(outcome == "passed" for outcome in found.values())
        skipped = sum(outcome == "skipped" for outcome in found.values())
        if not quiet:
            print(
                f"{way}: {passed} passed, {skipped} skipped, {len(found) - passed - skipped} "
                f"failed of {len(found)}"
            )
        for name, outcome in found.items():
            if outcome in ("passed", "skipped") or by_gloo.get(name, "passed") != "passed":
                continue
            unknown += name not in KNOWN and way != "gloo"
            if not quiet:
                print(f"  {name}: {KNOWN.get(name) or outcome}")
    return 1 if unknown else 0


class Suite:
    """The installed torch's tests, run by forked ranks: importing torch takes longer than most
    tests.
    """

    def __init__(self, ranks: int, names: list[str]) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="torch-suite-")
        os.environ |= {
            "BACKEND": "gloo",
            "WORLD_SIZE": str(ranks),
            "TEMP_DIR": self.folder.name,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "TOPOPLAN_CACHE": str(Path(self.folder.name, "plans")),
            "TOPOPLAN_PLANS": f"full:{ranks}",
        }
        logging.disable(logging.ERROR)
        self.cases = list(_find_tests(names))

    def run(self, way: str) -> dict[str, str]:
        """Return each test's outcome: passed, skipped, or the last line of what went wrong."""
        outcomes = {}
        with _as_backend(way):
            for number, case in enumerate(self.cases):
                name = case._testMethodName
                started = time.monotonic()
                outcome = _run_one(case)
                if outcome == "skipped":
                    outcome = _run_one(case, as_if_gpus=True)
                outcomes[name] = outcome
                print(
                    f"{way} {number + 1}/{len(self.cases)} {name}: {outcome} "
                    f"({time.monotonic() - started:.1f} s)",
                    file=sys.stderr,
                    flush=True,
                )
        return outcomes


def _find_tests(names: list[str]) -> Iterator[Any]:
    """Yield the tests whose name contains one of the given texts."""
    import torch
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.testing._internal.common_distributed as common
    from torch.testing._internal.distributed.distributed_test import (
        DistributedTest,
        TestDistBackend,
    )

    import topoplan.runtime.register

    assert topoplan.runtime.backend.NAME
    common.TIMEOUT_DEFAULT = MAX_TEST_S  # type: ignore[attr-defined]

    class TorchTests(TestDistBackend, DistributedTest._DistTestBase):  # type: ignore[misc,name-defined]
        as_if_gpus = False

        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, *args: Any, **kwargs: Any) -> None:
            nothing = os.open(os.devnull, os.O_WRONLY)
            for stream in (1, 2):  # what counts comes back through a pipe
                os.dup2(nothing, stream)
            if cls.as_if_gpus:
                common.TEST_CUDA = True  # type: ignore[attr-defined]
                cpu_as_gpus.pretend(int(os.environ["WORLD_SIZE"]))
            super()._run(*args, **kwargs)

    TorchTests.setUpClass()
    for case in unittest.defaultTestLoader.loadTestsFromTestCase(TorchTests):
        if any(text in case._testMethodName for text in names):  # type: ignore[union-attr]
            yield case


def _run_one(case: Any, *, as_if_gpus: bool = False) -> str:
    type(case).as_if_gpus = as_if_gpus
    return run_one(type(case)(case._testMethodName))


@contextmanager
def _as_backend(way: str) -> Iterator[None]:
    """Have torch make groups of the backend "topo" where gloo, or nothing, is asked for, while the
    context lasts.
    """
    import torch.distributed as dist

    from topoplan.runtime.backend.options import backend_options

    if way == "gloo":
        yield
        return
    make_default, make_group = dist.init_process_group, dist.new_group
    # Sizes are those of tests: small.
    options = {"least_bytes": 0, **({"choose": "plan"} if way == "plan" else {})}

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        if backend in (None, "gloo"):
            backend = "topo"
            kwargs.setdefault("pg_options", backend_options(**options))  # type: ignore[arg-type]
        make_default(backend, *args, **kwargs)

    def new_group(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("backend") == "gloo":
            kwargs["backend"] = "topo"
        return make_group(*args, **kwargs)

    dist.init_process_group, dist.new_group = init_process_group, new_group
    try:
        yield
    finally:
        dist.init_process_group, dist.new_group = make_default, make_group


if __name__ == "__main__":
    sys.exit(main())
