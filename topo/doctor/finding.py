"""Findings of the doctor, their grouping, and the format of values in them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]

# From worst to least. An error breaks communication, or the topology contradicts itself or the
# hardware; a warning costs bandwidth or makes a model of the machine wrong; a note is worth a look.
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

# Maximum number of devices in a message: the GPUs of one box.
_NAMED = 8


@dataclass(frozen=True)
class Finding:
    """A problem of a machine.

    `what` is its kind (a fixed word such as `missing-bridge`) and `about` the ids of the devices.
    `message` describes the problem in one sentence, `evidence` contains "fact = value (source)"
    lines, and `advice` the remedy.
    """

    severity: Severity
    what: str
    about: tuple[str, ...]
    message: str
    evidence: tuple[str, ...]
    advice: str

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        return {
            "severity": self.severity,
            "what": self.what,
            "about": list(self.about),
            "message": self.message,
            "evidence": list(self.evidence),
            "advice": self.advice,
        }


# What makes findings equal, the devices concerned, and the evidence.
Case = tuple[Any, Collection[str], Collection[str]]


# -- values in messages


def shorten(value: object) -> str:
    """Return a value as one line, cut after 57 characters."""
    text = (
        " ".join(str(value).split())
        if isinstance(value, (str, int, float, list, tuple))
        else repr(value)
    )
    return repr(text) if not text else text if len(text) <= 60 else f"{text[:57]}..."


def format_GBps(rate: object) -> str:
    """Return a bandwidth with its unit, rounded to three decimals."""
    try:
        return f"{round(float(rate), 3):g} GB/s"  # type: ignore[arg-type]
    except OverflowError:
        return "more than 1e300 GB/s"


def join_names(ids: Sequence[str]) -> str:
    """Join the first eight ids with commas and append the number of the others."""
    more = len(ids) - _NAMED
    return ", ".join(ids[:_NAMED]) + (f" and {more} more" if more > 0 else "")
