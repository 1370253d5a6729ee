"""Write RCCL's variables: RCCL_TREES for trees, or NCCL_RINGS for rings through all GPUs.

RCCL names GPUs by the driver's index and takes the same numbers for ranks, so they must be 0 to n -
1, in order. With RCCL_TREES it runs every allreduce over the trees and ignores NCCL_RINGS; rings
for the other collectives are those of a graph file without trees, or of its plain search. Channel c
uses the tree c mod the number of trees, so the number of channels is set to a multiple of it. From
RCCL's sources of October 2024 (graph/search.cc, graph/rome_models.cc, graph/connect.cc,
enqueue.cc).

Algbw is the bytes of the buffer over the time of a call; the single-path bound holds for plans in
which two GPUs use one route, the hardware's.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ....topo.errors import InfeasibleError, InputError, VerificationError
from ....topo.graph import Topology
from ....topo.grouping import group_by_key
from ....topo.pictures.cables import describe_rates
from ....topo.version import VERSION
from ...bounds.certificate import Bound
from ...channels.channels import RING, Channels, check_order, schedule_channels
from ...channels.rounding import find_channels
from ...ir.collective import Collective
from ...request import Request
from ..stock.constants import (
    RCCL_CHANNELS_OF_FEW,
    RCCL_ENV_RANKS,
    RCCL_FEW_GPUS,
    RCCL_TREE_CHARACTERS,
)
from .binary_trees import Parents, check_tree, find_binary_trees, schedule_trees
from .gpu_numbers import number_gpus
from .graph_check import make_plain
from .nccl_graph import measure_algbw
from .rccl_limits import find_rccl_version

RINGS, TREES = "NCCL_RINGS", "RCCL_TREES"
GRAPH_FILE = "NCCL_GRAPH_FILE"
# Most trees: more make texts that people cannot read, and gain nothing.
_MAX_TREES = 32
_LINE = re.compile(r'([A-Z_]+)=(?:"([^"\n]*)"|(\d+))')
_NODE = re.compile(r"\((\d{1,3})|\)")
# What a shell does not leave alone between double quotes.
_EXPANDED = set('"$`\\\n')


@dataclass(frozen=True)
class RcclEnv:
    """The rings and trees that RCCL's variables set, and their algbw in GB/s at large sizes.

    Each tree is the parent of every rank, -1 at the root; all have equal shares of the buffer. If
    there are no rings, or no trees, `rings` is None, or `trees` empty, and their algbw 0.
    `channels` is the number that RCCL must run, 0 if it may choose. `bound` is the collective's
    single-path bound.
    """

    topology: Topology
    collective: Collective
    rings: Channels | None
    trees: tuple[Parents, ...]
    ring_GBps: Fraction
    tree_GBps: Fraction
    bound: Bound
    channels: int

    @property
    def fraction(self) -> Fraction:
        """The algbw of the faster of rings and trees as a fraction of the single-path bound."""
        return max(self.ring_GBps, self.tree_GBps) / self.bound.algbw_GBps


def find_rccl_env(request: Request, bound: Bound) -> RcclEnv:
    """Return the best rings and, for allreduce, trees of at most two children.

    Raise InfeasibleError if RCCL could not use them: for several hosts, too many GPUs, or GPUs not
    numbered from 0 in the order of the ranks. `bound` is the single-path bound.
    """
    collective, topology, n = request.collective, request.topology, request.collective.ranks
    if n > RCCL_ENV_RANKS:
        raise InfeasibleError(
            f"RCCL reads rings and trees of at most {RCCL_ENV_RANKS} GPUs; there are {n}"
        )
    devs = number_gpus(topology).devs
    if devs != tuple(range(n)):
        raise InfeasibleError(
            f"RCCL takes the numbers in {TREES} for ranks as well, but the GPUs of "
            f"{topology.name!r} are {', '.join(map(str, devs[:8]))}{' ...' * (n > 8)}; they "
            f"would have to be 0 to {n - 1} in order"
        )
    rings: Channels | None = None
    try:
        rings = find_channels(request, RING, _MAX_TREES)
    except InfeasibleError:
        if collective.name != "allreduce":
            raise
    trees = find_binary_trees(request, _MAX_TREES) if collective.name == "allreduce" else ()
    rates = _compute_algbw(request, rings, trees)
    count = next(iter(list_channel_counts(topology, len(trees))), len(trees)) if trees else 0
    return RcclEnv(topology, collective, rings, trees, *rates, bound, count)


def list_channel_counts(topology: Topology, trees: int) -> range:
    """Return the numbers of channels that use each of `trees` trees equally often, largest first.

    They are even, as RCCL doubles the rings of a graph.
    """
    most = 2 * find_rccl_version(topology).usual
    if len(topology.ranks) < RCCL_FEW_GPUS:
        most = min(most, RCCL_CHANNELS_OF_FEW)
    step = math.lcm(trees, 2)
    return range(most // step * step, 0, -step)


def _compute_algbw(
    request: Request, rings: Channels | None, trees: tuple[Parents, ...]
) -> tuple[Fraction, Fraction]:
    """Return the algbw of rings and of trees in GB/s, from loads of their verified schedules."""
    return (
        Fraction(0)
        if rings is None
        else measure_algbw(request, schedule_channels(request, rings, "rings")),
        measure_algbw(request, schedule_trees(request, trees, "trees")) if trees else Fraction(0),
    )


def write_rccl_env(
    env: RcclEnv, request: Request, remarks: Sequence[str] = (), graph_path: str | None = None
) -> str:
    """Return shell lines that set RCCL's variables, with comments on the rates and `remarks`.

    Trees are set if there are any, else rings. `request` is what they were searched for.
    `graph_path` is that of a graph file for the other collectives. Raise VerificationError if the
    lines, read back, do not reach the rates of `env`, and InputError if a shell would not take the
    path as it is.
    """
    rates = {"trees": env.tree_GBps} if env.trees else {"rings": env.ring_GBps}
    reached = [f"{name} {float(rate):.4g}" for name, rate in rates.items()]
    lines = [
        f"topoplan {VERSION}: for RCCL, {env.collective.name} on the {env.collective.ranks} GPUs "
        f"of {env.topology.name}",
        f"fingerprint {env.topology.fingerprint}; one host, all of its GPUs in one communicator, "
        "ranks in the GPUs' order",
        f"reaches at large sizes, GB/s algbw: {', '.join(reached)}; at most "
        f"{float(env.bound.algbw_GBps):.4g} with a single path per pair of GPUs",
        *remarks,
        *describe_rates(env.topology),
    ]
    values = []
    if env.trees:
        values.append(f'{TREES}="{"|".join(map(write_tree, env.trees))}"')
        values += [f"NCCL_MIN_NCHANNELS={env.channels}", f"NCCL_MAX_NCHANNELS={env.channels}"]
    elif env.rings is not None:
        rings = "|".join(" ".join(map(str, order)) for order in env.rings.orders)
        values.append(f'{RINGS}="{rings}"')
    if graph_path is not None:
        if set(graph_path) & _EXPANDED:
            raise InputError(
                f"{graph_path!r}: a shell would not take this path as it is; choose one without "
                "quotes, $, ` and backslashes"
            )
        values.append(f'{GRAPH_FILE}="{graph_path}"')
    text = "\n".join([*(f"# {make_plain(line)}" for line in lines), *values, ""])
    where = f"the variables for {env.topology.name}"
    read = _compute_algbw(request, *read_rccl_env(text, where, env.collective.ranks))
    if max(read) != (env.tree_GBps if env.trees else env.ring_GBps):
        raise VerificationError(f"{where} do not say the rings and trees of the search")
    return text


def write_tree(parents: Parents) -> str:
    """Return a tree, given as the parent of each rank (-1: root), as RCCL_TREES spells it.

    That is "(root(child(...))(child(...)))".
    """
    children = group_by_key((parent, rank) for rank, parent in enumerate(parents))

    def write(rank: int) -> str:
        return f"({rank}{''.join(map(write, children[rank]))})"

    return write(children[-1][0])


def read_rccl_env(text: str, where: str, ranks: int) -> tuple[Channels | None, tuple[Parents, ...]]:
    """Return the rings and trees that lines NAME="value" set; None or () for an unset variable.

    Raise InputError for rings and trees that RCCL would omit or hang on.
    """
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip().removeprefix("export ")
        if line and not line.startswith("#"):
            match = _LINE.fullmatch(line)
            if match is None:
                raise InputError(f'{where}, line {number}: {line[:40]!r}; expected NAME="value"')
            values[match[1]] = match[2] or match[3] or ""
    if not values.keys() & {RINGS, TREES}:
        raise InputError(f"{where}: sets neither {RINGS} nor {TREES}")
    rings, trees = (values[name].split("|") if name in values else [] for name in (RINGS, TREES))
    orders = tuple(_read_ring(ring, f"{where}: {RINGS}", ranks) for ring in rings)
    return Channels(RING, orders) if orders else None, tuple(
        read_tree(tree, f"{where}: {TREES}", ranks) for tree in trees
    )


def _read_ring(text: str, where: str, ranks: int) -> tuple[int, ...]:
    """Return a ring of NCCL_RINGS. Raise InputError if it misses a rank: RCCL would omit it."""
    words = text.split()
    if not all(word.isascii() and word.isdigit() and len(word) < 5 for word in words):
        raise InputError(f"{where}: {text[:40]!r}; expected numbers of GPUs")
    order = tuple(int(word) for word in words)
    check_order(order, ranks, f"{where}: ring {text[:40]!r}")
    return order


def read_tree(text: str, where: str, ranks: int) -> Parents:
    """Return a tree of RCCL_TREES, for `ranks` ranks; `where` begins messages.

    Raise InputError if it is malformed or misses a rank.
    """
    where = f"{where}: tree {text[:60]!r}"
    if len(text) > RCCL_TREE_CHARACTERS:
        raise InputError(
            f"{where}: {len(text)} characters; RCCL has room for {RCCL_TREE_CHARACTERS}"
        )
    parents: dict[int, int] = {}
    path: list[int] = []
    position = 0
    while position < len(text):
        match = _NODE.match(text, position)
        # An unmatched closing bracket or a second root is as wrong as any other text.
        if match is None or (not path and (match[1] is None or parents)):
            raise InputError(
                f"{where}: not understood at character {position + 1}; expected "
                "(root(child(...))(child))"
            )
        if match[1] is None:
            path.pop()
        else:
            rank = int(match[1])
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
