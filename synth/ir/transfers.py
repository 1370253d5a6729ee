"""Transfers of a schedule, stored as columns, so that a few arrays hold a million of them.

A column is an array with one property of every transfer. A `Transfers` is also a sequence of
`Transfer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

Op = Literal["copy", "reduce"]
Ints = NDArray[np.int64]

OPS: tuple[Op, Op] = ("copy", "reduce")
COPY, REDUCE = 0, 1  # indices into OPS, for arrays of operations
# Largest sort key that a 64-bit integer holds.
_MAX_KEY = 2**63 - 1


@dataclass(frozen=True, order=True)
class Transfer:
    """One chunk, by its number in the schedule, sent from rank `src` to rank `dst` in `step`.

    By `op` the receiver overwrites its value (copy) or adds to it (reduce). `route` lists the
    devices between the two (switches, sockets, NICs); it is empty for a direct link.
    """

    step: int
    src: int
    dst: int
    chunk: int
    op: Op = "copy"
    route: tuple[str, ...] = ()


class Transfers(Sequence[Transfer]):
    """Transfers in listing order, comparable and hashable.

    Columns are `step`, `src`, `dst` (ranks), `chunk` (its number in the schedule), `op` (COPY or
    REDUCE) and `route`, an index into `routes` (sorted, each used). The arrays are read-only.
    """

    __slots__ = ("_hash", "_paths", "chunk", "dst", "op", "route", "routes", "src", "step")

    def __init__(
        self,
        step: ArrayLike,
        src: ArrayLike,
        dst: ArrayLike,
        chunk: ArrayLike,
        op: ArrayLike,
        route: ArrayLike,
        routes: Sequence[tuple[str, ...]],
    ) -> None:
        self.step, self.src, self.dst, self.chunk, self.op, number = (
            np.asarray(x, dtype=np.int64).reshape(-1) for x in (step, src, dst, chunk, op, route)
        )
        # Equal transfers have equal columns only if routes are listed in one order, each used once.
        times = np.bincount(number)
        used = np.flatnonzero(times).tolist()
        self.routes = tuple(sorted({routes[i] for i in used}))
        place = {route: i for i, route in enumerate(self.routes)}
        times[used] = [place[routes[i]] for i in used]
        self.route: Ints = times[number]
        for column in self.columns:
            column.flags.writeable = False
        self._hash: int | None = None
        self._paths: tuple[list[tuple[int, int, tuple[str, ...]]], Ints] | None = None

    @classmethod
    def of(cls, rows: Iterable[Transfer]) -> Transfers:
        """Return the transfers `rows` as columns, in their order."""
        if isinstance(rows, Transfers):
            return rows
        numbers: dict[tuple[str, ...], int] = {}
        listed = [
            (
                t.step,
                t.src,
                t.dst,
                t.chunk,
                OPS.index(t.op),
                numbers.setdefault(t.route, len(numbers)),
            )
            for t in rows
        ]
        return cls.from_columns(zip(*listed, strict=True) if listed else [()] * 6, list(numbers))

    @classmethod
    def joined(cls, parts: Sequence[Transfers]) -> Transfers:
        """Return several Transfers as one, in their order."""
        starts = np.cumsum([0, *(len(part.routes) for part in parts)]).tolist()
        rows = (
            (*part.columns[:-1], part.route + start)
            for part, start in zip(parts, starts, strict=False)
        )
        return cls.from_columns(
            map(np.concatenate, zip(*rows, strict=True)),
            [route for part in parts for route in part.routes],
        )

    @classmethod
    def from_columns(
        cls, columns: Iterable[ArrayLike], routes: Sequence[tuple[str, ...]]
    ) -> Transfers:
        """Return the transfers with these six columns: step, src, dst, chunk, op and route.

        `routes` are what the last one numbers.
        """
        step, src, dst, chunk, op, route = columns
        return cls(step, src, dst, chunk, op, route, routes)

    @property
    def columns(self) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
        """The columns step, src, dst, chunk, op and route, in this order."""
        return self.step, self.src, self.dst, self.chunk, self.op, self.route

    def taken(self, places: NDArray[np.int64] | NDArray[np.bool_] | slice) -> Transfers:
        """Return the transfers at `places` (indices or a mask), in that order."""
        return Transfers.from_columns((column[places] for column in self.columns), self.routes)

    @property
    def is_sorted(self) -> bool:
        """Whether the transfers are in the order of `sorted`."""
        rising = np.zeros(max(0, len(self) - 1), np.bool_)
        equal = ~rising
        for column in self.columns:
            steps = np.diff(column)
            rising |= equal & (steps > 0)
            equal &= steps == 0
        return bool(np.all(rising | equal))

    def sorted(self) -> Transfers:
        """Return the transfers sorted by step, source, destination, chunk, operation and route."""
        keys = self.step, self.src, self.dst, self.chunk, self.op, self.route
        sizes = [int(key.max(initial=0)) + 1 for key in keys]
        if prod(sizes) > _MAX_KEY or min(int(key.min(initial=0)) for key in keys) < 0:
            return self.taken(np.lexsort(keys[::-1]))
        # One key for all columns is sorted several times as fast.
        key = np.zeros(len(self), dtype=np.int64)
        for size, column in zip(sizes, keys, strict=True):
            key = key * size + column
        return self.taken(np.argsort(key, kind="stable"))

    def paths(self) -> tuple[list[tuple[int, int, tuple[str, ...]]], Ints]:
        """Return the distinct (src, dst, route), and for each transfer its index among them."""
        # Cached, since planning, costing and verifying ask in turn.
        if self._paths is None:
            ranks = int(max(self.src.max(initial=0), self.dst.max(initial=0))) + 1
            key = (self.src * ranks + self.dst) * (len(self.routes) + 1) + self.route
            _, first, path_of = np.unique(key, return_index=True, return_inverse=True)
            ends = self.src[first].tolist(), self.dst[first].tolist()
            routes = [self.routes[i] for i in self.route[first].tolist()]
            self._paths = [*zip(*ends, routes, strict=True)], path_of.reshape(-1)
        return self._paths

    def __len__(self) -> int:
        return len(self.step)

    @overload
    def __getitem__(self, place: int) -> Transfer: ...
    @overload
    def __getitem__(self, place: slice) -> Transfers: ...
    def __getitem__(self, place: int | slice) -> Transfer | Transfers:
        if isinstance(place, slice):
            return self.taken(place)
        step, src, dst, chunk, op, route = (int(column[place]) for column in self.columns)
        return Transfer(step, src, dst, chunk, OPS[op], self.routes[route])

    def __iter__(self) -> Iterator[Transfer]:
        for step, src, dst, chunk, op, route in zip(
            *(column.tolist() for column in self.columns), strict=True
        ):
            yield Transfer(step, src, dst, chunk, OPS[op], self.routes[route])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Transfers):
            return NotImplemented
        return self.routes == other.routes and all(
            np.array_equal(a, b) for a, b in zip(self.columns, other.columns, strict=True)
        )

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.routes, *(column.tobytes() for column in self.columns)))
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        # Without the hash: those of texts differ from process to process.
        return Transfers, (*self.columns, self.routes)

    def __repr__(self) -> str:
        shown = [*map(repr, self[:3]), *(["..."] if len(self) > 3 else [])]
        return f"Transfers({len(self)}: {', '.join(shown)})"
