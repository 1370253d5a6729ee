"""Verdicts on whether two devices can use GPUDirect, combined from the answers of single rules."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Answer:
    """The answer of one rule: `yes`, `no` or `unknown`.

    `rule` is its reason in words (often empty for a yes), `evidence` the facts behind it, `advice`
    the remedy, None if there is none.
    """

    answer: str
    rule: str
    evidence: tuple[str, ...] = ()
    advice: str | None = None


@dataclass(frozen=True)
class Verdict:
    """Whether devices `a` and `b` (ids) can use GPUDirect of a `kind`, p2p or rdma.

    `answer` is yes, no or unknown; `rule` is the rule that decided, `evidence` the known facts
    about the pair, `advice` what to do, None if nothing.
    """

    kind: str
    a: str
    b: str
    answer: str
    rule: str
    evidence: tuple[str, ...]
    advice: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with the fields by their names, without `advice` if it is None."""
        fields = {**vars(self), "evidence": list(self.evidence)}
        return {name: value for name, value in fields.items() if value is not None}


def decide(known: tuple[str, ...], answers: Iterable[Answer], yes: Answer) -> Answer:
    """Combine the answers of several rules: the first no, else the first unknown, else `yes`.

    `yes` gets the evidence of all rules. `known` is evidence that comes first in every result.
    """
    given = list(answers)
    for answer in ("no", "unknown"):
        deciding = next((a for a in given if a.answer == answer), None)
        if deciding is not None:
            return replace(deciding, evidence=(*known, *deciding.evidence))
    return replace(
        yes,
        evidence=tuple(
            dict.fromkeys((*known, *(text for a in given for text in a.evidence), *yes.evidence))
        ),
    )
