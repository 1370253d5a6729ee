"""The examples that helps show, and a way to run such a line as it is printed, or cheaply: in this
process.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from launch import run_command

from topoplan.cli.commands import import_command, list_commands
from topoplan.cli.shared.common import Parser
from topoplan.extras import BY_NAME

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# The modules of all commands: topoplan itself, and its subcommands.
NAMES = ("topoplan", *list_commands())


@dataclass
class Done:
    """How a line ended."""

    code: int
    stdout: str = ""
    stderr: str = ""


def build_parser(name: str) -> Parser:
    """Return the parser of a command, by its module's name."""
    return import_command(name).build_parser()


def print_help(name: str, columns: int = 80) -> str:
    """Return a command's help on a terminal of so many columns."""
    with mock.patch.dict(os.environ, {"COLUMNS": str(columns)}):
        return build_parser(name).format_help()


def list_examples(name: str) -> list[str]:
    """Return the command lines that a command's help shows, from its text."""
    blocks = re.findall(r"^(?:more )?examples:\n((?:  .*\n)+)", print_help(name), re.MULTILINE)
    lines = "".join(blocks).splitlines()
    return [line[2:] for line in lines if not line.startswith("      ")]


def make_folder(folder: Path) -> Path:
    """Copy what examples name to a folder; return it."""
    return shutil.copytree(
        EXAMPLES, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )


def run_as_printed(line: str, folder: Path) -> Done:
    """Run a line by bash in a folder, with the commands that are installed beside this Python."""
    tools = folder / ".tools"
    tools.mkdir(exist_ok=True)
    # stands in for nccl-tests' program, which needs GPUs
    (tools / "all_reduce_perf").write_text('#!/bin/sh\nexec cat "${0%/*}/../all_reduce_perf.txt"\n')
    (tools / "all_reduce_perf").chmod(0o755)
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = run_command(
        *("bash", "-o", "pipefail", "-c", line), cwd=folder, env={"PATH": path}, quiet_s=300
    )
    return Done(done.returncode, done.stdout, done.stderr)


def run_here(line: str, folder: Path) -> Done:
    """Run a line in this process, short: searches stop after a moment, and where ranks would be
    started the command only checks what it was given. A pipe, files to be expanded and > are
    understood.
    """
    first, _, rest = line.rpartition(" | ")
    return _run(rest, folder, (folder / f"{first.split()[0]}.txt").read_bytes() if first else b"")


def _run(line: str, folder: Path, piped: bytes) -> Done:
    line, _, target = line.partition(" > ")
    words = [name for word in shlex.split(line) for name in _expand(word, folder)]
    if words[0] == "torchrun":
        assert words[1] == "--nproc-per-node" and words[3] == "-m", line
        words = ["topo-" + words[4].rpartition(".")[2], *words[5:]]
    if words[0] == "mpirun":
        assert words[1] == "-n", line
        words = words[3:]
    if words[0] == "topoplan":
        module, arguments = "topoplan", words[1:]
        name = words[1]
    else:
        module = name = words[0].removeprefix("topo-")
        arguments = words[1:]
    if name in ("synth", "report"):
        arguments += ["--time-limit", "0.1"]
    out, err = io.StringIO(), io.StringIO()
    stdin = io.TextIOWrapper(io.BytesIO(piped))
    with (
        _inside(folder),
        _without_ranks(),
        mock.patch.object(sys, "stdin", stdin),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = import_command(module).main(arguments)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
    if target:
        (folder / target).write_text(out.getvalue())
    return Done(code, out.getvalue(), err.getvalue())


def _expand(word: str, folder: Path) -> list[str]:
    """Return a word as a shell expands it: the files that it stands for, or itself."""
    names = (
        sorted(str(path.relative_to(folder)) for path in folder.glob(word)) if "*" in word else []
    )
    return names or [word]


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _without_ranks() -> Iterator[None]:
    """Have commands check all that they can before they start ranks, namespaces or measurements,
    and end there with 0.
    """
    from topoplan.runtime.ranks import launch

    with contextlib.ExitStack() as patches:
        for where, what, instead in (
            (launch, "launch", lambda *_: 0),
            *(_list_judgements() if BY_NAME["judge"].is_here else ()),
            *(_list_measurements() if BY_NAME["measuring"].is_here else ()),
            *(_list_cables() if BY_NAME["cables"].is_here else ()),
            *(_list_emulations() if BY_NAME["emulate"].is_here else ()),
        ):
            patches.enter_context(mock.patch.object(where, what, instead))
        yield


def _list_judgements() -> list[tuple[object, str, object]]:
    from judge_options import find_options_once

    from topoplan.synth.extras.judge import judging

    return [(judging, "find_options", find_options_once)]


def _list_measurements() -> list[tuple[object, str, object]]:
    """Return what of the measuring is replaced: links have the rates that they are said to have."""
    from topoplan.runtime.extras.measuring import measure_links
    from topoplan.topo.loader.resolve import load

    return [(measure_links, "measure_topology", lambda named, **_: named or load("ring:2"))]


def _list_cables() -> list[tuple[object, str, object]]:
    """Return what of the cables is replaced: two hosts have one between them."""
    from topoplan.runtime.extras.cables import probe
    from topoplan.topo.extras.cables import FabricFacts, HostFacts, PortAnswer, PortFacts

    pair = FabricFacts(
        tuple(
            HostFacts(f"h{i}", (i,), (PortFacts("port0", f"10.0.0.{i + 1}/24"),)) for i in (0, 1)
        ),
        answers=tuple(PortAnswer(i, "port0", 1 - i, "port0", 1 - i, "port0") for i in (0, 1)),
    )
    return [(probe, "probe_fabric", lambda: pair)]


def _list_emulations() -> list[tuple[object, str, object]]:
    """Return what of the emulator is replaced: networks are planned alone, and commands of ranks
    run once here.
    """
    from topoplan.runtime.extras.emulate import cabled_network, collapse, mpi, network, ranks
    from topoplan.runtime.extras.emulate.blueprint import Blueprint
    from topoplan.runtime.extras.emulate.cabling import Cabling

    @contextlib.contextmanager
    def plan_network(built: Blueprint) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(blueprint=built)

    @contextlib.contextmanager
    def plan_cables(cabling: Cabling, **_: bool) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(blueprint=cabling.as_blueprint())

    def run_inside(_: object, command: list[str], rehearsal: object) -> int:
        if command[0] == "python":
            return 0 if Path(command[1]).is_file() else 1
        more = (
            ["--nproc", "2"] if "--stock" in command else []
        )  # there a rank, which it is not here
        return _run(shlex.join([*command, *more]), Path.cwd(), b"").code

    return [
        (network, "emulate_blueprint", plan_network),
        (collapse, "collapsing", lambda *_: contextlib.nullcontext()),
        (cabled_network, "emulate_cabling", plan_cables),
        (ranks, "run_ranks", run_inside),
        (mpi, "find_open_mpi", lambda: mpi.OpenMpi("mpirun", 4)),
        (mpi, "run_mpi_ranks", lambda network, _, *asked: run_inside(network, *asked)),
    ]
