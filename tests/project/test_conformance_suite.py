"""`make conformance-suite` on a stand-in for torch's files: what it runs, and what it reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launch import run_module

COMMON = """
import unittest
from dataclasses import dataclass


@dataclass(frozen=True)
class BackendConfig:
    name: str
    is_able: bool = False


C10D_BACKENDS = (BackendConfig("gloo", is_able=True), BackendConfig("nccl2"))


def instantiate_backend_tests(namespace, suite, base, backends):
    for backend in backends:
        name = f"{backend.name.title()}{suite}Test"
        namespace[name] = type(name, (base, unittest.TestCase), vars(backend))
"""
TESTS = """
from c10d_backend_common import C10D_BACKENDS, instantiate_backend_tests


class AbstractSumTest:
    def test_both(self):
        self.assertTrue(self.is_able)

    def test_gloo_alone(self):
        self.assertEqual(self.name, "gloo")

    def test_neither(self):
        self.assertEqual(self.name, "nccl2")

    def test_skipped(self):
        self.skipTest("for GPUs")


instantiate_backend_tests(globals(), "Sum", AbstractSumTest, C10D_BACKENDS)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "c10d_backend_common.py").write_text(COMMON)
    file = tmp_path / "test_c10d_sum.py"
    file.write_text(TESTS)
    return file


def test_what_passes_on_gloo_alone_is_named(file: Path) -> None:
    pytest.importorskip("expecttest", reason="torch's own tests need expecttest")
    ended = run_module("conformance_suite", str(file))
    assert ended.stdout == (
        "gloo: 2 passed, 1 skipped of 4\n"
        "topo: 1 passed, 1 skipped of 4\n"
        "  Sum.test_gloo_alone: AssertionError: 'topo' != 'gloo'\n"
    )
    assert ended.returncode == 1
    ended = run_module("conformance_suite", str(file), "-k", "both", "--json")
    passed = {"Sum.test_both": "passed"}
    assert json.loads(ended.stdout) == {"gloo": passed, "topo": passed}
    assert ended.returncode == 0


def test_files_that_do_not_serve_are_refused(file: Path) -> None:
    pytest.importorskip("expecttest", reason="torch's own tests need expecttest")
    file.write_text("from torch.distributed import all_gather_backwards\n")
    ended = run_module("conformance_suite", str(file))
    assert ended.returncode == 2
    assert "not for this torch: ImportError" in ended.stderr.splitlines()[-1]
    (file.parent / "c10d_backend_common.py").unlink()
    ended = run_module("conformance_suite", str(file))
    assert ended.returncode == 2
    assert "c10d_backend_common.py: no such file; expected torch's" in ended.stderr
