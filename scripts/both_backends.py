"""Runs classes of torch's tests on gloo and on the backend "topo", for the suites that take torch's
test files by path, which no wheel has.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

BACKENDS = ("gloo", "topo")
# A test that takes longer than this hangs.
MAX_TEST_S = 120
Outcomes = dict[str, dict[str, str]]


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that these suites share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-k", dest="name", default="", metavar="TEXT", help="only these tests")
    parser.add_argument("--json", action="store_true", help="outcomes of every test as JSON")
    return parser


@contextmanager
def prepare_torch() -> Iterator[None]:
    """Register "topo", and have tests find it in a context with a cache of its own."""
    import torch.testing._internal.common_distributed as common

    import topoplan.runtime.register

    assert topoplan.runtime.backend.NAME in BACKENDS
    with tempfile.TemporaryDirectory(prefix="torch-tests-") as folder:
        os.environ |= {
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "TOPOPLAN_CACHE": folder,
        }
        logging.disable(logging.ERROR)
        common.TIMEOUT_DEFAULT = MAX_TEST_S  # type: ignore[attr-defined]
        yield


def run(classes: Mapping[str, Sequence[Any]], text: str) -> Outcomes:
    """Return each test's outcome by backend, for tests whose names contain `text`.

    A test is named by its class, without backend, and its method. Ranks are forked: importing torch
    takes longer than most of the tests.
    """
    import torch

    fork = torch.multiprocessing.get_context("fork").Process
    outcomes: Outcomes = {}
    for backend, tests in classes.items():
        outcomes[backend] = {}
        for test in tests:
            test._spawn_processes = lambda case: case._start_processes(fork)
            for case in unittest.defaultTestLoader.loadTestsFromTestCase(test):
                of = test.__name__[len(backend) :].removesuffix("Test")
                name = f"{of}.{case._testMethodName}"  # type: ignore[union-attr]
                if text in name:
                    started = time.monotonic()
                    outcome = outcomes[backend][name] = run_one(case)
                    took = f"{time.monotonic() - started:.1f} s"
                    print(f"{backend} {name}: {outcome} ({took})", file=sys.stderr, flush=True)
    return outcomes


def run_one(case: Any) -> str:
    """Return the outcome of one test: passed, skipped, or the last line of what went wrong."""
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


def report(outcomes: Outcomes, *, as_json: bool) -> int:
    """Print the tests that pass on gloo alone; return 1 if there are some, or none ran."""
    differ = [
        name
        for name, outcome in outcomes["topo"].items()
        if outcome != "passed" and outcomes["gloo"].get(name) == "passed"
    ]
    if as_json:
        print(json.dumps(outcomes))
    else:
        for backend, found in outcomes.items():
            passed = sum(outcome == "passed" for outcome in found.values())
            skipped = sum(outcome == "skipped" for outcome in found.values())
            print(f"{backend}: {passed} passed, {skipped} skipped of {len(found)}")
        for name in differ:
            print(f"  {name}: {outcomes['topo'][name]}")
    return 1 if differ or not outcomes["topo"] else 0
