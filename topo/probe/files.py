"""Files of a machine whose `/` may be elsewhere: each read gives a fact, with its source or the reason why not."""

from __future__ import annotations

from pathlib import Path

from ..facts import Fact


def read_fact(root: Path, path: Path, subject: str, key: str) -> Fact:
    """The stripped text of a file of the machine whose `/` is at `root`; unreadable or empty ones are missing."""
    source = shown_path(root, path)
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        return Fact(subject, key, None, source, error.strerror or str(error))
    return Fact(subject, key, text, source) if text else Fact(subject, key, None, source, "the file is empty")


def shown_path(root: Path, path: Path) -> str:
    """`path` as it is called on the machine whose `/` is at `root`."""
    return f"/{path.relative_to(root)}" if path.is_relative_to(root) else str(path)


def list_folder(folder: Path) -> tuple[Path, ...]:
    """What is in a folder, by name; nothing where it cannot be read."""
    try:
        return tuple(sorted(folder.iterdir()))
    except OSError:
        return ()
