"""The extras: which there are, how large they are, and whether the core works without them.

    python scripts/extras.py --list              a JSON array: name, paths, needs, adds
    python scripts/extras.py --count [--json]    statements: of each extra, the core, the whole
    python scripts/extras.py --check             install a copy without any extra, and try it
    python scripts/extras.py --check mscclpp     without this one, and those that need it
    python scripts/extras.py --check --quick     tests are collected, not run

A check installs the copy into a folder of its own, imports all modules that are left, and runs the
commands, the backend, the DDP hook and the tests that are left, but for those of the whole checkout
and its documents (tests/project). What an extra added has to be refused in one line.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from topoplan.extras import (
    ADDITIONS,
    BOXES,
    COMMANDS,
    CONSTRAINTS,
    CORRECTIONS,
    EXPORTS,
    EXTRAS,
    FILES,
    FORMATS,
    JOBS,
    LINKS,
    MODES,
    NAMES,
    OPTIONS,
    PLAN_FILES,
    PLANS,
    REQUESTS,
    REVIEWS,
    RUN_FILES,
    RUN_MODES,
    RUNS,
    SELECTIONS,
    SOURCES,
    STRATEGIES,
    SUBCOMMANDS,
    VIEWS,
    WRITERS,
    Extra,
)

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("topo", "synth", "runtime", "cli")
# As in `make test`. Each worker imports torch for its ranks once more, and makes the fixtures of
# the modules whose tests it runs.
_SIDE_BY_SIDE = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
# Prints why the facade does not have a name, or the backend does not read a file.
_TRY = """
import sys
import topoplan
from topoplan.runtime.backend.plan_files import PlanFiles

try:
    getattr(topoplan, sys.argv[1]) if sys.argv[1:] else PlanFiles(["file.json"])
except topoplan.InputError as error:
    print(error)
    sys.exit(2)
"""
# Prints why the backend does not take an option.
_TRY_OPTION = """
import sys
import topoplan

try:
    topoplan.backend_options(**{sys.argv[1]: "what it is given"})
except topoplan.InputError as error:
    print(error)
    sys.exit(2)
"""
# Imports every module of the package.
_IMPORT_ALL = """
import importlib
import pkgutil
import topoplan

for module in pkgutil.walk_packages(topoplan.__path__, "topoplan."):
    floor, last = module.name.split(".")[1], module.name.rpartition(".")[2]
    # The library in C++ is no module.
    if floor in ("topo", "synth", "runtime", "cli", "extras") and not last.startswith("_"):
        importlib.import_module(module.name)
"""
# Ranks of the smoke: the backend, a communicator, and the hook, on CPUs over gloo.
_SMOKE = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import topoplan


def work(rank):
    dist.init_process_group("topo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
    ones = torch.ones(4096)
    dist.all_reduce(ones)
    assert ones.eq(2).all()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    model.register_comm_hook(None, topoplan.ddp_hook("plan.json", choose="plan"))
    model(torch.ones(1, 64)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Do what is asked, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the extras as JSON")
    parser.add_argument("--count", action="store_true", help="print how many statements they have")
    parser.add_argument("--json", action="store_true", help="with --count: as JSON")
    parser.add_argument(
        "--check", nargs="*", metavar="NAME", help="try a copy without these (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="with --check: run no tests")
    args = parser.parse_args(argv)
    if args.list:
        print(json.dumps([_to_json(extra) for extra in EXTRAS], indent=1))
    elif args.count:
        _show_counts(as_json=args.json)
    elif args.check is not None:
        known = {extra.name: extra for extra in EXTRAS}
        if unknown := [name for name in args.check if name not in known]:
            print(f"extras: {unknown[0]}: expected some of {', '.join(known)}", file=sys.stderr)
            return 2
        gone = [known[name] for name in args.check] or list(EXTRAS)
        return _check(gone, runs_tests=not args.quick)
    else:
        parser.print_usage(sys.stderr)
        return 2
    return 0


def _to_json(extra: Extra) -> dict[str, object]:
    adds = {group: list(names) for group, names in extra.adds.items()}
    return {"name": extra.name, "paths": extra.paths, "needs": extra.needs, "adds": adds}


def _show_counts(*, as_json: bool) -> None:
    """Print the statements of the floors: of each extra, of the core, and of the whole."""
    of_files = {path: _count(path) for path in _list_sources()}
    counts = {
        extra.name: sum(
            count
            for path, count in of_files.items()
            if any(path.is_relative_to(ROOT / own) for own in extra.paths)
        )
        for extra in EXTRAS
    }
    whole = sum(of_files.values())
    rows = {"extras": counts, "core": whole - sum(counts.values()), "whole": whole}
    if as_json:
        print(json.dumps(rows))
        return
    for name, count in [*counts.items(), ("core", rows["core"]), ("whole", whole)]:
        print(f"{count:7,}  {name}")


def _list_sources() -> list[Path]:
    floors = [path for floor in FLOORS for path in (ROOT / floor).rglob("*.py")]
    return [*floors, ROOT / "__init__.py", ROOT / "extras.py"]


def _count(path: Path) -> int:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(path.read_text("utf-8"))))


def _check(gone: Iterable[Extra], *, runs_tests: bool) -> int:
    """Try a copy without these extras and those that need them; return the exit code.

    Without `runs_tests` the tests that are left are collected alone.
    """
    names = {extra.name for extra in gone}
    while more := {x.name for x in EXTRAS if names & {*x.needs}} - names:
        names |= more
    removed = [extra for extra in EXTRAS if extra.name in names]
    with tempfile.TemporaryDirectory(prefix="extras-") as folder:
        copy, site = Path(folder, "checkout"), Path(folder, "installed")
        copy_without(removed, copy)
        pip = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
        _run("install", [*pip, "--target", str(site), str(copy)], Path(folder), {})
        env = {"PYTHONPATH": str(site)}
        where = "import topoplan; print(topoplan.__file__)"
        imported = _run("import", ["-c", where], Path(folder), env).strip()
        if not Path(imported).is_relative_to(site):
            raise SystemExit(f"extras: topoplan was imported from {imported}, not from the copy")
        _run("import of all modules", ["-c", _IMPORT_ALL], Path(folder), env)
        _try_commands(removed, Path(folder), env)
        smoke = Path(folder, "smoke.py")
        smoke.write_text(_SMOKE, encoding="utf-8")
        _run("backend and hook", [str(smoke), str(Path(folder, "store"))], Path(folder), env)
        tests = ["-m", "pytest", "-q", "--ignore=tests/project"]
        how = (
            ["-m", "not gpu and not network and not long", *_SIDE_BY_SIDE]
            if runs_tests
            else ["--collect-only"]
        )
        # On CI no test may be skipped that it should run; here tests of what is gone are. Bytecode
        # is written, or each of the hundreds of processes would compile the tests anew.
        env |= {"CI": "", "PYTHONDONTWRITEBYTECODE": ""}
        _run("the tests that are left", [*tests, *how], copy, env)
    print(f"works without {', '.join(sorted(names))}")
    return 0


def copy_without(removed: Iterable[Extra], copy: Path) -> None:
    """Copy what git tracks, but for the extras' paths."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], check=True, capture_output=True, text=True
    )
    gone = [Path(path) for extra in removed for path in extra.paths]
    for name in filter(None, listed.stdout.split("\0")):
        source = ROOT / name
        if source.is_file() and not any(Path(name).is_relative_to(path) for path in gone):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy / name)


def _try_commands(removed: Iterable[Extra], folder: Path, env: dict[str, str]) -> None:
    """Run the core's commands, and see that what was removed is refused in one line."""
    _run("topo-probe", ["-m", "topoplan.cli.probe", "dgx1"], folder, env)
    synth = ["-m", "topoplan.cli.synth", "allreduce"]
    _run("topo-synth", [*synth, "ring:2", "--strategy", "ring", "-o", "plan.json"], folder, env)
    _run("topo-run", ["-m", "topoplan.cli.run", "plan.json", "-e", "4K", "-n", "1"], folder, env)
    ask_for: dict[str, Callable[[str], list[str]]] = {
        COMMANDS: lambda name: ["-m", "topoplan.cli.topoplan", name, "--help"],
        SUBCOMMANDS: lambda name: ["-m", "topoplan.cli.topoplan", name, "--help"],
        EXPORTS: lambda name: [*synth, "ring:2", "--format", name],
        FILES: lambda name: [*synth, "ring:2", "--format", name],
        SOURCES: lambda name: ["-m", "topoplan.cli.probe", f"--{name}"],
        BOXES: lambda name: ["-m", "topoplan.cli.probe", "file.json", f"--{name}", "dgx1"],
        FORMATS: lambda _: ["-m", "topoplan.cli.probe", "file.xml"],
        CORRECTIONS: lambda name: ["-m", "topoplan.cli.probe", "dgx1", f"--{name}", "FILE"],
        SELECTIONS: lambda name: ["-m", "topoplan.cli.probe", "dgx1", f"--{name}", "LIST"],
        VIEWS: lambda name: ["-m", "topoplan.cli.probe", "dgx1", "--format", name],
        WRITERS: lambda name: ["-m", "topoplan.cli.probe", "dgx1", f"--{name}"],
        REVIEWS: lambda name: ["-m", "topoplan.cli.probe", f"--{name}"],
        LINKS: lambda name: ["-m", "topoplan.cli.run", "plan.json", "--backend", name],
        NAMES: lambda name: ["-c", _TRY, name],
        OPTIONS: lambda name: ["-c", _TRY_OPTION, name],
        JOBS: lambda name: [*synth, "ring:2", f"--{name}"],
        STRATEGIES: lambda name: [*synth, "ring:2", "--strategy", name],
        ADDITIONS: lambda name: [*synth, "ring:2", f"--{name}", "links"],
        PLAN_FILES: lambda name: [*synth, "ring:2", f"--{name}", "FILE"],
        REQUESTS: lambda name: [*synth, "ring:2", f"--{name}", "FILE"],
        CONSTRAINTS: lambda name: [*synth, "ring:2", f"--{name}", "gpu=1"],
        MODES: lambda name: [*synth, "ring:2", f"--{name}", "-"],
        PLANS: lambda _: ["-c", _TRY],
        RUN_FILES: lambda name: ["-m", "topoplan.cli.run", "plan.json", f"--{name}", "FILE"],
        RUN_MODES: lambda name: ["-m", "topoplan.cli.run", "plan.json", f"--{name}"],
        RUNS: lambda _: ["-m", "topoplan.cli.run", "file.json"],
    }  # what the others add is missed without a word
    for extra in removed:
        for group, added in extra.adds.items():
            for name in added if group in ask_for else ():
                (folder / "file.json").write_text(json.dumps({"format": name}), encoding="utf-8")
                (folder / "file.xml").write_text(f"<{name}/>", encoding="utf-8")
                said = _run(name, ask_for[group](name), folder, env, code=2)
                if "Traceback" in said or len(said.strip().splitlines()) != 1:
                    raise SystemExit(f"extras: {name} is not refused in one line:\n{said}")


def _run(
    what: str, arguments: Sequence[str], folder: Path, env: dict[str, str], *, code: int = 0
) -> str:
    """Run Python with arguments; return what it printed, errors included.

    Raise SystemExit with that unless it ends with the exit code `code`.
    """
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if ended.returncode != code:
        raise SystemExit(f"extras: {what}: exit code {ended.returncode}\n{ended.stdout}")
    print(f"{what}: as it should be", file=sys.stderr)
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main())
