"""Build the source distribution, the wheel from that, and try the wheel in a fresh environment:
`make package`.

The environment sees the libraries that are installed beside this Python, but no checkout. It is
tried in another folder: topoplan --version, completion in bash, three programs of examples/,
mypy --strict over them, `topo-report dgx1`, a plan without torch, and all that each page shows
which has commands that are too slow for the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from shown_blocks import fits, read_page  # noqa: E402

PROGRAMS = ("plan_a_machine.py", "run_a_collective.py", "own_strategy.py")
PLAN_WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = None; from topoplan.cli.synth import main; "
    "sys.exit(main(['--collective', 'allreduce', '--topology', 'dgx1']))"
)
BUILD = (
    "from setuptools import build_meta; import sys; "
    "print(getattr(build_meta, 'build_' + sys.argv[1])(sys.argv[2]))"
)


def main() -> None:
    """Build, install and try; end with exit code 1 and the output of what failed."""
    with tempfile.TemporaryDirectory(prefix="topoplan-package-") as name:
        folder = Path(name)
        wheel = build(folder)
        python = install(wheel, folder / "fresh")
        work = folder / "elsewhere"
        work.mkdir()
        _try(
            "imports the wheel",
            [python, "-c", "import topoplan; print(topoplan.__file__)"],
            work,
            str(folder / "fresh"),
        )
        topoplan = str(Path(python).with_name("topoplan"))
        _try("topoplan --version", [topoplan, "--version"], work, "topoplan ")
        script = f'eval "$({topoplan} completion bash)" && complete -p topo-synth'
        _try("completion", ["bash", "--norc", "-c", script], work, "topo-synth")
        programs = [copy(program, work) for program in PROGRAMS]
        for program in programs:
            _try(program.name, [python, str(program)], work)
        _try(
            "mypy --strict",
            [python, "-m", "mypy", "--strict", *map(str, programs)],
            work,
            "no issues found in 3 source files",
        )
        report = [str(Path(python).with_name("topo-report")), "dgx1", "-o", "report.html"]
        _try("topo-report dgx1", report, work)
        page = (work / "report.html").read_text(encoding="utf-8")
        if "dgx1" not in page or "</html>" not in page:
            sys.exit("topo-report dgx1: not a whole page")
        _try("planning without torch", [python, "-c", PLAN_WITHOUT_TORCH], work, "85.71")
        for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
            follow(document, folder / "fresh/bin", folder / document.stem)


def build(folder: Path) -> Path:
    """Return the wheel made in `folder` from the source distribution of the checkout, not from the
    checkout itself.
    """
    source = folder / "source"
    listed = _run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT
    ).stdout.split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    _run([sys.executable, "-c", BUILD, "sdist", str(folder)], source)
    (archive,) = folder.glob("topoplan-*.tar.gz")
    _run(["tar", "xzf", archive.name], folder)
    _run(
        [sys.executable, "-c", BUILD, "wheel", str(folder)],
        folder / archive.name.removesuffix(".tar.gz"),
    )
    (wheel,) = folder.glob("topoplan-*.whl")
    print(
        f"built {archive.name} ({archive.stat().st_size / 1e6:.1f} MB) and {wheel.name} "
        f"({wheel.stat().st_size / 1e6:.1f} MB)"
    )
    return wheel


def install(wheel: Path, folder: Path) -> str:
    """Return the Python of a new environment in `folder`: it has the wheel, and the libraries
    beside this Python.
    """
    venv.create(folder)
    python = str(folder / "bin/python")
    site = _run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder
    ).stdout.strip()
    own = Path(sysconfig.get_path("purelib"))
    beside = [str(own), *(line for pth in own.glob("*.pth") for line in _list_folders(pth))]
    _run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            "--quiet",
            "--no-deps",
            str(wheel),
        ],
        folder,
    )
    # Appended to sys.path after the environment's own folder; not by a .pth in it, so that no
    # editable checkout comes along.
    (Path(site) / "beside.pth").write_text("\n".join(beside) + "\n", encoding="utf-8")
    return python


def follow(document: Path, programs: Path, folder: Path) -> None:
    """Run what a page shows, in a new folder, where some of it is marked as slow."""
    page = read_page(document)
    if not any(command.mark.startswith("slow") for command in page.commands):
        return
    folder.mkdir()
    for shown in page.shown:
        if isinstance(shown, tuple):
            if shown[0]:
                (folder / shown[0]).write_text(shown[1], encoding="utf-8")
            continue
        words = shown.words
        if not words[0].startswith("topo-") or shown.mark.startswith("not run"):
            continue
        started = time.monotonic()
        printed = _run([str(programs / words[0]), *words[1:]], folder).stdout
        compared = shown.printed is not None and words[0] != "topo-run"  # whose times differ
        if compared and not fits(shown.printed or [], printed):
            sys.exit(f"{document.name}: {shown.line} prints something else:\n{printed}")
        print(f"{document.name}: {shown.line}: {time.monotonic() - started:.1f} s", flush=True)


def _list_folders(pth: Path) -> list[str]:
    """Return the folders that a .pth file adds, but no checkout of ours."""
    lines = pth.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if Path(line).is_dir() and Path(line) not in (ROOT, ROOT.parent)]


def copy(program: str, folder: Path) -> Path:
    """Return the copy of an example in `folder`."""
    (folder / program).write_bytes((ROOT / "examples" / program).read_bytes())
    return folder / program


def _try(title: str, command: list[str], folder: Path, expected: str = "") -> None:
    """Run a command and print how long it took; exit where it fails or does not print what is
    expected.
    """
    started = time.monotonic()
    printed = _run(command, folder).stdout
    if expected not in printed:
        sys.exit(f"{title}: expected {expected!r} in what it prints:\n{printed}")
    print(f"{title}: {time.monotonic() - started:.1f} s", flush=True)


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Return what a command printed; exit with its output where it fails."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")
    }
    environment["COLUMNS"] = "200"
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(
            f"{' '.join(command)} ended with exit code "
            f"{done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done


if __name__ == "__main__":
    main()
