"""Store spares in a plan's file: plans for what is left if some links are lost.

A section is what a plan has of an extra, in a field of its file; see synth/section.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from ....topo.derived.lost_links import Link, Pair, PairRoutes
from ....topo.graph import Topology
from ....topo.schema import Label
from ...bounds.certificate import Bound, BoundFields, SinglePathBoundFields
from ...ir.schedule import Schedule
from ...plan import Plan, Spare, entries_to_json, read_entries
from ...plan_file import MAX_ENTRIES, EntryFields
from ...section import SectionKind, read_sections
from .left import ReachedRouter, without_links

# A spare for each link of a machine with some hundred GPUs, or each NIC of a larger one.
MAX_SPARES = 1024


class SpareFields(Struct, forbid_unknown_fields=True):
    """The plan for what is left if some links are lost, without what it shares with the plan."""

    lost: Annotated[
        list[tuple[Label, Label]],
        Meta(
            min_length=1,
            description="the links, by their devices; pairs of GPUs whose routes use one do not "
            "send to each other",
        ),
    ]
    bound: Annotated[BoundFields, Meta(description="of what is left, as that of the plan")]
    bound_one_way: Annotated[SinglePathBoundFields, Meta(description="as that of the plan")]
    entries: Annotated[list[EntryFields], Meta(min_length=1, max_length=MAX_ENTRIES)]
    reproducible: Annotated[
        dict[str, Any] | UnsetType,
        Meta(extra_json_schema={"$ref": "#/$defs/ReproducibleFields"}),
    ] = UNSET


class SparesField(Struct, forbid_unknown_fields=True):
    """The field `spares` of a plan's file."""

    spares: Annotated[
        Annotated[list[SpareFields], Meta(max_length=MAX_SPARES)] | UnsetType,
        Meta(description="plans to go on with after a lost link"),
    ] = UNSET


@dataclass(frozen=True)
class Spares:
    """All spares of a plan, as a section of its file."""

    spares: tuple[Spare, ...]

    name, version, runner = "spares", 2, None

    def to_json(self, numbers: dict[Schedule, int]) -> list[dict[str, Any]]:
        """Return the field's JSON content; `numbers` are those of the file's schedules."""
        return [
            {
                "lost": [list(link) for link in spare.lost],
                "bound": spare.bound.to_json(),
                "bound_one_way": spare.bound_one_way.to_json(),
                "entries": entries_to_json(spare.entries, numbers),
                **{section.name: section.to_json(numbers) for section in spare.extensions},
            }
            for spare in self.spares
        ]

    def verify(self, plan: Plan) -> None:
        """Do nothing: whoever uses a spare verifies it before, since there may be many."""

    def verify_rest(self, plan: Plan) -> None:
        """Verify all spares against `plan`, before it is saved; raise VerificationError."""
        for spare in self.spares:
            self.use(plan, spare).verify()

    def find_waits_us(self, schedule: Schedule, topology: Topology) -> Fraction:
        """Return 0: no message waits for it."""
        return Fraction(0)

    def list_lines(self, plan: Plan) -> list[str]:
        """Return no lines for the plan's description: `report_spares` prints them on request."""
        return []

    def list_figures(self, plan: Plan) -> dict[str, Any]:
        """Return no figures for the plan's JSON report: `report_spares` gives them on request."""
        return {}

    def find(self, plan: Plan, lost: Sequence[Link], unreached: Collection[Pair]) -> Plan | None:
        """Return the plan for exactly these `lost` links and `unreached` pairs; None without one.

        `unreached` are pairs of ranks, the lower first, that do not reach each other any more.
        """
        for spare in self.spares:
            if sorted(spare.lost) == sorted(lost):
                left = self.use(plan, spare)
                router = left.router
                is_same = isinstance(router, ReachedRouter) and router.unreached == {*unreached}
                return left if is_same else None
        return None

    def use(self, plan: Plan, spare: Spare) -> Plan:
        """Return the complete plan of a spare of `plan`, not yet verified."""
        left = without_links(plan.topology, spare.lost)
        unreached = frozenset(PairRoutes(plan.topology).find_unreached(spare.lost))
        return replace(
            plan,
            topology=left,
            entries=spare.entries,
            bound=spare.bound,
            bound_one_way=spare.bound_one_way,
            alternatives=(),
            router=ReachedRouter(left, unreached),
            extensions=spare.extensions,
        )


def _read(field: SparesField, schedules: Sequence[Schedule], where: str) -> Spares:
    return Spares(
        tuple(
            Spare(
                tuple(spare.lost),
                read_entries(spare.entries, schedules, where),
                Bound.from_fields(spare.bound),
                Bound.from_fields(spare.bound_one_way),
                read_sections(
                    {} if spare.reproducible is UNSET else {"reproducible": spare.reproducible},
                    schedules,
                    where,
                ),
            )
            for spare in field.spares or ()
        )
    )


SPARES = SectionKind(SparesField, _read)
