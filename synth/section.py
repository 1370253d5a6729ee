"""Sections: what plans have of extras, each a field of a plan's file.

Extras add their kinds to the group `sections` (extras.py at the root), by the name of the field. A
file with a section of an extra that is not here is read without it, and a warning says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..extras import SECTIONS, Names
from ..topo.schema import read_as

if TYPE_CHECKING:
    from fractions import Fraction

    from msgspec import Struct

    from ..topo.graph import Topology
    from .ir.schedule import Schedule
    from .plan import Plan


class PlanSection(Protocol):
    """What a plan has of an extra, equal and hashed by value.

    `name` is the field of the plan's file, `version` the lowest version of files that can have it.
    """

    name: str
    version: int

    @property
    def runner(self) -> str | None:
        """The runner that alone carries out the plan's schedules as promised; None: any does."""

    def to_json(self, numbers: dict[Schedule, int]) -> Any:
        """Return the field's content. `numbers` are the schedules' places in the file."""

    def verify(self, plan: Plan) -> None:
        """Raise VerificationError unless what it says of its plan holds."""

    def verify_rest(self, plan: Plan) -> None:
        """Verify what users of a plan that was read verify themselves, before it is saved."""

    def find_waits_us(self, schedule: Schedule, topology: Topology) -> Fraction:
        """Return how long a schedule waits, beyond its cost, for what is promised."""

    def list_lines(self, plan: Plan) -> list[str]:
        """Return what a description of its plan says of it."""

    def list_figures(self, plan: Plan) -> dict[str, Any]:
        """Return the fields of topo-synth's JSON about its plan."""


@dataclass(frozen=True)
class SectionKind:
    """A kind of sections: `fields` declares the field, and `read` makes a section of it.

    `read` is also given the schedules of the file, and the file's name for errors.
    """

    fields: type[Struct]
    read: Callable[[Any, Sequence[Schedule], str], PlanSection]


def split_fields(data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a plan's file that are the core's, and those of sections."""
    of_extras = Names(SECTIONS).list_all()
    own = {name: value for name, value in data.items() if name not in of_extras}
    return own, {name: data[name] for name in of_extras if name in data}


def list_missing(fields: Mapping[str, Any]) -> list[str]:
    """Return which fields are of extras that are not here, and why they are not read."""
    names = Names(SECTIONS)
    here = names.describe()
    return [f"{name}: {names.explain_missing(name)}" for name in fields if name not in here]


def read_sections(
    fields: Mapping[str, Any], schedules: Sequence[Schedule], where: str
) -> tuple[PlanSection, ...]:
    """Return the sections in the fields of a file, without those of extras that are not here."""
    names = Names(SECTIONS)
    kinds: dict[str, SectionKind] = {
        name: names.find(name) for name in names.describe() if name in fields
    }
    return tuple(
        kind.read(read_as({name: fields[name]}, kind.fields, where), schedules, where)
        for name, kind in kinds.items()
    )
