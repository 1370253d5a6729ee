"""The compact form of a schedule in plan files, for many ranks.

Chunks, routes and transfers are columns of integers. A column is stored as the differences from row
to row, since these repeat where a machine's parts repeat: 4,096 GPUs take 80 KB instead of 77 MB.
Differences are little-endian integers of the least of 1, 2 and 4 bytes that holds all of a column;
all their lowest bytes come first, then all second ones, and so on. All columns together are
deflated (zlib, RFC 1950) and written as base64. Implementations of zlib differ in what they write,
so a plan's hash covers `sha256`, of the bytes before they are deflated, instead of the text.
"""

from __future__ import annotations

import hashlib
import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from operator import mul
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import ArrayLike, NDArray

from ...topo.errors import InputError
from ...topo.exact import fraction_to_json
from ...topo.schema import MOST, Index, Label
from .collective import Chunk
from .transfers import OPS, Ints, Transfers

# Schedules for at most so many ranks list their transfers as rows, which people can read.
MAX_EXPLICIT_RANKS = 64
# 1 GiB of columns in memory: bounds what a file can demand; 4,096 GPUs take 100 MB.
MAX_COLUMN_BYTES = 1 << 30
# Bytes of a number in memory, and about those of the object of a chunk, route or name.
_IN_MEMORY_BYTES, _OBJECT_BYTES = 8, 64
# Best compression: it takes .3 s for 4,096 GPUs, and the file is read more often than written.
_LEVEL = 9
# Numbers of bytes that a difference may take; file values are at most 1e9 (schema.MOST).
_WIDTHS = (1, 2, 4)


class ColumnFields(Struct, forbid_unknown_fields=True):
    """The JSON of a schedule's chunks, routes and transfers, in columns."""

    chunks: Annotated[Index, Meta(description="number of chunks")]
    routes: Annotated[Index, Meta(description="number of routes")]
    hops: Annotated[Index, Meta(description="number of devices on all routes together")]
    transfers: Annotated[Index, Meta(description="number of transfers")]
    shares: Annotated[list[Fraction], Meta(description="the distinct shares of chunks")]
    devices: Annotated[list[Label], Meta(description="the distinct devices on routes")]
    by_chunk: Annotated[
        bool,
        Meta(
            description="whether transfers, listed by step, source, destination, chunk, operation "
            "and route, are stored by chunk, step, source, destination, operation and route; else "
            "they are stored as listed"
        ),
    ]
    widths: Annotated[
        list[Literal[1, 2, 4]],
        Meta(min_length=11, max_length=11, description="bytes of a difference, for each column"),
    ]
    sha256: Annotated[Label, Meta(description="SHA-256 of the inflated bytes, in hex")]
    deflated: Annotated[
        str,
        Meta(
            description="base64 of the columns: of chunks, place in `shares`, source (of demands "
            "the number of the piece) and target (-1: none); length of each route; place in "
            "`devices` of each hop; of transfers, chunk, step, source, destination, operation (1: "
            "reduce) and route"
        ),
    ]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of rows of each column."""
        return (self.chunks,) * 3 + (self.routes, self.hops) + (self.transfers,) * 6

    @property
    def size_bytes(self) -> int:
        """The number of bytes of all columns, inflated."""
        return sum(map(mul, self.lengths, self.widths))

    @property
    def memory_bytes(self) -> int:
        """About the number of bytes that reading the columns takes."""
        objects = self.chunks + self.routes + self.hops
        return _IN_MEMORY_BYTES * sum(self.lengths) + _OBJECT_BYTES * objects


def write_columns(chunks: Sequence[Chunk], transfers: Transfers) -> dict[str, Any]:
    """Return the JSON object of a schedule's chunks and transfers that `read_columns` reads."""
    by_chunk = transfers.is_sorted
    t = transfers
    if by_chunk:
        t = t.taken(np.lexsort((t.route, t.op, t.dst, t.src, t.step, t.chunk)))
    shares: dict[Fraction, int] = {}
    devices: dict[str, int] = {}
    columns: list[ArrayLike] = [
        [shares.setdefault(c.share, len(shares)) for c in chunks],
        [_number(c.source if c.piece is None else c.piece) for c in chunks],
        [_number(c.target) for c in chunks],
        [len(route) for route in t.routes],
        [devices.setdefault(d, len(devices)) for route in t.routes for d in route],
        *(t.chunk, t.step, t.src, t.dst, t.op, t.route),
    ]
    steps = [_differ(column) for column in columns]
    widths = [_find_width(column) for column in steps]
    raw = b"".join(map(_pack, steps, widths))
    return {
        "chunks": len(chunks),
        "routes": len(t.routes),
        "hops": sum(map(len, t.routes)),
        "transfers": len(t),
        "shares": [fraction_to_json(share) for share in shares],
        "devices": [*devices],
        "by_chunk": by_chunk,
        "widths": widths,
        "sha256": hashlib.sha256(raw).hexdigest(),
        "deflated": b64encode(zlib.compress(raw, _LEVEL)).decode(),
    }


def read_columns(fields: ColumnFields, where: str) -> tuple[tuple[Chunk, ...], Transfers]:
    """Return the chunks and transfers of the compact form; `where` names it in errors.

    Raise InputError if it is damaged, or takes more memory than MAX_COLUMN_BYTES.
    """
    raw, columns, start = _inflate(fields, where), list[Ints](), 0
    for length, width in zip(fields.lengths, fields.widths, strict=True):
        planes = np.frombuffer(raw, np.uint8, width * length, start).reshape(width, length)
        steps = np.ascontiguousarray(planes.T).view(f"<i{width}").reshape(-1)
        columns.append(np.cumsum(steps, dtype=np.int64))
        start += width * length
    share, source, target, lengths, hop, chunk, step, src, dst, op, route = columns
    # Each column with its name, its least value and its limit.
    for name, column, least, limit in (
        ("share", share, 0, len(fields.shares)),
        ("source", source, -1, MOST),
        ("target", target, -1, MOST),
        ("route length", lengths, 0, fields.hops + 1),
        ("device", hop, 0, len(fields.devices)),
        ("chunk", chunk, 0, fields.chunks),
        ("step", step, 0, MOST),
        ("source rank", src, 0, MOST),
        ("destination rank", dst, 0, MOST),
        ("operation", op, 0, len(OPS)),
        ("route", route, 0, fields.routes),
    ):
        wrong = column[(column < least) | (column >= limit)]
        if len(wrong):
            raise InputError(
                f"{where}: {name} {wrong[0]}; expected from {least} to {limit - 1}; the columns "
                "were not written by topo-synth"
            )
    edges = [0, *np.cumsum(lengths).tolist()]
    if edges[-1] != fields.hops:
        raise InputError(f"{where}: routes have {edges[-1]} hops; expected {fields.hops}")
    passed = [fields.devices[number] for number in hop.tolist()]
    routes = [tuple(passed[low:high]) for low, high in pairwise(edges)]
    chunks = tuple(
        Chunk(fields.shares[i], a if a >= 0 else None, b if b >= 0 else None)
        for i, a, b in zip(share.tolist(), source.tolist(), target.tolist(), strict=True)
    )
    transfers = Transfers(step, src, dst, chunk, op, route, routes)
    return chunks, transfers.sorted() if fields.by_chunk else transfers


def _number(value: int | None) -> int:
    return -1 if value is None else value


def _differ(column: ArrayLike) -> Ints:
    """Return the differences of a column from row to row, the first from 0."""
    numbers: Ints = np.asarray(column, dtype=np.int64)
    steps: Ints = np.diff(numbers, prepend=np.zeros(1, np.int64))
    return steps


def _find_width(steps: Ints) -> int:
    """Return the least of 1, 2 and 4 bytes that holds every difference of a column."""
    largest = max(int(steps.max(initial=0)), -int(steps.min(initial=0)))
    return next(width for width in _WIDTHS if largest < 1 << 8 * width - 1)


def _pack(steps: Ints, width: int) -> bytes:
    """Return a column's differences as bytes, plane after plane."""
    numbers: NDArray[np.uint8] = steps.astype(f"<i{width}").view(np.uint8).reshape(-1, width)
    return bytes(np.ascontiguousarray(numbers.T))


def _inflate(fields: ColumnFields, where: str) -> bytes:
    """Return the bytes of all columns, as many as announced."""
    if fields.memory_bytes > MAX_COLUMN_BYTES:
        raise InputError(
            f"{where}: {fields.memory_bytes >> 20} MiB of columns; expected at most "
            f"{MAX_COLUMN_BYTES >> 20} MiB; not written by topo-synth"
        )
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(b64decode(fields.deflated, validate=True), fields.size_bytes + 1)
    except (ValueError, zlib.error) as error:
        raise InputError(f"{where}: deflated: damaged: {error}") from None
    if len(raw) != fields.size_bytes or not inflater.eof or inflater.unused_data:
        raise InputError(
            f"{where}: deflated: expected {fields.size_bytes} bytes of columns, got "
            f"{'more' if len(raw) > fields.size_bytes else len(raw)}"
        )
    if hashlib.sha256(raw).hexdigest() != fields.sha256:
        raise InputError(f"{where}: the columns do not match their sha256; they were changed")
    return raw
