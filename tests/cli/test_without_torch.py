"""Planning where torch is not installed, and what commands and names say that need it.

Every process here is one of its own, with a `sitecustomize` that makes `import torch` fail.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from launch import Ended, run_command

import topoplan

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RECORDED = Path(__file__).resolve().parents[1] / "golden"
SAYS = "torch cannot be imported (import of torch halted; None in sys.modules); planning works "
INSTALL = "pip install 'topoplan[run]'"
# What each command that plans writes or prints, by its arguments.
PLANNING = {
    "probe": (["topo.xml", "--format", "svg", "-o", "out-probe"], "<svg"),
    "synth": (
        ["--collective", "allreduce", "--topology", "topo.xml", "-o", "out-synth"],
        "schedules",
    ),
    "judge": (["all_reduce_perf.txt", "--topology", "topo.xml", "--json"], "bound"),
    "place": (["topo.xml", "--json"], '"order"'),
    "report": (["topo.xml", "-o", "out-report"], "</html>"),
}
RUNNING = {
    "run": ["--stock", "--nproc", "2"],
    "lab": ["--network", "loopback", "--systems", "serial"],
    "probe": ["ring:2", "--measure"],
}


def _without_torch(folder: Path, code: str, *arguments: str) -> Ended:
    """Run Python code in a process that cannot import torch, in `folder`."""
    blocker = folder / "blocker"
    blocker.mkdir()
    text = "import sys\nsys.modules['torch'] = None\n"
    (blocker / "sitecustomize.py").write_text(text, encoding="utf-8")
    home = Path(topoplan.__file__).parent.parent
    paths = {"PYTHONPATH": os.pathsep.join([str(blocker), str(home)])}
    return run_command(sys.executable, "-c", code, *arguments, cwd=folder, env=paths)


def _call(folder: Path, commands: dict[str, list[str]]) -> dict[str, tuple[int, str, str]]:
    """Call commands one after the other; return exit code and what is printed, by command."""
    code = (
        "import contextlib, io, json, sys, topoplan.cli.entry as entry\n"
        "ended = {}\n"
        "for command, arguments in json.loads(sys.argv[1]).items():\n"
        "    sys.argv[1:] = arguments\n"
        "    with (contextlib.redirect_stdout(io.StringIO()) as out,\n"
        "          contextlib.redirect_stderr(io.StringIO()) as errors):\n"
        "        result = getattr(entry, command)()\n"
        "    ended[command] = result, out.getvalue(), errors.getvalue()\n"
        "print(json.dumps(ended))\n"
    )
    done = _without_torch(folder, code, json.dumps(commands))
    assert done.returncode == 0, done.stderr
    ended: dict[str, tuple[int, str, str]] = json.loads(done.stdout)
    return ended


def test_every_command_that_plans_works_without_torch(tmp_path: Path) -> None:
    recorded = min((RECORDED / "nccl_xml").glob("*.xml"))
    (tmp_path / "topo.xml").write_bytes(recorded.read_bytes())
    example = EXAMPLES / "all_reduce_perf.txt"
    (tmp_path / example.name).write_bytes(example.read_bytes())
    arguments = {command: given for command, (given, _) in PLANNING.items()}
    for command, (code, out, errors) in _call(tmp_path, arguments).items():
        assert code == 0, (command, errors)
        written = tmp_path / f"out-{command}"
        text = written.read_text("utf-8") if written.exists() else out
        assert PLANNING[command][1] in text, command


def test_a_command_that_runs_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    for command, (code, out, errors) in _call(tmp_path, RUNNING).items():
        assert (code, out) == (2, ""), command
        (line,) = errors.splitlines()
        assert line.startswith(f"topo-{command}: error: {SAYS}") and INSTALL in line


def test_a_name_that_runs_plans_says_what_to_install_and_is_not_listed(tmp_path: Path) -> None:
    code = (
        "import topoplan\n"
        "for name in ('Communicator', 'ddp_hook', 'backend_options'):\n"
        "    try: getattr(topoplan, name)\n"
        "    except topoplan.InputError as error: print(error)\n"
        "import inspect; found = dict(inspect.getmembers(topoplan))\n"
        "print('Plan' in found, 'Communicator' in found)\n"
    )
    done = _without_torch(tmp_path, code)
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and lines[3] == "True False", done.stderr
    assert all(line.startswith(SAYS) and INSTALL in line for line in lines[:3])
