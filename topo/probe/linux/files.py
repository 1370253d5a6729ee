"""Files of a machine whose `/` may be elsewhere: each read gives a fact, with its source or the reason why not."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from ...facts import Fact

MAX_BYTES = 2**20
"""No file is read further than this: what the probe looks for in longer ones (`/proc/cpuinfo`) stands at their beginning."""


def read_fact(root: Path, path: Path, subject: str, key: str) -> Fact:
    """The stripped text of a file of the machine whose `/` is at `root`; unreadable or empty ones are missing."""
    source = shown_path(root, path)
    try:
        text = read_start(path, MAX_BYTES).decode("utf-8", errors="replace").strip()
    except OSError as error:
        return Fact(subject, key, None, source, error.strerror or str(error))
    return Fact(subject, key, text, source) if text else Fact(subject, key, None, source, "the file is empty")


def read_start(path: Path, most: int) -> bytes:
    """The first `most` bytes of a file. OSError for what is none: a pipe or a device would be waited for, or never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(most)


def shown_path(root: Path, path: Path) -> str:
    """`path` as it is called on the machine whose `/` is at `root`."""
    return f"/{path.relative_to(root)}" if path.is_relative_to(root) else str(path)


def list_folder(folder: Path) -> tuple[Path, ...]:
    """What is in a folder, by name; nothing where it cannot be read."""
    try:
        return tuple(sorted(folder.iterdir()))
    except OSError:
        return ()
