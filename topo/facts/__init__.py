"""Facts about a machine: each value with its source, or the reason why it is missing.

A probe never fails as a whole: if a question has no answer, the fact gives the reason in `missing`
and the probe asks the next one. A subject is the thing that a fact is about, such as `gpu/0`, a key
what is asked about it; `keys.py` declares both, `view.py` looks up facts by device. A topology
stores the facts that it was made from in `extra["facts"]`, so that its JSON can be judged on
another machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from msgspec import Struct

from ..schema import read_as
from .keys import Key

Value = int | str | tuple[str, ...]


@dataclass(frozen=True)
class Fact:
    """The answer to one question about one subject: a `value`, or why it is `missing`.

    A subject is the thing that a fact is about, as a path: `gpu/0`, `gpu/0/nvlink/3`,
    `pci/0000:07:00.0`, `numa/1`, `net/eth0`, `rdma/mlx5_0`. `value` is None if it is missing.
    `source` is the NVML function or the file that was queried. Facts read from JSON may have keys
    not declared in `keys.py`.
    """

    subject: str
    key: str
    value: Value | None
    source: str
    missing: str | None = None


@dataclass(frozen=True)
class Facts:
    """Facts from one or several sources, looked up by their subject and key.

    If several sources give a value for the same subject and key, the first one counts.
    """

    items: tuple[Fact, ...] = ()

    def __add__(self, other: Facts) -> Facts:
        return Facts(self.items + other.items)

    @cached_property
    def _known(self) -> Mapping[tuple[str, str], Fact]:
        # reversed, since the first source that knows a value counts
        return {(f.subject, f.key): f for f in reversed(self.items) if f.value is not None}

    @cached_property
    def _by_top(self) -> Mapping[str, tuple[str, ...]]:
        tops: dict[str, dict[str, None]] = {}
        for fact in self.items:
            top, _, rest = fact.subject.partition("/")
            tops.setdefault(top, {})[rest.partition("/")[0]] = None
        return {top: tuple(names) for top, names in tops.items()}

    def list_names(self, top: str) -> tuple[str, ...]:
        """Return the names after `top` in subjects `top/NAME`, in the order of the facts.

        For example, `gpu` gives `0`, `1`, .... The result is empty if there are none.
        """
        return self._by_top.get(top, ())

    def get_text(self, subject: str, key: Key[Any]) -> str | None:
        """Return a fact's value as text, or None if it is unknown or a list."""
        fact = self._known.get((subject, key))
        return None if fact is None or isinstance(fact.value, tuple) else str(fact.value)

    def get_number(self, subject: str, key: Key[int]) -> int | None:
        """Return a fact's value as an integer, or None if it is unknown or not a number."""
        fact = self._known.get((subject, key))
        if fact is None or isinstance(fact.value, tuple):
            return None
        try:
            return int(str(fact.value), 0)
        except ValueError:
            return None

    def get_texts(self, subject: str, key: Key[tuple[str, ...]]) -> tuple[str, ...]:
        """Return a fact's value as a tuple of texts, empty if it is unknown or not a list."""
        fact = self._known.get((subject, key))
        return fact.value if fact is not None and isinstance(fact.value, tuple) else ()

    def join_texts(self, subject: str, key: Key[Any]) -> str:
        """Return a fact's value as one text, lists joined by commas; empty if it is unknown."""
        fact = self._known.get((subject, key))
        if fact is None:
            return ""
        return ", ".join(fact.value) if isinstance(fact.value, tuple) else str(fact.value)

    def get_source(self, subject: str, key: Key[Any]) -> str | None:
        """Return the source of a fact's value, or None if the value is unknown."""
        fact = self._known.get((subject, key))
        return None if fact is None else fact.source

    def get_reason(self, subject: str, key: Key[Any]) -> str | None:
        """Return why a fact's value is unknown, or None if it is known or was never queried."""
        return None if (subject, key) in self._known else self._reasons.get((subject, key))

    @cached_property
    def _reasons(self) -> Mapping[tuple[str, str], str]:
        return {
            (f.subject, f.key): f.missing for f in reversed(self.items) if f.missing is not None
        }

    @cached_property
    def missing(self) -> tuple[Fact, ...]:
        """The facts without a value that no other source supplies, each with its reason."""
        return tuple(
            f for f in self.items if f.missing is not None and (f.subject, f.key) not in self._known
        )


# -- in a topology's JSON


def facts_to_json(facts: Facts) -> list[dict[str, Any]]:
    """Return a list with a JSON object for each fact.

    Its fields are `subject`, `key`, `source`, and either `value` (a number, a text or a list of
    texts) or `missing` (the reason).
    """
    return [
        {
            "subject": fact.subject,
            "key": str(fact.key),
            "source": str(fact.source),
            **(
                {"missing": fact.missing or "not known"}
                if fact.value is None
                else {"value": list(fact.value) if isinstance(fact.value, tuple) else fact.value}
            ),
        }
        for fact in facts.items
    ]


class FactFields(Struct):
    """The JSON object of one fact, as `facts_from_json` accepts it; fields as in `Fact`."""

    subject: str
    key: str
    source: str
    value: int | str | tuple[str, ...] | None = None
    missing: str | None = None


def facts_from_json(data: object, where: str) -> Facts:
    """Return the facts in a list that `facts_to_json` wrote.

    Raise InputError if `data` has another form; its message begins with `where`, the name of the
    data's file or topology.
    """
    return Facts(
        tuple(
            Fact(r.subject, r.key, r.value, r.source, r.missing)
            for r in read_as(data, list[FactFields], f"{where}: facts")
        )
    )


def load_facts(extra: Mapping[str, Any], where: str) -> Facts:
    """Return the facts in `extra["facts"]` of a topology's `extra`, empty if it has none.

    Raise InputError if they are malformed; its message begins with `where`, the topology's name.
    """
    return facts_from_json(extra["facts"], where) if "facts" in extra else Facts()
