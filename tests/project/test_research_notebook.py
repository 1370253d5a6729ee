"""The notebook of examples/: its cells run in order, and print what is stored in it."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from topoplan.synth.planner import registry

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK: dict[str, Any] = json.loads((ROOT / "examples/research.ipynb").read_text("utf-8"))
# Pictures that a reader sees: machine, plan, front, two schedules, and two more plans.
PICTURES = 7


def read_text(output: dict[str, Any]) -> str:
    return "".join(output["text"] if "text" in output else output["data"]["text/plain"])


def join_streams(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return outputs with what one cell prints in one: a kernel sends what it has at times."""
    joined: list[dict[str, Any]] = []
    for output in outputs:
        if joined and "text" in output and output.get("name") == joined[-1].get("name"):
            joined[-1] = {**output, "text": read_text(joined[-1]) + read_text(output)}
        else:
            joined.append(output)
    return joined


@pytest.mark.long
def test_the_notebook_runs_and_prints_what_is_stored_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make notebook` stores its outputs anew."""
    spec = importlib.util.spec_from_file_location("notebook", ROOT / "scripts/write_notebook.py")
    assert spec is not None and spec.loader is not None
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    monkeypatch.setattr(registry, "DECORATED", {})
    monkeypatch.chdir(tmp_path)
    outputs = runner.run_cells(NOTEBOOK)
    stored = [cell["outputs"] for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    assert [[*map(read_text, of)] for of in outputs] == [[*map(read_text, of)] for of in stored]
    shown = [output for of in outputs for output in of]
    assert sum("image/svg+xml" in output.get("data", {}) for output in shown) == PICTURES


@pytest.mark.network
def test_in_a_kernel_of_jupyter_its_cells_show_what_is_stored(tmp_path: Path) -> None:
    """Text comes back as text there too, where rich prints by itself unless kept from it."""
    notebook = nbformat.reads(json.dumps(NOTEBOOK), as_version=4)  # type: ignore[no-untyped-call]
    folder = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=folder).execute()
    for cell, stored in zip(notebook["cells"], NOTEBOOK["cells"], strict=True):
        if cell["cell_type"] != "code":
            continue
        shown = join_streams([x for x in cell["outputs"] if x.get("name") != "stderr"])
        # IPython breaks long tuples into lines.
        texts = [["".join(read_text(x).split()) for x in of] for of in (shown, stored["outputs"])]
        assert texts[0] == texts[1]
        kinds = [set(x.get("data", {})) for x in stored["outputs"]]
        assert all(a <= set(x.get("data", {})) for a, x in zip(kinds, shown, strict=True))


def test_links_of_the_notebook_lead_somewhere() -> None:
    cells = (cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)#]+)\)", "".join("".join(cell["source"]) for cell in cells))
    assert links and [x for x in links if not (ROOT / "examples" / x).exists()] == []
