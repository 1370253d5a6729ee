"""The answers that the table of symptoms has."""

from __future__ import annotations

from collections.abc import Iterable

from ...answers import Answer, Question
from .symptom import find_answers
from .symptoms import SYMPTOMS


def answer(question: Question) -> Iterable[Answer]:
    """Return an answer for each symptom that shows, in the order of the table."""
    return find_answers(SYMPTOMS, question)
