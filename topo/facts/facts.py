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

from ..errors import InputError
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
        known: dict[tuple[str, str], Fact] = {}
        for fact in self.items:
            if fact.value is not None:
                known.setdefault((fact.subject, fact.key), fact)
        return known

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
        reasons: dict[tuple[str, str], str] = {}
        for fact in self.items:
            if fact.missing is not None:
                reasons.setdefault((fact.subject, fact.key), fact.missing)
        return reasons

    @cached_property
    def missing(self) -> tuple[Fact, ...]:
        """Facts that were asked for and that no source knows."""
        return tuple(
            f for f in self.items if f.missing is not None and (f.subject, f.key) not in self._known
        )


# -- in a topology's JSON
# ----------------------------------------------------------------------------------------------


def facts_to_json(facts: Facts) -> list[dict[str, Any]]:
    """Return a JSON object per fact: subject, key, source, and `value` (number, text or list of
    texts) or `missing`.
    """
    entries: list[dict[str, Any]] = []
    for fact in facts.items:
        entry: dict[str, Any] = {
            "subject": fact.subject,
            "key": str(fact.key),
            "source": fact.source,
        }
        if fact.value is None:
            entry["missing"] = fact.missing or "not known"
        else:
            entry["value"] = list(fact.value) if isinstance(fact.value, tuple) else fact.value
        entries.append(entry)
    return entries


def facts_from_json(data: object, where: str) -> Facts:
    """Return the facts that `facts_to_json` wrote. Raises InputError, naming `where`, for anything
    else.
    """
    if not isinstance(data, list):
        raise InputError(
            f'{where}: "facts" must be a list of objects with subject, key, source and value or '
            "missing"
        )
    return Facts(
        tuple(_fact_from_json(entry, f"{where}: facts[{i}]") for i, entry in enumerate(data))
    )


def _fact_from_json(entry: object, where: str) -> Fact:
    if not isinstance(entry, Mapping):
        raise InputError(f"{where}: expected a JSON object, got {type(entry).__name__}")
    texts = {key: entry.get(key) for key in ("subject", "key", "source")}
    value, missing = entry.get("value"), entry.get("missing")
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = tuple(value)
    plain = value is None or (isinstance(value, (int, str, tuple)) and not isinstance(value, bool))
    if not plain or not all(isinstance(text, str) for text in texts.values()):
        raise InputError(
            f"{where}: expected texts for subject, key and source, and a number, text or list as "
            "value"
        )
    if missing is not None and not isinstance(missing, str):
        raise InputError(f"{where}.missing: expected a text that says why, got {missing!r:.40}")
    return Fact(str(texts["subject"]), str(texts["key"]), value, str(texts["source"]), missing)


def load_facts(extra: Mapping[str, Any], where: str) -> Facts:
    """Return the facts in a topology's `extra`, empty where it has none. Raises InputError, naming
    `where`, if malformed.
    """
    return facts_from_json(extra["facts"], where) if "facts" in extra else Facts()
