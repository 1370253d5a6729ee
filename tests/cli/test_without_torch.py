"""Planning where torch is not installed, and what commands and names say that need it: all in one
process, whose `sitecustomize` makes `import torch` fail.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from launch import run_command
from needs import list_runnable

import topoplan
from topoplan.extras import BY_NAME

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RECORDED = Path(__file__).resolve().parents[1] / "golden"
SAYS = "torch cannot be imported (import of torch halted; None in sys.modules); planning works "
INSTALL = "pip install 'topoplan[run]'"
ALLREDUCE = ["--collective", "allreduce", "--topology", "topo.xml"]
# What each command that plans writes or prints, by its arguments.
_PLANNING = {
    "probe": (["topo.xml", "--format", "smi", "-o", "out-probe"], "GPU0"),
    "synth": (
        [*ALLREDUCE, "--time-limit", "0.1", "-o", "out-synth"],
        "schedules",
    ),
    "judge": (["all_reduce_perf.txt", "--topology", "topo.xml", "--json"], "bound"),
    "place": (["topo.xml", "--json"], '"order"'),
    "report": (["topo.xml", "--time-limit", "0.1", "-o", "out-report"], "</html>"),
}
PLANNING = {name: _PLANNING[name] for name in list_runnable(_PLANNING)}
RUNNING = {
    "run": ["--stock", "--nproc", "2"],
    **({"probe": ["ring:2", "--measure"]} if BY_NAME["measuring"].is_here else {}),
}


CALLS = [
    *((command, given) for command, (given, _) in PLANNING.items()),
    *RUNNING.items(),
]
CODE = """
import contextlib, inspect, io, json, sys
import topoplan, topoplan.cli.entry as entry

ended = []
for command, arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = getattr(entry, command)()
    ended.append((code, out.getvalue(), errors.getvalue()))
said = []
for name in ("Communicator", "ddp_hook", "backend_options"):
    try:
        getattr(topoplan, name)
    except topoplan.InputError as error:
        said.append(str(error))
members = [name for name, _ in inspect.getmembers(topoplan)]
print(json.dumps([ended, said, members]))
"""


@dataclass
class Session:
    """What a process says that cannot import torch: how its commands end (exit code and both
    outputs), the errors of names that need torch, and the names that it lists.
    """

    folder: Path
    ended: list[tuple[int, str, str]]
    said: list[str]
    members: list[str]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("without-torch")
    blocker = folder / "blocker"
    blocker.mkdir()
    text = "import sys\nsys.modules['torch'] = None\n"
    (blocker / "sitecustomize.py").write_text(text, encoding="utf-8")
    recorded = min((RECORDED / "nccl_xml").glob("*.xml"))
    (folder / "topo.xml").write_bytes(recorded.read_bytes())
    example = EXAMPLES / "all_reduce_perf.txt"
    (folder / example.name).write_bytes(example.read_bytes())
    home = Path(topoplan.__file__).parent.parent
    paths = {"PYTHONPATH": os.pathsep.join([str(blocker), str(home)])}
    done = run_command(sys.executable, "-c", CODE, json.dumps(CALLS), cwd=folder, env=paths)
    assert done.returncode == 0, done.stderr
    return Session(folder, *json.loads(done.stdout))


@pytest.mark.long
def test_every_command_that_plans_works_without_torch(session: Session) -> None:
    for (command, (_, expected)), (code, out, errors) in zip(
        PLANNING.items(), session.ended, strict=False
    ):
        assert code == 0, (command, errors)
        written = session.folder / f"out-{command}"
        text = written.read_text("utf-8") if written.exists() else out
        assert expected in text, command


@pytest.mark.long
def test_a_command_that_runs_says_in_one_line_what_to_install(session: Session) -> None:
    for command, (code, out, errors) in zip(RUNNING, session.ended[len(PLANNING) :], strict=True):
        assert (code, out) == (2, ""), command
        (line,) = errors.splitlines()
        assert line.startswith(f"topo-{command}: error: {SAYS}") and INSTALL in line


def test_a_name_that_runs_plans_says_what_to_install_and_is_not_listed(session: Session) -> None:
    assert "Plan" in session.members and "Communicator" not in session.members
    assert len(session.said) == 3
    assert all(line.startswith(SAYS) and INSTALL in line for line in session.said)
