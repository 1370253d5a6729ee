"""Files are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .errors import InputError


def write_whole(path: str | Path, text: str, *, overwrite: bool = True) -> None:
    """Write `text` to a temporary file beside `path`, then rename it there.

    Raises InputError where the folder is missing, the file cannot be written, or it exists and `overwrite` is off.
    """
    target = Path(path)
    if target.is_dir():
        raise InputError(f"{target}: is a folder; expected the name of a file to write")
    if not overwrite and target.exists():
        raise InputError(f"{target}: exists already and was left as it is; name another file, or give --force")
    if not target.parent.is_dir():
        raise InputError(f"{target}: the folder {target.parent} does not exist; create it first")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise InputError(f"{target}: cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(target)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise InputError(f"{target}: cannot be written: {error.strerror}") from None
