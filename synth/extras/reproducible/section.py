"""Store in a plan's file the bracketing (order of additions) that all its schedules share.

A section is what a plan has of an extra, in a field of its file; see synth/section.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from ....topo.errors import VerificationError
from ....topo.graph import Topology
from ....topo.schema import Label
from ...ir.schedule import Schedule
from ...plan import Plan
from ...section import SectionKind
from .bracketing import find_bracketing

# Bracketings are longer than this from 16 ranks on; messages show their beginning.
_SHOWN_CHARACTERS = 64


class ReproducibleFields(Struct, forbid_unknown_fields=True):
    """The promise of a reproducible plan: all its schedules add every element in one bracketing."""

    bracketing: Annotated[
        Label,
        Meta(
            description='such as "((0+1)+(2+3))"; of two operands that with the lowest rank comes '
            "first"
        ),
    ]


class ReproducibleField(Struct, forbid_unknown_fields=True):
    """The field `reproducible` of a plan's file."""

    reproducible: Annotated[
        ReproducibleFields | UnsetType,
        Meta(description="absent where an element's bits depend on its place in the buffer"),
    ] = UNSET


@dataclass(frozen=True)
class OneBracketing:
    """The bracketing in which all schedules of a plan add every element: a section of its file."""

    bracketing: str

    name, version, runner = "reproducible", 1, None

    def to_json(self, numbers: dict[Schedule, int]) -> dict[str, str]:
        """Return the field's JSON content; `numbers` are not needed."""
        return {"bracketing": self.bracketing}

    def verify(self, plan: Plan) -> None:
        """Raise VerificationError unless all schedules of the plan add in this bracketing."""
        for schedule in plan.schedules:
            if find_bracketing(schedule.uncut) != self.bracketing:
                is_long = len(self.bracketing) > _SHOWN_CHARACTERS
                shown = self.bracketing[:_SHOWN_CHARACTERS] + "..." * is_long
                raise VerificationError(
                    f"the plan says that it is reproducible, but its {schedule.label} schedule "
                    f"does not add in the bracketing {shown} everywhere"
                )

    def verify_rest(self, plan: Plan) -> None:
        """Do nothing: `verify` checks everything."""

    def find_waits_us(self, schedule: Schedule, topology: Topology) -> Fraction:
        """Return 0: no message waits for it."""
        return Fraction(0)

    def list_lines(self, plan: Plan) -> list[str]:
        """Return the line on the bracketing; `plan` is not needed."""
        return [
            f"reproducible: every element is added up as {self.bracketing}; bound and gap are of "
            "all schedules, reproducible or not"
        ]

    def list_figures(self, plan: Plan) -> dict[str, Any]:
        """Return the bracketing as a field of topo-synth's JSON; `plan` is not needed."""
        return {self.name: {"bracketing": self.bracketing}}


def _read(field: ReproducibleField, schedules: Sequence[Schedule], where: str) -> OneBracketing:
    assert field.reproducible is not UNSET
    return OneBracketing(field.reproducible.bracketing)


REPRODUCIBLE = SectionKind(ReproducibleField, _read)
