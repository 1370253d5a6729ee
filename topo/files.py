"""Write files completely or not at all."""

import os
import stat
import tempfile
from pathlib import Path

from .errors import InputError


def write_whole(
    path: str | Path, content: str | bytes, *, overwrite: bool = True, follow_links: bool = True
) -> None:
    """Write `content` to a temporary file and move it to `path`, so that no reader sees half of it.

    Text is encoded as UTF-8.

    With `follow_links` the target of a symbolic link is replaced, and a pipe or device is written
    directly; without, both are refused. Raise InputError if they are, if the file exists and
    `overwrite` is False, if `path` is a folder or in none, or if writing fails.
    """
    if not follow_links:
        _refuse_links(Path(path))
    target = Path(os.path.realpath(path)) if follow_links else Path(path)
    if not overwrite and target.is_file():
        raise InputError(
            f"{path}: already exists and was not changed; name another file",
            parameter="overwrite",
        )
    if not target.parent.is_dir():
        raise InputError(
            f"{path}: there is no folder {str(target.parent)!r}; make it first, or write "
            "somewhere else"
        )
    if target.is_dir():
        raise InputError(f"{path}: is a folder; give the name of a file")
    data = content.encode() if isinstance(content, str) else content
    try:
        if follow_links and target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(target, data)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def _refuse_links(path: Path) -> None:
    """Raise InputError if `path` exists and is not a regular file; parent folders may be links."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # `path` does not exist, or writing will report the error
    if not stat.S_ISREG(mode):
        raise InputError(
            f"{path}: is {'a symbolic link' if stat.S_ISLNK(mode) else 'no regular file'}, so "
            "nothing is written there; remove it"
        )


def _replace(target: Path, data: bytes) -> None:
    """Write a temporary file in the same folder and move it over `target`; remove it on failure."""
    # A new file has the permissions that open() would give it.
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_read_umask()
    handle, name = tempfile.mkstemp(
        prefix=f".{target.name[:100]}.", suffix=".tmp", dir=target.parent
    )
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _read_umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
