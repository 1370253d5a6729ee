"""Our strategies. One file a strategy, one contract (see `synth/request.py`); `synth/registry.py`
adds those of users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..ir.schedule import Schedule
from ..request import Request
from . import (
    chains,
    direct,
    double_tree,
    exact,
    greedy,
    halving_doubling,
    hierarchical,
    one_shot,
    packing,
    parameter_server,
    recursive_doubling,
    ring,
)

Strategy = Callable[[Request], list[Schedule]]

# By name. Each returns candidate schedules (for small sizes, large ones, ...), or raises
# InfeasibleError with the reason why it has none for this collective on this topology.
STRATEGIES: Mapping[str, Strategy] = {
    "packing": packing.build,
    "chains": chains.build,
    "exact": exact.build,
    "hierarchical": hierarchical.build,
    "greedy": greedy.build,
    "ring": ring.build,
    "double-tree": double_tree.build,
    "recursive-doubling": recursive_doubling.build,
    "halving-doubling": halving_doubling.build,
    "direct": direct.build,
    "one-shot": one_shot.build,
    "parameter-server": parameter_server.build,
}
