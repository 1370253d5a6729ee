"""Layers go around calls in order, also around what one of them makes for another plan."""

from __future__ import annotations

from typing import Any, cast

from topoplan.runtime.layers import Layer, MakePath, wrap_all


class Named:
    """A way of calls that is its own name."""

    def __init__(self, name: str) -> None:
        self.name = name


class Around(Layer):
    """A layer that can make its way anew for another plan."""

    def __init__(self, name: str) -> None:
        super().__init__(cast(Any, None))
        self.name, self.make_path = name, cast(MakePath, None)

    def wrap(self, path: Any, make_path: MakePath) -> Any:
        self.make_path = make_path
        return Named(f"{self.name}({path.name})")


def test_the_first_layer_is_innermost_and_stays_so_for_another_plan() -> None:
    inner, outer = Around("inner"), Around("outer")

    def make(plan: Any, transport: Any, find_worth: Any) -> Any:
        return Named(f"{plan} over {transport}")

    first: Any = wrap_all(cast(Any, Named("plan")), [inner, outer], make)
    assert first.name == "outer(inner(plan))"
    nothing: Any = None
    anew: Any = outer.make_path(cast(Any, "spare"), cast(Any, "rest"), nothing)
    assert anew.name == "inner(spare over rest)"
    assert cast(Any, inner.make_path(cast(Any, "b"), cast(Any, "c"), nothing)).name == "b over c"
