"""Read the traffic of a job as a matrix: the bytes that each rank sends to each other rank.

Row i, column j is what rank i sends to rank j. Files are CSV (commas, semicolons, tabs or blanks;
lines that begin with # are comments; sizes such as 64M) or NumPy's .npy.
"""

import re
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...topo.errors import InputError
from ...topo.files import check_file
from ..sizes import parse_size

ByteMatrix = NDArray[np.int64]
SUFFIXES = (".csv", ".npy")
# Bytes of a file: 2,048 ranks with numbers of 15 digits, one sign between them.
_MAX_FILE_BYTES = 1 << 26
# Bytes in all: sums of such integers are exact in floating point, by which loads are counted.
_MAX_BYTES = 1 << 52
_BETWEEN = re.compile(r"\s*[,;\t]\s*|\s+")
# Numbers as programs write them: 1073741824.0, 1.5e9.
_DECIMAL = re.compile(r"[0-9]{1,20}(?:\.[0-9]{0,20})?(?:[eE]\+?[0-9]{1,2})?")


def is_matrix(traffic: str) -> bool:
    """Return whether a text for traffic names a file: it has a file's ending, or no "=".

    Otherwise it lists collectives, such as dp=allreduce:1G.
    """
    return Path(traffic).suffix.lower() in SUFFIXES or "=" not in traffic


def read_matrix(source: str | PathLike[str] | ByteMatrix, ranks: int) -> ByteMatrix:
    """Return a matrix of bytes from rank to rank, from a file or an array; its diagonal becomes 0.

    Raise InputError unless it has a row and a column for each of `ranks` ranks, of whole numbers of
    at least 0.
    """
    if isinstance(source, (str, PathLike)):
        path = Path(source)
        name, rows = str(path), _read_file(path)
    else:
        name, rows = "traffic", np.asarray(source)
    if rows.shape != (ranks, ranks):
        shape = " x ".join(map(str, rows.shape))
        raise _refuse(
            name, f"{shape or 'not'} numbers; expected {ranks} x {ranks}, one row per rank"
        )
    if rows.dtype.kind not in "iuf":
        raise _refuse(name, f"values of type {rows.dtype}; expected whole numbers of bytes")
    rows = rows.astype(np.float64) if rows.dtype.kind == "f" else rows
    # Comparisons are written so that they fail for NaN.
    bad = np.argwhere(~((rows >= 0) & (rows <= _MAX_BYTES) & (rows == np.floor(rows))))
    if len(bad):
        row, column = map(int, bad[0])
        raise _refuse(
            name,
            f"row {row}, column {column}, both counted from 0: {rows[row, column]}; expected a "
            f"whole number of bytes from 0 to {_MAX_BYTES}",
        )
    matrix = rows.astype(np.int64)
    np.fill_diagonal(matrix, 0)
    if sum(map(int, matrix.sum(axis=1))) > _MAX_BYTES:
        raise _refuse(name, f"more than {_MAX_BYTES} bytes in all; give those of one step")
    return matrix


def _read_file(path: Path) -> NDArray[Any]:
    """Return the numbers of a file as they are, in two dimensions."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise _refuse(
            str(path),
            "neither a list such as dp=allreduce:1G nor a matrix; expected a file that ends in "
            f"{' or '.join(SUFFIXES)}",
        )
    try:
        check_file(path)
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise _refuse(str(path), f"more than {_MAX_FILE_BYTES >> 20} MiB; sum up the ranks")
        if suffix == ".npy":
            # Mapped, since a malformed header may claim more numbers than the file has.
            with np.errstate(over="raise"):  # as may the product of its sizes
                return np.array(np.load(path, mmap_mode="r", allow_pickle=False))
        return _read_csv(path, path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise _refuse(str(path), error.strerror or "cannot be read") from None
    except (ValueError, EOFError, ArithmeticError) as error:
        if isinstance(error, InputError):
            raise
        kinds = {".csv": "text in UTF-8", ".npy": "an array of numbers as numpy.save writes"}
        raise _refuse(str(path), f"not {kinds[suffix]}") from None


def _read_csv(path: Path, text: str) -> NDArray[Any]:
    rows: list[list[int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            rows.append([_read_bytes(part) for part in _BETWEEN.split(line.strip())])
        except InputError as error:
            raise _refuse(f"{path}, line {number}", str(error)) from None
        if len(rows[-1]) != len(rows[0]):
            raise _refuse(
                f"{path}, line {number}",
                f"{len(rows[-1])} numbers, and the first row has {len(rows[0])}; expected as many",
            )
    return np.array(rows, dtype=np.int64).reshape(len(rows), -1 if rows else 0)


def _read_bytes(text: str) -> int:
    if _DECIMAL.fullmatch(text):
        value = float(text)
        if not value.is_integer():
            raise InputError(f"{text!r} is not a whole number of bytes")
        size = int(value)
    else:
        size = parse_size(text)
    # A larger one is refused later, with its row and column.
    return min(size, _MAX_BYTES + 1)


def _refuse(name: str, why: str) -> InputError:
    return InputError(f"{name}: {why}", parameter="traffic")
