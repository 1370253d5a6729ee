"""The text of a plan's file: reading it within limits, its JSON, and its hash."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..topo.errors import InputError, VerificationError
from ..topo.exact import fraction_to_json, load_json, parse_fraction
from ..topo.files import read_file
from .plan_file import MAX_PLAN_BYTES

# JSON values with only one spelling; fractions have several.
_CANONICAL_TYPES = frozenset({int, str, bool, type(None)})


def parse(text: str, where: str, form: str, versions: Sequence[int]) -> dict[str, Any]:
    """Return the JSON object of a file; `where` names it in errors.

    Raise InputError unless it is JSON of the format `form`, in one of its `versions`.
    """
    try:
        data = load_json(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where}: not JSON at line {error.lineno}: {error.msg}; the file is cut off or "
            "is not a plan"
        ) from None
    except ValueError as error:
        raise InputError(f"{where}: not usable JSON: {error}") from None
    if not isinstance(data, dict) or data.get("format") != form:
        raise InputError(
            f"{where}: not a plan; expected a file written by topo-synth, of format {form!r}"
        )
    if data.get("version") not in versions:
        raise InputError(
            f"{where}: plan version {data.get('version')!r}; this topoplan reads versions "
            f"{' and '.join(map(str, versions))}"
        )
    return data


def check_hash(body: dict[str, Any], claimed: object, where: str) -> None:
    """Raise VerificationError unless `claimed` is the hash of a file's other fields."""
    try:
        same = claimed == hash_of(body)
    except ValueError as error:  # numbers that no plan holds
        raise VerificationError(f"{where}: {error}; the plan was changed or damaged") from None
    if not same:
        raise VerificationError(
            f"{where}: the plan's content does not match its hash; it was changed or damaged"
        )


def read_text(path: Path) -> str:
    """Return the text of a plan file.

    Raise InputError if it cannot be read, or is too large.
    """
    try:
        raw = read_file(path, MAX_PLAN_BYTES + 1)
        if len(raw) > MAX_PLAN_BYTES:
            raise InputError(f"{path}: larger than {MAX_PLAN_BYTES >> 20} MiB; not a plan")
        return raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(
            f"{path}: cannot be read: {reason}; expected a plan written by topo-synth"
        ) from None


def _canonical(value: Any) -> Any:
    """Return JSON values with one spelling for every number, from Python or from a file."""
    if isinstance(value, dict):
        return {k: _canonical(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        # Most of a large plan is rows of indices, for which a call per value would be slow.
        return [v if type(v) in _CANONICAL_TYPES else _canonical(v) for v in value]
    if isinstance(value, (int, str)) or value is None:
        return value
    return fraction_to_json(parse_fraction(value))


def hash_of(body: dict[str, Any]) -> str:
    """Return the SHA-256 of a plan's JSON without deflated columns, whose own SHA-256 is in it."""
    schedules = body.get("schedules")
    if isinstance(schedules, list):
        body = {**body, "schedules": [_without_deflated(row) for row in schedules]}
    return hashlib.sha256(
        json.dumps(_canonical(body), sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def _without_deflated(schedule: Any) -> Any:
    columns = schedule.get("columns") if isinstance(schedule, dict) else None
    if not isinstance(columns, dict):
        return schedule
    return {**schedule, "columns": {k: v for k, v in columns.items() if k != "deflated"}}


def dumps(data: dict[str, Any]) -> str:
    """Return a plan's JSON object as text, with a line for each field, schedule and entry."""
    lines = []
    for key, value in data.items():
        rows = [f"  {json.dumps(row)}" for row in value] if isinstance(value, list) else []
        text = "[\n" + ",\n".join(rows) + "\n]" if isinstance(value, list) else json.dumps(value)
        lines.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
