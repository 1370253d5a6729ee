"""Schedules of every kind by name, for tests of what runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from needs import has_extra
from unhurried import make_effort

from topoplan.synth.ir.collective import Collective, collective_on
from topoplan.synth.ir.schedule import Schedule, reverse
from topoplan.synth.request import Request
from topoplan.synth.strategies.built_in import STRATEGIES
from topoplan.topo.presets import preset
from topoplan.topo.routes import Router


def built(name: str, topology: str, collective: str = "allreduce") -> Schedule:
    target = preset(topology)
    return STRATEGIES[name](Request(collective_on(collective, target), target, make_effort()))[0]


def exact(name: str, triple: tuple[int, int, int], root: int | None = None) -> Schedule:
    from topoplan.synth.extras.exact.models import SyncInstance, fabric_of, solve_copying

    found = solve_copying(
        fabric_of(Router(preset("dgx1"))),
        SyncInstance(Collective(name, 8, root), *triple),
        make_effort(),
    )
    assert found is not None
    return found


Recipe = Callable[[], Schedule]
ALLREDUCES: dict[str, Recipe] = {
    "ring": lambda: built("ring", "ring:4"),
    "doubling, 6 ranks": lambda: built("recursive-doubling", "switch:6"),
    "halving-doubling": lambda: built("halving-doubling", "hypercube:3"),
    "direct": lambda: built("direct", "switch:5"),
    "one-shot": lambda: built("one-shot", "switch:5"),
    "double-tree": lambda: built("double-tree", "switch:7"),
    "packing": lambda: built("packing", "dgx1"),
    "hierarchical": lambda: built("hierarchical", "pcie-2socket"),
    "greedy": lambda: built("greedy", "mesh:2x3"),
    "parameter-server": lambda: built("parameter-server", "switch:5"),
}
EXACT: dict[str, Recipe] = {
    "allgather": lambda: exact("allgather", (6, 3, 7)),
    "reduce-scatter": lambda: reverse(exact("allgather", (2, 2, 3))),
    "broadcast": lambda: exact("broadcast", (6, 3, 3), 3),
    "reduce": lambda: reverse(exact("broadcast", (6, 3, 3), 3)),
    "gather": lambda: exact("gather", (6, 3, 7), 2),
    "scatter": lambda: exact("scatter", (6, 3, 7), 2),
    "alltoall": lambda: exact("alltoall", (3, 3, 8)),
}
OTHERS: dict[str, Recipe] = {
    **(EXACT if has_extra("exact") else {}),
    "packed allgather": lambda: built("packing", "mesh:2x3", "allgather"),
    "packed reduce-scatter": lambda: built("packing", "mesh:2x3", "reduce-scatter"),
    "packed broadcast": lambda: built("packing", "dgx1", "broadcast"),
    "packed reduce": lambda: built("packing", "dgx1", "reduce"),
    "packed alltoall": lambda: built("packing", "mesh:2x3", "alltoall"),
    "packed scatter": lambda: built("packing", "mesh:2x3", "scatter"),
    "packed gather": lambda: built("packing", "mesh:2x3", "gather"),
    "greedy allgather": lambda: built("greedy", "mesh:2x3", "allgather"),
}


class Built(Mapping[str, Schedule]):
    """Schedules by name, each built when it is first asked for: collecting tests costs nothing."""

    def __init__(self, recipes: Mapping[str, Recipe]) -> None:
        self.recipes = recipes
        self.built: dict[str, Schedule] = {}

    def __getitem__(self, name: str) -> Schedule:
        if name not in self.built:
            self.built[name] = self.recipes[name]()
        return self.built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.recipes)

    def __len__(self) -> int:
        return len(self.recipes)


SCHEDULES = Built(ALLREDUCES | OTHERS)
