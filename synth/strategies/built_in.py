"""The list of built-in strategies; `synth/planner/registry.py` adds those of users.

The contract is in `synth/request.py`. Each strategy declares here which cases it applies to and
when auto can skip it, so that auto needs no strategy's name.
"""

from collections.abc import Mapping

from ...extras import STRATEGIES as ADDED
from ...extras import Names
from ..request import Strategy
from . import (
    chains,
    direct,
    double_tree,
    doubling,
    greedy,
    hierarchical,
    packing,
    parameter_server,
    ring,
)

_ALLREDUCE = ("allreduce",)
_GATHERING = ("allreduce", "allgather", "reduce-scatter")
# Up to this many ranks a plan lists alternatives, so strategies that add some are worth their time.
LISTED_RANKS = 16
# Work of the first strategy, in seconds of an idle core: the others usually have less to search.
MAIN_WORK_S = 21.0
# Work for rings that are only listed beside a schedule at the bound, in seconds of an idle core.
_LISTED_WORK_S = 0.1
# With more ranks, rings are searched for only if there is no other schedule: they take hundreds of
# steps, and most of auto's time (5.7 of 7.8 s on a torus of 144 GPUs with a slow link).
_RING_RANKS = 128
# With more ranks chains are omitted if a schedule is at the bound: they take long and win little.
_SEARCHED_RANKS = 8
_OF_EXTRAS = Names(ADDED)

# In the order in which auto tries them. Packing is first and may work longest: it usually reaches
# the bound, after which the others can win only by fewer steps.
STRATEGIES: Mapping[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("packing", packing.build, work_s=MAIN_WORK_S),
        # For collectives other than allreduce, chains are the rings of the strategy "ring".
        Strategy(
            "chains", chains.build, _GATHERING, _ALLREDUCE,
            max_ranks=LISTED_RANKS, max_ranks_at_bound=_SEARCHED_RANKS,
        ),
        *(_OF_EXTRAS.find(name) for name in _OF_EXTRAS.describe()),
        Strategy("hierarchical", hierarchical.build, _ALLREDUCE),
        # All its schedules are for bandwidth, in which a schedule at the bound cannot be beaten.
        Strategy("greedy", greedy.build, _GATHERING, max_ranks_at_bound=0),
        Strategy(
            "ring", ring.build, _GATHERING, max_ranks_beside=_RING_RANKS,
            at_bound_work_s=_LISTED_WORK_S, max_ranks_at_bound=LISTED_RANKS,
        ),
        Strategy("double-tree", double_tree.build, _ALLREDUCE, max_ranks_at_bound=LISTED_RANKS),
        Strategy("recursive-doubling", doubling.build_recursive_doubling, _GATHERING),
        Strategy(
            "halving-doubling", doubling.build_halving_doubling, _ALLREDUCE,
            max_ranks_at_bound=LISTED_RANKS,
        ),
        Strategy("direct", direct.build),
        Strategy("one-shot", direct.build_one_shot, _ALLREDUCE),
        Strategy("parameter-server", parameter_server.build, _ALLREDUCE),
    )
}  # fmt: skip
