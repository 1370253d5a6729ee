"""Public reports as questions: how many are answered, and none wrongly."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from topoplan.topo.answers import Question, ask

FOLDER = Path(__file__).parent
# How many of each group are answered, of how many.
COUNTS = {
    "used": (13, 13),
    "drawn-1": (9, 11),
    "drawn-2": (14, 15),
    "drawn-3": (11, 12),
    "drawn-4": (22, 28),
    "drawn-5": (17, 22),
    "drawn-6": (10, 14),
    "drawn-7": (7, 12),
}


@dataclass(frozen=True)
class Report:
    source: str
    drawn: str
    right: frozenset[str]
    text: str

    def ask(self) -> Literal["answered", "unknown", "wrong"]:
        """What the first answer is; none is right, or at least not wrong, where none is known."""
        answers = ask(Question(self.text))
        if not answers:
            return "unknown"
        return "answered" if answers[0].symptom in self.right else "wrong"


def read_parts(name: str) -> list[tuple[str, str]]:
    parts = (FOLDER / name).read_text(encoding="utf-8").split("=== ")[1:]
    return [(head, body) for head, _, body in (part.partition("\n") for part in parts)]


def read_reports() -> list[Report]:
    samples = {
        (head.split()[1], head.split()[0]): body
        for head, body in read_parts("samples.txt")
        if not head.startswith("not ")
    }
    reports = []
    for head, body in read_parts("reports.txt"):
        source, drawn, *right = head.partition(" | ")[0].split()
        text = body or samples[source, right[0]]
        reports.append(Report(source, drawn, frozenset(right), text))
    return reports


REPORTS = read_reports()


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.source)
def test_a_report_is_not_answered_wrongly(report: Report) -> None:
    assert report.ask() != "wrong"


def test_at_least_so_many_reports_are_answered() -> None:
    of = Counter(report.drawn for report in REPORTS)
    answered = Counter(report.drawn for report in REPORTS if report.ask() == "answered")
    assert {drawn: (answered[drawn], of[drawn]) for drawn in of} == COUNTS
    assert len({report.source for report in REPORTS}) == len(REPORTS)
