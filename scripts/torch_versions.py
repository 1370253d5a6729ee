"""Runs the tests of the DDP hook and of the backend on other versions of torch, each in an
environment of its own.

    python scripts/torch_versions.py                    the oldest that topoplan works with, and
                                                        pip's newest
    python scripts/torch_versions.py --seconds 300      what cannot be made and run in that time is
                                                        skipped
    python scripts/torch_versions.py 2.10.0 -k backend  another version, other tests

An environment (.venv-torch-2.9.0) has torch alone, all else is the running environment's; it is
kept for the next time. Where pip has only torch's CUDA build, its CUDA libraries, some gigabytes
which a test on CPUs never calls, are replaced by stand-ins (a C compiler makes them) that say there
is no GPU. What cannot be made is skipped, with the reason. Exit code 1 where a test fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = [
    "tests/runtime/test_ddp.py",
    "tests/runtime/backend/test_backend.py",
    "tests/runtime/backend/test_no_method_falls_through.py",
    "tests/extras/membership/test_reconfigure.py",
    "tests/runtime/test_engines.py",
    "tests/runtime/backend/test_store_alone.py",
]
LEAST_DISK_BYTES = 6 << 30
_NVIDIA = re.compile(r"(lib)?(_*cu|nv|nccl)")
# cudaErrorNoDevice, CUDA's answer where there is no GPU.
_NO_DEVICE = 100
_VERSION_NEEDED = re.compile(r"File: (\S+)|Name: (\S+)")


class SkipVersion(Exception):  # noqa: N818  (no error)
    """A version cannot be tested here; the message is the reason."""


def main(argv: list[str] | None = None) -> int:
    """Test each version, print a line for each, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "versions", nargs="*", help="default: the oldest in pyproject.toml, and newest"
    )
    parser.add_argument(
        "-k",
        dest="names",
        default="",
        metavar="TEXT",
        help="only tests whose name fits, as pytest's -k",
    )
    parser.add_argument("--seconds", type=float, default=3600, help="for all of it (default 3600)")
    args = parser.parse_args(argv)
    ends = time.monotonic() + args.seconds
    failed = False
    for wanted in args.versions or [find_oldest(), "newest"]:
        try:
            version = find_newest(ends) if wanted == "newest" else wanted
            folder = make_environment(version, ends)
            failed |= not run_tests(version, folder, args.names, ends)
        except SkipVersion as reason:
            print(f"torch {wanted}: skipped: {reason}", flush=True)
    return int(failed)


def find_oldest() -> str:
    """Return the oldest version that pyproject.toml allows, with its three numbers."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'"torch>=([\d.]+)"', text)
    if found is None:
        raise SystemExit(
            "pyproject.toml: no line with torch>=; expected one among the dependencies"
        )
    return found[1] if found[1].count(".") > 1 else f"{found[1]}.0"


def find_newest(ends: float) -> str:
    """Return the newest version that pip finds."""
    told = run_pip(
        ends, "install", "--dry-run", "--no-deps", "--ignore-installed", "--report", "-", "torch"
    )
    version: str = json.loads(told)["install"][0]["metadata"]["version"]
    if version == installed_version():
        raise SkipVersion(
            f"pip finds none newer than {version}, on which `make test` runs all tests"
        )
    return version


def installed_version() -> str:
    """Return the version of torch in the running environment."""
    from importlib.metadata import version

    return version("torch")


def run_pip(ends: float, *arguments: str) -> str:
    """Run this environment's pip, and return what it prints. Raises SkipVersion where it fails, or
    time is over.
    """
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--quiet",
        "--no-cache-dir",
        "--retries",
        "1",
    ]
    return run_until(ends, [*command, "--timeout", "20", *arguments])


def run_until(ends: float, command: list[str]) -> str:
    """Run a command, and return what it prints. Raises SkipVersion where it fails, or time is
    over.
    """
    name = "pip" if "pip" in command else Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=max(1.0, ends - time.monotonic()),
        )
    except subprocess.TimeoutExpired:
        raise SkipVersion(f"time is over ({name})") from None
    except OSError as error:
        raise SkipVersion(f"{name}: {error.strerror}") from None
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        raise SkipVersion(f"{name}: {lines[-1] if lines else f'ended with {done.returncode}'}")
    return done.stdout


def make_environment(version: str, ends: float) -> Path:
    """Return the folder of the environment with a version of torch, which is made where it is not
    there yet.
    """
    folder = ROOT / f".venv-torch-{version}"
    if (folder / "complete").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    if shutil.disk_usage(ROOT).free < LEAST_DISK_BYTES:
        raise SkipVersion(f"less than {LEAST_DISK_BYTES >> 30} GiB of disk are free in {ROOT}")
    print(f"torch {version}: making {folder.name} ...", file=sys.stderr, flush=True)
    try:
        venv.create(folder, symlinks=True)
        python = str(folder / "bin" / "python")
        run_pip(ends, "--python", python, "install", "--no-deps", f"torch=={version}")
        (packages,) = folder.glob("lib/python*/site-packages")
        add_stand_ins(packages / "torch" / "lib", ends)
        # After pip, which must not find the other torch there and replace it.
        others = sysconfig.get_path("purelib")
        (packages / "others.pth").write_text(
            f"import site; site.addsitedir({others!r})\n", encoding="utf-8"
        )
        run_until(
            ends,
            [
                python,
                "-c",
                f"import torch; assert torch.__version__.startswith({version!r}), torch.__file__",
            ],
        )
        (folder / "complete").touch()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def add_stand_ins(folder: Path, ends: float) -> None:
    """Put libraries beside torch's for NVIDIA's that torch links to: all their functions answer
    that there is no GPU.
    """
    libraries = [path for path in folder.iterdir() if ".so" in path.name]
    needed: set[str] = set()
    versions: dict[str, str] = {}  # the library that each version of symbols is from
    symbols: dict[str, set[str]] = defaultdict(set)
    for path in libraries:
        told = run_until(ends, ["readelf", "--wide", "--dynamic", "--version-info", str(path)])
        needed |= set(re.findall(r"NEEDED.*\[(.*)\]", told))
        library = ""
        for file, version in _VERSION_NEEDED.findall(told):
            library = file or library
            if version:
                versions[version] = library
        for line in run_until(
            ends, ["nm", "--dynamic", "--undefined-only", str(path)]
        ).splitlines():
            name, _, version = line.split()[-1].replace("@@", "@").partition("@")
            symbols[version].add(name)
    missing = sorted(
        name for name in needed - {path.name for path in libraries} if _NVIDIA.match(name)
    )
    unversioned = {name for name in symbols[""] if _NVIDIA.match(name)}
    with tempfile.TemporaryDirectory(prefix="stand-ins-") as name:
        source, script = Path(name, "stand_in.c"), Path(name, "versions")
        for number, library in enumerate(missing):
            own = [version for version, home in versions.items() if home == library]
            functions = set().union(
                unversioned if number == 0 else set(), *(symbols[version] for version in own)
            )
            source.write_text(
                "".join(
                    f"int {function}(void) {{ return {_NO_DEVICE}; }}\n"
                    for function in sorted(functions)
                )
            )
            command = [
                "cc",
                "-shared",
                "-fPIC",
                "-w",
                "-fno-builtin",
                f"-Wl,-soname,{library}",
                "-o",
                str(folder / library),
            ]
            if own:
                script.write_text(f"{own[0]} {{ global: *; }};\n")
                command.append(f"-Wl,--version-script={script}")
            run_until(ends, [*command, str(source)])


def run_tests(version: str, folder: Path, names: str, ends: float) -> bool:
    """Run the tests in an environment, print what came of it, and return whether none failed."""
    command = [
        str(folder / "bin" / "python"),
        "-m",
        "pytest",
        "-q",
        "-m",
        "not gpu",
        "-p",
        "no:cacheprovider",
        "-n",
        "4",
        "--dist",
        "loadfile",
    ]
    started = time.monotonic()
    try:
        done = subprocess.run(
            [*command, "-k", names, *TESTS],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=max(1.0, ends - started),
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
        )
    except subprocess.TimeoutExpired:
        raise SkipVersion("time is over (its tests)") from None
    if done.returncode:
        print(done.stdout)
    last = (done.stdout.strip().splitlines() or [done.stderr.strip()])[-1]
    print(f"torch {version}: {last}", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
