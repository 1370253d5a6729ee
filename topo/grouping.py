"""Grouping of values by key."""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


def group_by_key(items: Iterable[tuple[_Key, _Value]]) -> dict[_Key, list[_Value]]:
    """Return the values of each key, both in their given order.

    The result is a defaultdict, so that any other key has an empty list.
    """
    groups: dict[_Key, list[_Value]] = defaultdict(list)
    for key, value in items:
        groups[key].append(value)
    return groups
