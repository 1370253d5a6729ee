"""The communication of a job: its ranks as a mesh of named dimensions, and the messages of a step.

Messages are those by which the groups of each dimension carry out their collectives. Ranks count
through the mesh as in a DeviceMesh: the last dimension changes fastest. Ranks that differ in one
dimension only are a group of it. One collective of all groups of a dimension is a traffic of the
job; its messages, in all its calls of a step together, are a phase.

Who sends to whom in a group depends on the target:

`ring`: every collective around the ring of the group's ranks in order, as NCCL's rings go from host
to host, and as in Horovod, MSCCL and most others: each rank sends 2 (n - 1) / n of the buffer to
the next for allreduce, (n - 1) / n for allgather and reduce-scatter.

`stock`: gloo's algorithms, as torch.distributed calls them: `all_reduce` is gloo::allreduce with
its default algorithm, a ring that sends to the rank *before* (gloo/allreduce.cc; torch never
selects bcube), `all_gather` a ring to the rank after (gloo/allgather.cc), `all_to_all` every pair
directly (gloo/alltoall.cc), and `reduce_scatter` an allreduce of which each rank keeps its part:
torch does not use gloo's halving and doubling (gloo/reduce_scatter.h). The directions matter on
uneven links.

`plan`: topoplan's plans, which do not depend on the order inside a group.

For all targets alltoall sends 1 / n of the buffer to each other rank, and sendrecv (the stages of a
pipeline) the whole buffer to the next rank and to the one before, without wrapping around. Buffers
have the sizes that algbw counts. Traffic that is given as a matrix of bytes goes directly from rank
to rank.

A call also has a latency. Around a ring data passes n - 1 routes in succession (twice for an
allreduce), whose latencies add up; in other patterns all messages are sent at once, and the slowest
route counts.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from ....topo.errors import InputError
from ..traffic import ByteMatrix, is_matrix, read_matrix
from .kinds import read_calls

Ints = NDArray[np.int64]

RING, STOCK, PLAN = "ring", "stock", "plan"
# The targets that users may name.
TARGETS = (RING, STOCK, PLAN)
# The dimension (no mesh can have one of this name) and the collective of traffic that is given as a
# matrix of bytes.
DIRECT, MATRIX = "rank to rank", "matrix"
# The shapes of patterns.
AROUND, PAIRS, LINE, SPREAD, UNEVEN = "around", "pairs", "line", "spread", "uneven"

# The only dimension of a job without named ones.
WHOLE = "all"
_PAIR = re.compile(r"\s*([A-Za-z_][\w-]*)\s*=\s*([^=]*?)\s*")
# At most nine digits, so that products stay small enough to print.
_SIZE = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Pattern:
    """The messages of one group: member i sends j `bytes_each` bytes for each (i, j) of `sends`.

    i and j are positions in the group. `shape` is "around" (a ring), "pairs" (every rank to every
    other), "line" (neighbours, in both directions) or "spread": a plan, of which `sends` only names
    the members, and which sends (p - 1) / p of `bytes_each` out of each of the p parts of the
    machine that hold its group. "uneven" is a matrix, whose phase lists the messages.

    `bytes_each` is for all calls of a training step together, as the size that `pattern_of` is
    given. One call takes `rounds` times the latency of its routes: their sum around a ring, else
    the slowest one's.
    """

    shape: str
    sends: tuple[tuple[int, int], ...]
    bytes_each: Fraction
    rounds: Fraction = Fraction(1)


@dataclass(frozen=True)
class Traffic:
    """The collective that each group of a dimension runs in a training step, in `calls` calls.

    `size_bytes` is the size of the buffers of all these calls together, as algbw counts it.
    `reason` is empty if the job states the number of calls, else the assumption behind it.
    """

    dimension: str
    collective: str
    size_bytes: int
    calls: int = 1
    reason: str = ""

    @property
    def call_bytes(self) -> int:
        """The size of the buffer of one call, rounded up."""
        return -(-self.size_bytes // self.calls)


@dataclass(frozen=True)
class Phase:
    """One traffic of a job, as messages of all groups from rank `src[i]` to rank `dst[i]`.

    These are ranks of the job. `pattern` holds the messages of one group, by positions in it.
    Message i has `parts[i]` times the pattern's bytes, or once if `parts` is None.
    """

    traffic: Traffic
    pattern: Pattern
    src: Ints
    dst: Ints
    parts: Ints | None = None

    @property
    def messages(self) -> int:
        """The number of messages of equal size, at most."""
        return len(self.src) if self.parts is None else int(self.parts.sum())


@dataclass(frozen=True)
class Job:
    """A mesh of ranks, and the traffic in a training step.

    `dimensions` are names and sizes. Ranks count through the mesh, the last dimension fastest.
    `matrix` is the traffic in bytes from rank to rank, if it was given as a matrix.
    """

    dimensions: tuple[tuple[str, int], ...]
    traffics: tuple[Traffic, ...]
    matrix: ByteMatrix | None = field(default=None, compare=False)

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return prod(size for _, size in self.dimensions)

    @property
    def is_one_group(self) -> bool:
        """Whether all ranks are in one group."""
        return sum(size > 1 for _, size in self.dimensions) == 1

    def list_groups(self, dimension: str) -> Ints:
        """Return the ranks of each group of a dimension, in order: one row per group.

        The ranks of a group differ in this dimension only.
        """
        names, sizes = zip(*self.dimensions, strict=True)
        axis, ranks = names.index(dimension), np.arange(self.ranks, dtype=np.int64)
        return np.moveaxis(ranks.reshape(sizes), axis, -1).reshape(-1, sizes[axis])

    def list_phases(self, target: str) -> list[Phase]:
        """Return the messages of each traffic, by the algorithms of `target`.

        `target` is "ring", "stock" (gloo's) or "plan". Traffics without messages are left out.
        """
        phases = []
        if self.matrix is not None and self.matrix.any():
            src, dst = np.nonzero(self.matrix)
            each = self.matrix[src, dst]
            unit = int(np.gcd.reduce(each))
            pattern = Pattern(UNEVEN, (), Fraction(unit))
            phases.append(Phase(self.traffics[0], pattern, src, dst, each // unit))
        for traffic in self.traffics if self.matrix is None else ():
            groups = self.list_groups(traffic.dimension)
            pattern = pattern_of(target, traffic.collective, groups.shape[1], traffic.size_bytes)
            if pattern.sends and pattern.bytes_each:
                src, dst = (groups[:, column].reshape(-1) for column in np.array(pattern.sends).T)
                phases.append(Phase(traffic, pattern, src, dst))
        return phases


def pattern_of(target: str, collective: str, ranks: int, size_bytes: int) -> Pattern:
    """Return the messages in one group of `ranks` ranks for a collective on `size_bytes` bytes.

    `target` is "ring", "stock" (gloo's algorithms) or "plan"; collectives include "sendrecv".
    """
    n, size, turn = ranks, Fraction(size_bytes), Fraction(ranks - 1, ranks)
    if n == 1:
        return Pattern(AROUND, (), size)
    ring = tuple((i, (i + 1) % n) for i in range(n))
    back = tuple((j, i) for i, j in ring)
    if collective == "alltoall":
        return Pattern(PAIRS, tuple((i, j) for i in range(n) for j in range(n) if i != j), size / n)
    if collective == "sendrecv":
        return Pattern(
            LINE, tuple(p for hops in zip(ring[:-1], back, strict=False) for p in hops), size
        )
    if collective == "allreduce" or (target == STOCK and collective == "reduce-scatter"):
        size, turn = 2 * size, 2 * turn
    if target == PLAN:
        return Pattern(SPREAD, ring, size, size / size_bytes if size_bytes else Fraction(1))
    sends = back if target == STOCK and collective != "allgather" else ring
    return Pattern(AROUND, sends, size * (n - 1) / n, turn)


def read_job(job: str | None, traffic: str | PathLike[str] | ByteMatrix | None, ranks: int) -> Job:
    """Return the job for texts such as `dp=4,tp=2` and `dp=allreduce:1G,tp=96x64M`.

    `traffic` may also be a matrix of bytes from rank to rank, or its file (`.csv` or `.npy`).
    `ranks` is the number of ranks that the mesh must have. Without `job` they are one group.
    Without `traffic` the only dimension larger than 1 does an allreduce of 1 GiB. Raise InputError
    if the texts are malformed, do not fit, or leave the traffic of several dimensions open.
    """
    dimensions = _read_dimensions(job) if job is not None else ((WHOLE, ranks),)
    sizes = [size for _, size in dimensions]
    if prod(sizes) != ranks:
        raise InputError(
            f"{job}: {' x '.join(map(str, sizes))} = {prod(sizes)} ranks, and {ranks} GPUs are to "
            "have one each; correct the sizes, or reserve the GPUs that stay free",
            parameter="job",
        )
    if traffic is not None and (not isinstance(traffic, str) or is_matrix(traffic)):
        matrix = read_matrix(traffic, ranks)
        return Job(dimensions, (Traffic(DIRECT, MATRIX, int(matrix.sum())),), matrix)
    if traffic is not None:
        return Job(dimensions, tuple(_read_traffic(traffic, dict(dimensions))))
    busy = [name for name, size in dimensions if size > 1]
    if len(busy) > 1:
        raise InputError(
            f"{job}: say what each dimension sends in a step, such as {busy[0]}=allreduce:1G,"
            f"{busy[1]}=96xallreduce:64M",
            parameter="traffic",
        )
    return Job(dimensions, tuple(Traffic(name, "allreduce", 1 << 30) for name in busy))


def _split_pairs(text: str, parameter: str, example: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a text such as `a=1,b=2`."""
    for part in text.split(","):
        match = _PAIR.fullmatch(part)
        if match is None:
            raise InputError(
                f"{text}: {part!r} is not NAME=VALUE; expected for example {example}",
                parameter=parameter,
            )
        yield match[1], match[2]


def _read_dimensions(text: str) -> tuple[tuple[str, int], ...]:
    sizes: dict[str, int] = {}
    for name, value in _split_pairs(text, "job", "dp=4,tp=2"):
        if not _SIZE.fullmatch(value) or int(value) == 0:
            raise InputError(
                f"{text}: the size of {name} is {value!r}; expected a whole number of at least 1",
                parameter="job",
            )
        if name in sizes:
            raise InputError(f"{text}: {name} is named twice; each dimension once", parameter="job")
        sizes[name] = int(value)
    return tuple(sizes.items())


def _read_traffic(text: str, sizes: dict[str, int]) -> Iterator[Traffic]:
    for name, value in _split_pairs(text, "traffic", "dp=allreduce:1G"):
        if name not in sizes:
            raise InputError(
                f"{text}: the job has no dimension {name!r}; it has {', '.join(sizes)}",
                parameter="traffic",
            )
        for each in read_calls(name, value, sizes[name], text):
            yield Traffic(name, each.collective, each.size_bytes, each.calls, each.reason)
