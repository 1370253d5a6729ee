"""Demands as files have them: a list of pieces as JSON, or a matrix of bytes.

A file of demands is JSON:

    {"format": "topoplan-demands", "version": 1, "ranks": 4, "helpers": "rest",
     "pieces": [{"size": 1048576, "have": [0, 1], "need": [2]}]}

`ranks` is the number of GPUs of the machine. `helpers` are the ranks that may relay and neither
have nor need a piece: "rest" (all such ranks), "none", or a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Literal

import numpy as np
from msgspec import Struct

from ....topo.errors import InputError
from ....topo.exact import load_json
from ....topo.files import read_file
from ....topo.schema import Count, read_as
from ...ir.demands import Demand, Demands, refuse
from ..traffic import ByteMatrix, read_matrix

# Bytes of a file: two million pieces from one rank to another.
_MAX_FILE_BYTES = 1 << 27


class DemandFields(Struct, forbid_unknown_fields=True):
    """The JSON of one piece: its size in bytes, the ranks that have it and that need it."""

    size: int
    have: list[int]
    need: list[int]


class DemandsFile(Struct, forbid_unknown_fields=True):
    """The JSON of demands on a machine of `ranks` GPUs; see the module's docstring."""

    format: Literal["topoplan-demands"]
    version: Literal[1]
    ranks: Count
    pieces: list[DemandFields]
    helpers: Literal["rest", "none"] | list[int] = "rest"


def from_matrix(
    source: str | PathLike[str] | ByteMatrix, gpus: int, members: Sequence[int] = ()
) -> Demands:
    """Return an alltoallv as demands: row i, column j is what member i sends to member j.

    The matrix is a file (see synth/extras/traffic.py) or an array; pieces are its entries above 0
    off the diagonal, row by row. `members` are ranks of the machine, ascending; by default all
    `gpus`. Raise InputError if it is no such matrix, or all entries are 0.
    """
    listed = members or range(gpus)
    matrix = read_matrix(source, len(listed))
    pieces = (
        Demand(int(matrix[i, j]), (listed[i],), (listed[j],))
        for i, j in np.argwhere(matrix).tolist()
    )
    where = str(source) if isinstance(source, (str, PathLike)) else "traffic"
    if not matrix.any():
        why = "no number above 0 off the diagonal; nothing is to move"
        raise InputError(f"{where}: {why}", parameter="traffic")
    return Demands.of(pieces, gpus, name="alltoallv", members=listed, where=where)


def read_demands(
    path: str | PathLike[str], gpus: int
) -> tuple[Demands, Literal["rest", "none"] | list[int]]:
    """Return the demands of a JSON file for a machine of `gpus` GPUs, and its field `helpers`.

    Raise InputError if the file cannot be read, is not of that format, is for another number of
    GPUs, or names pieces that make no sense (see `Demands.of`).
    """
    where = str(path)
    try:
        raw = read_file(where, _MAX_FILE_BYTES + 1)
        if len(raw) > _MAX_FILE_BYTES:
            raise refuse(where, f"more than {_MAX_FILE_BYTES >> 20} MiB; merge pieces")
        data = load_json(raw)
    except OSError as error:
        raise refuse(where, error.strerror or "cannot be read") from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise refuse(where, f"not usable JSON: {error}") from None
    fields = read_as(data, DemandsFile, where)
    if fields.ranks != gpus:
        raise refuse(where, f"for {fields.ranks} ranks; the topology has {gpus} GPUs")
    pieces = (Demand(piece.size, tuple(piece.have), tuple(piece.need)) for piece in fields.pieces)
    return Demands.of(pieces, gpus, where=where), fields.helpers
