"""Documents name only files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
