"""Run the notebook of examples/ without Jupyter, and store its outputs: `make notebook`."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples/research.ipynb"


def run_cells(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the outputs of the code cells, run in order in one namespace, in this folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    return [_run_cell("".join(cell["source"]), names) for cell in cells]


def _run_cell(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a cell prints, then what its last line is, if that is an expression."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    value, printed = None, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _split(text)})
    if value is not None:
        data = {"text/plain": _split(repr(value))}
        # Viewers of stored notebooks remove styles from HTML, not from pictures.
        if picture := getattr(value, "_repr_svg_", lambda: None)():
            data["image/svg+xml"] = _split(picture)
        number = {"output_type": "execute_result", "execution_count": None, "metadata": {}}
        outputs.append({**number, "data": data})
    return outputs


def _split(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    """Write the notebook with the outputs of a run in an empty folder."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        outputs = run_cells(notebook)
        os.chdir(NOTEBOOK.parent)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, shown) in enumerate(zip(code, outputs, strict=True), 1):
        results = [{**x, "execution_count": number} if "data" in x else x for x in shown]
        cell |= {"outputs": results, "execution_count": number}
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
