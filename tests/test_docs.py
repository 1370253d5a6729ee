"""Documents name only files that are there; examples print what is shown."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from launch import run_module

import topoplan

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("topo", "synth", "runtime", "cli", "tests", "benchmarks", "examples", "scripts")
FILES = [file.relative_to(ROOT).as_posix() for folder in FOLDERS for file in (ROOT / folder).rglob("*.*")]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_a_document_names_are_there(document: Path) -> None:
    named = set(re.findall(r"`([\w/]+\.(?:py|c|sh))`", document.read_text(encoding="utf-8")))
    missing = [name for name in named if not any(file == name or file.endswith(f"/{name}") for file in FILES)]
    assert missing == []


def test_the_architecture_names_every_folder_of_the_product() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = {
        f"{file.parent.relative_to(ROOT).as_posix()}/"
        for room in ("topo", "synth", "runtime", "cli")
        for file in (ROOT / room).rglob("__init__.py")
    }
    parts = re.findall(r"`([\w/]+/)`", text)
    assert [x for x in folders if x not in parts and not any(x.endswith(f"/{part}") for part in parts)] == []


def _list_examples(document: str) -> list[tuple[str, list[str]]]:
    """The commands of a document that are shown with their output: (command, lines), ... standing for what is left out."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n\$ (topo-.*)\n([^`]*?)^```", text, re.MULTILINE)
    return [(command, lines.splitlines()) for command, lines in blocks]


def _fits(shown: list[str], printed: list[str]) -> bool:
    """Whether printed lines are those shown, `...` standing for anything."""
    pieces = "\n".join(shown).split("...")
    return re.fullmatch(".*".join(map(re.escape, pieces)), "\n".join(printed), re.DOTALL) is not None


def test_the_examples_of_the_page_on_nccl_print_what_it_shows(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "nccl.md").read_text(encoding="utf-8")
    for name, content in re.findall(r"^```([\w.-]+\.txt)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(content)
    examples = _list_examples("nccl.md")
    assert len(examples) == 5
    for command, shown in examples:
        program, *arguments = command.split()
        arguments = [str(tmp_path / x) if re.search(r"\.(txt|xml|env)$", x) else x for x in arguments]
        done = run_module(f"topoplan.cli.{program.removeprefix('topo-')}", *arguments)
        assert done.returncode == 0, done.stderr
        assert _fits(shown, done.stdout.splitlines()), (shown, done.stdout)


def test_the_lines_of_the_page_on_nccl_set_the_variable_around_one_communicator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "nccl.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    with topoplan.nccl_graph("ring:4") as path:
        (tmp_path / "graph.xml").write_text(path.read_text())
    seen: list[str | None] = []
    stand_in = SimpleNamespace(
        zeros=lambda *shape, device: device,
        init_process_group=lambda backend: seen.append(os.environ.get("NCCL_GRAPH_FILE")),
        all_reduce=lambda tensor: seen.append(os.environ.get("NCCL_GRAPH_FILE")),
    )
    stand_in.distributed = stand_in
    monkeypatch.delenv("NCCL_GRAPH_FILE", raising=False)
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    monkeypatch.setitem(sys.modules, "torch.distributed", stand_in)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/nccl.md", "exec"), {})
    assert seen == [None, str(tmp_path / "graph.xml")] and "NCCL_GRAPH_FILE" not in os.environ
