"""Names of strategies, known without importing them: their solvers take a second to import.

Strategies are built in, of users (decorated in this process, or of an installed package), or of
extras, the optional features that extras.py at the root lists. An extra adds strategies by name, or
by a prefix: "file" for strategies "file:PATH".
"""

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
# The strategies of users that the decorator `topoplan.strategy` has registered in this process.
DECORATED: dict[str, Strategy] = {}


def check_name(name: str) -> None:
    """Raise InputError unless `name` is auto, or a strategy: built-in, an extra's, or a user's."""
    # Built-in ones come first, since listing installed packages takes time.
    if find_prefix(name) is None and name not in (AUTO, *STRATEGY_NAMES, *DECORATED):
        installed = [point.name for point in entry_points(group=GROUP)]
        if name not in installed:
            raise refuse_unknown(name, [*STRATEGY_NAMES, *installed, *DECORATED])


def find_prefix(name: str) -> str | None:
    """Return the prefix by which an extra adds strategies, "file" of "file:ring.xml".

    None if the name has no colon, or what is before it is no extra's prefix. The extra need not be
    installed.
    """
    prefix, colon, _ = name.partition(":")
    return prefix if colon and prefix in Names(WORDS).list_all() else None


def refuse_unknown(name: str, names: Iterable[str]) -> InputError:
    """Return the error for a name that is no strategy's, or whose extra is not installed.

    `names` are those of all strategies; the error lists them and suggests the nearest.
    """
    added = Names(STRATEGIES)
    if name in added.list_all():
        return InputError(f"strategy {name}: {added.explain_missing(name)}")
    listed = list(dict.fromkeys(names))
    return InputError(
        f"unknown strategy {name!r}{suggest(name, [AUTO, *listed])}; expected auto or one of "
        f"{', '.join(listed)}"
    )
