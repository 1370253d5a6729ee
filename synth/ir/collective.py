"""Collectives: which ranks hold which data before a call, and which must hold it after.

Chunks are shares of one buffer per collective: the vector itself for allreduce, broadcast and
reduce; the gathered result for allgather and gather; the vector before it is scattered for
reduce-scatter and scatter; for alltoall the data that one rank sends to all ranks, itself included.
`size` always means the bytes of that buffer, as nccl-tests counts them. Members are the ranks that
make the call; other GPUs of the topology may relay data for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, product
from typing import TYPE_CHECKING, Literal, get_args

from ...topo.errors import InputError, suggest

if TYPE_CHECKING:
    from ...topo.graph import Topology

CollectiveName = Literal[
    "allreduce",
    "allgather",
    "reduce-scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "alltoall",
]
"""The names of the collectives in every command and in the API."""
COLLECTIVES: tuple[str, ...] = get_args(CollectiveName)
# Collectives whose pieces a list of demands names (synth/ir/demands.py).
DemandName = Literal["alltoallv", "reshard"]
# Spellings of torch, nccl-tests and MPI, reduced to letters and digits in lower case.
_SPELLINGS = {
    **{name.replace("-", ""): name for name in COLLECTIVES},
    "bcast": "broadcast",
    "allgatherintotensor": "allgather",
    "reducescattertensor": "reduce-scatter",
    "alltoallsingle": "alltoall",
    "alltoallv": "alltoallv",
}
_OPPOSITES = {"allgather": "reduce-scatter", "broadcast": "reduce", "gather": "scatter"}
# The opposite of each collective, when time runs backwards.
_REVERSED = (
    {"allreduce": "allreduce", "alltoall": "alltoall"}
    | _OPPOSITES
    | {after: before for before, after in _OPPOSITES.items()}
)

_ROOTED = {"broadcast", "reduce", "gather", "scatter"}
_FROM_EACH = {"allgather", "gather", "alltoall"}
_TO_EACH = {"reduce-scatter", "scatter", "alltoall"}


@dataclass(frozen=True)
class Chunk:
    """A part of a collective's buffer, of which `share` is an exact fraction.

    `source` is the rank that owns the chunk if each rank contributes its own part (allgather,
    gather, alltoall), else None. `target` is the rank that receives it if each rank gets its own
    part (reduce-scatter, scatter, alltoall), else None. `piece` is the number of the piece that the
    chunk is a share of, for demands (which rank holds and needs which piece); else None.
    """

    share: Fraction
    source: int | None = None
    target: int | None = None
    piece: int | None = None


@dataclass(frozen=True)
class Collective:
    """A collective, by `name`, over `ranks` members, with its `root`, None if it has none.

    `members` are the ranks that contribute or receive data, ascending and numbered as in the whole
    topology. By default every GPU of the topology is a member, and `members` is `range(ranks)`.
    """

    name: str
    ranks: int
    root: int | None = None
    members: Sequence[int] = ()

    @property
    def is_even(self) -> bool:
        """Whether all parts of the buffer are equally large."""
        return True

    def __post_init__(self) -> None:
        if self.name not in COLLECTIVES:
            raise InputError(
                f"unknown collective {self.name!r}{suggest(self.name, COLLECTIVES)}; expected one "
                f"of {', '.join(COLLECTIVES)}"
            )
        if self.ranks < 1:
            raise InputError(f"{self.name} over {self.ranks} ranks; expected at least 1")
        # A range marks "all GPUs": it equals no tuple, so members 0 and 1 of four GPUs differ from
        # all GPUs of two.
        listed = () if isinstance(self.members, range) else tuple(self.members)
        object.__setattr__(self, "members", listed or range(self.ranks))
        if listed and (
            len(listed) != self.ranks or any(a >= b for a, b in pairwise((-1, *listed)))
        ):
            raise InputError(
                f"{self.name} over {self.ranks} ranks has the members {spell_ranks(listed)}; "
                f"expected {self.ranks} different ranks, ascending"
            )
        if self.name not in _ROOTED:
            if self.root is not None:
                raise InputError(f"{self.name} has no root, got {self.root}")
        elif self.root not in self.members:
            expected = (
                f"between 0 and {self.ranks - 1}"
                if self.has_all_gpus
                else f"among {spell_ranks(self.members)}"
            )
            raise InputError(f"{self.name} needs a root {expected}, got {self.root}")

    def __str__(self) -> str:
        root = "" if self.root is None else f", root {self.root}"
        return f"{self.name} over {self.spelled_ranks}{root}"

    @property
    def spelled_ranks(self) -> str:
        """The members in words: "4 ranks" if all GPUs are members, else "ranks 0, 2"."""
        if self.has_all_gpus:
            return f"{self.ranks} rank{'' if self.ranks == 1 else 's'}"
        return f"rank{'' if self.ranks == 1 else 's'} {spell_ranks(self.members)}"

    @classmethod
    def with_default_root(
        cls, name: str, ranks: int, root: int | None = None, members: Sequence[int] = ()
    ) -> Collective:
        """Return the collective named in any spelling; the root defaults to rank `members[0]`.

        The default is 0 without `members`, and applies only if the collective needs a root.
        """
        name = spell_collective(name)
        if root is None and name in _ROOTED:
            root = members[0] if members else 0
        return cls(name, ranks, root, members)

    @property
    def has_all_gpus(self) -> bool:
        """Whether every GPU of the topology is a member; if not, `members` lists the members."""
        return isinstance(self.members, range)

    @property
    def reduces(self) -> bool:
        """Whether contributions are added up; otherwise data is only copied."""
        return self.name in ("allreduce", "reduce-scatter", "reduce")

    @property
    def spreads(self) -> bool:
        """Whether several ranks receive the same data, so that switches that copy help."""
        return self.name in ("allreduce", "allgather", "broadcast")

    def holders(self, chunk: Chunk) -> Sequence[int]:
        """Return the ranks that hold the chunk, or their contribution to it, at the start."""
        return self.members if self.reduces else self._owner(chunk.source)

    def receivers(self, chunk: Chunk) -> Sequence[int]:
        """Return the ranks that must have the whole chunk at the end."""
        if self.spreads:
            return self.members
        return self._owner(chunk.target)

    def _owner(self, rank: int | None) -> tuple[int]:
        owner = self.root if rank is None else rank
        assert owner is not None
        return (owner,)

    def bus_factor(self) -> Fraction:
        """Return the ratio of busbw to algbw, bus to algorithm bandwidth, as in nccl-tests."""
        if self.name in ("broadcast", "reduce"):
            return Fraction(1)
        return Fraction((2 if self.name == "allreduce" else 1) * (self.ranks - 1), self.ranks)

    def reversed(self) -> Collective:
        """Return the collective that results from reversing every transfer, the last step first.

        Allgather becomes reduce-scatter, broadcast reduce, gather scatter, and the other way round.
        """
        return replace(self, name=_REVERSED[self.name])

    def among(self, ranks: Sequence[int]) -> Collective:
        """Return the same collective on the machine that has only the GPUs `ranks`, ascending.

        They include all members. Members and root are renumbered by their place in `ranks`.
        """
        place = {rank: i for i, rank in enumerate(ranks)}
        members = tuple(place[member] for member in self.members)
        return replace(
            self,
            root=None if self.root is None else place[self.root],
            members=range(self.ranks) if len(members) == len(ranks) else members,
        )

    def even_chunks(self, count: int) -> tuple[Chunk, ...]:
        """Return equal chunks of the whole buffer, `count` of them for each part.

        A part is the whole buffer for allreduce, broadcast and reduce; a rank's for allgather,
        reduce-scatter, gather and scatter; a pair of ranks' for alltoall.
        """
        share = Fraction(1, self._parts * count)
        return tuple(Chunk(share, s, t) for s, t in product(*self._ends) for _ in range(count))

    @property
    def _parts(self) -> int:
        """The number of equal parts into which the members divide the buffer."""
        return self.ranks if self.name in _FROM_EACH | _TO_EACH else 1

    @property
    def _ends(self) -> tuple[Sequence[int | None], Sequence[int | None]]:
        """The sources and the targets that chunks may have; each pair of them is a block."""
        return (
            self.members if self.name in _FROM_EACH else (None,),
            self.members if self.name in _TO_EACH else (None,),
        )

    def problem_with(self, chunks: Sequence[Chunk]) -> str | None:
        """Return why `chunks` do not make up this collective's buffer, None if they do."""
        totals: dict[tuple[int | None, int | None], Fraction] = {}
        sources, targets = map(frozenset, self._ends)
        for i, chunk in enumerate(chunks):
            if chunk.share.numerator <= 0:
                return f"chunk {i} has share {chunk.share}; expected more than 0"
            for what, rank, allowed in (
                ("source", chunk.source, sources),
                ("target", chunk.target, targets),
            ):
                if rank not in allowed:
                    return f"chunk {i} has {what} {rank}; {self.name} over {self.ranks} ranks " + (
                        f"has no {what}s"
                        if None in allowed
                        else f"needs one from 0 to {self.ranks - 1}"
                        if self.has_all_gpus
                        else f"needs one of {spell_ranks(self.members)}"
                    )
            key = chunk.source, chunk.target
            totals[key] = totals[key] + chunk.share if key in totals else chunk.share
        share = Fraction(1, self._parts)
        parts = share.numerator, share.denominator
        for key in product(*self._ends):
            total = totals.get(key)
            # A million chunks are possible, and comparing numerators and denominators is several
            # times as fast as comparing fractions.
            if total is None or (total.numerator, total.denominator) != parts:
                what = f"chunks with source {key[0]} and target {key[1]}"
                return f"{what} make up {total or 0} of the buffer; expected {share}"
        return None


def spell_collective(name: str) -> str:
    """Return topoplan's name for any spelling of a collective, such as AllReduce.

    If `name` is no such spelling, return it unchanged.
    """
    plain = "".join(character for character in name.lower() if character.isalnum())
    return _SPELLINGS.get(plain.removesuffix("perf"), name)


def spell_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as messages list them: "0, 2"."""
    return ", ".join(map(str, ranks))


def collective_on(name: str, topology: Topology, root: int | None = None) -> Collective:
    """Return the collective `name` over all ranks of a topology.

    If it needs a root and none is given, that is rank 0. Raise InputError if there are fewer than
    two ranks, or there is no such collective.
    """
    n = len(topology.ranks)
    if n < 2:
        # Imported here, since commands read the names of collectives for their help.
        from ...topo.notes import explain_no_gpus

        # The topology of a probed machine without GPUs includes the reason why none was found.
        why = None if n else explain_no_gpus(topology.notes)
        raise InputError(
            f"topology {topology.name!r} has {n} GPU{'' if n == 1 else 's'}; a collective needs "
            "at least two ranks" + (f" ({why})" if why else "")
        )
    return Collective.with_default_root(name, n, root)
