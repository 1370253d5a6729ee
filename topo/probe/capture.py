"""Open a captured machine: a folder, or an archive of one, with its `/sys` and `/proc`."""

from __future__ import annotations

import bz2
import gzip
import lzma
import mmap
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from ..errors import InputError

# Limits on an archive, so that a hostile one fills neither disk nor memory: files in it, bytes
# unpacked, bytes packed.
MAX_MEMBERS = 50_000
MAX_BYTES = 64 * 2**20
MAX_ARCHIVE_BYTES = 16 * 2**20
# Limits on the entries of the folders that the probe reads, beyond the PCI functions, NICs and
# nodes of any machine.
MAX_ENTRIES: Mapping[str, int] = {
    "sys/bus/pci/devices": 20_000,
    "sys/class/net": 5_000,
    "sys/class/infiniband": 1_000,
    "sys/devices/system/node": 512,
    "sys/kernel/iommu_groups": 20_000,
    "proc/driver/nvidia/gpus": 1_000,
}

# Folders within folders; the deepest of any machine's /sys are some 25.
MAX_DEPTH = 64

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
# Unpacked files are readable for this user alone.
_OWN_FILE_MODE = 0o600
_MEMBER_BYTES = 1024  # the header of a member, and what its last block is filled up with
_PIECE = 2**20
# Of the tar format: bytes of a block, and where a header has its member's size and kind.
_BLOCK, _SIZE, _KIND = 512, slice(124, 136), 156

# Kinds of headers that say more of the member that follows.
_EXTENSIONS = (b"x", b"g", b"L", b"K")

_BROKEN = (tarfile.TarError, OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)


@contextmanager
def open_capture(path: Path) -> Iterator[Path]:
    """Yield the folder that has the captured machine's `sys` in it; an archive is unpacked into a
    temporary one.

    Raises InputError where there is no `sys`, or the archive is broken or too large.
    """
    if path.is_dir():
        yield _find_root(path, path)
        return
    if not path.is_file():
        raise InputError(
            f"{path}: no folder or archive of that name; expected a copy of a machine's /sys and "
            "/proc"
        )
    with tempfile.TemporaryDirectory(prefix="topoplan-") as folder:
        _unpack(path, Path(folder))
        yield _find_root(path, Path(folder))


def _find_root(path: Path, folder: Path) -> Path:
    """Return the folder itself or the folder in it that has a `sys`. Raises InputError where there
    is none.
    """
    for candidate in (folder, *sorted(p for p in folder.iterdir() if p.is_dir())):
        if (candidate / "sys").is_dir() or (candidate / "proc").is_dir():
            for name, most in MAX_ENTRIES.items():
                if _has_more(candidate / name, most):
                    raise InputError(
                        f"{path}: more than {most} entries in {name}; no machine has as many"
                    )
            return candidate
    raise InputError(
        f"{path}: holds no captured machine; expected a folder 'sys' in it (a copy of /sys), and "
        "'proc'"
    )


def _has_more(folder: Path, most: int) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(islice(entries, most, None), None) is not None
    except OSError:
        return False  # absent or not readable: nothing in it will be read either


def _unpack(path: Path, folder: Path) -> None:
    """Unpack regular files, folders and links that stay inside, within the limits.

    Raises InputError beyond them, before anything is written. Links are made last: no file is
    written through one.
    """
    if getattr(tarfile, "data_filter", None) is None:
        raise InputError(
            f"{path}: this Python cannot unpack archives safely; unpack it and give the folder"
        )
    if path.stat().st_size > MAX_ARCHIVE_BYTES:
        raise InputError(
            f"{path}: an archive larger than {MAX_ARCHIVE_BYTES >> 20} MiB; no captured machine is"
        )
    try:
        with (
            tempfile.TemporaryFile() as plain,
            tarfile.open(fileobj=_decompress(path, plain), mode="r:") as archive,
        ):
            _write(archive, _list_members(path, archive), folder)
    except (*_BROKEN, RecursionError) as error:
        said = getattr(error, "strerror", None) or str(error)  # without the temporary folder's name
        reason = " ".join(said.split()) or type(error).__name__
        raise InputError(
            f"{path}: not a whole archive: {reason}; pack the captured folder again"
        ) from None


@dataclass(frozen=True)
class _Members:
    """What is unpacked, by name: folders (each after the one that it is in), files and links."""

    folders: dict[str, None]
    files: dict[str, tarfile.TarInfo]
    links: dict[str, tarfile.TarInfo]


def _list_members(path: Path, archive: tarfile.TarFile) -> _Members:
    """Return what an archive holds; of two of one name the first.

    Raises InputError beyond the limits.
    """
    members = _Members({}, {}, {})
    size = 0
    for number, member in enumerate(archive):
        size += member.size
        if member.size < 0 or size > MAX_BYTES or max(number, len(members.folders)) >= MAX_MEMBERS:
            raise _make_size_error(path)
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        if len(parts) > MAX_DEPTH:
            raise InputError(
                f"{path}: folders nested deeper than {MAX_DEPTH} ({member.name!r:.40} ...); "
                "no captured machine has such"
            )
        if ".." in parts or not (member.isreg() or member.isdir() or member.issym()):
            continue  # it leads out of the folder, or is a device: not part of the machine
        name = "/".join(parts)
        for end in range(1, len(parts) + member.isdir()):
            members.folders.setdefault("/".join(parts[:end]))
        if not member.isdir():
            (members.links if member.issym() else members.files).setdefault(name, member)
    return members


def _write(archive: tarfile.TarFile, members: _Members, folder: Path) -> None:
    """Write the members below a folder that is empty.

    Links come last, so that nothing is written through one. TarFile.extract would look up every
    part of every name on the disk, where nothing can be but what was written before.
    """
    for name in members.folders:
        os.mkdir(f"{folder}/{name}")  # noqa: PTH102 (Path takes longer than the call)
    for name, member in members.files.items():
        if name not in members.folders:
            file = os.open(f"{folder}/{name}", _NEW_FILE, _OWN_FILE_MODE)
            source = archive.extractfile(member) if member.size else None
            with os.fdopen(file, "wb") as out:
                out.write(source.read() if source is not None else b"")
    for name, member in members.links.items():
        if name in members.folders or name in members.files:
            continue
        try:
            filtered = tarfile.data_filter(member, str(folder))
        except tarfile.FilterError:
            continue  # it leads out of the folder: not part of the machine
        os.symlink(filtered.linkname, f"{folder}/{name}")  # noqa: PTH211 (as above)


def _make_size_error(path: Path) -> InputError:
    return InputError(
        f"{path}: holds more than {MAX_MEMBERS} files or {MAX_BYTES >> 20} MiB; no captured "
        "machine does"
    )


def _decompress(path: Path, plain: IO[bytes]) -> IO[bytes]:
    """Write the archive without its compression into `plain` and return it. Raises InputError
    beyond the limits.
    """
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
    if _count_members(plain) > MAX_MEMBERS:
        raise _make_size_error(path)
    return plain


def _count_members(plain: IO[bytes]) -> int:
    """Return how many members an archive has, as far as its headers are usual ones.

    This takes a tenth of the time that tarfile needs, so that an archive of very many members
    is refused at once; tarfile says what is wrong with headers.
    """
    count = at = 0
    if os.fstat(plain.fileno()).st_size == 0:
        return count
    with mmap.mmap(plain.fileno(), 0, access=mmap.ACCESS_READ) as blocks:
        while at < len(blocks) and blocks[at]:  # a header begins with a name; zeros end the archive
            count += blocks[at + _KIND : at + _KIND + 1] not in _EXTENSIONS
            octal = blocks[at + _SIZE.start : at + _SIZE.stop].strip(b"\0 ")
            if not octal.isdigit() or b"8" in octal or b"9" in octal:
                break
            at += _BLOCK * (1 - -int(octal, 8) // _BLOCK)
    return count
