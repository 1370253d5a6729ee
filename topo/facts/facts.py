"""Facts about a machine: what is known of it and from which source, or why it is not known.

A probe never fails as a whole: where a question has no answer, the fact says so in `missing` and
the next one is asked. `keys.py` declares the subjects and keys. A topology keeps the facts that it
was made from in `extra["facts"]`, so that its JSON can be judged on another machine.
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
    """The answer to one question about one subject: a `value`, or the reason why it is `missing`.

    Subjects are paths such as `gpu/0`, `gpu/0/nvlink/3`, `pci/0000:07:00.0`, `numa/1`, `net/eth0`,
    `rdma/mlx5_0`. `source` is the NVML function or the file that was asked. Facts read from JSON
    may have keys not declared here.
    """

    subject: str
    key: str
    value: Value | None
    source: str
    missing: str | None = None


@dataclass(frozen=True)
class Facts:
    """Facts from one or several sources; where several give a value for the same key, the first one
    counts.
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
        """Return the names of the subjects under `top` (`gpu` gives `0`, `1`, ...), in the order of
        the facts.
        """
        return self._by_top.get(top, ())

    def get_text(self, subject: str, key: Key[Any]) -> str | None:
        """Return the value as text, None where it is not known or is a list."""
        fact = self._known.get((subject, key))
        return None if fact is None or isinstance(fact.value, tuple) else str(fact.value)

    def get_number(self, subject: str, key: Key[int]) -> int | None:
        """Return the value as a whole number, None where it is not known or not a number."""
        fact = self._known.get((subject, key))
        if fact is None or isinstance(fact.value, tuple):
            return None
        try:
            return int(str(fact.value), 0)
        except ValueError:
            return None

    def get_texts(self, subject: str, key: Key[tuple[str, ...]]) -> tuple[str, ...]:
        """Return the value as a tuple of texts, empty where it is not known or not a list."""
        fact = self._known.get((subject, key))
        return fact.value if fact is not None and isinstance(fact.value, tuple) else ()

    def join_texts(self, subject: str, key: Key[Any]) -> str:
        """Return the value as one text, a list joined by commas; empty where it is not known."""
        fact = self._known.get((subject, key))
        if fact is None:
            return ""
        return ", ".join(fact.value) if isinstance(fact.value, tuple) else str(fact.value)

    def get_source(self, subject: str, key: Key[Any]) -> str | None:
        """Return the source of the value, None where the value is not known."""
        fact = self._known.get((subject, key))
        return None if fact is None else fact.source

    def get_reason(self, subject: str, key: Key[Any]) -> str | None:
        """Return why the value is not known, None where it is known or was never asked for."""
        return None if (subject, key) in self._known else self._reasons.get((subject, key))

    @cached_property
    def _reasons(self) -> Mapping[tuple[str, str], str]:
        return {
            (f.subject, f.key): f.missing for f in reversed(self.items) if f.missing is not None
        }

    @cached_property
    def missing(self) -> tuple[Fact, ...]:
        """Facts that were asked for and that no source knows."""
        return tuple(
            f for f in self.items if f.missing is not None and (f.subject, f.key) not in self._known
        )


# -- in a topology's JSON


def facts_to_json(facts: Facts) -> list[dict[str, Any]]:
    """Return a JSON object per fact: subject, key, source, and `value` (number, text or list of
    texts) or `missing`.
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
    """A fact: a value, or why it is missing."""

    subject: str
    key: str
    source: str
    value: int | str | tuple[str, ...] | None = None
    missing: str | None = None


def facts_from_json(data: object, where: str) -> Facts:
    """Return the facts that `facts_to_json` wrote. Raises InputError, naming `where`, for anything
    else.
    """
    return Facts(
        tuple(
            Fact(r.subject, r.key, r.value, r.source, r.missing)
            for r in read_as(data, list[FactFields], f"{where}: facts")
        )
    )


def load_facts(extra: Mapping[str, Any], where: str) -> Facts:
    """Return the facts in a topology's `extra`, empty where it has none. Raises InputError, naming
    `where`, if malformed.
    """
    return facts_from_json(extra["facts"], where) if "facts" in extra else Facts()
