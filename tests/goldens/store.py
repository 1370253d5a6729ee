"""The files of recorded behaviour: values that are short enough to review, and how two differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "recorded"
INPUTS = Path(__file__).parent / "inputs"
# Characters of a text, and items of a list or object, above which a hash stands for them; what
# comes first is shown, so that a reader sees what it is.
_LONG_TEXT, _SHOWN_TEXT = 400, 120
_LONG_LIST, _SHOWN_LIST = 12, 2
# Characters of a value that has a line of its own in a file.
_LINE = 160
_MISSING = "(absent)"


def hash_text(text: str | bytes) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:16]


def shorten(value: Any) -> Any:
    """Return a value with hashes in place of long texts, lists and objects."""
    if isinstance(value, str) and len(value) > _LONG_TEXT:
        return f"{value[:_SHOWN_TEXT]}... ({len(value)} characters, {hash_text(value)})"
    if isinstance(value, dict):
        return {name: shorten(item) for name, item in value.items()}
    if isinstance(value, list):
        shown = [shorten(item) for item in value]
        if len(shown) > _LONG_LIST:
            digest = hash_text(json.dumps(value, sort_keys=True))
            return [*shown[:_SHOWN_LIST], f"... ({len(value)} items, {digest})"]
        return shown
    return value


def format_value(value: Any, indent: str = "") -> str:
    """Return JSON in which what fits on a line has one, and the rest an item a line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) <= _LINE or not isinstance(value, (dict, list)):
        return line
    deeper = f"{indent} "
    if isinstance(value, dict):
        rows = [
            f"{json.dumps(name, ensure_ascii=False)}: {format_value(item, deeper)}"
            for name, item in value.items()
        ]
    else:
        rows = [format_value(item, deeper) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{deeper}" + f",\n{deeper}".join(rows) + f"\n{indent}{closing}"


def read(kind: str) -> dict[str, Any]:
    """Return what is recorded of a kind, by the case; nothing where there is no file yet."""
    path = RECORDED / f"{kind}.json"
    if not path.exists():
        return {}
    recorded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return recorded


def write(kind: str, cases: dict[str, Any]) -> None:
    """Record all cases of a kind anew."""
    text = format_value(shorten(cases)) + "\n"
    (RECORDED / f"{kind}.json").write_text(text, encoding="utf-8")


def compare(kind: str, cases: dict[str, Any]) -> list[str]:
    """Return a line for each value that differs from the recorded one, with both."""
    # As JSON has it: tuples become lists, keys texts.
    now = json.loads(json.dumps(shorten(cases)))
    return [
        f"{kind}: {' > '.join(place)}\n    recorded: {_show(old)}\n    now:      {_show(new)}"
        for place, old, new in _find_differences(read(kind), now, ())
    ]


def _find_differences(
    old: Any, new: Any, place: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys([*old, *new]):
            pair = old.get(name, _MISSING), new.get(name, _MISSING)
            yield from _find_differences(*pair, (*place, name))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, pair in enumerate(zip(old, new, strict=True)):
            yield from _find_differences(*pair, (*place, str(number)))
    elif old != new:
        yield place, old, new


def _show(value: Any) -> str:
    return value if value == _MISSING else json.dumps(value, ensure_ascii=False)
