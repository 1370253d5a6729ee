"""Read files that users name, and write files completely or not at all."""

import errno
import os
import re
import stat
import tempfile
from pathlib import Path

from .errors import InputError

_NO_FILES = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# A process has these open: standard input, and what a shell makes of <(command).
_OPEN_PIPE = re.compile(r"/dev/stdin|/(?:dev|proc/self)/fd/\d{1,6}")


def read_file(path: str | Path, most: int = -1) -> bytes:
    """Return the bytes of a file, or the first `most` of them.

    Raise OSError if it cannot be read, or `check_file` refuses it.
    """
    check_file(path)
    with Path(path).open("rb") as file:
        return file.read(most)


def check_file(path: str | Path) -> None:
    """Raise OSError for a named pipe, which may never have a writer, and for a socket or device.

    Pipes that the process was given open (/dev/stdin, a shell's <(command)) pass.
    """
    kind = _NO_FILES.get(stat.S_IFMT(Path(path).stat().st_mode))
    if kind and not _OPEN_PIPE.fullmatch(str(path)):
        raise OSError(errno.EINVAL, f"{kind}, not a file (copy its content into one first)")


def read_start(path: str | Path, most: int) -> bytes:
    """Return the first `most` bytes of a file, by which its format is recognized.

    Return none of what cannot be read or is no regular file: an open pipe would lose them.
    """
    try:
        return read_file(path, most) if Path(path).is_file() else b""
    except (OSError, ValueError):
        return b""


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
            f"{path}: already exists and was not changed; name another file, or give "
            "overwrite=True",
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
