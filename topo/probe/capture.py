"""A captured machine: a folder, or an archive of one, that holds its `/sys` and `/proc`."""

from __future__ import annotations

import lzma
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import InputError

MAX_MEMBERS = 500_000
MAX_BYTES = 256 * 2**20
MAX_ARCHIVE_BYTES = 64 * 2**20


@contextmanager
def captured(path: Path) -> Iterator[Path]:
    """The folder in which the captured machine's `sys` lies; an archive is unpacked for as long as it is used.

    Raises InputError where there is no `sys`, or the archive is broken or too large.
    """
    if path.is_dir():
        yield _root(path, path)
        return
    if not path.is_file():
        raise InputError(f"{path}: no folder or archive of that name; expected a copy of a machine's /sys and /proc")
    with tempfile.TemporaryDirectory(prefix="topoplan-") as folder:
        _unpack(path, Path(folder))
        yield _root(path, Path(folder))


def _root(path: Path, folder: Path) -> Path:
    """The folder itself or the one folder in it, whichever has a `sys`."""
    for candidate in (folder, *sorted(p for p in folder.iterdir() if p.is_dir())):
        if (candidate / "sys").is_dir() or (candidate / "proc").is_dir():
            return candidate
    raise InputError(f"{path}: holds no captured machine; expected a folder 'sys' in it (a copy of /sys), and 'proc'")


def _unpack(path: Path, folder: Path) -> None:
    """Unpacks regular files, folders and links that stay inside; nothing else, and no more than the bounds allow."""
    keep = getattr(tarfile, "data_filter", None)
    if keep is None:
        raise InputError(f"{path}: this Python cannot unpack archives safely; unpack it and give the folder")
    if path.stat().st_size > MAX_ARCHIVE_BYTES:
        raise InputError(f"{path}: an archive larger than {MAX_ARCHIVE_BYTES >> 20} MiB; no captured machine is")
    size = 0
    try:
        with tarfile.open(path) as archive:
            for number, member in enumerate(archive):
                size += member.size
                if number >= MAX_MEMBERS or size > MAX_BYTES:
                    raise InputError(
                        f"{path}: holds more than {MAX_MEMBERS} files or {MAX_BYTES >> 20} MiB; no captured machine does"
                    )
                if not (member.isreg() or member.isdir() or member.issym()):
                    continue
                try:
                    archive.extract(keep(member, str(folder)), folder, filter="data")
                except (tarfile.FilterError, FileExistsError):
                    continue  # it leads out of the folder, or stands where another does: not part of the machine
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{path}: not a whole archive: {error}; pack the captured folder again") from None
