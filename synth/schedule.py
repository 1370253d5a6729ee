"""The intermediate representation: a collective, its chunks, and an ordered list of transfers.

Steps are synchronous rounds of transfers: all transfers of a step read what their sources held when the step began.
Within a step several contributions may be added to one chunk at one rank (in listing order); a copy must be alone.
With `segments` = m > 1 each chunk is cut into m equal parts that follow each other through the steps, part j doing
step s at tick s + j: a pipeline. A schedule is plain data: hashable, comparable, versioned in JSON.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

from ..topo.errors import InputError
from ..topo.exact import fraction_to_json, parse_fraction
from .collective import Chunk, Collective

Op = Literal["copy", "reduce"]


@dataclass(frozen=True, order=True)
class Transfer:
    """One chunk sent from rank `src` to rank `dst` in `step`; the receiver takes it over (copy) or adds it (reduce).

    `route` lists the devices between the two (switches, sockets, NICs); empty for a direct link.
    """

    step: int
    src: int
    dst: int
    chunk: int
    op: Op = "copy"
    route: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """See the module's docstring.

    `step_s_per_GB[s]` is how long step s may last, in seconds for each GB (1e9 bytes) of buffer: no link carries more
    in it than its bandwidth times that. `trees` is the number of trees of a tree schedule, else None.
    """

    collective: Collective
    strategy: str
    chunks: tuple[Chunk, ...]
    transfers: tuple[Transfer, ...]
    step_s_per_GB: tuple[Fraction, ...]
    segments: int = 1
    trees: int | None = None

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.step_s_per_GB)

    @cached_property
    def by_step(self) -> tuple[tuple[Transfer, ...], ...]:
        """The transfers of each step, in listing order."""
        rows: dict[int, list[Transfer]] = defaultdict(list)
        for transfer in self.transfers:
            rows[transfer.step].append(transfer)
        return tuple(tuple(rows[s]) for s in range(self.steps))

    def offsets(self) -> tuple[Fraction, ...]:
        """Where each chunk begins, as a share of the block it lies in, blocks being laid end to end.

        The block of a chunk is the whole buffer for collectives without sources and targets, else the part of one
        rank (for alltoall, of one pair of ranks). Chunks of a block lie in listing order.
        """
        filled: dict[tuple[int | None, int | None], Fraction] = defaultdict(Fraction)
        out = []
        for chunk in self.chunks:
            key = chunk.source, chunk.target
            out.append(filled[key])
            filled[key] += chunk.share
        return tuple(out)

    def to_json(self) -> dict[str, Any]:
        """A JSON object; transfers are rows [step, src, dst, chunk, op, route], routes indexed in `routes`."""
        routes = sorted({t.route for t in self.transfers})
        number = {route: i for i, route in enumerate(routes)}
        return {
            "collective": self.collective.name,
            "ranks": self.collective.ranks,
            "root": self.collective.root,
            "strategy": self.strategy,
            "segments": self.segments,
            "trees": self.trees,
            "step_s_per_GB": [fraction_to_json(x) for x in self.step_s_per_GB],
            "chunks": [[fraction_to_json(c.share), c.source, c.target] for c in self.chunks],
            "routes": [list(route) for route in routes],
            "transfers": [[t.step, t.src, t.dst, t.chunk, t.op, number[t.route]] for t in self.transfers],
        }

    @classmethod
    def from_json(cls, data: Any, where: str = "schedule") -> Schedule:
        """Read `to_json`'s object; InputError where it is not one. Whether it is right is for the verifier to say."""
        try:
            routes = [tuple(str(x) for x in route) for route in data["routes"]]
            segments, trees = data["segments"], data["trees"]
            if not _is_count(segments) or not (trees is None or _is_count(trees)):
                raise InputError(f"{where}: segments and trees must be whole numbers above 0")
            return cls(
                collective=Collective(data["collective"], data["ranks"], data["root"]),
                strategy=str(data["strategy"]),
                chunks=tuple(Chunk(parse_fraction(share), s, t) for share, s, t in data["chunks"]),
                transfers=tuple(
                    Transfer(int(s), int(a), int(b), int(c), op, routes[r]) for s, a, b, c, op, r in data["transfers"]
                ),
                step_s_per_GB=tuple(parse_fraction(x) for x in data["step_s_per_GB"]),
                segments=segments,
                trees=trees,
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise InputError(f"{where}: not a schedule: {type(error).__name__}: {error}") from None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
