"""What is installed: every package and command is named in pyproject.toml, every exported name is
there.
"""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
from installed import install_metadata
from launch import run_command
from planned import synthesize

import topoplan
from topoplan.synth.ir.collective import collective_on
from topoplan.topo.presets import preset

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


BUILD = (
    "from setuptools import build_meta; import sys; getattr(build_meta, 'build_' + "
    "sys.argv[1])(sys.argv[2])"
)


def list_kept() -> set[str]:
    """Return the files of the checkout that git keeps, or would keep."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The unpacked source distribution, and the wheel that is built from that, not from the
    checkout.
    """
    folder = tmp_path_factory.mktemp("distributions")
    for name in list_kept():
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "source" / name)
    _build("sdist", folder / "source", folder)
    (archive,) = folder.glob("topoplan-*.tar.gz")
    shutil.unpack_archive(archive, folder, filter="data")
    unpacked = archive.with_name(archive.name.removesuffix(".tar.gz"))
    _build("wheel", unpacked, folder)
    (wheel,) = folder.glob("topoplan-*.whl")
    return unpacked, wheel


def _build(kind: str, source: Path, folder: Path) -> None:
    command = [sys.executable, "-c", BUILD, kind, str(folder)]
    done = run_command(*command, cwd=source)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_source_distribution_has_all_that_is_kept_in_the_checkout(
    distributions: tuple[Path, Path],
) -> None:
    """Tests with their helpers, documents with their pictures, examples: whoever unpacks it can run
    and read all of it.
    """
    unpacked, _ = distributions
    packed = {
        file.relative_to(unpacked).as_posix() for file in unpacked.rglob("*") if file.is_file()
    }
    assert list_kept() - packed == set()
    assert [
        name for name in packed if name.endswith(".pyc") or name.startswith((".venv", ".git/"))
    ] == []


@pytest.mark.long
def test_a_wheel_has_every_module_of_the_checkout_and_nothing_else(
    distributions: tuple[Path, Path],
) -> None:
    """A folder of modules that is not in the wheel would be missed by users only: in the checkout
    every test passes.
    """
    _, wheel = distributions
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {
        "topoplan/" + file.relative_to(ROOT).as_posix()
        for room in ("topo", "synth", "runtime", "cli")
        for file in (ROOT / room).rglob("*.py")
    }
    built = {name for name in packed if name.endswith(".so")}  # where there is a compiler
    assert built <= {"topoplan/runtime/extras/native/_library.abi3.so"}
    assert packed - built == wanted | {
        "topoplan/__init__.py",
        "topoplan/extras.py",
        "topoplan/py.typed",
    }


@pytest.mark.long
def test_what_a_wheel_says_of_itself(distributions: tuple[Path, Path]) -> None:
    _, wheel = distributions
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    said = email.message_from_bytes(archive.read(name))
    named = [said[key] for key in ("Name", "Version", "License-Expression")]
    assert named == ["topoplan", topoplan.__version__, "Apache-2.0"]
    assert (
        said["Author"] == "topoplan developers"
        and said["Keywords"]
        and len(said.get_all("Classifier") or ()) > 5
    )
    assert {"demo", "dev", "docs", "pictures", "run"} <= set(said.get_all("Provides-Extra") or ())
    required = said.get_all("Requires-Dist") or []
    assert [x for x in required if x.startswith("torch")] == ['torch>=2.9; extra == "run"']
    text = str(said.get_payload())
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert said["Description-Content-Type"] == "text/markdown" and links
    assert [link for link in links if not link.startswith("https://")] == []
    # Without a public address nothing shows the pictures, so they are left out, and that is said.
    assert said.get_all("Project-URL") is None
    assert "![" not in text and "docs/images" not in text and "<img" not in text
    assert "pictures and the pages under docs/" in text and "no public address yet" in text
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {topoplan.__version__}" in cited and "name: topoplan developers" in cited


def test_commands_and_entry_points_are_there() -> None:
    named = re.findall(r'^[\w-]+ = "(topoplan[\w.]*):(\w+)"$', PYPROJECT, re.MULTILINE)
    assert len(named) == 12
    for module, name in named:
        assert callable(getattr(import_module(module), name)), f"{module}:{name}"


def test_exported_names_are_there_and_the_version_is_one() -> None:
    for name in topoplan.__all__:
        assert getattr(topoplan, name) is not None
    assert f'\nversion = "{topoplan.__version__}"\n' in PYPROJECT


def test_importing_topoplan_imports_nothing_heavy() -> None:
    code = (
        "import sys, topoplan; print([x for x in ('torch', 'numpy', 'networkx', 'scipy') if x in "
        "sys.modules])"
    )
    assert run_command(sys.executable, "-c", code).stdout.strip() == "[]"


@pytest.mark.long
def test_torch_finds_the_backend_once_and_by_its_name_where_it_can(tmp_path: Path) -> None:
    """From torch 2.15 on, `import torch` imports next to nothing of ours; older ones register the
    backend with it.
    """
    code = (
        "import sys, torch, torch.distributed as dist\n"
        "by_name = hasattr(dist.Backend, '_ensure_backend_registered')\n"
        "early, calls, register = 'topoplan.runtime.backend.registration' in sys.modules, [], "
        "dist.Backend.register_backend\n"
        "def count(name, *args, **kwargs): calls.append(name); register(name, *args, **kwargs)\n"
        "dist.Backend.register_backend = count\n"
        "assert dist.is_backend_available('topo') and "
        "dist.is_backend_available('cpu:topo,cuda:topo')\n"
        "import topoplan.runtime.register\n"
        "topoplan.runtime.register.register()\n"
        "print(early != by_name, calls.count('topo') == by_name, "
        "dist.Backend.backend_capability['topo'])\n"
        "for name in [name for name in sys.modules if name.startswith('topoplan')]: del "
        "sys.modules[name]\n"
        "dist.Backend._ensure_backend_registered, dist.Backend._plugins = None, {}\n"
        "from topoplan.runtime.backend.autoload import register_with_older_torch\n"
        "register_with_older_torch()\n"
        "print('topoplan.runtime.backend.registration' in sys.modules)\n"
    )
    environment = {**install_metadata(tmp_path), "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    done = run_command(sys.executable, "-c", code, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "True True ['cpu', 'cuda']\nFalse\n"), done.stderr


@pytest.mark.long
def test_an_older_torch_is_refused_in_one_line_and_can_be_imported(tmp_path: Path) -> None:
    """By the commands and by what is imported; torch, which imports our backend itself, gets a
    warning.
    """
    code = (
        "import torch; torch.__version__ = '2.6.0+cpu'\n"
        "from topoplan.cli.run import main; print(main(['plan.json']))\n"
        "import topoplan.runtime.register, topoplan\n"
        "try: topoplan.ddp_hook\n"
        "except topoplan.InputError: print('refused')"
    )
    machine = preset("ring:2")
    synthesize(collective_on("allreduce", machine), machine, "ring").plan.save(
        tmp_path / "plan.json"
    )
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "RANK": "0", "WORLD_SIZE": "2"}
    done = run_command(sys.executable, "-c", code, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "2\nrefused\n")
    line, warning = done.stderr.split("\n", 1)
    said = (
        r"topo-run: error: torch 2\.6\.0\+cpu in .*torch: topoplan needs ([\d.]+) or newer; "
        r"pip install 'torch>=\1'"
    )
    assert (found := re.fullmatch(said, line)), done.stderr
    assert f'"torch>={found[1]}"' in PYPROJECT
    assert "could not register its backend 'topo' with torch: torch 2.6.0+cpu in" in warning
