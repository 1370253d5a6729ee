"""Names of strategies, known without importing them: their solvers take a second to import."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from ..extras import STRATEGIES, WORDS, Names
from ..topo.errors import InputError, suggest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .request import Strategy

AUTO = "auto"
# The entry points with which installed packages add strategies.
GROUP = f"topoplan.{STRATEGIES}"
# The built-in strategies, in the order in which auto tries them: where schedules are equally good,
# those of the first one are used. Extras' strategies come after the searches for the best rates.
STRATEGY_NAMES = (
    "packing",
    "chains",
    *Names(STRATEGIES).describe(),
    "hierarchical",
    "greedy",
    "ring",
    "double-tree",
    "recursive-doubling",
    "halving-doubling",
    "direct",
    "one-shot",
    "parameter-server",
)
# The strategies that `strategy` has registered in this process.
DECORATED: dict[str, Strategy] = {}


def check_name(name: str) -> None:
    """Raise InputError unless `name` is auto, or a strategy: built-in, an extra's, or a user's."""
    # Built-in ones come first, since listing installed packages takes time.
    if find_word(name) is None and name not in (AUTO, *STRATEGY_NAMES, *DECORATED):
        installed = [point.name for point in entry_points(group=GROUP)]
        if name not in installed:
            raise refuse_unknown(name, [*STRATEGY_NAMES, *installed, *DECORATED])


def find_word(name: str) -> str | None:
    """Return the word before a colon by which an extra adds strategies, None without one."""
    word, colon, _ = name.partition(":")
    return word if colon and word in Names(WORDS).list_all() else None


def refuse_unknown(name: str, names: Iterable[str]) -> InputError:
    """Return the error for a name that is not among those of strategies, or whose extra is gone."""
    added = Names(STRATEGIES)
    if name in added.list_all():
        return InputError(f"strategy {name}: {added.explain_missing(name)}")
    listed = list(dict.fromkeys(names))
    return InputError(
        f"unknown strategy {name!r}{suggest(name, [AUTO, *listed])}; expected auto or one of "
        f"{', '.join(listed)}"
    )
