"""Load scikit-learn's digits or a file; check, split and scale the samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....topo.errors import InputError
from .dataset_files import read

DIGITS = "digits"
# One sample in four is held out for the test.
_HELD_OUT = 4
_MIN_SAMPLES = 20  # a quarter of fewer says nothing about accuracy
_MAX_CLASSES = 1000  # more are mostly a column that is not a label
_MAX_VALUES = 1 << 28  # 1 GiB of float32
_LARGEST = 1e30  # squares of larger values overflow float32 in training
_VALUES_AT_ONCE = 1 << 20  # scaled in float64 at a time: 8 MiB
_PARTS = ("train_x", "train_y", "test_x", "test_y")


@dataclass(frozen=True)
class Dataset:
    """Samples as rows of centred and scaled float32 features; labels are class numbers from 0
    on.
    """

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
        """Write the arrays for `open_saved`."""
        for part in _PARTS:
            np.save(folder / f"{part}.npy", getattr(self, part))

    @classmethod
    def open_saved(cls, name: str, classes: int, folder: Path) -> Dataset:
        """Return what `save` wrote as memory maps, so that ranks share the pages."""
        return cls(
            name, classes, *(np.load(folder / f"{part}.npy", mmap_mode="c") for part in _PARTS)
        )


def load(argument: str, seed: int) -> Dataset:
    """Return `digits`, or the dataset in a file; a quarter of the samples, by `seed`, is held
    out.

    Raise InputError if the file cannot be read or is not a dataset.
    """
    if argument == DIGITS:
        return prepare(DIGITS, *_load_digits(), seed)
    return prepare(Path(argument).name, *read(argument), seed)


def _load_digits() -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError(
            "--dataset digits: scikit-learn is not installed; pip install 'topoplan[demo]', or "
            "name a file (.npz, .csv)"
        ) from None
    digits = load_digits()
    return digits.data, digits.target


def prepare(name: str, x: NDArray[Any], y: NDArray[Any], seed: int) -> Dataset:
    """Check, split and scale samples.

    Every feature is scaled by its range in the training samples, then all are centred and divided
    by one standard deviation.
    """
    where = f"--dataset {name}"
    if x.ndim < 1 or x.dtype.kind not in "fiub":
        raise InputError(
            f"{where}: x is {x.ndim}-dimensional of {x.dtype}; expected numbers, a sample a row"
        )
    if y.ndim != 1 or len(x) != len(y):
        raise InputError(
            f"{where}: x has shape {x.shape}, y {y.shape}; expected one label a sample"
        )
    if len(x) < _MIN_SAMPLES:
        raise InputError(f"{where}: has {len(x)} samples; expected at least {_MIN_SAMPLES}")
    samples = x.reshape(len(x), -1)
    if not samples.shape[1]:
        raise InputError(f"{where}: x has shape {x.shape}; samples have no features")
    if samples.size > _MAX_VALUES:
        raise InputError(
            f"{where}: {samples.size} numbers; at most {_MAX_VALUES} are taken, train on a part "
            "of it"
        )
    usable = (np.abs(samples) < _LARGEST).all(axis=1)  # False for NaN, too
    if not usable.all():
        row = int(np.flatnonzero(~usable)[0])
        raise InputError(
            f"{where}: sample {row} has a feature that is no finite number below {_LARGEST:g}; "
            "clean the data"
        )
    labels, classes = _number_labels(where, y)
    order = np.random.default_rng(seed).permutation(len(samples))
    test_rows, train_rows = np.split(order, [len(samples) // _HELD_OUT])
    train, test = _scale(samples[train_rows], samples[test_rows])
    return Dataset(name, classes, train, labels[train_rows], test, labels[test_rows])


def _number_labels(where: str, y: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    if y.dtype.kind not in "fiub" or (
        y.dtype.kind == "f" and not (np.isfinite(y) & (y == np.floor(y))).all()
    ):
        raise InputError(f"{where}: labels are not whole numbers; expected one for each class")
    distinct, labels = np.unique(y, return_inverse=True)
    if len(distinct) < 2:
        raise InputError(
            f"{where}: all samples have the label {distinct[0]:g}; expected at least two classes"
        )
    if len(distinct) > _MAX_CLASSES:
        raise InputError(
            f"{where}: {len(distinct)} different labels; expected at most {_MAX_CLASSES} classes"
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
