"""What a symptom is, and how a text, findings and rates show it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html import unescape
from itertools import accumulate

from ...answers import Answer, Question, Sure

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# What lines of different ranks differ in: deleted, many lines of a log are alike.
_NUMBERS = str.maketrans("", "", "0123456789abcdef")
# Most lines that are alike and are searched: a log of many ranks repeats each line for each.
_MAX_ALIKE = 16
# Longest line that is searched, and most of all lines that are at the start and the end of a text,
# in characters.
_MAX_LINE, _MAX_HALF = 4_000, 1 << 20


@dataclass(frozen=True)
class When:
    """A way in which a symptom shows: everything that is given here has to be met.

    `lines` are patterns (re, each within a line unless it says \\n) that all are found in the text,
    and `without` patterns that are not. `findings` are beginnings of names of findings. The highest
    measured bus bandwidth lies between the two of `busbw_GBps`, in GB/s.
    """

    lines: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    busbw_GBps: tuple[float, float] | None = None


@dataclass(frozen=True)
class Symptom:
    """An entry of the table: one way in `when` is enough for it to show.

    The others are those of an Answer (topo/answers.py).
    """

    name: str
    when: tuple[When, ...]
    because: str
    do: str
    sure: Sure
    source: str


@dataclass(frozen=True)
class Searched:
    """The lines of a text without those that repeat others, and the number of each."""

    text: str
    numbers: tuple[int, ...]

    def find_line(self, at: int) -> int:
        """Return the number of the line at an offset of `text`, as the user's text counts it."""
        return self.numbers[self.text.count("\n", 0, at)]


def condense(text: str) -> Searched:
    """Return what of a text is searched: without colours, HTML, and further lines that are alike.

    Empty lines are left out.
    """
    if "&gt;" in text or "&lt;" in text:
        text = unescape(text)
    seen = Counter[str]()
    lines = list[tuple[int, str]]()
    for number, line in enumerate(_ANSI.sub("", text).split("\n"), 1):
        key = line.translate(_NUMBERS)
        seen[key] += 1
        if line.strip() and seen[key] <= _MAX_ALIKE:
            lines.append((number, line[:_MAX_LINE].replace("\t", " ").rstrip()))
    first = _cut(lines)
    lines = [*lines[:first], *lines[max(first, len(lines) - _cut(lines[::-1])) :]]
    return Searched("\n".join(line for _, line in lines), tuple(n for n, _ in lines) or (1,))


def _cut(lines: list[tuple[int, str]]) -> int:
    """Return how many of the first lines are searched."""
    sums = accumulate(len(line) for _, line in lines)
    return sum(total <= _MAX_HALF for total in sums)


def find_answers(symptoms: tuple[Symptom, ...], question: Question) -> Iterator[Answer]:
    """Yield an answer for each symptom that shows, in the order of the table."""
    searched = condense(question.text)
    for symptom in symptoms:
        for when in symptom.when:
            if (at := _find(when, question, searched)) is not None:
                yield Answer(
                    symptom.name,
                    symptom.because,
                    symptom.do,
                    symptom.sure,
                    symptom.source,
                    searched.find_line(at) if when.lines else None,
                )
                break


def _find(when: When, question: Question, searched: Searched) -> int | None:
    """Return where in the text a way begins to show, 0 if it needs no text; None if it does not."""
    if when.busbw_GBps is not None:
        low, high = when.busbw_GBps
        if question.busbw_GBps is None or not low <= question.busbw_GBps <= high:
            return None
    if not all(any(x.startswith(begin) for x in question.findings) for begin in when.findings):
        return None
    found = []
    for pattern in when.lines:
        match = _compile(pattern).search(searched.text)
        if match is None:
            return None
        found.append(match.start())
    if any(_compile(pattern).search(searched.text) for pattern in when.without):
        return None
    return min(found, default=0)


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)
