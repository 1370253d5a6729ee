"""Read users' datasets: an .npz with arrays x and y, or a .csv with the label in its last
column.

No code in a file is run (no pickles), and sizes that a file claims are checked before memory is
allocated.
"""

from __future__ import annotations

import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ....topo.errors import InputError

MAX_BYTES = 1 << 30  # of a file: as much as dataset.py takes as float32
_MAX_LINE = 16 << 20  # characters, so that a file without line ends is refused early


def read(path: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return features and labels of a file; raise InputError if it cannot be read."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".npz", ".csv"):
        raise InputError(
            f"--dataset {path}: expected digits, or a file that ends with .npz or .csv"
        )
    try:
        size = Path(path).stat().st_size if Path(path).is_file() else None
    except (OSError, ValueError):
        size = None
    if size is None:
        raise InputError(f"--dataset {path}: no such file")
    if size > MAX_BYTES:
        raise InputError(
            f"--dataset {path}: larger than {MAX_BYTES >> 30} GiB; train on a part of it"
        )
    if not size:
        raise InputError(f"--dataset {path}: the file is empty")
    try:
        return _read_npz(path) if suffix == ".npz" else _read_csv(path)
    except OSError as error:
        raise InputError(f"--dataset {path}: cannot be read: {error.strerror or error}") from None


def _read_npz(path: str) -> tuple[NDArray[Any], NDArray[Any]]:
    expected = "expected a file that numpy.savez(FILE, x=..., y=...) writes"
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            for array in ("x", "y"):
                if f"{array}.npy" not in names:
                    listed = ", ".join(name.removesuffix(".npy") for name in names[:5]) or "nothing"
                    raise InputError(
                        f"--dataset {path}: has no array {array!r} (it has {listed[:200]}); "
                        f"{expected}"
                    )
            return _read_array(archive, "x", path), _read_array(archive, "y", path)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else "it ends too early"
        raise InputError(
            f"--dataset {path}: not a sound .npz file ({reason[:200]}); {expected}"
        ) from None


def _read_array(archive: zipfile.ZipFile, name: str, path: str) -> NDArray[Any]:
    """Read one array after checking its header against the bytes in the archive."""
    size = archive.getinfo(f"{name}.npy").file_size
    if size > MAX_BYTES:
        raise InputError(
            f"--dataset {path}: {name} is larger than {MAX_BYTES >> 30} GiB; train on a part of it"
        )
    with archive.open(f"{name}.npy") as file:
        try:
            version = npy.read_magic(file)
            header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = header(file)
        except ValueError as error:
            raise InputError(
                f"--dataset {path}: {name} is not a sound array: {str(error).splitlines()[0][:200]}"
            ) from None
        if dtype.hasobject:
            raise InputError(
                f"--dataset {path}: {name} holds pickled Python objects, which are not read; save "
                "numbers"
            )
        if dtype.kind not in "fiub":
            raise InputError(f"--dataset {path}: {name} is of {dtype}; expected numbers")
        bytes_claimed = prod(shape) * dtype.itemsize
        if any(extent < 0 for extent in shape) or bytes_claimed + file.tell() != size:
            raise InputError(
                f"--dataset {path}: {name} is said to be {shape} of {dtype}, but has another "
                "number of bytes"
            )
        values = np.frombuffer(file.read(bytes_claimed), dtype)
    return values.reshape(shape, order="F" if fortran else "C")


def _read_csv(path: str) -> tuple[NDArray[Any], NDArray[Any]]:
    with Path(path).open("rb") as file:
        first = file.readline(_MAX_LINE).decode("utf-8-sig", errors="replace")
    try:
        rows = np.loadtxt(
            path,
            dtype=np.float64,
            delimiter=",",
            ndmin=2,
            skiprows=0 if _is_numeric(first) else 1,
            encoding="utf-8-sig",
        )
    except (ValueError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0].split("; use `usecols`")[0]
        raise InputError(
            f"--dataset {path}: {reason[:200]}; expected numbers separated by commas, the label "
            "last, one title line at most"
        ) from None
    if rows.shape[1] < 2:
        raise InputError(
            f"--dataset {path}: has one column; expected features, then the label, separated by "
            "commas"
        )
    return rows[:, :-1], rows[:, -1]


def _is_numeric(line: str) -> bool:
    try:
        for part in line.split(","):
            float(part)
    except ValueError:
        return False
    return True
