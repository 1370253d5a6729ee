"""Open a captured machine: a folder, or an archive of one, with its `/sys` and `/proc`."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

from ..errors import InputError

MAX_MEMBERS = 50_000
MAX_BYTES = 64 * 2**20
MAX_ARCHIVE_BYTES = 16 * 2**20
MAX_ENTRIES: Mapping[str, int] = {
    "sys/bus/pci/devices": 20_000,
    "sys/class/net": 5_000,
    "sys/class/infiniband": 1_000,
    "sys/devices/system/node": 512,
    "sys/kernel/iommu_groups": 20_000,
    "proc/driver/nvidia/gpus": 1_000,
}
"""Limits on the entries of the folders that the probe reads, beyond the PCI functions, NICs and nodes of any machine."""

_MEMBER_BYTES = 1024  # the header of a member, and what its last block is filled up with
_PIECE = 2**20
_BROKEN = (tarfile.TarError, OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)


@contextmanager
def open_capture(path: Path) -> Iterator[Path]:
    """Yield the folder that has the captured machine's `sys` in it; an archive is unpacked into a temporary one.

    Raises InputError where there is no `sys`, or the archive is broken or too large.
    """
    if path.is_dir():
        yield _find_root(path, path)
        return
    if not path.is_file():
        raise InputError(f"{path}: no folder or archive of that name; expected a copy of a machine's /sys and /proc")
    with tempfile.TemporaryDirectory(prefix="topoplan-") as folder:
        _unpack(path, Path(folder))
        yield _find_root(path, Path(folder))


def _find_root(path: Path, folder: Path) -> Path:
    """Return the folder itself or the folder in it that has a `sys`. Raises InputError where there is none."""
    for candidate in (folder, *sorted(p for p in folder.iterdir() if p.is_dir())):
        if (candidate / "sys").is_dir() or (candidate / "proc").is_dir():
            for name, most in MAX_ENTRIES.items():
                if _has_more(candidate / name, most):
                    raise InputError(f"{path}: more than {most} entries in {name}; no machine has as many")
            return candidate
    raise InputError(f"{path}: holds no captured machine; expected a folder 'sys' in it (a copy of /sys), and 'proc'")


def _has_more(folder: Path, most: int) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(islice(entries, most, None), None) is not None
    except OSError:
        return False  # absent or not readable: nothing in it will be read either


def _unpack(path: Path, folder: Path) -> None:
    """Unpack regular files, folders and links that stay inside, within the limits. Raises InputError beyond them."""
    data_filter = getattr(tarfile, "data_filter", None)
    if data_filter is None:
        raise InputError(f"{path}: this Python cannot unpack archives safely; unpack it and give the folder")
    if path.stat().st_size > MAX_ARCHIVE_BYTES:
        raise InputError(f"{path}: an archive larger than {MAX_ARCHIVE_BYTES >> 20} MiB; no captured machine is")
    size = 0
    try:
        with tempfile.TemporaryFile() as plain, tarfile.open(fileobj=_decompress(path, plain), mode="r:") as archive:
            for number, member in enumerate(archive):
                size += member.size
                if member.size < 0 or number >= MAX_MEMBERS or size > MAX_BYTES:
                    raise _make_size_error(path)
                if not (member.isreg() or member.isdir() or member.issym()):
                    continue
                try:
                    archive.extract(data_filter(member, str(folder)), folder, filter="data")
                except (tarfile.FilterError, FileExistsError):
                    continue  # it leads out of the folder, or stands where another does: not part of the machine
    except (*_BROKEN, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: not a whole archive: {reason}; pack the captured folder again") from None


def _make_size_error(path: Path) -> InputError:
    return InputError(f"{path}: holds more than {MAX_MEMBERS} files or {MAX_BYTES >> 20} MiB; no captured machine does")


def _decompress(path: Path, plain: IO[bytes]) -> IO[bytes]:
    """Write the archive without its compression into `plain` and return it. Raises InputError beyond the limits."""
    with path.open("rb") as file:
        start = file.read(6)
    openers = ((b"BZh", bz2.open), (b"\x1f\x8b", gzip.open), (b"\xfd7zXZ\0", lzma.open))
    opened = next((opener for magic, opener in openers if start.startswith(magic)), open)
    left = MAX_BYTES + MAX_MEMBERS * _MEMBER_BYTES
    with opened(path, "rb") as source:
        while piece := source.read(_PIECE):
            left -= len(piece)
            if left < 0:
                raise _make_size_error(path)
            plain.write(piece)
    plain.seek(0)
    return plain
