"""Read files of a machine whose `/` may be any folder.

Each file becomes a fact with its source, or with the reason why it is missing.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Any

from ...facts import Fact
from ...facts.keys import Key

# No file is read further than this: in longer ones (`/proc/cpuinfo`) the values that the probe
# needs are at the beginning.
MAX_BYTES = 2**20


def read_fact(root: Path, path: Path, subject: str, key: Key[Any]) -> Fact:
    """Return a file's text, stripped, as a fact; missing if unreadable or empty.

    `root` is the folder that is `/` on the machine.
    """
    source = show_path(root, path)
    try:
        text = read_text(path)
    except OSError as error:
        return Fact(subject, key, None, source, error.strerror or str(error))
    return (
        Fact(subject, key, text, source)
        if text
        else Fact(subject, key, None, source, "the file is empty")
    )


def read_text(path: Path) -> str:
    """Return a file's text, stripped.

    Raise OSError if it cannot be read.
    """
    return read_start(path, MAX_BYTES).decode("utf-8", errors="replace").strip()


def read_start(path: Path, most: int) -> bytes:
    """Return the first `most` bytes of a regular file.

    Raise OSError for pipes and devices, which may never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(most)


def show_path(root: Path, path: Path) -> str:
    """Return `path` as seen on the machine whose `/` is at `root`."""
    return f"/{path.relative_to(root)}" if path.is_relative_to(root) else str(path)


def list_folder(folder: Path) -> tuple[Path, ...]:
    """Return the entries of a folder, sorted by name; none if it cannot be read."""
    try:
        return tuple(sorted(folder.iterdir()))
    except OSError:
        return ()
