"""Measure how the code reads: size, comments, words, class names, line lengths.

    python scripts/style.py                      the table, for the whole product
    python scripts/style.py topo/formats         one folder or file
    python scripts/style.py --list way           every place that a measure counts
    python scripts/style.py --check              exit 1 where a bar that `make lint` holds is missed

The product is topo, synth, runtime and cli. CONTRIBUTING.md has the rules behind the measures.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("topo", "synth", "runtime", "cli")
# 36,000 before plans of thousands of GPUs; raised only with a feature that needs it.
MAX_STATEMENTS = 57_000
MIN_COMMENTS_PER_100_LINES = 3.0
MAX_COLUMNS = 100

# A comment that steers a tool, or only separates sections, says nothing to a reader.
NOT_A_REASON = re.compile(r"#\s*(noqa|type:|fmt:|pragma|ruff:|mypy:|!|-{2,}|={2,}|$)")

# Words of the house's old English, and what is written today.
WORDS = {
    "way": (
        r"(?<!-)(?<!on its )(?<!this )(?<!same )(?<!that )(?<!half )(?<!the other )"
        r"\bways?\b(?!-)(?! to\b)",
        "route, path, direction or method",
    ),
    "kept": (r"\bkept (call|race|plan|verdict|answer|program)s?\b", "cached"),
    "told": (r"\b(is|are|was|were|be) told\b(?! apart)|\btold of\b", "reported"),
    "looked": (r"\b(is|are|was|were|be) looked\b", "checked, tried"),
    "nobody": (r"\b(anybody|nobody|everybody)\b", "name the subject"),
    "as one": (r"\bso often it\b|\bas it were\b|\bworth a word\b", "plain words"),
    "lane": (r"\blanes?\b", "rail, channel or link (PCIe alone has lanes)"),
    "coinage": (
        r"\b(Nursery|Planted|bells?)\b",
        "thread pool, packed, rail or channel, wake-up",
    ),
}
VARIABLES = {"found", "told", "here"}
# Names with "way" in files, and codes of findings, which stay as users know them.
PUBLIC_WAYS = {"bound_one_way", "gap_any_way", "gap_any_way_of", "one_way_GBps", "any_way_GBps"}
QUOTED = (
    "So often it is looked",
    "So often the shortest way",
    "Of how much a gain is worth a word",
    "Return what people are told of a thing",
    "Who makes the call holds",
    "there it is for who captures",
    "Hang up the bell",
    "senders could divide data over all ways",
    "no way that other GPUs need not forward",
    "no code of anybody",
    "Of a larger machine the GPUs that take part",
    "A collective that a table does not name is told",
    "falls to the simple order",
    "are nothing that an order of ranks expresses",
    "each answer keeps its source",
    "which link would one rather have wider",
    "LinkSpeed is read over",
    "Each host hangs on its switch",
    "To 8 ranks all orders are looked at",
    "Of many boxes that are alike one is drawn",
    "two hosts with a thin uplink it is otherwise",
    "say on standard error how far it is",
    "What plans reached on machines rebuilt out of network namespaces",
)
OWN_FLAG = re.compile(r"\badd(?:_argument)?\(\s*(?:\"-\w\", )?\"(--[a-z][a-z-]+)\"")


@dataclass
class Measures:
    """What was counted, and where: a place is "file:line: text"."""

    statements: int = 0
    lines: int = 0
    comments: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    lines_of: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    places: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    classes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def main(argv: list[str] | None = None) -> int:
    """Print the table or the places of one measure, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", help="folders or files (default: the product)")
    parser.add_argument("--list", metavar="MEASURE", help="print every place of one measure")
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar is missed")
    args = parser.parse_args(argv)
    files = sorted(_files([Path(p) for p in args.paths] or [ROOT / d for d in FOLDERS]))
    measures = measure(files)
    if args.list:
        print("\n".join(measures.places[args.list]))
        return 0
    missed = _print_table(measures, whole=not args.paths)
    return 1 if args.check and missed else 0


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        yield from path.rglob("*.py") if path.is_dir() else [path]


def measure(files: Iterable[Path]) -> Measures:
    """Count everything in some files."""
    flags = _own_flags()
    measures = Measures()
    for path in files:
        source = path.read_text()
        where = str(path.resolve().relative_to(ROOT))
        tree = ast.parse(source)
        _measure_tree(tree, where, flags, measures)
        _measure_lines(source, where, measures)
    for name, places in measures.classes.items():
        if len(places) > 1:
            measures.places["classes"].append(f"{name}: {', '.join(places)}")
    return measures


def _own_flags() -> frozenset[str]:
    texts = (path.read_text() for path in (ROOT / "cli").rglob("*.py"))
    return frozenset(flag for text in texts for flag in OWN_FLAG.findall(text)) - {"--help"}


def _measure_tree(tree: ast.Module, where: str, flags: frozenset[str], measures: Measures) -> None:
    for node in ast.walk(tree):
        measures.statements += isinstance(node, ast.stmt)
        if isinstance(node, ast.ClassDef):
            measures.classes[node.name].append(where)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            _measure_text(node.value, f"{where}:{node.lineno}", flags, measures)
        _measure_name(node, where, measures)
        if isinstance(node, (ast.Name, ast.arg)):
            name = node.id if isinstance(node, ast.Name) else node.arg
            is_new = isinstance(node, ast.arg) or isinstance(node.ctx, ast.Store)
            if is_new and name in VARIABLES:
                measures.places["variables"].append(f"{where}:{node.lineno}: {name}")
            if is_new and re.match(r"_?(MOST|LEAST)_", name):
                measures.places["MOST_"].append(f"{where}:{node.lineno}: {name}")


def _measure_name(node: ast.AST, where: str, measures: Measures) -> None:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
        name = node.name
    elif isinstance(node, ast.arg):
        name = node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        name = node.id
    else:
        return
    if name not in PUBLIC_WAYS and re.search(r"(^|_)ways?(_|$)", name.lower()):
        measures.places["way"].append(f"{where}:{node.lineno}: {name}")


def _measure_text(text: str, place: str, flags: frozenset[str], measures: Measures) -> None:
    for word, (pattern, _) in WORDS.items():
        if word == "lane" and place.startswith("topo/"):  # PCIe links have lanes
            continue
        for match in re.finditer(pattern, text):
            around = " ".join(text[max(0, match.start() - 30) : match.end() + 30].split())
            measures.places[word].append(f"{place}: {around}")
    for quoted in QUOTED:
        if quoted in text:
            measures.places["quoted"].append(f"{place}: {quoted}")
    if not place.startswith("cli/") and " " in text:
        # A whole command may be named; with = or : it is another program's flag or a CSS variable.
        spoken = flags & set(re.findall(r"(?<!topo-run )(?<!var\()--[a-z][a-z-]+(?![\w:=-])", text))
        measures.places["flags"] += [f"{place}: {flag}" for flag in sorted(spoken)]


def _measure_lines(source: str, where: str, measures: Measures) -> None:
    lines = source.splitlines()
    folder = where.split("/")[0]
    measures.lines += len(lines)
    measures.lines_of[folder] += len(lines)
    commented = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not NOT_A_REASON.match(token.string):
            commented.add(token.start[0])
            _measure_text(token.string, f"{where}:{token.start[0]}", frozenset(), measures)
    measures.comments[folder] += len(commented)
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS:
            measures.places["columns"].append(f"{where}:{number}: {len(line)}")
        constant = re.match(r"_?[A-Z][A-Z0-9]*(_\w+)?(, _?[A-Z]\w+)*(: \w+)? = [(-]*[.\d]", line)
        if constant and {number, number - 1} & commented:
            commented.add(number)  # the comment is about the constants that follow at once, too
        elif constant:
            measures.places["constants"].append(f"{where}:{number}: {line}")


def _print_table(measures: Measures, *, whole: bool) -> list[str]:
    """Print each measure beside its bar; return the bars that are missed."""
    rows: list[tuple[str, str, str, bool]] = [
        (
            "statements",
            str(measures.statements),
            f"at most {MAX_STATEMENTS}" if whole else "",
            not whole or measures.statements <= MAX_STATEMENTS,
        )
    ]
    for folder, lines in measures.lines_of.items():
        rate = 100 * measures.comments[folder] / lines if lines else 0.0
        holds = folder not in ("runtime", "synth") or rate >= MIN_COMMENTS_PER_100_LINES
        bar = f"at least {MIN_COMMENTS_PER_100_LINES:g}" if folder in ("runtime", "synth") else ""
        rows.append((f"comment lines per 100, {folder}", f"{rate:.1f}", bar, holds))
    for name, what in (
        ("classes", "class names used twice"),
        ("columns", f"lines over {MAX_COLUMNS} columns"),
        ("flags", "flags outside cli"),
        ("constants", "numeric constants without a reason"),
        ("variables", "variables named found, told or here"),
        ("MOST_", "names with MOST_ or LEAST_"),
        ("quoted", "sentences of the review"),
        *((word, f'"{word}": {better}') for word, (_, better) in WORDS.items()),
    ):
        count = len(measures.places[name])
        rows.append((f"{what}", str(count), "0", count == 0))
    width = max(len(what) for what, *_ in rows)
    for what, value, bar, holds in rows:
        print(f"{what:<{width}}  {value:>8}  {bar:<16}{'' if holds else ' missed'}".rstrip())
    return [what for what, _, _, holds in rows if not holds]


if __name__ == "__main__":
    sys.exit(main())
