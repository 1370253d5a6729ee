"""Transfers kept as columns: a few arrays hold a million of them, and they read as a sequence of
`Transfer`s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

Op = Literal["copy", "reduce"]
Ints = NDArray[np.int64]

OPS: tuple[Op, Op] = ("copy", "reduce")
COPY, REDUCE = 0, 1


@dataclass(frozen=True, order=True)
class Transfer:
    """One chunk sent from rank `src` to rank `dst` in `step`; the receiver takes it over (copy) or
    adds it (reduce).

    `route` lists the devices between the two (switches, sockets, NICs); empty for a direct link.
    """

    step: int
    src: int
    dst: int
    chunk: int
    op: Op = "copy"
    route: tuple[str, ...] = ()


class Transfers(Sequence[Transfer]):
    """Transfers in listing order. Columns `step`, `src`, `dst`, `chunk`, `op` (COPY or REDUCE) and
    `route`, an index into `routes` (sorted, each used). Equal where the transfers are; hashable.
    The arrays must not be written to.
    """

    __slots__ = ("_hash", "chunk", "dst", "op", "route", "routes", "src", "step")

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
        columns = (
            np.asarray(x, dtype=np.int64).reshape(-1) for x in (step, src, dst, chunk, op, route)
        )
        self.step, self.src, self.dst, self.chunk, self.op, number = columns
        used, number = np.unique(number, return_inverse=True)
        distinct = sorted({routes[i] for i in used})
        place = {r: i for i, r in enumerate(distinct)}
        self.routes = tuple(distinct)
        self.route: Ints = np.array([place[routes[i]] for i in used], dtype=np.int64)[
            number.reshape(-1)
        ]
        for column in self.columns:
            column.flags.writeable = False
        self._hash: int | None = None

    @classmethod
    def of(cls, rows: Iterable[Transfer]) -> Transfers:
        """Make columns of single transfers, in their order."""
        if isinstance(rows, Transfers):
            return rows
        listed = list(rows)
        numbers: dict[tuple[str, ...], int] = {}
        for t in listed:
            numbers.setdefault(t.route, len(numbers))
        return cls(
            [t.step for t in listed],
            [t.src for t in listed],
            [t.dst for t in listed],
            [t.chunk for t in listed],
            [OPS.index(t.op) for t in listed],
            [numbers[t.route] for t in listed],
            list(numbers),
        )

    @classmethod
    def joined(cls, parts: Sequence[Transfers]) -> Transfers:
        """Concatenate several Transfers."""
        routes = [route for part in parts for route in part.routes]
        starts = np.cumsum([0, *(len(part.routes) for part in parts)])
        columns = zip(*(part.columns for part in parts), strict=True)
        step, src, dst, chunk, op, _ = (np.concatenate(column) for column in columns)
        route = np.concatenate(
            [part.route + start for part, start in zip(parts, starts, strict=False)]
        )
        return cls(step, src, dst, chunk, op, route, routes)

    @classmethod
    def from_columns(
        cls, columns: Iterable[ArrayLike], routes: Sequence[tuple[str, ...]]
    ) -> Transfers:
        """Make Transfers of the six columns in their order (see `columns`)."""
        step, src, dst, chunk, op, route = columns
        return cls(step, src, dst, chunk, op, route, routes)

    @property
    def columns(self) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
        """The columns step, src, dst, chunk, op and route."""
        return self.step, self.src, self.dst, self.chunk, self.op, self.route

    def taken(self, places: NDArray[np.int64] | NDArray[np.bool_] | slice) -> Transfers:
        """Return the transfers at `places` (indices or a mask), in that order."""
        return Transfers.from_columns((column[places] for column in self.columns), self.routes)

    def sorted(self) -> Transfers:
        """Return the transfers sorted by step, source, destination, chunk, operation and route."""
        return self.taken(
            np.lexsort((self.route, self.op, self.chunk, self.dst, self.src, self.step))
        )

    def ways(self) -> tuple[list[tuple[int, int, tuple[str, ...]]], Ints]:
        """Return the distinct (src, dst, route), and for each transfer the index of its own."""
        top = int(max(self.src.max(initial=0), self.dst.max(initial=0))) + 1
        key = (self.src * top + self.dst) * (len(self.routes) + 1) + self.route
        _, first, way = np.unique(key, return_index=True, return_inverse=True)
        rows = zip(
            self.src[first].tolist(),
            self.dst[first].tolist(),
            self.route[first].tolist(),
            strict=True,
        )
        return [(src, dst, self.routes[route]) for src, dst, route in rows], way.reshape(-1)

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
        routes = self.routes
        for step, src, dst, chunk, op, route in zip(
            *(column.tolist() for column in self.columns), strict=True
        ):
            yield Transfer(step, src, dst, chunk, OPS[op], routes[route])

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

    def __repr__(self) -> str:
        shown = ", ".join(repr(t) for t in self[:3])
        return f"Transfers({len(self)}: {shown}{', ...' if len(self) > 3 else ''})"
