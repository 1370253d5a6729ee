"""Write RCCL's variables: NCCL_RINGS, rings through all GPUs, and RCCL_TREES, trees in which GPUs
branch.

RCCL names GPUs by the driver's index and looks ranks up by the same numbers, so they have to be 0
to n - 1, in order. Where both variables are set RCCL takes the trees and searches for rings by
itself. Channel c uses tree c mod their number, so the number of channels is fixed to a multiple of
it. From RCCL's sources of October 2024 (graph/rome_models.cc, graph/connect.cc).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from ...topo.errors import InfeasibleError, InputError, VerificationError
from ...topo.graph import Topology
from ...topo.pictures.cables import describe_rates
from ...topo.version import VERSION
from ..bounds.certificate import Bound
from ..channels.channels import RING, Channels, algbw_GBps, check_order, schedule_channels
from ..channels.rounding import find_channels
from ..ir.collective import Collective
from ..request import Request
from ..verify import verify
from .binary_trees import (
    BinaryTrees,
    Parents,
    check_tree,
    compute_algbw_GBps,
    find_binary_trees,
    schedule_trees,
)
from .gpu_numbers import number_gpus
from .graph_check import make_plain

RINGS, TREES = "NCCL_RINGS", "RCCL_TREES"
_MAX_CHANNELS = 32
_MOST_RANKS = 64
_MOST_TREE_CHARACTERS = 255
_LINE = re.compile(r'([A-Z_]+)=(?:"([^"\n]*)"|(\d+))')
_NODE = re.compile(r"\((\d{1,3})|\)")


@dataclass(frozen=True)
class RcclEnv:
    """Rings and trees for a machine, None where there are none, and their algbw in GB/s at large
    sizes (then 0).
    """

    topology: Topology
    collective: Collective
    rings: Channels | None
    trees: BinaryTrees | None
    ring_GBps: Fraction
    tree_GBps: Fraction
    bound: Bound

    @property
    def fraction(self) -> Fraction:
        """The share of the bound for one way a pair that the faster of them reaches."""
        return max(self.ring_GBps, self.tree_GBps) / self.bound.algbw_GBps

    @property
    def channels(self) -> int:
        """Number of channels that RCCL is told to run; 0 where it is not told."""
        count = 0 if self.trees is None else len(self.trees.trees)
        return count and _MAX_CHANNELS // count * count


def find_rccl_env(request: Request, bound: Bound) -> RcclEnv:
    """Return the best rings and, for allreduce, trees of at most two children.

    Raises InfeasibleError where RCCL could not take them: several hosts, too many GPUs, or GPUs
    that are not numbered from 0 on in the order of the ranks.
    """
    collective, topology, n = request.collective, request.topology, request.collective.ranks
    if n > _MOST_RANKS:
        raise InfeasibleError(
            f"RCCL reads rings and trees of at most {_MOST_RANKS} GPUs; there are {n}"
        )
    devs = number_gpus(topology).devs
    if devs != tuple(range(n)):
        raise InfeasibleError(
            f"RCCL takes the numbers in {TREES} for ranks as well, but the GPUs of "
            f"{topology.name!r} are "
            f"{', '.join(map(str, devs[:8]))}{' ...' * (n > 8)}; they would have to be 0 to "
            f"{n - 1} in order"
        )
    rings: Channels | None = None
    try:
        rings = find_channels(request, RING, _MAX_CHANNELS)
    except InfeasibleError:
        if collective.name != "allreduce":
            raise
    trees = find_binary_trees(request, _MAX_CHANNELS) if collective.name == "allreduce" else None
    return RcclEnv(
        topology, collective, rings, trees,
        Fraction(0) if rings is None else _compute_ring_GBps(request, rings),
        Fraction(0) if trees is None else _compute_tree_GBps(request, trees),
        bound,
    )  # fmt: skip


def _compute_ring_GBps(request: Request, rings: Channels) -> Fraction:
    """Return the algbw of rings, from the loads of their verified schedule."""
    schedule = schedule_channels(request, rings, "rings")
    verify(schedule, request.topology)
    return algbw_GBps(schedule, request.topology)


def _compute_tree_GBps(request: Request, trees: BinaryTrees) -> Fraction:
    """Return the algbw of trees, from the loads of their verified schedule."""
    schedule = schedule_trees(request, trees, "trees")
    verify(schedule, request.topology)
    return compute_algbw_GBps(schedule, request)


def write_rccl_env(env: RcclEnv, request: Request) -> str:
    """Return the lines for a shell, which have been read back, replayed, and found to have the
    rates that they say.
    """
    reached = [
        f"{name} {float(rate):.4g}"
        for name, rate in (("rings", env.ring_GBps), ("trees", env.tree_GBps))
        if rate
    ]
    lines = [
        f"topoplan {VERSION}: for RCCL, {env.collective.name} on the {env.collective.ranks} GPUs "
        f"of {env.topology.name}",
        f"fingerprint {env.topology.fingerprint}; one host, all of its GPUs in one communicator, "
        "ranks in the GPUs' order",
        f"reaches at large sizes, GB/s algbw: {', '.join(reached)}; at most "
        f"{float(env.bound.algbw_GBps):.4g} with one way a "
        f"pair of GPUs ({float(env.fraction):.1%} of it)",
        *describe_rates(env.topology),
    ]
    values = []
    if env.rings is not None:
        values.append(
            f'{RINGS}="{"|".join(" ".join(map(str, order)) for order in env.rings.orders)}"'
        )
    if env.trees is not None:
        lines.append(
            f"where both are set RCCL takes {TREES}, and finds rings by itself; NCCL_ALGO=Tree "
            "makes it use the trees"
        )
        values.append(f'{TREES}="{"|".join(map(write_tree, env.trees.trees))}"')
        values += [f"NCCL_MIN_NCHANNELS={env.channels}", f"NCCL_MAX_NCHANNELS={env.channels}"]
    text = "\n".join([*(f"# {make_plain(line)}" for line in lines), *values, ""])
    _check(env, text, request)
    return text


def _check(env: RcclEnv, text: str, request: Request) -> None:
    """Raise VerificationError unless what is read back from the text has the rates that it is
    written with.
    """
    rings, trees = read_rccl_env(
        text, f"the variables for {env.topology.name}", env.collective.ranks
    )
    found = (
        Fraction(0) if rings is None else _compute_ring_GBps(request, rings),
        Fraction(0) if trees is None else _compute_tree_GBps(request, trees),
    )
    if found != (env.ring_GBps, env.tree_GBps):
        raise VerificationError(
            f"the variables for {env.topology.name} do not say the rings and trees that were found"
        )


def write_tree(parents: Parents) -> str:
    """Return a tree as RCCL reads it: (root(child(...))(child(...)))."""
    children: dict[int, list[int]] = {}
    for rank, parent in enumerate(parents):
        children.setdefault(parent, []).append(rank)
    out: list[str] = []
    stack = [(children[-1][0], False)]
    while stack:
        rank, done = stack.pop()
        if done:
            out.append(")")
            continue
        out.append(f"({rank}")
        stack.append((rank, True))
        stack += [(child, False) for child in reversed(children.get(rank, []))]
    return "".join(out)


def read_rccl_env(text: str, where: str, ranks: int) -> tuple[Channels | None, BinaryTrees | None]:
    """Return the rings and trees that a text of NAME="value" lines sets; None for a variable that
    it does not set.

    Raises InputError for rings and trees that RCCL would leave out or hang on.
    """
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip().removeprefix("export ")
        if stripped and not stripped.startswith("#"):
            match = _LINE.fullmatch(stripped)
            if match is None:
                raise InputError(
                    f'{where}, line {number}: {stripped[:40]!r}; expected NAME="value"'
                )
            values[match.group(1)] = match.group(2) or match.group(3) or ""
    if not values.keys() & {RINGS, TREES}:
        raise InputError(f"{where}: sets neither {RINGS} nor {TREES}")
    rings = trees = None
    if RINGS in values:
        rings = Channels(
            RING,
            tuple(
                _read_ring(part, f"{where}: {RINGS}", ranks) for part in values[RINGS].split("|")
            ),
        )
    if TREES in values:
        trees = BinaryTrees(
            tuple(read_tree(part, f"{where}: {TREES}", ranks) for part in values[TREES].split("|"))
        )
    return rings, trees


def _read_ring(text: str, where: str, ranks: int) -> tuple[int, ...]:
    """Return a ring of NCCL_RINGS. Raises InputError where it is not through all ranks, as RCCL
    leaves it out then.
    """
    words = text.split()
    if not all(word.isascii() and word.isdigit() and len(word) < 5 for word in words):
        raise InputError(f"{where}: {text[:40]!r}; expected numbers of GPUs")
    order = tuple(int(word) for word in words)
    check_order(order, ranks, f"{where}: ring {text[:40]!r}")
    return order


def read_tree(text: str, where: str, ranks: int) -> Parents:
    """Return a tree of RCCL_TREES. Raises InputError where it is not written as one or not through
    all ranks.
    """
    where = f"{where}: tree {text[:60]!r}"
    if len(text) > _MOST_TREE_CHARACTERS:
        raise InputError(
            f"{where}: {len(text)} characters; RCCL has room for {_MOST_TREE_CHARACTERS}"
        )
    parents: dict[int, int] = {}
    path: list[int] = []
    position = 0
    while position < len(text):
        match = _NODE.match(text, position)
        if (
            match is None
            or (match.group(1) is None and not path)
            or (match.group(1) and parents and not path)
        ):
            raise InputError(
                f"{where}: not understood at character {position + 1}; expected "
                "(root(child(...))(child))"
            )
        if match.group(1) is None:
            path.pop()
        else:
            rank = int(match.group(1))
            if rank in parents:
                raise InputError(f"{where}: has GPU {rank} twice")
            parents[rank] = path[-1] if path else -1
            path.append(rank)
        position = match.end()
    if path:
        raise InputError(f"{where}: {len(path)} brackets are not closed")
    check_order(tuple(parents), ranks, where)
    ordered = tuple(parents[rank] for rank in range(ranks))
    check_tree(ordered, where)
    return ordered
