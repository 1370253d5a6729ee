"""Answers to why a run hangs, fails or is slow: what is asked, and what extras answer.

An extra is an optional part of topoplan; it answers by a function in the group `answers` (extras.py
at the root).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..extras import ANSWERS, Names

Sure = Literal["high", "medium", "low"]

# From the surest on.
_SURE: tuple[Sure, ...] = ("high", "medium", "low")
# Most characters of a text that are searched: half of them at its start, half at its end, where
# starts and failures are.
_MAX_CHARACTERS = 8 << 20


@dataclass(frozen=True)
class Question:
    """What is known of a run or a machine.

    `text` is what was printed (`cut_text` shortens it), "" if nothing was given. `findings` are the
    names of what topo-judge or the doctor (topo-probe --check) finds. `busbw_GBps` is the highest
    bus bandwidth that was measured, in GB/s, None without one.
    """

    text: str = ""
    findings: tuple[str, ...] = ()
    busbw_GBps: float | None = None


@dataclass(frozen=True)
class Answer:
    """Why something hangs, fails or is slow.

    `symptom` is its name for programs, `because` the cause in a sentence, `do` the remedy, `sure`
    how sure the cause is, and `source` the address of the public thread that found it. `line` is
    the line of the text that shows the symptom, from 1; None if other facts show it.
    """

    symptom: str
    because: str
    do: str
    sure: Sure
    source: str
    line: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the answer as a JSON object."""
        return dict(vars(self))


# What an extra adds.
Answerer = Callable[[Question], Iterable[Answer]]


def ask(question: Question) -> tuple[Answer, ...]:
    """Return the answers of all extras, the surest first; none if the cause is unknown."""
    names = Names(ANSWERS)
    answerers: list[Answerer] = [names.find(name) for name in names.describe()]
    answers = [answer for answerer in answerers for answer in answerer(question)]
    return tuple(sorted(answers, key=lambda answer: _SURE.index(answer.sure)))


def cut_text(text: str) -> str:
    """Return a text of which only the start and the end are kept if it is long (8 Mi characters).

    Empty lines take the place of what is left out, so that lines keep their numbers.
    """
    if len(text) <= _MAX_CHARACTERS:
        return text
    half = _MAX_CHARACTERS // 2
    return text[:half] + "\n" * text.count("\n", half, len(text) - half) + text[-half:]


def describe_answers(answers: Sequence[Answer], *, in_full: int = 1) -> list[str]:
    """Return lines of text: the first `in_full` answers with cause and remedy, then other symptoms.

    The others are on one line, each with how sure its cause is.
    """
    lines = []
    for number, answer in enumerate(answers[:in_full]):
        at = f" (line {answer.line})" if answer.line else ""
        lines += [
            f"{'or' if number else 'why'}, {answer.sure} certainty: {answer.because}"
            f"{at} [{answer.symptom}]",
            f"    -> {answer.do}",
            f"    found in {answer.source}",
        ]
    if left := answers[in_full:]:
        lines.append(f"or: {', '.join(f'{x.symptom} ({x.sure})' for x in left)}")
    return lines
