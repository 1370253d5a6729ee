"""Run a benchmark: python -m benchmarks NAME [options]; without a name, list them.

It is the same as `python benchmarks/NAME.py [options]`, and torchrun and mpirun start it likewise.
The list has the first sentence about each, and the documents that name it, for its figures.
"""

from __future__ import annotations

import ast
import difflib
import os
import re
import sys
import textwrap
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
_INDENT = " " * 18


def main() -> None:
    """Become the benchmark that is asked for, or list them."""
    names = list_benchmarks()
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print("\n".join(describe(names)))
        return
    name = sys.argv[1]
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        print(f"no benchmark {name}{hint}: python -m benchmarks lists them", file=sys.stderr)
        raise SystemExit(2)
    os.execv(sys.executable, [sys.executable, str(FOLDER / f"{name}.py"), *sys.argv[2:]])


def list_benchmarks() -> list[str]:
    """Return the names of the files here that are programs, not what programs share."""
    files = sorted(FOLDER.glob("*.py"))
    programs = (file for file in files if "\nif __name__ ==" in file.read_text("utf-8"))
    return [file.stem for file in programs if file.stem != "__main__"]


def describe(names: list[str]) -> list[str]:
    """Return the lines of the list."""
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "tests" / "README.md"]
    texts = {file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in documents}
    lines = ["python -m benchmarks NAME --help says more."]
    for name in names:
        named = re.compile(rf"benchmarks[/ ]{name}\b(?![/_])")
        found = ", ".join(sorted(path for path, text in texts.items() if named.search(text)))
        said = read_sentence(FOLDER / f"{name}.py") + (f" [{found}]" if found else "")
        lines += textwrap.wrap(
            said, 100, initial_indent=f"{name:16}  ", subsequent_indent=_INDENT,
            break_on_hyphens=False, break_long_words=False,
        )  # fmt: skip
    return lines


def read_sentence(file: Path) -> str:
    """Return the first sentence of a program's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.?]) ", first)[0]


if __name__ == "__main__":
    main()
