"""Facts about the machine at hand: what is known, where from, and what could not be learned and why.

A probe never fails whole: where a question has no answer, the fact says so in `missing` and the next one is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

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


def read_fact(root: Path, path: Path, subject: str, key: str) -> Fact:
    """The stripped text of a file of the machine whose `/` is at `root`; unreadable or empty ones are missing."""
    source = shown_path(root, path)
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        return Fact(subject, key, None, source, error.strerror or str(error))
    return Fact(subject, key, text, source) if text else Fact(subject, key, None, source, "the file is empty")


def shown_path(root: Path, path: Path) -> str:
    """`path` as it is called on the machine whose `/` is at `root`."""
    return f"/{path.relative_to(root)}" if path.is_relative_to(root) else str(path)


def list_folder(folder: Path) -> tuple[Path, ...]:
    """What is in a folder, by name; nothing where it cannot be read."""
    try:
        return tuple(sorted(folder.iterdir()))
    except OSError:
        return ()
