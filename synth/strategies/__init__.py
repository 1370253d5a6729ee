"""The built-in strategies; `synth/planner/registry.py` adds those of users.

The contract is in `synth/request.py`. Each strategy declares here where it applies and when auto
need not try it, so that auto knows none by name.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..request import Strategy
from . import (
    chains,
    direct,
    double_tree,
    doubling,
    exact,
    greedy,
    hierarchical,
    packing,
    parameter_server,
    ring,
)

_ALLREDUCE = ("allreduce",)
_GATHERING = ("allreduce", "allgather", "reduce-scatter")
# Up to so many ranks a plan lists alternatives, so strategies that add some are worth their time.
LISTED_RANKS = 16
# Work of the strategy that comes first, in seconds of an idle core: the others mostly have less to
# search.
MAIN_WORK_S = 21.0
# With more ranks the exact search, and chains beside a schedule at the bound, are left out: they
# take long and win little there.
_SEARCHED_RANKS = 8

# In the order in which auto tries them. Packing is first and may work longest: it mostly reaches
# the bound, after which the others win at most by fewer steps.
STRATEGIES: Mapping[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("packing", packing.build, work_s=MAIN_WORK_S),
        # Beyond allreduce, chains are the rings of the strategy ring.
        Strategy(
            "chains", chains.build, _GATHERING, _ALLREDUCE,
            max_ranks=LISTED_RANKS, max_ranks_at_bound=_SEARCHED_RANKS,
        ),
        Strategy("exact", exact.build, quick_work_s=3.0, max_ranks_beside=_SEARCHED_RANKS),
        Strategy("hierarchical", hierarchical.build, _ALLREDUCE),
        # All its schedules are for bandwidth, where one at the bound cannot be beaten.
        Strategy("greedy", greedy.build, _GATHERING, max_ranks_at_bound=0),
        Strategy("ring", ring.build, _GATHERING, max_ranks_at_bound=LISTED_RANKS),
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
