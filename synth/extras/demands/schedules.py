"""Schedules of demands, from the columns that a packing chose.

Demands are pieces of data, the ranks that hold each one, and those that need it. A class is all
pieces with the same holders and the same receivers that lack them; a column (Delivery) is the sends
that carry a share of one class from its holders to its receivers.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from ....topo.routes import Router
from ...cost.affine import tighten
from ...ir.collective import Chunk
from ...ir.demands import Demands
from ...ir.schedule import Schedule, find_helpers
from ...ir.transfers import COPY, Transfers
from .packing import Delivery

NAME = "packing"


def draw_schedule(
    demands: Demands, carrying: list[tuple[Delivery, Fraction]], router: Router
) -> Schedule:
    """Return the schedule of columns with their shares, all of which begin in the first step.

    `carrying` has each column with its exact share of its class. A class's pieces follow each
    other, and so do the shares of its columns: a chunk is what a column carries of a piece.
    """
    chunks: list[Chunk] = []
    rows: list[tuple[int, int, int, int, int, int]] = []
    number: dict[tuple[int, int], int] = {}
    for column, piece, size in _divide_pieces(demands, carrying):
        for step, hop in zip(column.depths, column.hops, strict=True):
            rows.append((step, *hop, len(chunks), COPY, number.setdefault(hop, len(number))))
        chunks.append(Chunk(size / demands.size, piece=piece))
    chunks += [
        Chunk(demands.share_of(i), piece=i) for i, p in enumerate(demands.pieces) if not p.missing
    ]
    routes = [(router.route(*hop) or ())[1:-1] for hop in number]
    transfers = Transfers.from_columns(zip(*rows, strict=True), routes).sorted()
    schedule = Schedule(
        demands,
        NAME,
        tuple(chunks),
        transfers,
        (),
        trees=len(carrying),
        depth=max(max(column.depths) + 1 for column, _ in carrying),
        helpers=find_helpers(demands, transfers),
    )
    return tighten(schedule, router.topology)


def _divide_pieces(
    demands: Demands, carrying: list[tuple[Delivery, Fraction]]
) -> Iterator[tuple[Delivery, int, Fraction]]:
    """Yield what each column carries of each piece: its column, number and size."""
    of_class: dict[int, list[tuple[Delivery, Fraction]]] = {}
    for column, share in carrying:
        of_class.setdefault(column.part, []).append((column, share))
    place = {key: part for part, key in enumerate(demands.classes)}
    # For each class, the column that is not used up, and the size that it still has to carry.
    left: dict[int, tuple[int, Fraction]] = {}
    for number, piece in enumerate(demands.pieces):
        if not piece.missing:
            continue
        part = place[piece.holders, piece.missing]
        columns, whole = of_class[part], demands.classes[piece.holders, piece.missing]
        if len(columns) == 1:
            yield columns[0][0], number, Fraction(piece.size)
            continue
        at, room = left.get(part, (0, columns[0][1] * whole))
        rest = Fraction(piece.size)
        while rest:
            if not room:
                at += 1
                room = columns[at][1] * whole
            carried = min(rest, room)
            yield columns[at][0], number, carried
            rest, room = rest - carried, room - carried
        left[part] = at, room
