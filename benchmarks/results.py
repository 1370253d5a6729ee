"""Results that outlive a benchmark: a file of JSON lines, which a second start continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Results:
    """Rows of a file; without a file they are only in memory."""

    def __init__(self, path: Path | None, keys: tuple[str, ...]) -> None:
        """Read the file, where it exists; `keys` are the fields by which a row is known."""
        self.path, self.keys = path, keys
        self.rows: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self.rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        self._known = {self._key(row) for row in self.rows}

    def has(self, **fields: Any) -> bool:
        """Return whether there is a row with these values of the keys."""
        return self._key(fields) in self._known

    def add(self, row: dict[str, Any]) -> None:
        """Append a row, to the file at once: a run that is ended loses nothing."""
        self.rows.append(row)
        self._known.add(self._key(row))
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def _key(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[key] for key in self.keys)
