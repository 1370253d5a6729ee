"""The intermediate representation: a collective, its chunks, and an ordered list of transfers.

Steps are synchronous rounds of transfers: all transfers of a step read the values that their
sources held when the step began. Within a step several contributions may be added to one chunk at
one rank (from the lowest source rank to the highest, see addition_order.py), but a copy must be its
only write. With `segments` = m > 1 each chunk is cut into m equal parts that follow each other
through the steps, part j doing step s at tick s + j: a pipeline. If the schedule is `stepwise`,
part j does step s at tick s m + j: steps do not overlap, and a rank forwards the first parts of a
step while the rest is still arriving. A schedule is plain data: hashable, comparable, versioned in
JSON. Demands (demands.py) are a collective that lists pieces of data, with the ranks that hold each
and those that need it.

Ranks are numbered as in the whole topology. The participants are the collective's members and the
schedule's helpers: GPUs that contribute and receive no data of their own, but relay or add. A
helper starts without a value; the first value added to it becomes its value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from ...topo.errors import InfeasibleError, InputError
from ...topo.exact import fraction_to_json
from ...topo.notebook import draw, show
from ...topo.schema import Count, Index, Label, read_as
from .collective import COLLECTIVES, Chunk, Collective, CollectiveName, DemandName
from .columns import MAX_EXPLICIT_RANKS, ColumnFields, read_columns, write_columns
from .schedule_text import describe_schedule
from .transfers import COPY, OPS, REDUCE, Op, Transfer, Transfers

# Limit of a file: the most segments that planning tries.
MAX_SEGMENTS = 2048
# Limit of a file: a ring over 8,192 ranks has 16,382 steps.
MAX_STEPS = 16_384

Segments = Annotated[int, Meta(ge=1, le=MAX_SEGMENTS)]
RANKS_ABOUT = "rank numbers of the whole topology, ascending"
# If a file lists no members, all GPUs are members; if it lists no helpers, there are none.
Ranks = Annotated[
    list[Index],
    Meta(min_length=1, description=RANKS_ABOUT),
]


class ScheduleFields(Struct, forbid_unknown_fields=True):
    """The JSON of a schedule."""

    collective: Literal[CollectiveName, DemandName]
    ranks: Count
    root: Index | None
    strategy: Label
    segments: Segments
    trees: Count | None
    step_s_per_GB: Annotated[
        list[Fraction],
        Meta(
            max_length=MAX_STEPS,
            description="how long each step may last, for each GB of buffer",
        ),
    ]
    depth: Count | None = None
    stepwise: bool = False
    members: Ranks = []
    helpers: Ranks = []
    chunks: Annotated[
        list[tuple[Fraction, Index | None, Index | None]] | UnsetType,
        Meta(
            description="share of the buffer, source rank, target rank; of demands the number of "
            "the piece in place of the source"
        ),
    ] = UNSET
    routes: Annotated[
        list[list[Label]] | UnsetType, Meta(description="devices between two ranks")
    ] = UNSET
    transfers: Annotated[
        list[tuple[Index, Index, Index, Index, Op, Index]] | UnsetType,
        Meta(
            description="step, source rank, destination rank, place in `chunks`, operation, place "
            "in `routes`"
        ),
    ] = UNSET
    columns: Annotated[
        ColumnFields | UnsetType,
        Meta(description="in place of chunks, routes and transfers, for more than 64 ranks"),
    ] = UNSET


@dataclass(frozen=True)
class Schedule:
    """A collective, its chunks, and the transfers that carry it out, step by step.

    All transfers of a step read the values that their sources held when the step began. With
    `segments` = m > 1 each chunk is cut into m equal parts that follow each other through the
    steps, part j doing step s at tick s + j (a pipeline), or, `stepwise`, at tick s m + j.
    `step_s_per_GB[s]` is how long step s may last, in seconds per GB (1e9 bytes) of buffer: in that
    time no link carries more than its bandwidth allows. `trees` is the number of trees of a tree
    schedule, else None; `depth` is the number of hops from the root of the deepest tree.
    `transfers` accepts any sequence of Transfer. `helpers` are ranks, ascending, that relay or add
    without being members. `build_schedule` makes one of sends.
    """

    collective: Collective
    strategy: str
    chunks: tuple[Chunk, ...]
    transfers: Transfers
    step_s_per_GB: tuple[Fraction, ...]
    segments: int = 1
    trees: int | None = None
    depth: int | None = None
    stepwise: bool = False
    helpers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "transfers", Transfers.of(self.transfers))

    def __hash__(self) -> int:
        # Chunks are only counted: hashing a million fractions would take seconds.
        return hash(
            (
                self.collective,
                self.strategy,
                len(self.chunks),
                self.transfers,
                self.segments,
                self.trees,
                self.stepwise,
            )
        )

    @property
    def participants(self) -> Sequence[int]:
        """The members and the helpers, ascending."""
        members = self.collective.members
        return sorted((*members, *self.helpers)) if self.helpers else members

    @property
    def rank_limit(self) -> int:
        """One more than the highest participant: the length of arrays indexed by rank."""
        return max(self.participants) + 1

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.step_s_per_GB)

    @property
    def uncut(self) -> Schedule:
        """The same schedule in one segment."""
        if self.segments == 1 and not self.stepwise:
            return self
        return replace(self, segments=1, stepwise=False)

    @property
    def ticks(self) -> int:
        """The number of ticks that all segments take."""
        return self.steps * self.segments if self.stepwise else self.steps + self.segments - 1

    def tick(self, step: int, part: int) -> int:
        """Return the tick at which segment `part` does `step`."""
        return step * self.segments + part if self.stepwise else step + part

    @property
    def label(self) -> str:
        """The strategy, its segments and helpers: `packing x64`, `exact /4` (stepwise) +6."""
        cut = f" {'/' if self.stepwise else 'x'}{self.segments}" if self.segments > 1 else ""
        return f"{self.strategy}{cut}{f' +{len(self.helpers)}' if self.helpers else ''}"

    @cached_property
    def by_step(self) -> tuple[tuple[Transfer, ...], ...]:
        """The transfers of each step, in listing order."""
        rows: list[list[Transfer]] = [[] for _ in range(self.steps)]
        for transfer in self.transfers:
            rows[transfer.step].append(transfer)
        return tuple(map(tuple, rows))

    def __repr__(self) -> str:
        return (
            f"<Schedule {self.label}: {self.collective}, {len(self.chunks)} chunks, "
            f"{self.steps} steps, {len(self.transfers)} transfers>"
        )

    def _repr_svg_(self) -> str | None:
        return draw(self)

    def _repr_html_(self) -> str | None:
        return show(self)

    def describe(self) -> str:
        """Format the schedule's figures and its first transfers as text."""
        return describe_schedule(self)

    def offsets(self) -> tuple[Fraction, ...]:
        """Return the offset of each chunk in its block, as a share of the buffer.

        The block of a chunk is the whole buffer for collectives without sources and targets, else
        the part of one rank (for alltoall, of one pair of ranks; for demands, one piece). Chunks of
        a block are contiguous, in listing order.
        """
        filled: dict[tuple[int | None, ...], Fraction] = defaultdict(Fraction)
        offsets = []
        for chunk in self.chunks:
            key = chunk.source, chunk.target, chunk.piece
            offsets.append(filled[key])
            filled[key] += chunk.share
        return tuple(offsets)

    def to_json(self) -> dict[str, Any]:
        """Return the schedule as a JSON object.

        Transfers are rows [step, src, dst, chunk, op, route], with the route as an index into
        `routes`; for more than 64 ranks, chunks, routes and transfers are in the compact form of
        synth/ir/columns.py.
        """
        return {
            "collective": self.collective.name,
            "ranks": self.collective.ranks,
            **({} if self.collective.has_all_gpus else {"members": list(self.collective.members)}),
            **({"helpers": list(self.helpers)} if self.helpers else {}),
            "root": self.collective.root,
            "strategy": self.strategy,
            "segments": self.segments,
            **({"stepwise": True} if self.stepwise else {}),
            "trees": self.trees,
            "depth": self.depth,
            "step_s_per_GB": [fraction_to_json(x) for x in self.step_s_per_GB],
            **(
                {"columns": write_columns(self.chunks, self.transfers)}
                if self.collective.ranks > MAX_EXPLICIT_RANKS
                else self._list_rows()
            ),
        }

    def _list_rows(self) -> dict[str, Any]:
        step, src, dst, chunk, op, route = (column.tolist() for column in self.transfers.columns)
        ops = [OPS[x] for x in op]
        return {
            "chunks": [
                [fraction_to_json(c.share), c.source if c.piece is None else c.piece, c.target]
                for c in self.chunks
            ],
            "routes": [list(r) for r in self.transfers.routes],
            "transfers": [list(row) for row in zip(step, src, dst, chunk, ops, route, strict=True)],
        }

    @classmethod
    def from_json(cls, data: object, where: str = "schedule") -> Schedule:
        """Read the object that `to_json` returns; `where` names it in errors.

        Raise InputError if it is malformed. Only the verifier checks whether the schedule is
        correct.
        """
        return cls.from_fields(read_as(data, ScheduleFields, where), where)

    @classmethod
    def from_fields(
        cls,
        fields: ScheduleFields,
        where: str = "schedule",
        demands: Collective | None = None,
    ) -> Schedule:
        """Return the schedule that the parsed fields of a file declare; `where` names it in errors.

        `demands` are those of the plan, if it has any. Raise InputError if the schedule has neither
        rows nor columns, or a damaged one of them.
        """
        chunks, transfers = _read_transfers(fields, where)
        if demands is not None:
            chunks = tuple(Chunk(c.share, None, c.target, c.source) for c in chunks)
        return cls(
            collective=_read_collective(fields, demands, where),
            strategy=fields.strategy,
            chunks=chunks,
            transfers=transfers,
            step_s_per_GB=tuple(fields.step_s_per_GB),
            segments=fields.segments,
            trees=fields.trees,
            depth=fields.depth,
            stepwise=fields.stepwise,
            helpers=tuple(fields.helpers),
        )


def _read_collective(fields: ScheduleFields, demands: Collective | None, where: str) -> Collective:
    """Return the collective that a file names; of demands only the plan has the pieces."""
    named = fields.collective, fields.ranks, fields.root, fields.members
    if demands is None and fields.collective not in COLLECTIVES:
        raise InputError(f"{where}: {fields.collective} without demands; expected those of a plan")
    if demands is None:
        return Collective(*named)
    members = [] if demands.has_all_gpus else list(demands.members)
    if named != (demands.name, demands.ranks, None, members):
        raise InputError(
            f"{where}: {fields.collective} over {fields.ranks} ranks; expected {demands}"
        )
    return demands


def _read_transfers(fields: ScheduleFields, where: str) -> tuple[tuple[Chunk, ...], Transfers]:
    """Return the chunks and transfers of a file, which has them as rows or as columns."""
    rows, routes, moves, columns = fields.chunks, fields.routes, fields.transfers, fields.columns
    if columns is not UNSET and rows is routes is moves is UNSET:
        return read_columns(columns, f"{where}.columns")
    if columns is not UNSET or rows is UNSET or routes is UNSET or moves is UNSET:
        raise InputError(
            f"{where}: expected either chunks, routes and transfers, or columns in their place"
        )
    step, src, dst, chunk, op, route = zip(*moves, strict=True) if moves else [()] * 6
    if route and max(route) >= len(routes):
        raise InputError(f"{where}: a transfer names route {max(route)}; {len(routes)} are listed")
    ops = [OPS.index(name) for name in op]
    transfers = Transfers(step, src, dst, chunk, ops, route, [tuple(devices) for devices in routes])
    return tuple(Chunk(*row) for row in rows), transfers


def renumber(schedule: Schedule, collective: Collective, ranks: Sequence[int]) -> Schedule:
    """Return a schedule made for the GPUs `ranks` alone, numbered as on the whole machine.

    `collective` is the schedule's collective on the whole machine. Rank i of the schedule becomes
    `ranks[i]`; those that are no members become helpers.
    """
    number, t = np.array(ranks), schedule.transfers
    moved = Transfers(t.step, number[t.src], number[t.dst], t.chunk, t.op, t.route, t.routes)

    def rename(rank: int | None) -> int | None:
        return None if rank is None else ranks[rank]

    return replace(
        schedule,
        collective=collective,
        chunks=tuple(
            Chunk(c.share, rename(c.source), rename(c.target), c.piece) for c in schedule.chunks
        ),
        transfers=moved,
        helpers=find_helpers(collective, moved),
    )


def number_members(schedule: Schedule) -> Schedule:
    """Return a schedule without helpers with its members renumbered from 0, in their order.

    It is then one for a machine of its members alone.
    """
    collective, t = schedule.collective, schedule.transfers
    if collective.has_all_gpus:
        return schedule
    place: dict[int | None, int | None] = {None: None}
    place |= {rank: i for i, rank in enumerate(collective.members)}
    src, dst = (np.searchsorted(np.array(collective.members), x) for x in (t.src, t.dst))
    return replace(
        schedule,
        collective=collective.among(collective.members),
        chunks=tuple(Chunk(c.share, place[c.source], place[c.target]) for c in schedule.chunks),
        transfers=Transfers(t.step, src, dst, t.chunk, t.op, t.route, t.routes),
    )


def find_helpers(collective: Collective, transfers: Transfers) -> tuple[int, ...]:
    """Return the ranks, ascending, that take part in transfers and are no members."""
    ranks = np.union1d(transfers.src, transfers.dst).tolist()
    return tuple(rank for rank in ranks if rank not in collective.members)


def reverse(schedule: Schedule) -> Schedule:
    """Return the schedule of the opposite collective on the reversed topology.

    Every transfer is reversed, the last step first, and copies become additions. Allgather becomes
    reduce-scatter, broadcast reduce, and gather scatter, or the reverse; alltoall stays alltoall
    (SCCL, section 3.5). Each rank must get each chunk at most once.
    """
    opposite, t = schedule.collective.reversed(), schedule.transfers
    step, routes = schedule.steps - 1 - t.step, [route[::-1] for route in t.routes]
    return replace(
        schedule,
        collective=opposite,
        chunks=tuple(Chunk(c.share, source=c.target, target=c.source) for c in schedule.chunks),
        transfers=Transfers(
            step,
            t.dst,
            t.src,
            t.chunk,
            np.full(len(t), REDUCE if opposite.reduces else COPY),
            t.route,
            routes,
        ).sorted(),
        step_s_per_GB=schedule.step_s_per_GB[::-1],
    )


def compose(reduce_scatter: Schedule, allgather: Schedule) -> Schedule:
    """Return an allreduce: the reduce-scatter, then the allgather.

    Raise InfeasibleError unless both have the same chunks, owned by the same ranks.
    """
    if [(c.share, c.target) for c in reduce_scatter.chunks] != [
        (c.share, c.source) for c in allgather.chunks
    ]:
        raise InfeasibleError(
            "reduce-scatter and allgather cut the buffer differently; they do not make an allreduce"
        )
    step, *rest = allgather.transfers.columns
    later = Transfers.from_columns((step + reduce_scatter.steps, *rest), allgather.transfers.routes)
    return Schedule(
        collective=replace(allgather.collective, name="allreduce"),
        strategy=allgather.strategy,
        chunks=tuple(Chunk(c.share) for c in allgather.chunks),
        transfers=Transfers.joined([reduce_scatter.transfers, later]),
        step_s_per_GB=reduce_scatter.step_s_per_GB + allgather.step_s_per_GB,
        trees=allgather.trees,
        depth=allgather.depth,
        helpers=tuple(sorted({*reduce_scatter.helpers, *allgather.helpers})),
    )
