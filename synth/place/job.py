"""What a job sends: its ranks as a mesh of named dimensions, and what each dimension's groups
exchange in a step.

Ranks count through the mesh as a DeviceMesh does: the dimension named last changes fastest. Ranks
that differ in one dimension only are a group of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from ...topo.errors import InputError
from ..sizes import parse_size
from .patterns import COLLECTIVES, Pattern, pattern_of

Ints = NDArray[np.int64]
# The one dimension of a job that names none.
WHOLE = "all"
_PAIR = re.compile(r"\s*([A-Za-z_][\w-]*)\s*=\s*([^=]*?)\s*")
_USUAL = "allreduce", 1 << 30


@dataclass(frozen=True)
class Traffic:
    """What every group of a dimension does in each step: a collective on a buffer of
    `size_bytes`.
    """

    dimension: str
    collective: str
    size_bytes: int


@dataclass(frozen=True)
class Phase:
    """One traffic of a job as messages: each goes from rank `src[i]` to rank `dst[i]`; `pattern` is
    a group's.
    """

    traffic: Traffic
    pattern: Pattern
    src: Ints
    dst: Ints


@dataclass(frozen=True)
class Job:
    """A mesh of ranks: `dimensions` by name with their sizes, the last one changing fastest, and
    the traffics on them.
    """

    dimensions: tuple[tuple[str, int], ...]
    traffics: tuple[Traffic, ...]

    @property
    def ranks(self) -> int:
        """How many ranks the job has."""
        return prod(size for _, size in self.dimensions)

    def list_groups(self, dimension: str) -> Ints:
        """Return the groups of a dimension, a row a group with its ranks in order."""
        names, sizes = [name for name, _ in self.dimensions], [size for _, size in self.dimensions]
        ranks = np.arange(self.ranks, dtype=np.int64).reshape(sizes)
        at = names.index(dimension)
        return np.moveaxis(ranks, at, -1).reshape(-1, sizes[at])

    def list_phases(self, target: str) -> list[Phase]:
        """Return the traffics as messages, by the algorithms of `target` (patterns.py); those that
        send nothing left out.
        """
        phases = []
        for traffic in self.traffics:
            groups = self.list_groups(traffic.dimension)
            pattern = pattern_of(target, traffic.collective, groups.shape[1], traffic.size_bytes)
            if pattern.sends and pattern.bytes_each:
                src, dst = np.array(pattern.sends, dtype=np.int64).T
                phases.append(
                    Phase(traffic, pattern, groups[:, src].reshape(-1), groups[:, dst].reshape(-1))
                )
        return phases


def read_job(job: str | None, traffic: str | None, ranks: int) -> Job:
    """Return the job of `dp=4,tp=2` and `dp=allreduce:1G,tp=allgather:64M`, for so many ranks.
    InputError where it is none.

    Without `job` all ranks are one group; without `traffic` that group makes an allreduce of 1 GiB.
    """
    dimensions = _read_dimensions(job) if job is not None else ((WHOLE, ranks),)
    product = prod(size for _, size in dimensions)
    if product != ranks:
        written = " x ".join(str(size) for _, size in dimensions)
        raise InputError(
            f"--job {job}: {written} = {product} ranks, and {ranks} GPUs are to have one each; "
            "correct the sizes, or name "
            "GPUs that stay free by --reserve"
        )
    if traffic is None:
        busy = [name for name, size in dimensions if size > 1]
        if len(busy) > 1:
            raise InputError(
                f"--job {job}: say what each dimension sends in a step, such as --traffic "
                f"{busy[0]}=allreduce:1G,"
                f"{busy[1]}=allreduce:64M"
            )
        return Job(dimensions, tuple(Traffic(name, *_USUAL) for name in busy))
    return Job(dimensions, tuple(_read_traffic(traffic, [name for name, _ in dimensions])))


def _split_pairs(text: str, option: str, example: str) -> Iterable[tuple[str, str]]:
    """Return the names and values of `a=1,b=2`."""
    for part in text.split(","):
        match = _PAIR.fullmatch(part)
        if match is None:
            raise InputError(
                f"{option} {text}: {part!r} is not NAME=VALUE; expected for example {example}"
            )
        yield match[1], match[2]


def _read_dimensions(text: str) -> tuple[tuple[str, int], ...]:
    out: dict[str, int] = {}
    for name, value in _split_pairs(text, "--job", "dp=4,tp=2"):
        if not value.isascii() or not value.isdigit() or not int(value[:9]) > 0 or len(value) > 9:
            raise InputError(
                f"--job {text}: the size of {name} is {value!r}; expected a whole number of at "
                "least 1"
            )
        if name in out:
            raise InputError(f"--job {text}: {name} is named twice; each dimension once")
        out[name] = int(value)
    return tuple(out.items())


def _read_traffic(text: str, names: list[str]) -> Iterable[Traffic]:
    for name, value in _split_pairs(text, "--traffic", "dp=allreduce:1G"):
        if name not in names:
            raise InputError(
                f"--traffic {text}: the job has no dimension {name!r}; it has {', '.join(names)}"
            )
        collective, colon, size = value.partition(":")
        if collective not in COLLECTIVES or not colon:
            raise InputError(
                f"--traffic {text}: {value!r} is not COLLECTIVE:BYTES; expected one of "
                f"{', '.join(COLLECTIVES)}, "
                "such as allreduce:64M"
            )
        yield Traffic(name, collective, parse_size(size))
