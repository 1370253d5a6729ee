"""A verdict on whether two devices can use GPUDirect, and the answers of single rules that lead to one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What one rule says: `answer` is `yes`, `no` or `unknown`."""

    answer: str
    rule: str
    evidence: tuple[str, ...] = ()
    advice: str | None = None


@dataclass(frozen=True)
class Verdict:
    """Whether devices `a` and `b` (ids) can use GPUDirect of a `kind`, p2p or rdma: `answer` is yes, no or unknown.

    `rule` is what decided, `evidence` what is known of the pair, `advice` what to do about a no or an unknown.
    """

    kind: str
    a: str
    b: str
    answer: str
    rule: str
    evidence: tuple[str, ...]
    advice: str | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object with the fields by their names; `advice` only where there is some."""
        told: dict[str, Any] = {"kind": self.kind, "a": self.a, "b": self.b, "answer": self.answer, "rule": self.rule}
        told["evidence"] = list(self.evidence)
        return told | ({} if self.advice is None else {"advice": self.advice})


def decide(known: tuple[str, ...], answers: Iterable[Answer], yes: Answer) -> Answer:
    """The first no; without one the first unknown; without either `yes`, with the evidence of all rules.

    `known` is evidence that goes with any answer.
    """
    given = list(answers)
    for answer in ("no", "unknown"):
        found = next((a for a in given if a.answer == answer), None)
        if found is not None:
            return replace(found, evidence=(*known, *found.evidence))
    evidence = dict.fromkeys((*known, *(text for a in given for text in a.evidence), *yes.evidence))
    return replace(yes, evidence=tuple(evidence))
