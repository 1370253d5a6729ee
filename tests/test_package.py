"""What is installed: every package and command is named in pyproject.toml, every exported name is there."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import topoplan

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_all_packages_are_installed() -> None:
    """A folder of modules that is not listed would be missing from a wheel, though every test in the checkout passes."""
    found = {
        ".".join(["topoplan", *file.parent.relative_to(ROOT).parts])
        for room in ("topo", "synth", "runtime", "cli")
        for file in (ROOT / room).rglob("__init__.py")
    }
    listed = set(re.findall(r'^    "(topoplan[\w.]*)",$', PYPROJECT, re.MULTILINE))
    assert listed == found | {"topoplan"}


def test_commands_and_entry_points_are_there() -> None:
    named = re.findall(r'^[\w-]+ = "(topoplan[\w.]*):(\w+)"$', PYPROJECT, re.MULTILINE)
    assert len(named) == 6
    for module, name in named:
        assert callable(getattr(import_module(module), name)), f"{module}:{name}"


def test_exported_names_are_there_and_the_version_is_one() -> None:
    for name in topoplan.__all__:
        assert getattr(topoplan, name) is not None
    assert f'\nversion = "{topoplan.__version__}"\n' in PYPROJECT


def test_importing_topoplan_imports_nothing_heavy() -> None:
    code = "import sys, topoplan; print([x for x in ('torch', 'numpy', 'networkx', 'scipy') if x in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
