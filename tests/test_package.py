"""What is installed: every package and command is named in pyproject.toml, every exported name is there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import patience
from launch import run_command

import topoplan
from topoplan.synth.synthesize import collective_on, synthesize
from topoplan.topo.presets import preset

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_a_wheel_has_every_module_of_the_checkout(tmp_path: Path) -> None:
    """A folder of modules that is not in the wheel would be missed by users only: in the checkout every test passes."""
    source = tmp_path / "source"
    shutil.copytree(
        ROOT, source, ignore=shutil.ignore_patterns(".venv*", ".git", ".*_cache", "__pycache__", "*.egg-info")
    )
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(tmp_path),
        ".",
    ]
    subprocess.run(command, cwd=source, check=True, timeout=patience.seconds(200))
    (wheel,) = tmp_path.glob("topoplan-*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith((".py", ".typed"))}
    wanted = {
        "topoplan/" + file.relative_to(ROOT).as_posix()
        for room in ("topo", "synth", "runtime", "cli")
        for file in (ROOT / room).rglob("*.py")
    }
    assert packed == wanted | {"topoplan/__init__.py", "topoplan/py.typed"}


def test_commands_and_entry_points_are_there() -> None:
    named = re.findall(r'^[\w-]+ = "(topoplan[\w.]*):(\w+)"$', PYPROJECT, re.MULTILINE)
    assert len(named) == 9
    for module, name in named:
        assert callable(getattr(import_module(module), name)), f"{module}:{name}"


def test_exported_names_are_there_and_the_version_is_one() -> None:
    for name in topoplan.__all__:
        assert getattr(topoplan, name) is not None
    assert f'\nversion = "{topoplan.__version__}"\n' in PYPROJECT


def test_importing_topoplan_imports_nothing_heavy() -> None:
    code = "import sys, topoplan; print([x for x in ('torch', 'numpy', 'networkx', 'scipy') if x in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=patience.seconds(60)
    )
    assert done.stdout.strip() == "[]"


def test_an_older_torch_is_refused_in_one_line_and_can_be_imported(tmp_path: Path) -> None:
    """By the commands and by what is imported; torch, which imports our backend itself, gets a warning."""
    old = "import torch; torch.__version__ = '2.6.0+cpu'; "
    run = "from topoplan.cli.run import main; raise SystemExit(main(['plan.json']))"
    machine = preset("ring:2")
    synthesize(collective_on("allreduce", machine), machine, "ring").plan.save(tmp_path / "plan.json")
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "RANK": "0", "WORLD_SIZE": "2"}
    done = run_command(sys.executable, "-c", old + run, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    line = (
        r"topo-run: error: torch 2\.6\.0\+cpu in .*torch: topoplan needs ([\d.]+) or newer; pip install 'torch>=\1'\n"
    )
    assert (found := re.fullmatch(line, done.stderr)), done.stderr
    assert f'"torch>={found[1]}"' in PYPROJECT

    use = "import topoplan.runtime.register, topoplan\ntry: topoplan.ddp_hook\nexcept topoplan.InputError: print('refused')"
    done = run_command(sys.executable, "-c", old + "\n" + use, env=environment)
    assert (done.returncode, done.stdout) == (0, "refused\n")
    assert "could not register its backend 'topo' with torch: torch 2.6.0+cpu in" in done.stderr
