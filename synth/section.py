"""Sections of plans: what extras add to them, each a field of a plan's file.

Extras, the optional features that extras.py at the root lists, add kinds of sections to its group
`sections`, by the name of the field: "spares" (plans for the loss of links), "reproducible" (one
bracketing of all additions), "concurrent" (limits on transfers at a time). A file with a section of
an extra that is not installed is read without it, and a warning says so. A runner is what carries
out a plan's schedules at run time (runtime/runners).
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
    """A section of a plan, equal and hashed by value.

    `name` is the field of the plan's file, `version` the lowest version of files that can have it.
    """

    name: str
    version: int

    @property
    def runner(self) -> str | None:
        """The name of the runner that alone keeps what is promised; None: any runner does."""

    def to_json(self, numbers: dict[Schedule, int]) -> Any:
        """Return the field's content.

        `numbers` maps the file's schedules to their places in it. Schedules that only the section
        has are added, and so get into the file.
        """

    def verify(self, plan: Plan) -> None:
        """Raise VerificationError unless what it says of its plan holds.

        That is asked of plans that are read and before they are saved.
        """

    def verify_rest(self, plan: Plan) -> None:
        """Verify, before the plan is saved, what `verify` leaves out as it takes long.

        Whoever reads a plan verifies these parts before using them. Raise VerificationError.
        """

    def find_waits_us(self, schedule: Schedule, topology: Topology) -> Fraction:
        """Return how many microseconds a schedule waits, beyond its cost, for what is promised."""

    def list_lines(self, plan: Plan) -> list[str]:
        """Return what a description of its plan says of it."""

    def list_figures(self, plan: Plan) -> dict[str, Any]:
        """Return the fields of topo-synth's JSON about its plan."""


@dataclass(frozen=True)
class SectionKind:
    """A kind of sections: `fields` declares the field, and `read` makes a section of it.

    `fields` is a Struct with the one field of the plan's file. `read` is given an instance of it,
    the schedules of the file in their order, and the file's name for errors.
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
    """Return the sections in the fields of a file, without those of extras that are not here.

    `fields` are those of sections, by name, `schedules` all of the file in their order; `where`
    names the file in errors. Raise InputError if a field is malformed.
    """
    names = Names(SECTIONS)
    kinds: dict[str, SectionKind] = {
        name: names.find(name) for name in names.describe() if name in fields
    }
    return tuple(
        kind.read(read_as({name: fields[name]}, kind.fields, where), schedules, where)
        for name, kind in kinds.items()
    )
