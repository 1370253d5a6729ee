"""Facts about the machine at hand: what is known, where from, and what could not be learned and why.

A probe never fails whole: where a question has no answer, the fact says so in `missing` and the next one is asked.
Which subjects and keys there are is in docs/facts.md. A topology keeps the facts that it was made of in
`extra["facts"]`, so that its JSON can be judged elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .errors import InputError

Value = int | str | tuple[str, ...]


@dataclass(frozen=True)
class Fact:
    """One thing about one subject: `value` with the `source` that said it, or the reason why it is `missing`.

    Subjects are paths such as `gpu/0`, `gpu/0/nvlink/3`, `pci/0000:07:00.0`, `numa/1`, `net/eth0`, `rdma/mlx5_0`.
    """

    subject: str
    key: str
    value: Value | None
    source: str
    missing: str | None = None


@dataclass(frozen=True)
class Facts:
    """Facts of one or several sources; where two speak of the same thing, the first that knows it counts."""

    items: tuple[Fact, ...] = ()

    def __add__(self, other: Facts) -> Facts:
        """These facts, then the other's."""
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

    def names(self, top: str) -> tuple[str, ...]:
        """Names of the subjects under `top` (`gpu` gives `0`, `1`, ...), in the order in which they were found."""
        return self._by_top.get(top, ())

    def text(self, subject: str, key: str) -> str | None:
        """The value as text, None where it is not known."""
        fact = self._known.get((subject, key))
        return None if fact is None or isinstance(fact.value, tuple) else str(fact.value)

    def number(self, subject: str, key: str) -> int | None:
        """The value as a whole number, None where it is not known or is none."""
        fact = self._known.get((subject, key))
        if fact is None or isinstance(fact.value, tuple):
            return None
        try:
            return int(str(fact.value), 0)
        except ValueError:
            return None

    def texts(self, subject: str, key: str) -> tuple[str, ...]:
        """The value as a tuple of texts, empty where it is not known."""
        fact = self._known.get((subject, key))
        return fact.value if fact is not None and isinstance(fact.value, tuple) else ()

    def source(self, subject: str, key: str) -> str | None:
        """Where the value is known from, None where it is not known."""
        fact = self._known.get((subject, key))
        return None if fact is None else fact.source

    def reason(self, subject: str, key: str) -> str | None:
        """Why the value is not known; None where it is known or was never asked for."""
        if (subject, key) in self._known:
            return None
        return next((f.missing for f in self.items if (f.subject, f.key) == (subject, key)), None)

    @cached_property
    def missing(self) -> tuple[Fact, ...]:
        """Facts that were asked for and not learned, from any source."""
        return tuple(f for f in self.items if f.missing is not None and (f.subject, f.key) not in self._known)


def ask(subject: str, key: str, source: str, call: Callable[[], Value], errors: tuple[type[Exception], ...]) -> Fact:
    """The fact that `call` answers, or why it does not: any of `errors` makes it a missing one."""
    try:
        return Fact(subject, key, call(), source)
    except errors as error:
        return Fact(subject, key, None, source, str(error) or type(error).__name__)


# -- in a topology's JSON ----------------------------------------------------------------------------------------------


def facts_to_json(facts: Facts) -> list[dict[str, Any]]:
    """A JSON object a fact: subject, key, source, and `value` (a number, a text or a list of texts) or `missing`."""
    out: list[dict[str, Any]] = []
    for fact in facts.items:
        told: dict[str, Any] = {"subject": fact.subject, "key": fact.key, "source": fact.source}
        if fact.value is None:
            told["missing"] = fact.missing or "not known"
        else:
            told["value"] = list(fact.value) if isinstance(fact.value, tuple) else fact.value
        out.append(told)
    return out


def facts_from_json(data: object, where: str) -> Facts:
    """What `facts_to_json` wrote. Raises InputError, naming `where`, for anything else."""
    if not isinstance(data, list):
        raise InputError(f'{where}: "facts" must be a list of objects with subject, key, source and value or missing')
    return Facts(tuple(_fact_from_json(entry, f"{where}: facts[{i}]") for i, entry in enumerate(data)))


def _fact_from_json(entry: object, where: str) -> Fact:
    if not isinstance(entry, Mapping):
        raise InputError(f"{where}: expected a JSON object, got {type(entry).__name__}")
    texts = {key: entry.get(key) for key in ("subject", "key", "source")}
    value, missing = entry.get("value"), entry.get("missing")
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = tuple(value)
    plain = value is None or (isinstance(value, (int, str, tuple)) and not isinstance(value, bool))
    if not plain or not all(isinstance(text, str) for text in texts.values()):
        raise InputError(f"{where}: expected texts for subject, key and source, and a number, text or list as value")
    if missing is not None and not isinstance(missing, str):
        raise InputError(f"{where}.missing: expected a text that says why, got {missing!r:.40}")
    return Fact(str(texts["subject"]), str(texts["key"]), value, str(texts["source"]), missing)


def facts_of(extra: Mapping[str, Any], where: str) -> Facts:
    """The facts that a topology's `extra` keeps; none where it keeps none."""
    return facts_from_json(extra["facts"], where) if "facts" in extra else Facts()
