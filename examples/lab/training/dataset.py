"""Load scikit-learn's digits or a file; check, split and scale the samples.

A file is an .npz with arrays x and y, or a .csv with the label in its last column. No code in a
file is run (no pickles), and sizes that a file claims are checked before memory is allocated.
"""

import zipfile
import zlib
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from topoplan import InputError

DIGITS = "digits"
# One sample in four is held out for the test.
_HELD_OUT = 4
_MIN_SAMPLES = 20  # chosen, not measured: five of them are held out
_MAX_CLASSES = 1000  # chosen; more suggest a column that is not a label
_MAX_VALUES = 1 << 28  # 1 GiB of float32
_LARGEST = 1e30  # chosen: well below the largest float32, 3.4e38
_VALUES_AT_ONCE = 1 << 20  # scaled in float64 at a time: 8 MiB
_MAX_FILE_BYTES = 1 << 30  # of a file: as much as _MAX_VALUES take as float32
_MAX_LINE = 16 << 20  # characters, so that a file without line ends is refused early
# The error for what is no dataset.
_refusal = partial(InputError, parameter="dataset")
_PARTS = ("train_x", "train_y", "test_x", "test_y")


@dataclass(frozen=True)
class Dataset:
    """Samples as rows of centred and scaled float32 features; labels are class numbers from 0."""

    name: str
    classes: int
    train_x: NDArray[np.float32]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.float32]
    test_y: NDArray[np.int64]

    @property
    def features(self) -> int:
        """Number of features of a sample."""
        return int(self.train_x.shape[1])

    def save(self, folder: Path) -> None:
        """Write the arrays to files in `folder`, for `open_saved`."""
        for part in _PARTS:
            np.save(folder / f"{part}.npy", getattr(self, part))

    @classmethod
    def open_saved(cls, name: str, classes: int, folder: Path) -> "Dataset":
        """Open the arrays that `save` wrote as memory maps, so that ranks share the pages."""
        return cls(
            name, classes, *(np.load(folder / f"{part}.npy", mmap_mode="c") for part in _PARTS)
        )


def load(argument: str, seed: int) -> Dataset:
    """Return the dataset `digits`, or that of the file that `argument` names, prepared.

    A quarter of the samples, chosen by `seed`, is held out. Raise InputError if the file cannot be
    read or is not a dataset.
    """
    samples, labels = _load_digits() if argument == DIGITS else _read(argument)
    return prepare(Path(argument).name, samples, labels, seed)


def _load_digits() -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise _refusal(
            "digits: scikit-learn is not installed; pip install 'topoplan[demo]', or "
            "name a file (.npz, .csv)"
        ) from None
    digits = load_digits()
    return digits.data, digits.target


def prepare(name: str, x: NDArray[Any], y: NDArray[Any], seed: int) -> Dataset:
    """Check, split and scale samples: rows of features `x` with class labels `y`.

    Every feature is scaled by its range in the training samples, then all are centred and divided
    by one standard deviation.
    """
    if x.ndim < 1 or x.dtype.kind not in "fiub":
        raise _refusal(
            f"{name}: x is {x.ndim}-dimensional of {x.dtype}; expected numbers, a sample a row"
        )
    if y.ndim != 1 or len(x) != len(y):
        raise _refusal(f"{name}: x has shape {x.shape}, y {y.shape}; expected one label a sample")
    if len(x) < _MIN_SAMPLES:
        raise _refusal(f"{name}: has {len(x)} samples; expected at least {_MIN_SAMPLES}")
    samples = x.reshape(len(x), -1)
    if not samples.shape[1]:
        raise _refusal(f"{name}: x has shape {x.shape}; samples have no features")
    if samples.size > _MAX_VALUES:
        raise _refusal(
            f"{name}: {samples.size} numbers; at most {_MAX_VALUES} are taken, train on a part "
            "of it"
        )
    usable = (np.abs(samples) < _LARGEST).all(axis=1)  # False for NaN, too
    if not usable.all():
        raise _refusal(
            f"{name}: sample {np.flatnonzero(~usable)[0]} has a feature that is no finite "
            f"number below {_LARGEST:g}; clean the data"
        )
    labels, classes = _number_labels(name, y)
    test_rows, train_rows = np.split(
        np.random.default_rng(seed).permutation(len(samples)), [len(samples) // _HELD_OUT]
    )
    train, test = _scale(samples[train_rows], samples[test_rows])
    return Dataset(name, classes, train, labels[train_rows], test, labels[test_rows])


def _number_labels(name: str, y: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    if y.dtype.kind not in "fiub" or (
        y.dtype.kind == "f" and not (np.isfinite(y) & (y == np.floor(y))).all()
    ):
        raise _refusal(f"{name}: labels are not whole numbers; expected one for each class")
    distinct, labels = np.unique(y, return_inverse=True)
    if len(distinct) < 2:
        raise _refusal(
            f"{name}: all samples have the label {distinct[0]:g}; expected at least two classes"
        )
    if len(distinct) > _MAX_CLASSES:
        raise _refusal(
            f"{name}: {len(distinct)} different labels; expected at most {_MAX_CLASSES} classes"
        )
    return labels.reshape(-1).astype(np.int64), len(distinct)


def _scale(
    train: NDArray[Any], test: NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    low = train.min(axis=0).astype(np.float64)
    width = train.max(axis=0) - low
    width[width == 0] = 1
    parts = [_divide_by_range(part, low, width) for part in (train, test)]
    centre = parts[0].mean(axis=0, dtype=np.float64).astype(np.float32)
    for part in parts:
        part -= centre
    deviation = np.float32(parts[0].std(dtype=np.float64) or 1.0)
    for part in parts:
        part /= deviation
    return parts[0], parts[1]


def _divide_by_range(
    part: NDArray[Any], low: NDArray[np.float64], width: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Subtract `low` and divide by `width` in float64, in blocks of rows.

    All at once could take eight times the file's memory.
    """
    out = np.empty(part.shape, np.float32)
    rows = max(1, _VALUES_AT_ONCE // part.shape[1])
    for start in range(0, len(part), rows):
        out[start : start + rows] = (part[start : start + rows] - low) / width
    return out


def _read(path: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return features and labels of a file; raise InputError if it cannot be read."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".npz", ".csv"):
        raise _refusal(f"{path}: expected digits, or a file that ends with .npz or .csv")
    try:
        size = Path(path).stat().st_size if Path(path).is_file() else None
    except (OSError, ValueError):
        size = None
    if size is None:
        raise _refusal(f"{path}: no such file")
    if size > _MAX_FILE_BYTES:
        raise _refusal(f"{path}: larger than {_MAX_FILE_BYTES >> 30} GiB; train on a part of it")
    if not size:
        raise _refusal(f"{path}: the file is empty")
    try:
        return _read_npz(path) if suffix == ".npz" else _read_csv(path)
    except OSError as error:
        raise _refusal(f"{path}: cannot be read: {error.strerror or error}") from None


def _read_npz(path: str) -> tuple[NDArray[Any], NDArray[Any]]:
    expected = "expected a file that numpy.savez(FILE, x=..., y=...) writes"
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            for array in ("x", "y"):
                if f"{array}.npy" not in names:
                    listed = ", ".join(name.removesuffix(".npy") for name in names[:5]) or "nothing"
                    raise _refusal(
                        f"{path}: has no array {array!r} (it has {listed[:200]}); {expected}"
                    )
            return _read_array(archive, "x", path), _read_array(archive, "y", path)
    # zipfile raises NotImplementedError for unknown compression, RuntimeError for encryption.
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        reason = (str(error) or "it ends too early").splitlines()[0]
        raise _refusal(f"{path}: not a sound .npz file ({reason[:200]}); {expected}") from None


def _read_array(archive: zipfile.ZipFile, name: str, path: str) -> NDArray[Any]:
    """Read one array after checking its header against the bytes in the archive."""
    size = archive.getinfo(f"{name}.npy").file_size
    if size > _MAX_FILE_BYTES:
        raise _refusal(
            f"{path}: {name} is larger than {_MAX_FILE_BYTES >> 30} GiB; train on a part of it"
        )
    with archive.open(f"{name}.npy") as file:
        try:
            read_header = (
                npy.read_array_header_1_0
                if npy.read_magic(file) == (1, 0)
                else npy.read_array_header_2_0
            )
            shape, fortran, dtype = read_header(file)
        except ValueError as error:
            raise _refusal(
                f"{path}: {name} is not a sound array: {str(error).splitlines()[0][:200]}"
            ) from None
        if dtype.hasobject:
            raise _refusal(
                f"{path}: {name} holds pickled Python objects, which are not read; save numbers"
            )
        if dtype.kind not in "fiub":
            raise _refusal(f"{path}: {name} is of {dtype}; expected numbers")
        bytes_claimed = prod(shape) * dtype.itemsize
        if any(extent < 0 for extent in shape) or bytes_claimed + file.tell() != size:
            raise _refusal(
                f"{path}: {name} is said to be {shape} of {dtype}, but has another number of bytes"
            )
        return np.frombuffer(file.read(bytes_claimed), dtype).reshape(
            shape, order="F" if fortran else "C"
        )


def _read_csv(path: str) -> tuple[NDArray[Any], NDArray[Any]]:
    # The first line may have titles, which loadtxt would refuse.
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
        raise _refusal(
            f"{path}: {reason[:200]}; expected numbers separated by commas, the label "
            "last, one title line at most"
        ) from None
    if rows.shape[1] < 2:
        raise _refusal(
            f"{path}: has one column; expected features, then the label, separated by commas"
        )
    return rows[:, :-1], rows[:, -1]


def _is_numeric(line: str) -> bool:
    try:
        return bool([float(part) for part in line.split(",")])
    except ValueError:
        return False
