"""Unpack an archive of a captured machine, within limits: tar, compressed or not."""

import bz2
import gzip
import lzma
import mmap
import os
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from ..errors import InputError

# Limits on an archive, so that a hostile one fills neither disk nor memory. Number of members:
MAX_MEMBERS = 50_000
# Bytes unpacked:
MAX_BYTES = 64 * 2**20
# Bytes packed:
MAX_ARCHIVE_BYTES = 16 * 2**20
# Levels of nested folders: chosen, not measured; the recorded machines have up to 9.
MAX_DEPTH = 64
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
# Unpacked files are readable by this user alone.
_OWN_FILE_MODE = 0o600
# Upper bound on the bytes of a member's header and of the padding in its last block.
_MEMBER_BYTES = 1024
# Bytes decompressed at a time, so that a hostile archive is refused before it fills the memory.
_PIECE = 2**20
# In the tar format: bytes of a block, and the positions of a member's size and kind in its header.
_BLOCK, _SIZE, _KIND = 512, slice(124, 136), 156
# Kinds of headers that extend the header of the member that follows.
_EXTENSIONS = (b"x", b"g", b"L", b"K")
# Functions that open a compressed file, by its first bytes.
_OPENERS = ((b"BZh", bz2.open), (b"\x1f\x8b", gzip.open), (b"\xfd7zXZ\0", lzma.open))
_BROKEN = (tarfile.TarError, OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)


def unpack(path: Path, folder: Path) -> None:
    """Unpack the archive at `path` into `folder`, which is there and empty.

    Regular files, folders, and links that stay inside are unpacked; all else is left out. Files are
    readable by this user alone. Raise InputError if the archive exceeds a limit, before anything is
    written, or if it is malformed, after which some files may be there.
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
            _write(archive, folder, *_list_members(path, archive))
    except (*_BROKEN, RecursionError) as error:
        # strerror alone: the whole message has the temporary folder's name in it.
        reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
        raise InputError(
            f"{path}: incomplete or malformed archive: {reason or type(error).__name__}; pack the "
            "captured folder again"
        ) from None


def _list_members(
    path: Path, archive: tarfile.TarFile
) -> tuple[dict[str, None], dict[str, tarfile.TarInfo], dict[str, tarfile.TarInfo]]:
    """Return the folders, files and links to unpack; folders follow those that contain them."""
    folders: dict[str, None] = {}
    files: dict[str, tarfile.TarInfo] = {}
    links: dict[str, tarfile.TarInfo] = {}
    size = 0
    for number, member in enumerate(archive):
        size += member.size
        if member.size < 0 or size > MAX_BYTES or max(number, len(folders)) >= MAX_MEMBERS:
            raise _make_size_error(path)
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        if len(parts) > MAX_DEPTH:
            raise InputError(
                f"{path}: folders nested deeper than {MAX_DEPTH} ({member.name!r:.40} ...), as on "
                "no machine; capture the machine again"
            )
        if ".." in parts or not (member.isreg() or member.isdir() or member.issym()):
            continue  # outside the folder, or a device: not part of the machine
        for end in range(1, len(parts) + member.isdir()):
            folders.setdefault("/".join(parts[:end]))
        if not member.isdir():
            # If several members have one name, the first counts.
            (links if member.issym() else files).setdefault("/".join(parts), member)
    return folders, files, links


def _write(
    archive: tarfile.TarFile,
    folder: Path,
    folders: Mapping[str, None],
    files: Mapping[str, tarfile.TarInfo],
    links: Mapping[str, tarfile.TarInfo],
) -> None:
    """Write the members below an empty folder.

    Links come last, so that nothing is written through one. TarFile.extract is not used, since it
    would look up every part of every name on the disk, where only members already written can be.
    """
    for name in folders:
        os.mkdir(f"{folder}/{name}")  # noqa: PTH102 (Path takes longer than the call)
    for name in files.keys() - folders.keys():
        member = files[name]
        source = archive.extractfile(member) if member.size else None
        with os.fdopen(os.open(f"{folder}/{name}", _NEW_FILE, _OWN_FILE_MODE), "wb") as out:
            out.write(source.read() if source is not None else b"")
    for name in links.keys() - folders.keys() - files.keys():
        # A link that leads out of the folder is not part of the machine.
        with suppress(tarfile.FilterError):
            filtered = tarfile.data_filter(links[name], str(folder))
            os.symlink(filtered.linkname, f"{folder}/{name}")  # noqa: PTH211 (as above)


def _make_size_error(path: Path) -> InputError:
    return InputError(
        f"{path}: more than {MAX_MEMBERS} files or {MAX_BYTES >> 20} MiB, as no captured machine "
        "has; pack its /sys and /proc alone"
    )


def _decompress(path: Path, plain: IO[bytes]) -> IO[bytes]:
    """Write the decompressed archive to `plain` and return it, at its beginning.

    Raise InputError, as soon as that is certain, if the archive exceeds a limit.
    """
    with path.open("rb") as file:
        start = file.read(6)
    opened = next((opener for magic, opener in _OPENERS if start.startswith(magic)), open)
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
    """Return how many members an archive has before the first header of an unusual form.

    This takes a tenth of the time that tarfile needs, so an archive of very many members is refused
    at once. For a malformed header, tarfile raises the error later.
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
